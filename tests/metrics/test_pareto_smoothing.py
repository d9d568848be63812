"""Pareto smoothing and leave-one-out scores, against ArviZ and against distributions of known shape."""

import math

import pytest
import torch
import xarray
from hypothesis import given
from hypothesis import strategies as st

from credibly.core.errors import NotFiniteError, ShapeError
from credibly.diagnostics.arviz_versions import arviz, arviz_object, dataset
from credibly.metrics import pareto, pareto_smooth, psis_loo

TIED = 0


def log_likelihood(draws, rows, scale=1.0, seed=0):
    """Rows of more and less heavy tails; the first has ties."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.empty(draws, rows, dtype=torch.float64).exponential_(generator=generator)
    values = -scale * values * torch.rand(rows, generator=generator, dtype=torch.float64)
    values[:, TIED] = values[:, TIED].round(decimals=1)
    return values


def arviz_loo(values):
    """The result of `arviz.loo` for (draws, rows)."""
    table = dataset({"targets": values.unsqueeze(0)}, ("chain", "draw", "row"))
    index = dataset({"index": torch.arange(len(values)).unsqueeze(0)}, ("chain", "draw"))
    return arviz.loo(arviz_object({"posterior": index, "log_likelihood": table}), pointwise=True)


def part(result, *names):
    """One of several names of a result's entry, which ArviZ 1 changed."""
    value = next(getattr(result, name) for name in names if hasattr(result, name))
    return torch.tensor(value.values if isinstance(value, xarray.DataArray) else float(value), dtype=torch.float64)


