"""Scores of draws: the CRPS of ensembles and the energy score, against pairwise tables and closed forms."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch.distributions import Bernoulli, Independent, Normal

from credibly.core.errors import NotFiniteError, NotSupportedError, ShapeError
from credibly.distributions.empirical import Empirical
from credibly.distributions.mixture import MixturePredictive
from credibly.metrics import energy
from credibly.metrics.energy import crps_ensemble, crps_ensemble_rows, energy_score, energy_score_rows


def _pairwise(draws: np.ndarray, y: np.ndarray, weights: np.ndarray, correction: float) -> np.ndarray:
    """The energy score of (num_draws, rows, dimensions) by the whole table."""
    far = np.linalg.norm(draws - y, axis=-1)
    near = np.linalg.norm(draws[:, None] - draws[None], axis=-1)
    return weights @ far - correction * np.einsum("i,j,ijr->r", weights, weights, near) / 2


@given(
    hnp.arrays(np.float64, (5, 2), elements=st.floats(-50, 50) | st.integers(-2, 2).map(float)),
    hnp.arrays(np.float64, 2, elements=st.floats(-50, 50)),
)
def test_crps_equals_the_pairwise_form(draws: np.ndarray, y: np.ndarray) -> None:
    weights = np.full(5, 0.2)
    for fair, correction in ((False, 1.0), (True, 5 / 4)):
        expected = _pairwise(draws[..., None], y[:, None], weights, correction)
        np.testing.assert_allclose(crps_ensemble_rows(draws, y, fair=fair).numpy(), expected, atol=1e-12)
        np.testing.assert_allclose(energy_score_rows(draws, y, fair=fair).numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_crps_of_many_draws_equals_the_pairwise_form(offset: float, dtype: torch.dtype, device: torch.device) -> None:
    draws = offset + torch.randn(300, 4, 2, dtype=dtype, device=device)
    y = offset + torch.randn(4, 2, dtype=dtype, device=device)
    wide, target = draws.double(), y.double()
    expected = (wide - target).abs().mean(0) - (wide.unsqueeze(0) - wide.unsqueeze(1)).abs().mean((0, 1)) / 2
    rows = crps_ensemble_rows(draws, y)
    assert rows.dtype == torch.float64
    tolerance = 1e-12 if dtype == torch.float64 else 1e-6
    torch.testing.assert_close(rows, expected.mean(1), rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(crps_ensemble(draws, y), expected.mean(), rtol=tolerance, atol=tolerance)


def test_crps_carries_gradients_to_the_draws(dtype: torch.dtype) -> None:
    """Half the sign of x - y, less the sign towards the other draws, each over their number."""
    draws = torch.tensor([[3.0], [-1.0], [0.5]], dtype=dtype, requires_grad=True)
    crps_ensemble(draws, torch.zeros(1, dtype=dtype)).backward()
    expected = torch.tensor([[1 / 3 - 2 / 9], [-1 / 3 + 2 / 9], [1 / 3]], dtype=dtype)
    torch.testing.assert_close(draws.grad, expected)


@pytest.mark.parametrize("fair", [False, True])
def test_energy_equals_the_pairwise_form(fair: bool, dtype: torch.dtype, device: torch.device) -> None:
    draws = torch.randn(6, 5, 3, dtype=dtype, device=device)
    y = torch.randn(5, 3, dtype=dtype, device=device)
    expected = _pairwise(
        draws.double().cpu().numpy(), y.double().cpu().numpy(), np.full(6, 1 / 6), 6 / 5 if fair else 1
    )
    rows = energy_score_rows(draws, y, fair=fair)
    assert rows.dtype == torch.float64
    np.testing.assert_allclose(rows.cpu().numpy(), expected, rtol=1e-12)
    assert float(energy_score(draws, y, fair=fair)) == pytest.approx(expected.mean())


def test_weighted_draws_and_several_axes() -> None:
    draws, y = torch.randn(4, 3, 2, 2, dtype=torch.float64), torch.randn(3, 2, 2, dtype=torch.float64)
    log_weights = torch.tensor([0.0, -1.0, 0.5, -math.inf], dtype=torch.float64)
    weights = torch.softmax(log_weights, 0).numpy()
    expected = _pairwise(draws.flatten(2).numpy(), y.flatten(1).numpy(), weights, 1.0)
    np.testing.assert_allclose(energy_score_rows(Empirical(draws, log_weights), y).numpy(), expected, rtol=1e-12)


def test_rows_do_not_depend_on_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    draws, y = torch.randn(5, 7, 3), torch.randn(7, 3)
    whole = energy_score_rows(draws, y)
    monkeypatch.setattr(energy, "CHUNK", 51)  # two rows at a time
    torch.testing.assert_close(energy_score_rows(draws, y), whole, rtol=1e-14, atol=0)


def test_the_fair_form_is_unbiased_for_a_gaussian_vector() -> None:
    """At its centre E|X| - E|X - X'|/2 = (1 - 1/sqrt 2) sqrt 2 Gamma(D/2 + 1/2)/Gamma(D/2) for D dimensions."""
    rows, dimensions = 20_000, 3
    draws = torch.randn(4, rows, dimensions, dtype=torch.float64)
    y = torch.zeros(rows, dimensions, dtype=torch.float64)
    norm = math.sqrt(2) * math.gamma(dimensions / 2 + 0.5) / math.gamma(dimensions / 2)
    expected = (1 - math.sqrt(0.5)) * norm
    fair, plain = energy_score_rows(draws, y, fair=True), energy_score_rows(draws, y)
    error = float(fair.std()) / math.sqrt(rows)  # 5 errors: a false alarm with probability 6e-7
    assert abs(float(fair.mean()) - expected) < 5 * error
    assert float(plain.mean()) > expected + 5 * error
    distribution = Independent(Normal(y, torch.ones_like(y)), 1)
    sampled = energy_score_rows(distribution, y, num_draws=4, fair=True, seed=3)
    assert abs(float(sampled.mean()) - expected) < 5 * float(sampled.std()) / math.sqrt(rows)


