"""Student t and scale-mixture priors against scipy, out to weights where densities are 0 in floating point."""

import math

import numpy as np
import pytest
import torch
from scipy import special, stats

from credibly.core.errors import ShapeError
from credibly.priors import ByName, ScaleMixture, StudentT


def weights(dtype):
    generator = torch.Generator().manual_seed(0)
    return {"net.0.weight": torch.randn(4, 3, generator=generator).to(dtype), "net.0.bias": torch.ones(4, dtype=dtype)}


def flat(params):
    return torch.cat([p.reshape(-1) for p in params.values()]).double().numpy()


@pytest.mark.parametrize(("df", "scale"), [(1.0, 1.0), (4.0, 0.3), (250.0, 2.0)])
def test_student_t_is_scipys(df, scale, dtype):
    params = weights(dtype)
    expected = stats.t(df, 0, scale).logpdf(flat(params)).sum()
    tolerance = 1e-5 if dtype == torch.float32 else 1e-11
    assert StudentT(df, scale).log_prob(params).item() == pytest.approx(expected, rel=tolerance)


@pytest.mark.parametrize("probabilities", [None, (0.25, 0.75)])
def test_scale_mixture_is_the_log_of_the_sum(probabilities, dtype):
    params = weights(dtype)
    each = np.stack([stats.norm(0, s).logpdf(flat(params)) for s in (1.5, 0.1)])
    expected = special.logsumexp(each, 0, b=np.reshape(probabilities or (0.5, 0.5), (2, 1))).sum()
    tolerance = 1e-5 if dtype == torch.float32 else 1e-11
    assert ScaleMixture([1.5, 0.1], probabilities).log_prob(params).item() == pytest.approx(expected, rel=tolerance)


@pytest.mark.parametrize("far", [0.0, 1e-30, 1.0, 1e4, -1e4])
def test_far_weights_keep_a_finite_pull(far, dtype):
    w = torch.tensor([far], dtype=dtype, requires_grad=True)
    for prior, pull in (
        (ScaleMixture([1.0, math.exp(-6)], [0.5, 0.5]), -far if abs(far) > 1 else None),
        (StudentT(4.0, 1.0), -5 * far / (4 + far**2)),
    ):
        density = prior.log_prob({"net.w": w})
        (gradient,) = torch.autograd.grad(density, w)
        assert density.isfinite()
        assert gradient.isfinite().all()
        if pull is not None:
            assert gradient.item() == pytest.approx(pull, rel=1e-5)
    if abs(far) == 1e4:  # where a sum of the densities themselves is 0
        assert torch.exp(-0.5 * w.detach() ** 2).item() == 0


def test_one_component_is_a_gaussian_and_many_degrees_of_freedom_nearly_one():
    params = weights(torch.float64)
    expected = stats.norm(0, 0.7).logpdf(flat(params)).sum()
    assert ScaleMixture([0.7]).log_prob(params).item() == pytest.approx(expected, rel=1e-12)
    assert StudentT(1e6, 0.7).log_prob(params).item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("prior", [StudentT(5.0, 2.0), ScaleMixture([0.1, 2.0])], ids=["student_t", "scale_mixture"])
def test_draws_follow_the_prior(prior):
    like = {"net.w": torch.zeros(50, dtype=torch.float64)}
    draws = prior.sample(like, 40, seed=1)["net.w"]
    assert draws.shape == (40, 50)
    cdfs = {
        StudentT: stats.t(5.0, 0, 2.0).cdf,
        ScaleMixture: lambda x: (stats.norm(0, 0.1).cdf(x) + stats.norm(0, 2.0).cdf(x)) / 2,
    }
    assert stats.kstest(draws.flatten().numpy(), cdfs[type(prior)]).pvalue > 1e-5  # a failure in 10^5 seeds
    assert torch.equal(prior.sample(like, 7, seed=1)["net.w"], draws[:7])


def test_refusals():
    with pytest.raises(ValueError, match="`df` must be a finite number above 0"):
        StudentT(0.0)
    with pytest.raises(ValueError, match="`scale` must be"):
        StudentT(1.0, math.inf)
    with pytest.raises(ValueError, match="at least one standard deviation"):
        ScaleMixture([])
    for bad in ([0.0], [1.0, -1.0], [math.nan]):
        with pytest.raises(ValueError, match="`scales` must be"):
            ScaleMixture(bad)
    with pytest.raises(ShapeError, match="as many as `scales`, 2; got 1"):
        ScaleMixture([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match=r"add up to 1; got 1.5"):
        ScaleMixture([1.0, 2.0], [0.5, 1.0])
    with pytest.raises(ValueError, match="`weights` must be"):
        ScaleMixture([1.0, 2.0], [0.0, 1.0])


def test_they_nest_by_name():
    params = weights(torch.float64)
    nested = ByName({"*.bias": StudentT(3.0), "*": ScaleMixture([1.0, 0.1])})
    parts = (
        StudentT(3.0).log_prob({"b": params["net.0.bias"]}),
        ScaleMixture([1.0, 0.1]).log_prob({"w": params["net.0.weight"]}),
    )
    torch.testing.assert_close(nested.log_prob(params), sum(parts))