# with 400 draws all rules agree on a tail of 60; they differ by rounding elsewhere
@pytest.mark.filterwarnings("ignore:Estimated shape parameter")
@pytest.mark.parametrize("scale", [0.5, 1.0, 3.0])
def test_leave_one_out_equals_arviz(scale):
    values = log_likelihood(400, 50, scale)[:, TIED + 1 :]
    ours, theirs = psis_loo(values), arviz_loo(values)
    torch.testing.assert_close(ours.k, part(theirs, "pareto_k"), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(ours.pointwise, part(theirs, "loo_i", "elpd_i"), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(ours.elpd, part(theirs, "elpd_loo", "elpd"), rtol=1e-9, atol=0)
    torch.testing.assert_close(ours.p_loo, part(theirs, "p_loo", "p"), rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(ours.threshold, float(theirs.good_k), rtol=1e-12, atol=0)


LEGACY = pytest.mark.skipif(not hasattr(arviz, "psislw"), reason="ArviZ 1 rounds the length of the tail another way")


@LEGACY
@pytest.mark.parametrize("draws", [2, 20, 29, 100, 1000])
@pytest.mark.parametrize("relative_efficiency", [1.0, 0.3, 1.7])
def test_weights_and_shapes_equal_arviz(draws, relative_efficiency):
    values = -log_likelihood(draws, 30, 2.0, seed=draws)
    log_weights, k = arviz.psislw(values.T.numpy().copy(), reff=relative_efficiency)
    ours = pareto_smooth(values, relative_efficiency=relative_efficiency)
    torch.testing.assert_close(ours.k, torch.as_tensor(k), rtol=1e-9, atol=1e-9)
    theirs = torch.as_tensor(log_weights).T
    # where ratios are tied, which of them takes which order statistic is arbitrary
    torch.testing.assert_close(ours.log_weights[:, 1:], theirs[:, 1:], rtol=1e-9, atol=1e-9)
    ours_tied, theirs_tied = ours.log_weights[:, TIED].sort().values, theirs[:, TIED].sort().values
    torch.testing.assert_close(ours_tied, theirs_tied, rtol=1e-9, atol=1e-9)


@LEGACY
@pytest.mark.filterwarnings("ignore:Estimated shape parameter")
def test_standard_error_and_ties_equal_arviz():
    values = log_likelihood(1000, 40)
    ours, theirs = psis_loo(values), arviz_loo(values)
    torch.testing.assert_close(ours.standard_error, part(theirs, "se"), rtol=1e-9, atol=0)
    torch.testing.assert_close(ours.pointwise, part(theirs, "loo_i"), rtol=1e-9, atol=1e-9)


def test_the_shape_of_a_known_tail_is_found():
    # ratios U^-k are exactly generalised Pareto with shape k; over 200 rows the mean estimate is pulled towards 0.5 by
    # 10 of 10 + M = 201 pseudo-observations, and otherwise right to five standard errors
    generator = torch.Generator().manual_seed(1)
    uniform = torch.rand(4000, 200, generator=generator, dtype=torch.float64)
    for shape in (0.2, 0.5, 0.9):
        k = pareto_smooth(-shape * uniform.log()).k
        pulled = (190 * shape + 5) / 200
        assert abs(k.mean() - pulled) < 5 * k.std() / 200**0.5 + 0.02


def test_smoothing_lowers_the_error_of_a_heavy_tailed_estimate():
    # E of ratios with k = 0.6 is 1 / 0.4: the variance is infinite, and smoothing estimates the mean better than raw
    generator = torch.Generator().manual_seed(2)
    ratios = -0.6 * torch.rand(1000, 500, generator=generator, dtype=torch.float64).log()
    values = -ratios  # weights times 1 / ratio average to 1 / mean ratio
    smoothed = pareto_smooth(ratios)
    ours = torch.logsumexp(smoothed.log_weights + values, 0).exp()
    raw = 1 / ratios.exp().mean(0)
    assert ((ours - 0.4) ** 2).mean() < ((raw - 0.4) ** 2).mean()


def test_rows_in_blocks_and_of_any_shape(monkeypatch):
    values = log_likelihood(100, 25)[:, TIED + 1 :]
    whole = pareto_smooth(-values)
    monkeypatch.setattr(pareto, "_BLOCK", 3000)
    parts = pareto_smooth(-values.reshape(100, 2, 3, 4))
    assert parts.k.shape == (2, 3, 4)
    torch.testing.assert_close(parts.k.flatten(), whole.k, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(parts.log_weights.reshape(100, 24), whole.log_weights, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(pareto_smooth(-values[:, 3]).k, whole.k[3], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(torch.logsumexp(whole.log_weights, 0), torch.zeros(24, dtype=torch.float64))


def test_a_constant_and_few_draws_say_nothing_of_the_tail():
    constant = psis_loo(torch.full((100, 2), -1.5))
    assert constant.k.tolist() == [math.inf, math.inf]
    torch.testing.assert_close(constant.pointwise, torch.full((2,), -1.5, dtype=torch.float64))
    assert abs(constant.p_loo) < 1e-12
    one = psis_loo(torch.tensor([[-1.0, -2.0, -4.0]]))
    assert one.pointwise.tolist() == [-1.0, -2.0, -4.0]
    assert one.threshold == -math.inf
    few = psis_loo(log_likelihood(10, 3))
    assert few.k.tolist() == [math.inf] * 3
    values = log_likelihood(10, 3)
    exact = -torch.logsumexp(-values, 0) + math.log(10)  # plain importance sampling
    torch.testing.assert_close(few.pointwise, exact)


def test_single_precision_and_the_callers_tensor(dtype):
    values = log_likelihood(200, 5).to(dtype)
    before = values.clone()
    ours = psis_loo(values)
    assert ours.pointwise.dtype == torch.float64
    torch.testing.assert_close(ours.pointwise, psis_loo(values.double()).pointwise, rtol=0, atol=0)
    pareto_smooth(-values)
    assert torch.equal(values, before)


def test_refusals():
    with pytest.raises(ShapeError, match=r"\(draws, rows\)"):
        psis_loo(torch.zeros(10))
    with pytest.raises(ShapeError, match=r"\(draws, rows\)"):
        psis_loo(torch.zeros(10, 0))
    with pytest.raises(ShapeError, match="at least one"):
        pareto_smooth(torch.zeros(0, 4))
    with pytest.raises(NotFiniteError, match="log_likelihood"):
        psis_loo(torch.full((10, 2), -torch.inf))
    for bad in (torch.nan, torch.inf):
        with pytest.raises(NotFiniteError, match="log_ratios"):
            pareto_smooth(torch.tensor([[0.0], [bad]]))
    with pytest.raises(NotFiniteError, match="above -inf"):
        pareto_smooth(torch.full((10, 2), -torch.inf))
    with pytest.raises(ValueError, match="relative_efficiency"):
        pareto_smooth(torch.zeros(10, 2), relative_efficiency=0.0)


RATIOS = st.lists(st.one_of(st.just(-math.inf), st.floats(-800, 800)), min_size=1, max_size=60)


@given(RATIOS.filter(lambda values: max(values) > -math.inf))
def test_any_ratios_give_weights(values):
    result = pareto_smooth(torch.tensor(values, dtype=torch.float64).unsqueeze(-1))
    assert not result.log_weights.isnan().any()
    assert abs(torch.logsumexp(result.log_weights, 0)) < 1e-9
    assert not result.k.isnan().any()
