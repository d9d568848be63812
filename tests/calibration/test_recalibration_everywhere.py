"""What the contract of recalibrators says, for those that need data of their own, and at hostile data for all."""

import math
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from torch.distributions import Bernoulli, Categorical, Normal, Poisson

from cases import NUMBER_RECALIBRATORS, RECALIBRATORS
from credibly.calibration import (
    BayesianRecalibration,
    EnsembleTemperatureScaling,
    Isotonic,
    LaplaceTemperature,
    PlattScaling,
    TemperatureScaling,
    VennAbers,
)
from credibly.core.errors import ConvergenceWarning
from credibly.distributions import cdf, class_log_probs, icdf
from credibly.distributions.mixture import MixturePredictive
from credibly.metrics import nll

F64 = {"dtype": torch.float64}


def fitted_quietly(recipe, predicted, targets):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return recipe.fit(predicted, targets)


def members(rows=240, draws=4, factor=6.0):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(rows, 3, generator=generator, **F64)
    noise = torch.randn(draws, rows, 3, generator=generator, **F64)
    targets = torch.multinomial((1.5 * logits).softmax(-1), 1, generator=generator).squeeze(1)
    return factor * (logits + 0.7 * noise), targets


# -- temperature inside the members --------------------------------------------------------------------------------


def test_ensemble_temperature_has_no_order_split_layout_or_precision():
    logits, targets = members()
    kept = logits.clone(), targets.clone()
    predicted = MixturePredictive(Categorical(logits=logits))
    fitted = EnsembleTemperatureScaling().fit(predicted, targets)
    order, turn = torch.randperm(240), torch.randperm(4)
    strided = logits.movedim(0, -1).contiguous().movedim(-1, 0)
    for z, y, tolerance in (
        (logits[:, order], targets[order], 1e-9),
        (logits[turn], targets, 1e-9),
        (strided, targets.int(), 1e-12),
        (logits.float(), targets, 1e-5),
        (logits.clone().requires_grad_(), targets, 1e-12),
    ):
        again = EnsembleTemperatureScaling().fit(MixturePredictive(Categorical(logits=z)), y)
        assert again.temperature == pytest.approx(fitted.temperature, rel=tolerance)
    whole = class_log_probs(fitted(predicted))
    parts = [class_log_probs(fitted(MixturePredictive(Categorical(logits=z)))) for z in logits.split(100, 1)]
    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-12, atol=1e-12)
    assert float((whole - class_log_probs(predicted)).abs().max()) > 0.01  # it does not give back what it got
    assert torch.equal(logits, kept[0])
    assert torch.equal(targets, kept[1])


def test_ensemble_temperature_golden_four_binary_logits():
    """B45: members that agree on logits +2, labels 1, 1, 1, 0: T = 2 / ln 3."""
    predicted = MixturePredictive(Bernoulli(logits=torch.full((3, 4), 2.0, **F64)))
    fitted = EnsembleTemperatureScaling().fit(predicted, torch.tensor([1, 1, 1, 0]))
    assert fitted.temperature == pytest.approx(2 / math.log(3), rel=1e-6)
    torch.testing.assert_close(fitted(predicted).probs, torch.full((4,), 0.75, **F64), rtol=0, atol=1e-6)


@settings(max_examples=15)
@given(
    st.lists(st.tuples(*[st.floats(-30, 30)] * 4, st.booleans()), min_size=1, max_size=8),
)
def test_ensemble_temperature_is_positive_and_never_worse(rows):
    table = torch.tensor([row[:4] for row in rows], **F64)
    predicted = MixturePredictive(Categorical(logits=table.reshape(-1, 2, 2).movedim(1, 0)))
    targets = torch.tensor([int(row[4]) for row in rows])
    fitted = fitted_quietly(EnsembleTemperatureScaling(), predicted, targets)
    assert fitted.temperature > 0
    assert fitted.report.nll_after <= fitted.report.nll_before + 1e-9
    assert fitted.report.nll_after == pytest.approx(nll(fitted(predicted), targets).item(), rel=1e-9, abs=1e-12)


# -- data without an answer ----------------------------------------------------------------------------------------

SURVIVORS = [TemperatureScaling(), Isotonic(), VennAbers(), EnsembleTemperatureScaling()]


