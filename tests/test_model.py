"""A model by hand: densities, units, rows that are missing or weighted, and a network that is never changed."""

import copy
import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from torch import nn
from torch.func import vmap

from cases import LIKELIHOODS, NETWORKS, linear
from credibly.core.data import Data, as_source
from credibly.core.errors import NotFiniteError, NotSupportedError, ShapeError, SupportError
from credibly.core.params import buffers_of, stack, trainable_params
from credibly.distributions.functions import cdf, log_prob, mean, variance
from credibly.likelihoods import Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian, Likelihood, Poisson
from credibly.model import Model
from credibly.priors import Flat, Normal
from credibly.standardization import InputsStandardization, Standardization, Standardize

CPU = torch.device("cpu")


def rows(*shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def weights_of(model):
    return trainable_params(model.core)


def fit_transforms(model, x, y):
    return model.fitted(as_source((x, y), torch.float32, CPU))


def normal_log_density(y, loc, scale):
    return torch.as_tensor(stats.norm(loc.detach().double(), scale).logpdf(y.double()))


# -- by hand -------------------------------------------------------------------------------------------------------


def test_a_linear_gaussian_model_by_hand(dtype):
    net = nn.Linear(2, 1).to(dtype)
    model = Model(net, Gaussian(scale=0.5), Normal(2.0))
    x, y = rows(5, 2, dtype=dtype), rows(5, dtype=dtype, seed=1)
    w, b = rows(1, 2, dtype=dtype, seed=2), rows(1, dtype=dtype, seed=3)
    params = {"net.weight": w, "net.bias": b}
    loc = (x @ w.T).squeeze(1) + b
    expected = normal_log_density(y, loc, 0.5).to(dtype)
    torch.testing.assert_close(model.call(params, {}, x), loc.unsqueeze(1))
    parameters = model.call(params, {}, x, "parameters")
    torch.testing.assert_close(parameters, {"loc": loc, "scale": torch.full((5,), 0.5, dtype=dtype)})
    torch.testing.assert_close(model.call(params, {}, x, "fisher"), torch.full((5, 1, 1), 4.0, dtype=dtype))
    torch.testing.assert_close(model.log_likelihood(params, {}, (x, y)), expected)
    prior = normal_log_density(torch.cat([w.flatten(), b]), torch.zeros(3), 2.0).sum().to(dtype)
    torch.testing.assert_close(model.log_prior(params), prior)
    torch.testing.assert_close(model.log_joint(params, {}, (x, y), 20), 4 * expected.sum() + prior)
    predicted = model(x)
    assert predicted.batch_shape == (5,)
    torch.testing.assert_close(predicted.mean, net(x).squeeze(1))
    assert model(x.numpy()).mean.dtype == dtype


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_every_likelihood_gives_rows_of_finite_densities_and_gradients(name, dtype):
    likelihood = LIKELIHOODS[name]()
    net = linear(3, likelihood)
    model = Model(net, likelihood).to(dtype)
    x = rows(6, 3, dtype=dtype)
    y = model(x).sample()
    params = {key: p.requires_grad_() for key, p in weights_of(model).items()}
    density = model.log_likelihood(params, {}, (x, y))
    assert density.shape == (6,)
    assert density.dtype == dtype
    torch.testing.assert_close(density, log_prob(model(x), y))
    gradients = torch.autograd.grad(model.log_joint(params, {}, (x, y), 6), list(params.values()))
    assert all(gradient.isfinite().all() for gradient in gradients)
    draws = stack([{key: p.detach() + shift for key, p in params.items()} for shift in (0.0, 0.1)])
    mapped = vmap(lambda draw: model.log_joint(draw, {}, (x, y), 6))(draws)
    assert mapped.shape == (2,)
    torch.testing.assert_close(mapped[0], model.log_joint(params, {}, (x, y), 6).detach())


class MinusOne(Likelihood):
    """Every row has log density -1."""

    num_outputs = 1

    def parameters_of(self, outputs):
        return {"loc": outputs.squeeze(-1)}

    def distribution(self, parameters):
        return torch.distributions.Normal(parameters["loc"], 1.0, validate_args=False)

    def log_prob(self, parameters, targets):
        return 0 * parameters["loc"] - 1


def test_every_batch_of_any_size_stands_for_the_whole_and_counts_the_prior_once():
    model = Model(nn.Linear(2, 1), MinusOne(), Normal(1.0))
    params = weights_of(model)
    prior = model.log_prior(params)
    source = as_source((rows(23, 2), rows(23)), torch.float32, CPU)
    batches = list(source.batches(10))
    assert [batch.num_rows for batch in batches] == [10, 10, 3]
    for batch in batches:
        torch.testing.assert_close(model.log_joint(params, {}, batch, source.num_data), -23 + prior)


def test_learned_noise_is_read_from_the_given_weights_and_has_no_weight_prior():
    model = Model(nn.Linear(2, 1), Gaussian())
    x, y = rows(4, 2), rows(4, seed=1)
    params = weights_of(model)
    assert set(params) == {"net.weight", "net.bias", "likelihood.log_scale"}
    moved = {**params, "likelihood.log_scale": torch.tensor(math.log(3 - 1e-4))}
    expected = normal_log_density(y, model.call(params, {}, x).squeeze(1), 3.0).float()
    torch.testing.assert_close(model.log_likelihood(moved, {}, (x, y)), expected)
    assert model.log_prior(moved) == model.log_prior(params)


# -- targets -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("likelihood", [Gaussian(scale=1.0), Bernoulli(), Poisson()])
def test_a_column_of_targets_means_the_same_and_never_broadcasts(likelihood):
    model = Model(nn.Linear(5, 1, bias=False), likelihood)
    x, params = rows(10, 5), weights_of(model)
    y = model(x).sample()
    flat = model.log_joint(params, {}, (x, y), 10)
    assert torch.equal(model.log_joint(params, {}, (x, y.unsqueeze(1)), 10), flat)
    assert torch.equal(model.log_joint(params, {}, (x.numpy(), pd.DataFrame(y.numpy())), 10), flat)
    with pytest.raises(ShapeError, match=r"\(10,\) or \(10, 1\); got \(10, 3\)"):
        model.log_joint(params, {}, (x, y.unsqueeze(1).expand(10, 3)), 10)


def test_targets_outside_the_support_and_not_finite_are_refused():
    model = Model(nn.Linear(2, 3), Categorical(3))
    with pytest.raises(SupportError, match="target 3"):
        model.log_likelihood({}, {}, (rows(2, 2), torch.tensor([0, 3])))
    with pytest.raises(NotFiniteError, match="`targets`"):
        Model(nn.Linear(2, 1), Gaussian()).log_likelihood({}, {}, (rows(1, 2), torch.tensor([torch.nan])))


def test_a_wrong_number_of_outputs_names_both():
    model = Model(nn.Linear(2, 3), Gaussian(2))
    for use in (lambda: model(rows(4, 2)), lambda: model.log_likelihood({}, {}, (rows(4, 2), rows(4, 2)))):
        with pytest.raises(ShapeError, match=r"\(\.\.\., 2\); the network gave \(\d, 3\)"):
            use()


@pytest.mark.parametrize("num_rows", [1, 2, 5])
def test_outputs_without_an_axis_of_their_own_are_refused(num_rows):
    model = Model(nn.Sequential(nn.Linear(2, 1), nn.Flatten(0)), Gaussian())
    with pytest.raises(ShapeError):
        model(rows(num_rows, 2))
    with pytest.raises(ShapeError):
        model.log_likelihood({}, {}, (rows(num_rows, 2), rows(num_rows)))


def test_a_network_that_changes_the_number_of_rows_is_refused():
    model = Model(nn.Sequential(nn.Linear(2, 2), nn.Flatten(0), nn.Unflatten(0, (-1, 1))), Gaussian())
    with pytest.raises(ShapeError, match=r"rows = 3.*it gave \(6, 1\)"):
        model(rows(3, 2))


# -- weights and masks ---------------------------------------------------------------------------------------------


def test_row_weights_multiply_and_masked_rows_count_nothing(dtype):
    model = Model(nn.Linear(2, 1).to(dtype), Gaussian(scale=0.5), Flat())
    x, y = rows(4, 2, dtype=dtype), rows(4, dtype=dtype, seed=1)
    plain = model.log_likelihood({}, {}, (x, y))
    weights = torch.tensor([1.0, 0.0, 2.0, 0.5])
    torch.testing.assert_close(model.log_likelihood({}, {}, Data(x, y, weights=weights)), plain * weights.to(dtype))
    mask = torch.tensor([True, False, True, False])
    both = model.log_likelihood({}, {}, Data(x, y, weights=weights, mask=mask))
    torch.testing.assert_close(both, plain * weights.to(dtype) * mask)
    # a batch counts its rows, missing ones included
    joint = model.log_joint({}, {}, Data(x, y, mask=mask), 8)
    torch.testing.assert_close(joint, 2 * (plain * mask).sum())


MISSING = {
    "gaussian": (Gaussian(), math.nan),
    "gaussian_vector": (Gaussian(2), math.inf),
    "heteroscedastic": (HeteroscedasticGaussian(), math.nan),
    "bernoulli": (Bernoulli(), -1.0),
    "bernoulli_vector": (Bernoulli(2), math.nan),
    "categorical": (Categorical(3), -100),
    "poisson": (Poisson(), -math.inf),
}


@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize("name", MISSING)
def test_what_stands_in_place_of_a_missing_target_does_not_matter(name, everything, dtype):
    likelihood, missing = copy.deepcopy(MISSING[name])
    model = Model(nn.Linear(3, likelihood.num_outputs), likelihood).to(dtype)
    x = rows(5, 3, dtype=dtype)
    y = model(x).sample()
    plain = model.log_likelihood({}, {}, (x, y))
    mask = torch.tensor([False] * 5 if everything else [True, False, True, True, False])
    damaged = y.clone()
    damaged[~mask] = missing
    before = torch.get_rng_state()
    params = {key: p.requires_grad_() for key, p in weights_of(model).items()}
    masked = model.log_likelihood(params, {}, Data(x, damaged, mask=mask))
    torch.testing.assert_close(masked, torch.where(mask, plain, 0.0))
    gradients = torch.autograd.grad(masked.sum(), list(params.values()), allow_unused=True)
    assert all(gradient is None or gradient.isfinite().all() for gradient in gradients)
    assert torch.equal(torch.get_rng_state(), before)
    whole = mask.reshape(-1, *[1] * (y.dim() - 1)).expand_as(y)
    torch.testing.assert_close(model.log_likelihood({}, {}, Data(x, damaged, mask=whole)), masked)


def test_a_target_that_is_present_is_checked_beside_missing_ones():
    model = Model(nn.Linear(2, 1), Gaussian())
    y = torch.tensor([math.nan, math.nan, 1.0])
    with pytest.raises(NotFiniteError, match="1 of 3"):
        model.log_likelihood({}, {}, Data(rows(3, 2), y, mask=torch.tensor([False, True, True])))


def test_a_row_that_is_missing_in_part_is_refused():
    model = Model(nn.Linear(2, 2), Gaussian(2))
    mask = torch.tensor([[True, True], [True, False]])
    with pytest.raises(ValueError, match=r"mask of parts of a target.*PerElement"):
        model.log_likelihood({}, {}, Data(rows(2, 2), rows(2, 2), mask=mask))


# -- several inputs, offsets, what the network returns -------------------------------------------------------------


class Sum(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(2, 1), nn.Linear(3, 1, bias=False)

    def forward(self, a, b):
        return self.left(a) + self.right(b)


@pytest.mark.parametrize("kind", [dict, tuple])
def test_several_inputs_are_passed_by_name_or_position(kind):
    net = Sum()
    model = Model(net, Gaussian(scale=1.0))
    a, b, y = rows(4, 2), rows(4, 3, seed=1), rows(4, seed=2)
    inputs = {"a": a, "b": b} if kind is dict else (a, b)
    torch.testing.assert_close(mean(model(inputs)), net(a, b).squeeze(1))
    expected = normal_log_density(y, net(a, b).squeeze(1), 1.0).float()
    torch.testing.assert_close(model.log_likelihood({}, {}, (inputs, y)), expected)
    scaled = Model(net, Gaussian(scale=1.0), inputs={"b" if kind is dict else 1: Standardization(0.0, 2.0)})
    assert isinstance(scaled.inputs, InputsStandardization)
    torch.testing.assert_close(mean(scaled(inputs)), net(a, b / 2).squeeze(1))


EXPOSURES = {
    "dict": (lambda x, offset: {"input": x, "log_time": offset}, "log_time"),
    "tuple": (lambda x, offset: (x, offset), 1),
    "tuple_first": (lambda x, offset: (offset, x), 0),
}


@pytest.mark.parametrize("column", [False, True])
@pytest.mark.parametrize("name", EXPOSURES)
def test_a_poisson_exposure_multiplies_the_rate_in_likelihood_and_prediction(name, column):
    make, offset = EXPOSURES[name]
    net = nn.Linear(2, 1)
    model = Model(net, Poisson(), offset=offset)
    x, time = rows(6, 2), torch.tensor([0.5, 1.0, 2.0, 3.0, 10.0, 100.0])
    log_time = time.log().unsqueeze(1) if column else time.log()
    inputs = make(x, log_time)
    rate = net(x).squeeze(1).exp().detach() * time
    torch.testing.assert_close(mean(model(inputs)), rate)
    y = torch.poisson(rate)
    expected = torch.as_tensor(stats.poisson(rate.double()).logpmf(y)).float()
    torch.testing.assert_close(model.log_likelihood({}, {}, (inputs, y)), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model.call({}, {}, inputs), (net(x) + time.log().unsqueeze(1)))


def test_one_exposure_serves_all_counts_of_a_row():
    net = nn.Linear(2, 3)
    model = Model(net, Poisson(3), offset=1)
    x, offset = rows(4, 2), rows(4, seed=1)
    torch.testing.assert_close(model.call({}, {}, (x, offset)), net(x) + offset.unsqueeze(1))
    own = rows(4, 3, seed=2)
    torch.testing.assert_close(model.call({}, {}, (x, own)), net(x) + own)
    for wrong in (rows(4, 2), rows(4, 1)):
        with pytest.raises(ShapeError, match=r"the offset must have shape \(rows,\)"):
            model.call({}, {}, (x, wrong))


def test_an_offset_that_does_not_fit_is_refused():
    x, offset = rows(4, 2), rows(4)
    with pytest.raises(TypeError, match="pass a tuple or dict"):
        Model(nn.Linear(2, 1), Poisson(), offset=1)(x)
    for wrong, inputs in ((2, (x, offset)), (-1, (x, offset)), ("time", (x, offset)), ("t", {"input": x, "time": x})):
        with pytest.raises(ValueError, match=r"`offset` must be one of the inputs \["):
            Model(nn.Linear(2, 1), Poisson(), offset=wrong)(inputs)
    with pytest.raises(ValueError, match="cannot be used with standardised targets"):
        Model(nn.Linear(2, 1), Gaussian(), offset=1, targets=Standardize())


class Returns(nn.Module):
    def __init__(self, wrap):
        super().__init__()
        self.linear, self.wrap = nn.Linear(2, 1), wrap

    def forward(self, x):
        return self.wrap(self.linear(x))


@pytest.mark.parametrize(
    ("wrap", "output"),
    [
        (lambda out: {"logits": out, "loss": None}, "logits"),
        (lambda out: SimpleNamespace(logits=out, loss=None), "logits"),
        (lambda out: (None, out), 1),
        (lambda out: [out, None], 0),
        (lambda out: (None, out), -1),
        (lambda out: {"deep": (out,)}, lambda returned: returned["deep"][0]),
        (lambda out: out, lambda returned: returned),
    ],
)
def test_the_part_that_is_meant_is_picked(wrap, output):
    net = Returns(wrap)
    model = Model(net, Gaussian(scale=1.0), output=output)
    x = rows(3, 2)
    torch.testing.assert_close(mean(model(x)), net.linear(x).squeeze(1))


def test_a_network_that_returns_something_else_is_told_so():
    x = rows(3, 2)
    for wrap in (lambda out: (out,), lambda out: {"a": out}, lambda out: None):
        with pytest.raises(TypeError, match=r"the network returned \w+, not a tensor.*output=name, index or callable"):
            Model(Returns(wrap), Gaussian())(x)
    with pytest.raises(TypeError, match="the network returned NoneType"):
        Model(Returns(lambda out: (out, None)), Gaussian(), output=1)(x)
    for output in (0, "mT"):
        with pytest.raises(TypeError, match="the network returned one tensor"):
            Model(Returns(lambda out: out), Gaussian(), output=output)(x)


def test_the_likelihood_is_a_likelihood():
    with pytest.raises(TypeError, match="`likelihood` must be a Likelihood; got MSELoss"):
        Model(nn.Linear(1, 1), nn.MSELoss())


# -- units ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("column", [False, True])
def test_a_fixed_scale_and_every_prediction_are_in_the_targets_units(column, dtype):
    x = rows(40, 2, dtype=dtype)
    y = 1000 + 50 * rows(40, dtype=dtype, seed=1)
    net = nn.Linear(2, 1).to(dtype)
    recipe = Model(net, Gaussian(scale=20.0), inputs=Standardize(), targets=Standardize())
    model = recipe.fitted(as_source((x, y.unsqueeze(1) if column else y), dtype, CPU))
    inside = net((x - x.mean(0)) / x.std(0, correction=0)).squeeze(1)
    loc = y.mean() + y.std(correction=0) * inside
    predicted = model(x)
    torch.testing.assert_close(mean(predicted), loc)
    torch.testing.assert_close(variance(predicted).sqrt(), torch.full((40,), 20.0, dtype=dtype))
    expected = normal_log_density(y, loc, 20.0).to(dtype)
    rough = {"rtol": 1e-3, "atol": 1e-3} if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(model.log_likelihood({}, {}, (x, y)), expected, **rough)
    torch.testing.assert_close(log_prob(predicted, y), expected, **rough)
    torch.testing.assert_close(cdf(predicted, loc.detach()), torch.full((40,), 0.5, dtype=dtype))
    assert isinstance(recipe.targets, Standardize)


@pytest.mark.parametrize("name", [name for name in LIKELIHOODS if name.startswith(("gaussian", "hetero"))])
@pytest.mark.parametrize("shared", [False, True])
def test_densities_change_by_the_change_of_variables(name, shared):
    likelihood = LIKELIHOODS[name]()
    net = linear(2, likelihood)
    x = rows(30, 2)
    event = Model(net, likelihood)(x).event_shape
    y = 5 + 3 * rows(30, *event, seed=1) * torch.arange(1, event.numel() + 1).reshape(event)
    together = event and (shared or likelihood.elements()[1])  # elements have one scale
    recipe = Standardize(axes=(0, 1)) if together else Standardize()
    model = fit_transforms(Model(net, likelihood, targets=recipe), x, y)
    density = model.log_likelihood({}, {}, (x, y))
    torch.testing.assert_close(density, log_prob(model(x), y), rtol=1e-4, atol=1e-4)
    inside = model.likelihood(net(x)).log_prob(model.targets(y))
    jacobian = model.targets.scale.log().expand(event).sum() if event else model.targets.scale.log()
    torch.testing.assert_close(density, inside - jacobian, rtol=1e-4, atol=1e-4)


def test_constant_targets_leave_predictions_finite():
    x = rows(3, 2)
    with pytest.warns(UserWarning, match="columns of `targets` are constant"):
        model = fit_transforms(Model(nn.Linear(2, 1), Gaussian(), targets=Standardize()), x, torch.full((3,), 0.5))
    assert model.log_likelihood({}, {}, (x, torch.full((3,), 0.5))).isfinite().all()
    assert mean(model(x)).isfinite().all()


def test_missing_targets_do_not_move_the_standardisation():
    x, y = rows(20, 2), 7 + rows(20, seed=1)
    mask = torch.arange(20) % 3 > 0
    damaged = torch.where(mask, y, torch.nan)
    source = as_source(Data(x, damaged, mask=mask), torch.float32, CPU)
    model = Model(nn.Linear(2, 1), Gaussian(), targets=Standardize()).fitted(source)
    torch.testing.assert_close(model.targets.loc, y[mask].mean())
    torch.testing.assert_close(model.targets.scale, y[mask].std(correction=0))


def test_a_fitted_transform_is_kept_and_a_recipe_must_be_fitted_first():
    own = Standardization(torch.tensor(1.0), torch.tensor(2.0))
    x, y = rows(5, 2), rows(5)
    model = fit_transforms(Model(nn.Linear(2, 1), Gaussian(), inputs=Standardize(), targets=own), x, y)
    assert model.targets.same_as(own)
    with pytest.raises(ValueError, match="standardisation of `inputs` has not been fitted yet"):
        Model(nn.Linear(2, 1), Gaussian(), inputs=Standardize())(x)
    with pytest.raises(ValueError, match="standardisation of `targets` has not been fitted yet"):
        Model(nn.Linear(2, 1), Gaussian(), targets=Standardize())(x)


@pytest.mark.parametrize("likelihood", [Bernoulli(), Categorical(2), Poisson()])
@pytest.mark.parametrize("targets", [Standardize(), Standardization(0.0, 1.0)])
def test_counts_and_classes_cannot_be_standardised(likelihood, targets):
    with pytest.raises(NotSupportedError, match=type(likelihood).__name__):
        Model(nn.Linear(2, likelihood.num_outputs), likelihood, targets=targets)


def test_a_transform_of_another_shape_is_refused():
    with pytest.raises(ShapeError, match=r"one target of shape \(3,\); its scale has shape \(2,\)"):
        Model(nn.Linear(2, 3), Gaussian(3), targets=Standardization(torch.zeros(2), torch.ones(2)))


# -- the network is never changed ------------------------------------------------------------------------------------


USES = {
    "forward": lambda model, x, y: model(x),
    "call": lambda model, x, y: model.call({}, {}, x, "parameters"),
    "log_likelihood": lambda model, x, y: model.log_likelihood({}, {}, (x, y)),
    "log_joint": lambda model, x, y: model.log_joint(weights_of(model), {}, (x, y), 100),
    "dry_run": lambda model, x, y: model.dry_run(x),
    "fitted": lambda model, x, y: fit_transforms(model, x, y),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("name", NETWORKS)
def test_weights_buffers_flags_and_random_state_are_as_they_were(name, use):
    net = NETWORKS[name]()
    net.train()
    net[1].eval()
    model = Model(net, Gaussian(), inputs=Standardization(0.0, 2.0), targets=Standardization(1.0, 2.0))
    x, y = rows(8, 3), rows(8, seed=1)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    flags = [part.training for part in model.modules()]
    inputs, targets, random = x.clone(), y.clone(), torch.get_rng_state()
    USES[use](model, x, y)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert [part.training for part in model.modules()] == flags
    assert torch.equal(x, inputs)
    assert torch.equal(y, targets)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("name", NETWORKS)
def test_rows_are_evaluated_one_by_one_in_evaluation_mode(name):
    net = NETWORKS[name]()
    model = Model(net, Gaussian(scale=1.0))
    x = rows(8, 3)
    whole = mean(model(x))
    torch.testing.assert_close(torch.cat([mean(model(row)) for row in x.split(1)]), whole)
    torch.testing.assert_close(whole, net.eval()(x).squeeze(1))


def test_flags_are_restored_after_an_exception():
    net = nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1))
    with pytest.raises(ShapeError, match="cannot read inputs"):
        Model(net, Gaussian())(rows(4, 3))
    assert all(part.training for part in net.modules())


def test_buffers_may_be_given_and_carry_a_draw_axis():
    net = nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1, affine=False))
    model = Model(net, Gaussian(scale=1.0))
    x = rows(4, 2)
    given = {"net.1.running_mean": torch.tensor([10.0])}
    torch.testing.assert_close(model.call({}, given, x), model.call({}, {}, x) - 10 / (1 + 1e-5) ** 0.5)
    draws = {"net.1.running_mean": torch.tensor([[0.0], [10.0]])}
    mapped = vmap(lambda buffers: model.call({}, buffers, x))(draws)
    torch.testing.assert_close(mapped[1], model.call({}, given, x))
    assert set(buffers_of(model.core)) >= {"net.1.running_mean"}


def test_gradients_reach_the_inputs_and_the_networks_own_weights():
    model = Model(nn.Linear(2, 1), Gaussian())
    x = rows(3, 2).requires_grad_()
    gradients = torch.autograd.grad(model(x).log_prob(torch.zeros(3)).sum(), [x, *model.parameters()])
    assert all(bool((gradient != 0).any()) for gradient in gradients)


def test_numpy_inputs_take_the_networks_dtype_and_tensors_do_not(dtype):
    model = Model(nn.Linear(2, 1).to(dtype), Gaussian(scale=1.0))
    x = np.asfortranarray(rows(3, 2, dtype=torch.float64).numpy())
    assert model(x).mean.dtype == dtype
    assert model(pd.DataFrame(x)).mean.dtype == dtype
    density = model.log_likelihood({}, {}, (x, x[:, 0]))
    assert density.dtype == dtype
    assert model.read_inputs(torch.arange(3)).dtype == torch.int64
