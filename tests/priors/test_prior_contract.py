"""Every prior: one contract over `cases.PRIORS`, and what single priors promise."""

import math

import pytest
import torch
from torch import nn
from torch.func import vmap

from cases import PRIORS
from credibly.core.errors import NotSupportedError
from credibly.core.params import stack
from credibly.likelihoods import Gaussian
from credibly.model import Model
from credibly.priors import ByName, Flat, Laplace, Normal, WeightsOnly

EVERY = pytest.mark.parametrize("name", PRIORS)


def weights(dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = {
        "net.0.weight": (5, 3),
        "net.0.bias": (5,),
        "net.1.weight": (4, 5, 3, 3),
        "net.2.scale": (),
        "net.3.empty": (0, 2),
    }
    return {name: torch.randn(shape, generator=generator, dtype=dtype) for name, shape in shapes.items()}


@EVERY
def test_log_prob_is_the_sum_over_the_distributions(name, dtype):
    prior, params = PRIORS[name](), weights(dtype)
    by_name = prior.distributions(params)
    assert by_name.keys() <= params.keys()
    for key, distribution in by_name.items():
        assert distribution.batch_shape == params[key].shape
        assert distribution.mean.dtype == dtype
    expected = sum((d.log_prob(params[key]).sum() for key, d in by_name.items()), start=torch.zeros((), dtype=dtype))
    density = prior.log_prob(params)
    assert density.shape == ()
    torch.testing.assert_close(density, expected)


@EVERY
def test_draws_of_the_distributions_have_their_density(name):
    prior, params = PRIORS[name](), weights()
    for key, distribution in prior.distributions(params).items():
        drawn = distribution.sample()
        assert drawn.shape == params[key].shape
        assert prior.log_prob({**params, key: drawn}).isfinite()


@EVERY
def test_draws_pass_through_vmap_and_equal_the_loop(name, dtype):
    prior = PRIORS[name]()
    draws = [weights(dtype, seed) for seed in range(4)]
    mapped = vmap(prior.log_prob)(stack(draws))
    torch.testing.assert_close(mapped, torch.stack([prior.log_prob(draw) for draw in draws]))


@EVERY
def test_no_weights_have_density_one(name):
    assert PRIORS[name]().log_prob({}) == 0
    assert PRIORS[name]().distributions({}) == {}


@EVERY
def test_the_weights_are_left_unchanged_and_may_be_strided(name):
    prior, params = PRIORS[name](), weights()
    before = {key: value.clone() for key, value in params.items()}
    density = prior.log_prob(params)
    assert all(torch.equal(params[key], value) for key, value in before.items())
    params["net.0.weight"] = params["net.0.weight"].T.contiguous().T
    params["net.1.weight"] = params["net.1.weight"].contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(prior.log_prob(params), density)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, math.nan])
@pytest.mark.parametrize("make", [Normal, Laplace])
def test_a_scale_must_be_positive(make, scale):
    with pytest.raises(ValueError, match="`scale` must be a finite number above 0"):
        make(scale)


# -- weight decay --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_data", [1, 23, 10**6])
@pytest.mark.parametrize("scale", [1e-3, 0.7, 50.0])
def test_weight_decay_and_back(scale, num_data):
    prior = Normal(scale)
    assert prior.weight_decay(num_data) == pytest.approx(1 / (num_data * scale**2))
    assert Normal.from_weight_decay(prior.weight_decay(num_data), num_data).scale == pytest.approx(scale)


def test_one_step_on_the_log_joint_is_one_step_with_torchs_weight_decay():
    num_data, rate = 12, 0.1
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(num_data, size, generator=generator, dtype=torch.float64) for size in (3, 1))
    net = nn.Linear(3, 1).double()
    model = Model(net, Gaussian(scale=0.5), Normal(0.3))
    params = {name: p for name, p in model.core.named_parameters() if p.requires_grad}
    loss = -model.log_joint(params, {}, (x, y), num_data) / num_data
    gradients = dict(zip(params, torch.autograd.grad(loss, list(params.values())), strict=True))
    expected = {name: p.detach() - rate * gradients[name] for name, p in params.items()}
    optimizer = torch.optim.SGD(net.parameters(), lr=rate, weight_decay=Normal(0.3).weight_decay(num_data))
    ((net(x) - y) ** 2 / (2 * 0.5**2)).mean().backward()
    optimizer.step()
    torch.testing.assert_close({f"net.{name}": p.detach() for name, p in net.named_parameters()}, expected)


