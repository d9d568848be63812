"""Chains from anywhere: dimensions chain, draw, then the parameter's; unequal chains never become draws."""

import numpy as np
import pytest
import torch

from credibly.core.errors import ShapeError
from credibly.diagnostics import draws_to_arviz
from credibly.diagnostics.arviz_versions import arviz
from credibly.metrics import ess, rhat


def test_chains_of_unequal_lengths_are_refused_or_trimmed():
    chains = [torch.arange(7.0), torch.arange(6.0) + 10]
    with pytest.raises(ShapeError, match=r"same number of draws.*'theta': \[7, 6\]"):
        draws_to_arviz({"theta": chains})
    with pytest.warns(UserWarning, match=r"\[7, 6\].*cut to 6"):
        trimmed = draws_to_arviz({"theta": chains}, trim=True)
    theta = trimmed.posterior["theta"]
    assert theta.dims == ("chain", "draw")
    assert theta.shape == (2, 6)
    assert theta.mean("draw").values.tolist() == [2.5, 12.5]
    assert torch.equal(chains[0], torch.arange(7.0)), "the caller's chains stay whole"


def test_one_long_chain():
    values = torch.randn(20_000)
    for draws in (values.unsqueeze(0), [values], values.numpy()[None]):
        theta = draws_to_arviz({"theta": draws}).posterior["theta"]
        assert theta.shape == (1, 20_000)
        assert float(theta.mean()) == pytest.approx(float(values.mean()), abs=1e-6)


def test_parameter_axes_come_last():
    values = torch.randn(4, 50, 3, 2, dtype=torch.float64)
    for draws in (values, list(values), [chain.numpy() for chain in values]):
        weights = draws_to_arviz({"w": draws}).posterior["w"]
        assert weights.dims == ("chain", "draw", "w_dim_0", "w_dim_1")
        assert weights.dtype == np.float64
        assert np.array_equal(weights.values, values.numpy())
        np.testing.assert_allclose(weights.mean("draw").values, values.mean(1).numpy(), rtol=1e-12)


def test_more_chains_than_draws_and_several_parameters():
    both = draws_to_arviz({"a": torch.randn(10, 4), "b": torch.randn(10, 4, 5)}, trim=True).posterior
    assert both["a"].shape == (10, 4)
    assert both["b"].shape == (10, 4, 5)


def test_arviz_and_this_library_say_the_same_of_the_chains():
    values = torch.randn(4, 100, 3, dtype=torch.float64)
    exported = draws_to_arviz({"w": values})
    torch.testing.assert_close(torch.tensor(arviz.ess(exported.posterior)["w"].values), ess(values))
    torch.testing.assert_close(torch.tensor(arviz.rhat(exported.posterior)["w"].values), rhat(values))


@pytest.mark.parametrize(
    ("draws", "match"),
    [
        ({"a": torch.zeros(5)}, r"`draws\['a'\]` must have shape \(chains, draws"),
        ({"a": [torch.zeros(5), torch.zeros(5, 2)]}, "one parameter shape"),
        ({"a": torch.zeros(2, 5), "b": torch.zeros(3, 5)}, "same number of chains"),
        ({"a": torch.zeros(2, 5), "b": torch.zeros(2, 4)}, "same number of draws"),
        ({"a": [torch.tensor(1.0)]}, "chains of shape"),
        ({"a": []}, "chains of shape"),
        ({"a": torch.zeros(2, 0)}, "chains of shape"),
    ],
)
def test_refusals(draws, match):
    with pytest.raises(ShapeError, match=match):
        draws_to_arviz(draws)


def test_draws_without_names():
    with pytest.raises(TypeError, match=r"`draws` must be a mapping of names to arrays, \{'name': array\}; got Tensor"):
        draws_to_arviz(torch.ones(2, 5))


def test_no_parameter():
    with pytest.raises(ValueError, match="at least one parameter"):
        draws_to_arviz({})
