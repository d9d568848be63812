"""Effective sample sizes, R-hat and standard errors of chains, against ArviZ and against known answers."""

import numpy as np
import pytest
import torch

from credibly.core.errors import NotFiniteError, ShapeError
from credibly.diagnostics.arviz_versions import arviz
from credibly.metrics import convergence, ess, mcse, rhat

ESS_KINDS = ["bulk", "tail", "mean", "sd", "median"]
MCSE_KINDS = ["mean", "sd", "median"]


def autoregressive(chains, draws, rho, parameters=1, seed=0):
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(chains, draws, parameters, generator=generator, dtype=torch.float64)
    values = noise.clone()
    values[:, 0] /= (1 - rho**2) ** 0.5
    for step in range(1, draws):
        values[:, step] = rho * values[:, step - 1] + noise[:, step]
    return values


def kinds_of_draws(chains, draws, rho):
    """A normal one, one with ties, one of two values, one with heavy tails, and one whose chains disagree."""
    values = autoregressive(chains, draws, rho, 5, seed=draws)
    values[..., 1] = values[..., 1].round()
    values[..., 2] = (values[..., 2] > 0).double()
    values[..., 3] = values[..., 3].tan()
    values[..., 4] += torch.arange(chains).unsqueeze(-1)
    return values


def of_arviz(function, draws, **options):
    columns = np.moveaxis(draws.numpy(), -1, 0)
    with np.errstate(all="ignore"):
        return torch.tensor([float(function(column, **options)) for column in columns], dtype=torch.float64)


@pytest.mark.parametrize(("chains", "draws"), [(1, 4), (1, 5), (2, 7), (3, 101), (4, 200), (1, 1000)])
@pytest.mark.parametrize("rho", [-0.9, 0.0, 0.5, 0.95])
def test_equal_to_arviz(chains, draws, rho):
    values = kinds_of_draws(chains, draws, rho)
    for kind in ESS_KINDS:
        levels = {"prob": (0.05, 0.95)} if kind == "tail" else {}
        theirs = of_arviz(arviz.ess, values, method=kind, **levels)
        torch.testing.assert_close(ess(values, kind=kind), theirs, rtol=1e-9, atol=0)
    for kind in MCSE_KINDS:
        theirs = of_arviz(arviz.mcse, values, method=kind).nan_to_num()  # theirs is 0 / 0 for equal draws
        torch.testing.assert_close(mcse(values, kind=kind), theirs, rtol=1e-9, atol=1e-12)
    if chains > 1:
        torch.testing.assert_close(rhat(values), of_arviz(arviz.rhat, values), rtol=1e-9, atol=0, equal_nan=True)


def test_batched_over_parameter_axes_in_blocks(monkeypatch):
    values = autoregressive(3, 50, 0.4, 12)
    flat = ess(values)
    monkeypatch.setattr(convergence, "_BLOCK", 700)
    table = values.reshape(3, 50, 2, 3, 2)
    for result, reference in ((ess(table), flat), (rhat(table), rhat(values)), (mcse(table), mcse(values))):
        assert result.shape == (2, 3, 2)
        assert torch.equal(result.flatten(), reference)
    assert ess(values[..., 0]).shape == ()
    swapped = values.transpose(0, 1).contiguous().transpose(0, 1)
    assert torch.equal(ess(swapped), flat)


def test_single_precision_is_computed_in_double(dtype):
    values = autoregressive(2, 100, 0.2, 3).to(dtype)
    before = values.clone()
    for function in (ess, rhat, mcse):
        result = function(values)
        assert result.dtype == torch.float64
        torch.testing.assert_close(result, function(values.double()), rtol=1e-12, atol=0)
    assert torch.equal(values, before)


def test_known_answers():
    # an autoregressive chain is worth (1 - rho) / (1 + rho) of its draws; over 200 parameters the mean of the estimate
    # is within five standard errors (one seed in 1.7 million) plus the estimator's own bias, below 2 % here
    values = autoregressive(4, 2000, 0.6, 200, seed=3)
    share = ess(values, kind="mean") / 8000
    assert abs(share.mean() - 0.25) < 5 * share.std() / 200**0.5 + 0.02 * 0.25
    independent = autoregressive(4, 1000, 0.0, 200, seed=4)
    assert (rhat(independent) < 1.02).all()
    shifted = independent + 3 * torch.arange(4.0).reshape(4, 1, 1)
    assert (rhat(shifted) > 1.5).all()
    spread = independent * torch.tensor([1.0, 1.0, 1.0, 5.0]).reshape(4, 1, 1)
    assert (rhat(spread) > 1.1).all(), "equal means and different spreads are found by the folded draws"


def test_standard_errors_are_those_of_repetition():
    # the spread over 300 parameters of what is estimated, whose own relative error is 1 / sqrt(2 * 299) = 4 %
    values = autoregressive(4, 500, 0.5, 300, seed=5)
    flat = values.flatten(0, 1)
    estimates = {"mean": flat.mean(0), "sd": flat.std(0), "median": flat.quantile(0.5, dim=0)}
    for kind, estimate in estimates.items():
        ratio = mcse(values, kind=kind).mean() / estimate.std()
        assert abs(ratio - 1) < 5 * 0.041 + 0.05, kind


def test_one_chain_is_judged_by_its_halves():
    values = autoregressive(1, 400, 0.0, 2)
    values[:, 200:, 1] += 3
    result = rhat(values)
    assert result[0] < 1.02
    assert result[1] > 1.5


def test_constant_chains():
    equal = torch.full((2, 10), 3.0)
    assert ess(equal) == 20
    assert ess(equal, kind="tail") == 20
    assert torch.isnan(rhat(equal))
    with np.errstate(invalid="ignore"):
        assert np.isnan(arviz.rhat(equal.numpy()))  # as there
    assert [float(mcse(equal, kind=kind)) for kind in MCSE_KINDS] == [0, 0, 0]
    stuck = torch.tensor([0.0, 1.0]).unsqueeze(-1).expand(2, 10)
    assert rhat(stuck) == torch.inf
    one_stuck = torch.stack([torch.zeros(10), torch.linspace(-1, 1, 10)])
    assert rhat(one_stuck).isfinite()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_bad_draws_are_refused(bad):
    values = autoregressive(2, 20, 0.1, 3)
    values[1, 7, 1] = bad
    for function in (ess, rhat, mcse):
        with pytest.raises(NotFiniteError, match="`draws` must be finite; 1 of 120 values"):
            function(values)


def test_refusals():
    for shape in [(10,), (2, 3), (0, 10), (1, 3, 5)]:
        for function in (ess, rhat, mcse):
            with pytest.raises(ShapeError, match=r"`draws`.*4 draws"):
                function(torch.zeros(shape))
    with pytest.raises(ValueError, match=r"`kind`.*bulk.*'middle'"):
        ess(torch.zeros(2, 10), kind="middle")
    with pytest.raises(ValueError, match=r"`kind`.*'tail'"):
        mcse(torch.zeros(2, 10), kind="tail")


def test_numpy_and_no_parameters():
    values = autoregressive(2, 20, 0.1, 3)
    assert torch.equal(ess(values.numpy()), ess(values))
    assert ess(torch.zeros(2, 10, 0)).shape == (0,)
