"""Empirical distributions, quantile forecasts and views in other units."""

import math

import numpy as np
import pytest
import torch
from distribution_cases import ALL, PREDICTIVE, build, targets
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch.distributions import Gamma, Independent, Normal, Poisson

from credibly.core.errors import NotSupportedError, ShapeError, SupportError
from credibly.distributions.affine import AffineView, affine
from credibly.distributions.cumulative import cdf, icdf
from credibly.distributions.density import log_prob
from credibly.distributions.empirical import Empirical
from credibly.distributions.entry import from_draws, from_probs, from_quantiles
from credibly.distributions.kinds import kind
from credibly.distributions.mixture import MixturePredictive
from credibly.distributions.moments import entropy, mean, variance
from credibly.distributions.operations import Operation
from credibly.distributions.predictive import Predictive
from credibly.distributions.quantiles import QuantileForecast


@given(
    hnp.arrays(np.float64, (7, 2), elements=st.integers(-5, 5).map(float)),
    st.one_of(st.none(), hnp.arrays(np.float64, 7, elements=st.floats(-5, 0))),
    st.integers(-6, 6),
    st.floats(0, 1),
)
def test_ecdf_and_its_inverse(draws: np.ndarray, log_w: np.ndarray | None, y: int, q: float) -> None:
    d = Empirical(draws, log_w)
    w = np.full(7, 1 / 7) if log_w is None else np.exp(log_w) / np.exp(log_w).sum()
    expected = (w[:, None] * (draws <= y)).sum(0)
    np.testing.assert_allclose(cdf(d, float(y)).numpy(), expected, atol=1e-12)
    quantile = icdf(d, q)
    assert bool((cdf(d, quantile) >= q).all())
    lower = torch.from_numpy(np.sort(draws, 0))
    for row in range(2):
        below = lower[lower[:, row] < quantile[row], row]
        if len(below):
            assert float(cdf(d, float(below[-1]))[row]) < q
    level = cdf(d, torch.from_numpy(draws[3]))
    assert bool((icdf(d, level) == torch.from_numpy(draws[3])).all() or log_w is not None)


def test_empirical_moments_are_weighted(dtype: torch.dtype) -> None:
    draws = torch.tensor([[0.0], [1.0], [5.0]], dtype=dtype)
    d = Empirical(draws, torch.log(torch.tensor([0.5, 0.25, 0.25])))
    assert float(d.mean) == pytest.approx(1.5)
    assert float(d.variance) == pytest.approx(0.5 * 2.25 + 0.25 * 0.25 + 0.25 * 12.25)
    assert d.mean.dtype == dtype
    assert float(from_draws(draws).variance) == pytest.approx(float(draws.var(correction=0)))


def test_draws_far_from_zero_keep_their_variance() -> None:
    assert float(from_draws(1e4 + torch.tensor([[0.0], [1.0]])).variance) == 0.25


def test_integer_draws_and_lists_are_numbers() -> None:
    d = from_draws([[1, 2], [3, 4]])
    assert d.mean.tolist() == [2.0, 3.0]
    assert from_draws(np.asfortranarray(np.arange(6.0).reshape(3, 2))).mean.tolist() == [2.0, 3.0]


def test_what_draws_cannot_give_is_refused() -> None:
    d = from_draws(torch.zeros(3, 2))
    for refused in (lambda: d.log_prob([0.0, 0.0]), d.entropy, d.mutual_information, lambda: d.aleatoric_variance):
        with pytest.raises(NotSupportedError, match="is not available for Empirical"):
            refused()
    with pytest.raises(ShapeError, match=r"\(num_draws, batch, \*event\); got \(3,\)"):
        from_draws(torch.zeros(3))
    with pytest.raises(ValueError, match="at least one draw"):
        from_draws(torch.zeros(0, 3))


def test_crossing_quantiles_are_sorted(dtype: torch.dtype) -> None:
    values = torch.tensor([[3.0, 1.0, 2.0], [0.0, 0.0, 4.0]], dtype=dtype)
    d, kept = from_quantiles([0.1, 0.5, 0.9], values), values.clone()
    assert d.values.tolist() == [[1.0, 2.0, 3.0], [0.0, 0.0, 4.0]]
    assert torch.equal(values, kept)
    lower, upper = d.interval(0.8)
    assert lower.tolist() == [1.0, 0.0]
    assert upper.tolist() == [3.0, 4.0]