def test_draws_are_seeded(dtype: torch.dtype) -> None:
    components = Normal(torch.randn(3, 5, 2, dtype=dtype), torch.ones(3, 5, 2, dtype=dtype))
    y = torch.randn(5, 2, dtype=dtype)
    for d in (
        MixturePredictive(Independent(components, 1)),
        Independent(Normal(components.loc[0], components.scale[0]), 1),
        Empirical(components.loc),
    ):
        state = torch.get_rng_state()
        first = energy_score_rows(d, y, num_draws=11, seed=5)
        assert torch.equal(state, torch.get_rng_state())
        assert torch.equal(first, energy_score_rows(d, y, num_draws=11, seed=5))
        assert not torch.equal(first, energy_score_rows(d, y, num_draws=11, seed=6))


def test_what_they_refuse() -> None:
    draws, y = torch.zeros(3, 2, 2), torch.zeros(2, 2)
    for score in (crps_ensemble, energy_score):
        with pytest.raises(ShapeError):
            score(draws, torch.zeros(2, 3))
        with pytest.raises(NotFiniteError):
            score(draws, torch.full((2, 2), math.nan))
        with pytest.raises(NotFiniteError):
            score(torch.full((3, 2, 2), math.inf), y)
        with pytest.raises(ValueError, match="at least 2 draws; got 1"):
            score(draws[:1], y, fair=True)
        with pytest.raises(ValueError, match="at least one draw"):
            score(draws[:0], y)
        with pytest.raises(ShapeError, match="at least one row"):
            score(draws[:, :0], y[:0])
    with pytest.raises(ValueError, match="num_draws"):
        energy_score(draws, y, num_draws=3)
    with pytest.raises(ValueError, match="num_draws"):
        energy_score(Empirical(draws), y, num_draws=0)
    with pytest.raises(NotSupportedError, match="equally weighted"):
        energy_score(Empirical(draws, [0.0, 0.0, 1.0]), y, fair=True)
    with pytest.raises(NotSupportedError, match="classes: use brier"):
        energy_score(Bernoulli(torch.tensor([0.5, 0.5])), [0, 1])