def test_weight_decay_must_make_sense():
    with pytest.raises(ValueError, match="`weight_decay` must be a finite number above 0"):
        Normal.from_weight_decay(0.0, 10)
    with pytest.raises(ValueError, match="no single value"):
        Normal(1.0, fan_in_scaled=True).weight_decay(10)


# -- single priors -------------------------------------------------------------------------------------------------


def test_fan_in_scaling_divides_by_the_square_root_of_all_axes_but_the_first():
    scales = {
        name: float(d.stddev.reshape(-1)[0])
        for name, d in Normal(2.0, fan_in_scaled=True).distributions(weights()).items()
        if name != "net.3.empty"
    }
    assert scales == pytest.approx(
        {"net.0.weight": 2 / 3**0.5, "net.0.bias": 2.0, "net.1.weight": 2 / 45**0.5, "net.2.scale": 2.0}
    )


def test_the_first_pattern_that_matches_wins():
    prior = ByName({"*.bias": Flat(), "net.0.*": Laplace(0.5), "net.[12].*": Normal(3.0), "*": Normal(0.1)})
    found = prior.distributions(weights())
    assert {name: type(d).__name__ for name, d in found.items()} == {
        "net.0.weight": "Laplace",
        "net.1.weight": "Normal",
        "net.2.scale": "Normal",
        "net.3.empty": "Normal",
    }
    assert float(found["net.2.scale"].stddev) == 3


def test_a_weight_without_a_pattern_is_refused_by_name():
    prior = ByName({"*.weight": Normal()})
    for use in (prior.log_prob, prior.distributions):
        with pytest.raises(ValueError, match=r"no pattern of .* matches the weight `net.0.bias`; add '\*'"):
            use(weights())
    with pytest.raises(ValueError, match="at least one pattern"):
        ByName({})


def test_weights_only_leaves_biases_and_scales_free():
    params = weights()
    prior = WeightsOnly(Normal(2.0))
    assert prior.distributions(params).keys() == {"net.0.weight", "net.1.weight", "net.3.empty"}
    shifted = {**params, "net.0.bias": params["net.0.bias"] + 100, "net.2.scale": params["net.2.scale"] + 100}
    assert prior.log_prob(shifted) == prior.log_prob(params)


def test_priors_nest():
    params = weights()
    nested = ByName({"*.bias": WeightsOnly(Normal()), "*": WeightsOnly(ByName({"net.0.*": Laplace(), "*": Normal()}))})
    expected = Laplace().log_prob({"w": params["net.0.weight"]}) + Normal().log_prob({"w": params["net.1.weight"]})
    torch.testing.assert_close(nested.log_prob(params), expected)


def test_a_prior_that_meets_no_weight_of_its_own_does_not_mind_the_device():
    params = {"net.weight": torch.zeros(2, 2, device="meta"), "net.bias": torch.zeros(2, device="meta")}
    prior = ByName({"*.bias": WeightsOnly(Normal()), "*": Normal()})
    assert prior.log_prob(params).device.type == "meta"


@EVERY
def test_draws_of_all_weights_have_their_shapes_or_are_refused(name, dtype):
    prior, like = PRIORS[name](), weights(dtype)
    if prior.distributions(like).keys() != like.keys():
        with pytest.raises(NotSupportedError, match=rf"{type(prior).__name__} is flat over \['net"):
            prior.sample(like, 3, seed=0)
        return
    draws = prior.sample(like, 3, seed=0)
    assert {key: (value.shape, value.dtype) for key, value in draws.items()} == {
        key: ((3, *value.shape), dtype) for key, value in like.items()
    }
    fewer = prior.sample(like, 2, seed=0)
    assert all(torch.equal(value, draws[key][:2]) for key, value in fewer.items())
    assert not torch.equal(draws["net.0.weight"][0], draws["net.0.weight"][1])
    with pytest.raises(ValueError, match="`num_draws`"):
        prior.sample(like, 0, seed=0)
