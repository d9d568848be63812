"""Copies, refits and the caller's objects: nothing is shared, nothing is changed, nothing is left half done."""

import copy
import dataclasses
import math
import pickle
import warnings

import pytest
import torch
from edge_outcomes import examples, holds_nan, outcome
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import cases
from credibly import Model
from credibly import distributions as waist
from credibly.core.errors import NotFiniteError
from distributions.distribution_cases import ALL, targets
from metrics.metric_data import make, pick

NAN, INF = math.nan, math.inf
COPIES = {"pickled": lambda part: pickle.loads(pickle.dumps(part)), "copied": copy.deepcopy}
EVERY_COPY = pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)


def data(likelihood, rows=12, dtype=torch.float32):
    """Inputs, and targets that are plausible for outputs of 0."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 3, generator=generator, dtype=dtype)
    with torch.no_grad():
        predicted = likelihood(torch.zeros(rows, *cases.outputs_shape(likelihood), dtype=dtype))
    return x, waist.mean(predicted) if predicted.event_shape == (4,) else waist.icdf(predicted, 0.4)


# -- copies --------------------------------------------------------------------------------------------------------


@EVERY_COPY
@pytest.mark.parametrize("name", cases.LIKELIHOODS)
def test_a_copy_of_a_likelihood_says_the_same_and_shares_nothing(name, copied, dtype):
    likelihood = cases.LIKELIHOODS[name]().to(dtype)
    twin = copied(likelihood)
    outputs = torch.randn(5, *cases.outputs_shape(likelihood), dtype=dtype)
    _, y = data(likelihood, 5, dtype)
    expected = waist.log_prob(likelihood(outputs), y).detach()
    with torch.no_grad():
        for parameter in likelihood.parameters():
            parameter.add_(1)
    assert torch.equal(waist.log_prob(twin(outputs), y), expected)
    predicted = twin(outputs)
    with torch.no_grad():
        same = copied(_without_graph(twin, outputs))
    assert torch.equal(waist.log_prob(same, y), waist.log_prob(predicted, y))


def _without_graph(likelihood, outputs):
    return likelihood.distribution({name: part.detach() for name, part in likelihood.parameters_of(outputs).items()})


@EVERY_COPY
@pytest.mark.parametrize("name", cases.PRIORS)
def test_a_copy_of_a_prior_says_the_same(name, copied):
    prior = cases.PRIORS[name]()
    params = {"net.0.weight": torch.randn(4, 3), "net.0.bias": torch.randn(4)}
    assert torch.equal(copied(prior).log_prob(params), prior.log_prob(params))


@EVERY_COPY
@pytest.mark.parametrize("name", ALL)
def test_a_copy_of_a_prediction_says_the_same(name, copied, dtype):
    predicted = ALL[name](dtype)
    y, twin = targets(predicted), copied(predicted)
    assert (twin.batch_shape, twin.event_shape) == (predicted.batch_shape, predicted.event_shape)
    for function in (waist.log_prob, waist.cdf, waist.crps):
        value, expected = (outcome(function, d, y) for d in (twin, predicted))
        assert type(value) is type(expected)
        assert isinstance(value, Exception) or torch.equal(value, expected)


@EVERY_COPY
@pytest.mark.parametrize("name", cases.METRICS)
def test_a_copy_of_a_stream_goes_on_by_itself(name, copied):
    kind, recipe = cases.METRICS[name]
    pair, stream = make(kind, 20), recipe().stream()
    stream.update(*pick(pair, slice(0, 12)))
    before, twin = stream.compute(), copied(stream)
    twin.update(*pick(pair, slice(12, 20)))
    assert torch.equal(stream.compute(), before)
    torch.testing.assert_close(twin.compute(), recipe()(*pair), rtol=1e-12, atol=1e-12)
    assert twin.metric == stream.metric


# -- refits --------------------------------------------------------------------------------------------------------


def build(method, likelihood="gaussian_learned"):
    torch.manual_seed(0)
    part = cases.LIKELIHOODS[likelihood]()
    return Model(nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.1), nn.ReLU(), cases.linear(4, part)), part)


@pytest.mark.parametrize("name", cases.METHODS)
def test_fitting_again_gives_the_same_and_changes_neither_model_nor_data_nor_the_first_fit(name):
    method, model = cases.METHODS[name](), build(name)
    x, y = data(model.likelihood)
    kept = {key: value.clone() for key, value in model.state_dict().items()}
    versions = [tensor._version for tensor in (x, y, *model.state_dict().values())]
    options = {"start": "current"} if name == "mc_dropout_of_current" else {}
    first = method.fit(model, (x, y), seed=3, **options)
    before = first.predict(x, seed=1).mean
    second = method.fit(model, (x, y), seed=3, **options)
    torch.testing.assert_close(second.predict(x, seed=1).mean, before, rtol=0, atol=0)
    torch.testing.assert_close(first.predict(x, seed=1).mean, before, rtol=0, atol=0)
    assert all(torch.equal(model.state_dict()[key], value) for key, value in kept.items())
    assert versions == [tensor._version for tensor in (x, y, *model.state_dict().values())]


@pytest.mark.parametrize("name", cases.RECALIBRATORS)
def test_recalibrating_again_gives_the_same(name):
    recipe = cases.RECALIBRATORS[name]()
    logits, y = torch.randn(40, 3, dtype=torch.float64), torch.arange(40) % 3
    predicted, kept = waist.from_logits(logits), logits.clone()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # noise is better uniform: a temperature at its bound, said so by a warning
        outcomes = [outcome(lambda: waist.class_log_probs(recipe.fit(predicted, y)(predicted))) for _ in range(2)]
    assert type(outcomes[0]) is type(outcomes[1])
    assert isinstance(outcomes[0], Exception) or torch.equal(*outcomes)
    assert torch.equal(logits, kept)
    assert recipe == cases.RECALIBRATORS[name]()
    for field in dataclasses.fields(recipe):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(recipe, field.name, None)


# -- priors at the edges -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", cases.PRIORS)
@examples(8)
@given(
    st.sampled_from([0.0, 1.0, -1e4, 1e15, INF, -INF, NAN]),
    st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
    st.sampled_from(["plain", "transposed", "expanded", "channels_last"]),
)
def test_log_densities_of_any_weights_are_numbers_below_infinity(name, size, dtype, layout):
    """A weight of NaN makes the log density NaN, which stops training; nothing else does."""
    table = torch.full((3, 4), size).to(dtype)
    table = {
        "plain": table,
        "transposed": table.T.contiguous().T,
        "expanded": table[:1].expand(3, 4),
        "channels_last": table.reshape(1, 3, 2, 2).contiguous(memory_format=torch.channels_last),
    }[layout]
    params = {
        "net.0.weight": table,
        "net.0.bias": torch.zeros(3, dtype=dtype),
        "net.1.weight": torch.zeros(0, 2).to(dtype),
    }
    kept, version = table.clone(), table._version
    density = cases.PRIORS[name]().log_prob(params)
    assert density.shape == ()
    assert density.dtype == dtype
    assert not holds_nan(density) or holds_nan(table)
    assert density < INF or holds_nan(table)
    assert table._version == version
    torch.testing.assert_close(table, kept, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", cases.LIKELIHOODS)
def test_missing_and_not_finite_numbers_in_the_data_are_refused_before_training(name):
    model = build("map", name)
    x, y = data(model.likelihood)
    for part, bad in (("inputs", (x.clone(), y)), ("targets", (x, y.clone()))):
        bad[0 if part == "inputs" else 1].reshape(12, -1)[3, 0] = NAN
        with pytest.raises(NotFiniteError, match=part):
            cases.METHODS["map"]().fit(model, bad, seed=0)