def test_quantiles_interpolate_linearly(dtype: torch.dtype) -> None:
    d = from_quantiles([0.1, 0.5, 0.9], torch.tensor([[0.0, 1.0, 3.0], [0.0, 0.0, 4.0]], dtype=dtype))
    assert icdf(d, 0.3).tolist() == pytest.approx([0.5, 0.0])
    assert icdf(d, [[0.7], [0.5]]).reshape(-1).tolist() == pytest.approx([2.0, 2.0, 1.0, 0.0])
    assert cdf(d, [0.5, 0.0]).tolist() == pytest.approx([0.3, 0.5])
    assert cdf(d, [3.0, 4.0]).tolist() == pytest.approx([0.9, 0.9])
    assert cdf(d, torch.tensor([[0.0, 1.0], [1.0, 2.0]], dtype=dtype)).flatten().tolist() == pytest.approx(
        [0.1, 0.6, 0.5, 0.7]
    )


def test_infinite_quantiles_stay_infinite() -> None:
    d = from_quantiles([0.1, 0.9], [[-math.inf, math.inf]])
    lower, upper = affine(d, 1.0, 2.0).interval(0.8)
    assert (float(lower), float(upper)) == (-math.inf, math.inf)


@pytest.mark.parametrize("q", [0.05, 0.95, 0.0, 1.0])
def test_levels_beyond_the_outer_ones_are_refused(q: float) -> None:
    d = from_quantiles([0.1, 0.9], [[0.0, 1.0]])
    with pytest.raises(ValueError, match=r"outer levels, 0\.1 and 0\.9"):
        icdf(d, q)


def test_what_quantiles_cannot_give_is_refused() -> None:
    d = from_quantiles([0.1, 0.9], [[0.0, 1.0]])
    with pytest.raises(ValueError, match=r"below 0\.1 or above 0\.9"):
        cdf(d, 2.0)
    for refused in (lambda: d.log_prob([0.5]), lambda: d.mean, d.sample, d.entropy):
        with pytest.raises(NotSupportedError, match="is not available for QuantileForecast"):
            refused()
    for levels in ([0.9, 0.1], [0.0, 0.5], [0.5, 0.5], [0.5, math.nan]):
        with pytest.raises(ValueError, match="must increase strictly"):
            from_quantiles(levels, [[0.0, 1.0]])
    for levels, values in (([0.5], [[0.0, 1.0]]), ([0.1, 0.9], [0.0, 1.0]), ([], np.zeros((3, 0)))):
        with pytest.raises(ShapeError, match="`levels`"):
            from_quantiles(levels, values)
    assert float(icdf(from_quantiles([0.5], [[2.0]]), 0.5)) == 2


REAL = [
    n
    for n in ALL
    if n not in ("class_event", "classes") and not any(w in n for w in ("oisson", "geom", "inomial", "ern", "categ"))
]
SHIFT, SCALE = -3.0, 2.5