@pytest.mark.parametrize("recipe", SURVIVORS, ids=repr)
@pytest.mark.parametrize("size", [1e-3, 1e3, 1e30])
@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("case", ["separable", "single_class"])
def test_separable_and_single_class_data_of_any_size(recipe, size, classes, case, dtype):
    targets = torch.arange(80) % classes if case == "separable" else torch.zeros(80, dtype=torch.long)
    noise = 0.2 * torch.rand(80, classes, generator=torch.Generator().manual_seed(0), dtype=dtype)
    logits = size * (torch.nn.functional.one_hot(targets, classes).to(dtype) + noise)
    predicted = Categorical(logits=logits)
    if isinstance(recipe, EnsembleTemperatureScaling):
        predicted = MixturePredictive(Categorical(logits=logits.expand(3, 80, classes)))
    fitted = fitted_quietly(recipe, predicted, targets)
    probs = class_log_probs(fitted(predicted)).exp()
    assert bool(probs.isfinite().all())
    torch.testing.assert_close(probs.sum(-1), torch.ones(80, **F64))
    assert bool((probs.argmax(-1) == targets).all())
    if isinstance(recipe, VennAbers):
        assert bool(((probs > 0) & (probs < 1)).all())


def test_scores_of_any_size_keep_their_order_under_platt():
    """B47 with many scores: outputs increase with the score, and the area under the curve stays."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(500, generator=generator, **F64)
    targets = (torch.rand(500, generator=generator) < (2 * scores).sigmoid()).long()
    area, first = roc_auc_score(targets, scores), None
    for factor in (1e-6, 1e-3, 1.0, 1e3, 1e6):
        predicted = Bernoulli(logits=factor * scores)
        fitted = PlattScaling().fit(predicted, targets)
        probs = fitted(predicted).probs
        assert fitted.report.converged
        assert roc_auc_score(targets, probs) == pytest.approx(area, abs=1e-12)
        assert bool((probs[scores.argsort()].diff() > 0).all())
        first = probs if first is None else first
        torch.testing.assert_close(probs, first, rtol=1e-6, atol=1e-8)


# -- numbers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NUMBER_RECALIBRATORS)
def test_numbers_have_no_layout_or_precision_and_change(name):
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(120, 2, generator=generator)
    loc, targets = table[:, 0], table[:, 0] + 0.5 + 2 * table[:, 1]
    kept = table.clone()
    single = Normal(loc, torch.ones(120))
    double = Normal(loc.double(), torch.ones(120, **F64))
    one = NUMBER_RECALIBRATORS[name]().fit(single, targets)(single)
    two = NUMBER_RECALIBRATORS[name]().fit(double, targets.double())(double)
    packed = NUMBER_RECALIBRATORS[name]().fit(Normal(loc.contiguous(), 1.0), targets.clone())(single)
    for level in (0.2, 0.5, 0.8):
        torch.testing.assert_close(icdf(one, level).double(), icdf(two, level), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(icdf(packed, level), icdf(one, level), rtol=1e-6, atol=1e-6)
    assert float((cdf(one, targets) - cdf(single, targets)).abs().max()) > 0.01
    assert torch.equal(table, kept)


@pytest.mark.parametrize("name", [name for name in NUMBER_RECALIBRATORS if name != "variance_scaling"])
def test_counts_are_changed_too(name):
    rate = torch.linspace(1, 5, 200, **F64)
    targets = torch.poisson(rate * 2, generator=torch.Generator().manual_seed(0))
    after = NUMBER_RECALIBRATORS[name]().fit(Poisson(rate), targets)(Poisson(rate))
    assert float((cdf(after, targets) - cdf(Poisson(rate), targets)).abs().max()) > 0.05


def test_the_laplace_draws_of_a_temperature_have_no_order():
    logits, targets = members(draws=1)
    predicted, order = Categorical(logits=logits[0]), torch.randperm(240)
    recipe = BayesianRecalibration(draws_of_map=LaplaceTemperature(), num_draws=5, seed=0)
    one, two = recipe.fit(predicted, targets), recipe.fit(Categorical(logits=logits[0][order]), targets[order])
    for a, b in zip(one.maps, two.maps, strict=True):
        assert a.temperature == pytest.approx(b.temperature, rel=1e-9)


@pytest.mark.parametrize("name", RECALIBRATORS)
def test_every_recalibrator_reports_its_fit(name):
    logits, targets = members(draws=1)
    report = fitted_quietly(RECALIBRATORS[name](), Categorical(logits=logits[0]), targets).report
    assert report.nll_before > report.nll_after > 0
    assert isinstance(report.converged, bool)
