"""Structured targets, element by element: against the likelihood of one element applied to a flat table."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from credibly import Data, Model, inference, priors
from credibly.core.errors import NotFiniteError, NotSupportedError, ShapeError, SupportError
from credibly.distributions import functions as waist
from credibly.distributions.classes import class_log_probs
from credibly.likelihoods import Categorical, Gaussian, HeteroscedasticGaussian, PerElement, Poisson
from credibly.standardization import Standardize
from credibly.training import FocalLoss

ROWS, STEPS, HIGH, WIDE = 6, 5, 3, 4


def numbers(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


LAYOUTS = {
    "sequence": (lambda of: PerElement(of), (STEPS,), -1),
    "channels_first": (lambda of: PerElement(of, num_axes=2, axis=1), (HIGH, WIDE), -3),
    "channels_between": (lambda of: PerElement(of, num_axes=2, axis=-2), (HIGH, WIDE), -2),
}
INNER = {
    "categorical": lambda: Categorical(3),
    "gaussian": lambda: Gaussian(scale=0.5),
    "heteroscedastic": lambda: HeteroscedasticGaussian(),
    "gaussian_vector": lambda: Gaussian(2, scale=[0.5, 2.0]),
    "poisson": lambda: Poisson(),
}


def case(layout, inner, dtype, *leading):
    """The likelihood, its outputs in the layout, the same outputs as a table, and targets."""
    build, elements, axis = LAYOUTS[layout]
    of = INNER[inner]().to(dtype)
    table = numbers(*leading, ROWS, *elements, of.num_outputs, dtype=dtype)
    torch.manual_seed(1)
    first = table[(0,) * len(leading)]
    targets = of(first).sample()
    return build(of), table.movedim(-1, axis), table, targets


@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_densities_and_forms_are_those_of_the_elements(layout, inner, dtype):
    likelihood, outputs, table, targets = case(layout, inner, dtype)
    elements = LAYOUTS[layout][1]
    expected = likelihood.of(table).log_prob(targets).flatten(1).sum(1)
    matched = likelihood.match_targets(targets, outputs)
    assert torch.equal(matched, targets)
    own = likelihood.log_prob(likelihood.parameters_of(outputs), matched)
    torch.testing.assert_close(own, expected)
    predicted = likelihood(outputs)
    assert predicted.batch_shape == (ROWS,)
    assert predicted.event_shape == elements + likelihood.of(table).event_shape
    torch.testing.assert_close(waist.log_prob(predicted, targets), expected)
    torch.testing.assert_close(likelihood.fisher(outputs), likelihood.of.fisher(table))
    scores = likelihood.sample_scores(outputs, 2, seed=0)
    assert scores.shape == (2, *outputs.shape)
    of_table = likelihood.of.sample_scores(table, 2, seed=0)
    torch.testing.assert_close(scores, of_table.movedim(-1, LAYOUTS[layout][2]))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_draws_stay_in_front(layout, dtype):
    likelihood, outputs, table, targets = case(layout, "categorical", dtype, 4)
    predicted = likelihood.distribution(likelihood.parameters_of(outputs))
    assert predicted.batch_shape == (4, ROWS)
    torch.testing.assert_close(class_log_probs(predicted), table.double().log_softmax(-1), rtol=1e-6, atol=1e-6)
    looped = torch.stack([likelihood.log_prob(likelihood.parameters_of(one), targets) for one in outputs])
    mapped = torch.func.vmap(lambda one: likelihood.log_prob(likelihood.parameters_of(one), targets))(outputs)
    torch.testing.assert_close(mapped, looped)


def test_each_output_may_be_an_element_of_its_own():
    likelihood = PerElement(Gaussian(scale=2.0), axis=None)
    outputs = numbers(ROWS, 3)
    other = Gaussian(3, scale=2.0)
    targets = numbers(ROWS, 3, seed=1)
    torch.testing.assert_close(waist.log_prob(likelihood(outputs), targets), waist.log_prob(other(outputs), targets))
    assert likelihood.sample_scores(outputs, 2, seed=0).shape == (2, ROWS, 3)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_offsets_belong_to_elements_or_to_rows(layout):
    likelihood, outputs, table, _ = case(layout, "poisson", torch.float64)
    of_elements, of_rows = numbers(*table.shape[:-1], seed=4), numbers(ROWS, seed=5)
    moved = likelihood(likelihood.with_offset(outputs, of_elements)).mean
    torch.testing.assert_close(moved, (table.squeeze(-1) + of_elements).exp())
    moved = likelihood(likelihood.with_offset(outputs, of_rows)).mean
    torch.testing.assert_close(moved, likelihood(outputs).mean * of_rows.exp().reshape(-1, *(1,) * (moved.dim() - 1)))
    torch.testing.assert_close(likelihood.with_offset(outputs, outputs), 2 * outputs)


# -- missing elements -----------------------------------------------------------------------------------------------


def masked_case(dtype=torch.float64):
    x, y = numbers(ROWS, 2, dtype=dtype), numbers(ROWS, STEPS, dtype=dtype, seed=2)
    mask = numbers(ROWS, STEPS, seed=3) > 0
    mask[0] = False
    damaged = torch.where(mask, y, math.nan)
    net = nn.Sequential(nn.Linear(2, STEPS), nn.Unflatten(1, (STEPS, 1))).to(dtype)
    return x, y, mask, damaged, net


def test_a_missing_element_adds_nothing(dtype):
    x, y, mask, damaged, net = masked_case(dtype)
    model = Model(net, PerElement(Gaussian(scale=0.5)))
    each = Gaussian(scale=0.5)(net(x)).log_prob(y)
    expected = torch.where(mask, each, 0.0).sum(1)
    found = model.log_likelihood({}, {}, Data(x, damaged, mask=mask))
    torch.testing.assert_close(found, expected)
    assert found[0] == 0
    torch.testing.assert_close(
        model.log_likelihood({}, {}, Data(x, y, mask=mask.any(1))), torch.where(mask.any(1), each.sum(1), 0.0)
    )
    weights = torch.arange(ROWS, dtype=dtype)
    torch.testing.assert_close(model.log_likelihood({}, {}, Data(x, damaged, weights, mask)), expected * weights)
    with pytest.raises(NotFiniteError):
        model.log_likelihood({}, {}, Data(x, damaged))


def test_missing_elements_and_standardised_targets_obey_the_change_of_variables():
    x, y, mask, damaged, net = masked_case()
    y, damaged = 3 + 10 * y, 3 + 10 * damaged
    recipe = Standardize(axes=(0, 1))
    posterior = inference.MAP(num_epochs=2).fit(
        Model(net, PerElement(Gaussian(scale=5.0)), targets=recipe), Data(x, damaged, mask=mask), seed=0
    )
    fitted = posterior.model.targets
    torch.testing.assert_close(fitted.loc.squeeze(), y[mask].mean())
    predicted = posterior.predict(x)
    elementwise = torch.distributions.Normal(waist.mean(predicted), 5.0).log_prob(y)
    expected = torch.where(mask, elementwise, 0.0).sum(1)
    torch.testing.assert_close(posterior.model.log_likelihood({}, {}, Data(x, damaged, mask=mask)), expected)
    torch.testing.assert_close(waist.log_prob(predicted, y), elementwise.sum(1))


def test_training_sees_present_elements_only():
    """Present elements as rows of their own, and the same rows with holes, have one maximum."""
    steps = torch.arange(STEPS, dtype=torch.float64)
    y, mask = numbers(40, STEPS, seed=2) + steps, numbers(40, STEPS, seed=3) > 0
    mask[0] = False
    x = torch.ones(40, 1, dtype=torch.float64)
    net = nn.Sequential(nn.Linear(1, STEPS, bias=False), nn.Unflatten(1, (STEPS, 1))).double()
    posterior = inference.MLE(num_epochs=600, batch_size=None, learning_rate=0.05).fit(
        Model(net, PerElement(Gaussian(scale=1.0)), priors.Flat()), Data(x, torch.where(mask, y, math.nan), mask=mask)
    )
    expected = torch.where(mask, y, 0.0).sum(0) / mask.sum(0)
    torch.testing.assert_close(waist.mean(posterior.predict(x[:1]))[0], expected, atol=1e-4, rtol=0)


def test_an_ensemble_of_stacked_members_equals_members_alone_with_missing_elements():
    x, _, mask, damaged, net = masked_case()
    model = Model(net, PerElement(Gaussian()))
    data = Data(x, damaged, mask=mask)
    outputs = []
    for stacked in (True, False):
        of = inference.MAP(num_epochs=3, batch_size=4, stacked=stacked)
        posterior = inference.Ensemble(of=of, num_members=2).fit(model, data, validation=data, seed=0)
        assert posterior.info.stacked == stacked
        outputs.append(posterior.outputs(x))
    torch.testing.assert_close(*outputs)


# -- classes ---------------------------------------------------------------------------------------------------------


def test_class_weights_and_training_losses_act_on_elements():
    x, net = numbers(ROWS, 2), nn.Sequential(nn.Linear(2, 3 * STEPS), nn.Unflatten(1, (3, STEPS))).double()
    y = torch.randint(3, (ROWS, STEPS), generator=torch.Generator().manual_seed(0))
    weights = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)
    for options in ({"class_weights": weights.tolist()}, {"loss": FocalLoss(gamma=1.0)}):
        method = inference.MLE(num_epochs=1, batch_size=None, learning_rate=1e-3, **options)
        posterior = method.fit(
            Model(copy.deepcopy(net), PerElement(Categorical(3), axis=1), priors.Flat()), (x, y), seed=0
        )
        log_p = net(x).detach().log_softmax(1).gather(1, y.unsqueeze(1)).squeeze(1)
        factor = weights[y] if "class_weights" in options else 1 - log_p.exp()
        assert posterior.info.history.loss[0] == pytest.approx(-float((factor * log_p).sum(1).mean()), rel=1e-6)


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_wrong_layouts_name_what_is_needed():
    likelihood = PerElement(Categorical(3), num_axes=2, axis=1)
    with pytest.raises(ShapeError, match=r"\(rows, 3, elements, elements\).*\(6, 4, 3, 4\)"):
        likelihood(torch.zeros(ROWS, 4, HIGH, WIDE))
    with pytest.raises(ShapeError, match=r"\(rows, 3, 4\).*\(6, 12\)"):
        likelihood.match_targets(torch.zeros(ROWS, 12), torch.zeros(ROWS, 3, HIGH, WIDE))
    with pytest.raises(SupportError, match="target 3"):
        likelihood.match_targets(torch.full((ROWS, HIGH, WIDE), 3), torch.zeros(ROWS, 3, HIGH, WIDE))
    with pytest.raises(ValueError, match="axis=None"):
        PerElement(Categorical(3), axis=None)
    with pytest.raises(ValueError, match="1 to 2"):
        PerElement(Categorical(3), axis=0)
    with pytest.raises(NotSupportedError, match="num_axes"):
        PerElement(PerElement(Categorical(3)))
    with pytest.raises(NotSupportedError, match="Categorical"):
        Model(nn.Linear(2, 3), PerElement(Categorical(3)), targets=Standardize(axes=(0, 1)))
    with pytest.raises(ShapeError, match=r"axes=\(0, 1\)"):
        Model(nn.Linear(2, 3), PerElement(Gaussian(scale=1.0)), targets=Standardize())