@pytest.mark.parametrize("name", REAL)
def test_other_units_follow_the_change_of_variables(name: str, dtype: torch.dtype, device: torch.device) -> None:
    d = build(name, dtype, device)
    view = affine(d, SHIFT, SCALE)
    assert (view.batch_shape, view.event_shape, kind(view)) == (d.batch_shape, d.event_shape, "real")
    y = targets(d)
    torch.testing.assert_close(icdf(view, 0.3), SHIFT + SCALE * icdf(d, 0.3), rtol=1e-4, atol=1e-5)
    if "empirical" not in name:
        torch.testing.assert_close(cdf(view, SHIFT + SCALE * y), cdf(d, y), rtol=1e-4, atol=1e-5)
    if not isinstance(d, QuantileForecast):
        torch.testing.assert_close(mean(view), SHIFT + SCALE * mean(d), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(variance(view), SCALE**2 * variance(d), rtol=1e-4, atol=1e-5)
    if not isinstance(d, QuantileForecast | Empirical):
        size = d.event_shape.numel()
        expected = log_prob(d, y) - size * math.log(SCALE)
        torch.testing.assert_close(log_prob(view, SHIFT + SCALE * y), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", [n for n in PREDICTIVE if n in REAL and n != "view_gamma" and n != "view_outputs"])
def test_other_units_keep_the_form(name: str, dtype: torch.dtype, device: torch.device) -> None:
    d = build(name, dtype, device)
    view = affine(d, SHIFT, SCALE)
    assert type(view) is type(d)
    if hasattr(d, "num_draws") and "empirical" not in name:
        y = targets(d)
        expected = d.joint_log_prob(y) - y.numel() * math.log(SCALE)
        torch.testing.assert_close(view.joint_log_prob(SHIFT + SCALE * y), expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(view.epistemic_variance, SCALE**2 * d.epistemic_variance, rtol=1e-4, atol=1e-5)


def test_families_closed_under_the_map_stay_plain() -> None:
    base = Normal(torch.zeros(3, 2), torch.ones(3, 2))
    view = affine(Independent(base, 1), [1.0, 2.0], [3.0, 4.0])
    assert isinstance(view, Independent)
    assert isinstance(view.base_dist, Normal)
    assert view.base_dist.loc[0].tolist() == [1.0, 2.0]
    assert view.base_dist.scale[0].tolist() == [3.0, 4.0]
    twice = affine(affine(Gamma(torch.ones(2), torch.ones(2)), 1.0, 2.0), 3.0, 4.0)
    assert isinstance(twice.base, Gamma)
    assert (twice.loc.tolist(), twice.scale.tolist()) == ([7.0, 7.0], [8.0, 8.0])


class Opaque(Predictive):
    """A form of a user that nothing knows how to map."""

    def __init__(self, inner: MixturePredictive) -> None:
        super().__init__(inner.batch_shape, inner.event_shape)
        self.inner = inner

    support = property(lambda self: self.inner.support)
    aleatoric_variance = property(lambda self: self.inner.aleatoric_variance)
    epistemic_variance = property(lambda self: self.inner.epistemic_variance)

    def joint_log_prob(self, value: torch.Tensor) -> torch.Tensor:
        return self.inner.joint_log_prob(value)

    def _draw(self, shape: torch.Size) -> torch.Tensor:
        return self.inner._draw(shape)


def test_a_view_passes_on_what_its_base_can_give(dtype: torch.dtype, device: torch.device) -> None:
    inner = build("mixture_normal", dtype, device)
    view = affine(Opaque(inner), SHIFT, SCALE)
    assert isinstance(view, AffineView)
    y = targets(inner)
    torch.testing.assert_close(view.aleatoric_variance, SCALE**2 * inner.aleatoric_variance)
    torch.testing.assert_close(view.epistemic_variance, SCALE**2 * inner.epistemic_variance)
    expected = inner.joint_log_prob(y) - 4 * math.log(SCALE)
    torch.testing.assert_close(view.joint_log_prob(SHIFT + SCALE * y), expected)
    assert view.draw((3,)).shape == (3, 4)
    with pytest.raises(NotSupportedError, match="cdf is not available for Opaque"):
        view.cdf(0.0)
    plain = AffineView(Gamma(torch.ones(2), torch.ones(2)), 0.0, 1.0)
    for refused in (lambda: plain.epistemic_variance, lambda: plain.joint_log_prob([1.0, 1.0])):
        with pytest.raises(NotSupportedError, match="AffineView"):
            refused()


def test_entropy_shifts_by_log_scale() -> None:
    gamma = Gamma(torch.full((2,), 2.0), torch.ones(2))
    torch.testing.assert_close(entropy(AffineView(gamma, 1.0, 4.0)), gamma.entropy() + math.log(4))


def test_units_that_make_no_sense_are_refused() -> None:
    d = Normal(torch.zeros(3), torch.ones(3))
    for loc, scale in ((0.0, 0.0), (0.0, -1.0), (math.nan, 1.0), (0.0, math.inf)):
        with pytest.raises(ValueError, match="`scale` finite and above 0"):
            affine(d, loc, scale)
    with pytest.raises(ShapeError, match=r"`loc` must broadcast to \(3,\); got \(2,\)"):
        affine(d, [0.0, 1.0], 1.0)
    with pytest.raises(NotSupportedError, match="Poisson is over counts"):
        affine(Poisson(torch.ones(3)), 0.0, 2.0)
    with pytest.raises(NotSupportedError, match="Bernoulli is over classes"):
        affine(from_probs([0.5]), 0.0, 2.0)


def test_every_operation_refuses_a_form_that_registered_nothing(dtype: torch.dtype, device: torch.device) -> None:
    opaque = Opaque(build("mixture_normal", dtype, device))
    for operation in (mean, variance, entropy):
        assert isinstance(operation, Operation)
        with pytest.raises(NotSupportedError, match="Opaque"):
            operation(opaque)
    for call in (opaque.log_prob, opaque.cdf, lambda _: opaque.icdf(0.5)):
        with pytest.raises(NotSupportedError, match="Opaque"):
            call(torch.zeros(4, dtype=dtype, device=device))


def test_a_view_states_its_own_support() -> None:
    view = AffineView(Gamma(torch.ones(1), torch.ones(1)), 1.0, 2.0)
    assert view.support.lower_bound.tolist() == [1.0]
    with pytest.raises(SupportError, match=r"target 0\.5 lies outside the support of Gamma: numbers of 1 or more"):
        view.log_prob([0.5])
    outputs = AffineView(Independent(Gamma(torch.ones(3, 2), torch.ones(3, 2)), 1), 1.0, 2.0)
    assert outputs.support.event_dim == 1
    with pytest.raises(SupportError, match="bounds that depend on the row"):
        outputs.log_prob(torch.zeros(3, 2))
