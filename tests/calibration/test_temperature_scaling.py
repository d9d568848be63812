"""Temperature scaling: golden value, the optimum of an independent solver, and every way data can be awkward."""

import copy
import dataclasses
import math
import pickle
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from torch.distributions import Bernoulli, Categorical, Independent, Normal

from credibly.calibration import tempering
from credibly.calibration.temperature import TemperatureScaling
from credibly.core.errors import ConvergenceWarning, NotFiniteError, NotSupportedError, ShapeError
from credibly.distributions.classes import class_log_probs
from credibly.distributions.mixture import MixturePredictive
from credibly.metrics.scores import nll


def simulated(rows, classes, true_temperature, seed=0, dtype=torch.float64):
    """Logits that are too large by a factor: tempering by that factor makes them right again."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, classes, generator=generator, dtype=torch.float64) * 1.5
    gumbel = -torch.log(-torch.log(torch.rand(rows, classes, generator=generator, dtype=torch.float64)))
    return (logits * true_temperature).to(dtype), (logits + gumbel).argmax(-1)


def by_scipy(log_probs, targets):
    def mean_nll(log_temperature):
        tempered = torch.log_softmax(log_probs * math.exp(-log_temperature), -1)
        return -tempered.gather(-1, targets.unsqueeze(-1)).mean().item()

    found = minimize_scalar(mean_nll, bracket=(-1.0, 1.0), tol=1e-12)
    return math.exp(found.x), found.fun


@pytest.mark.parametrize("factor", [1e-2, 1.0, 1e3])
def test_golden_four_binary_logits(factor, dtype):
    logits = torch.full((4,), 2.0 * factor, dtype=dtype)
    result = TemperatureScaling().fit(Bernoulli(logits=logits), torch.tensor([1, 1, 1, 0]))
    # the slope stops at 1e-10, and the curvature in log T is p (1 - p) (ln 3)^2 = 0.226
    rounding = 1e-6 if dtype == torch.float32 else 1e-10 / 0.226
    assert result.temperature == pytest.approx(2 * factor / math.log(3), rel=rounding)
    assert result(Bernoulli(logits=logits)).probs.tolist() == pytest.approx([0.75] * 4, abs=rounding)
    assert not result.report.at_bound


@pytest.mark.parametrize("classes", [2, 10])
@pytest.mark.parametrize("true_temperature", [0.05, 0.5, 1.0, 3.0, 200.0])
def test_the_optimum_of_an_independent_solver(true_temperature, classes):
    logits, targets = simulated(2000, classes, true_temperature)
    result = TemperatureScaling().fit(Categorical(logits=logits), targets)
    temperature, value = by_scipy(logits, targets)
    assert result.temperature == pytest.approx(temperature, rel=1e-6)
    assert result.report.nll_after <= value + 1e-12
    assert result.report.gradient_norm <= 1e-10
    assert result.report.num_passes <= 10


def test_the_report_tells_the_truth():
    logits, targets = simulated(500, 5, 3.0)
    predicted = Categorical(logits=logits)
    result = TemperatureScaling().fit(predicted, targets)
    assert result.report.nll_before == pytest.approx(nll(predicted, targets).item(), abs=1e-12)
    assert result.report.nll_after == pytest.approx(nll(result(predicted), targets).item(), abs=1e-12)
    assert result.report.nll_after < result.report.nll_before


def test_the_true_temperature_is_recovered_within_its_error():
    # asymptotic normal error of a maximum likelihood estimate; 5 standard errors, failure rate below 1e-6
    logits, targets = simulated(20_000, 6, 2.5)
    result = TemperatureScaling().fit(Categorical(logits=logits), targets)
    odds = logits - logits.gather(-1, targets.unsqueeze(-1))
    curvature = tempering.tempered_pass([odds], 1 / 2.5).curvature / 2.5**2  # in log T
    assert abs(math.log(result.temperature / 2.5)) < 5 / math.sqrt(20_000 * curvature)


@given(
    st.lists(
        st.tuples(st.lists(st.floats(-30, 30), min_size=3, max_size=3), st.integers(0, 2)),
        min_size=1,
        max_size=12,
    )
)
def test_never_worse_and_same_most_probable_class(rows):
    logits = torch.tensor([z for z, _ in rows], dtype=torch.float64)
    targets = torch.tensor([y for _, y in rows])
    predicted = Categorical(logits=logits)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        result = TemperatureScaling().fit(predicted, targets)
    report = result.report
    assert 1e-3 <= result.temperature <= 1e6
    assert math.isfinite(report.nll_after)
    assert report.nll_after <= report.nll_before
    assert report.num_passes <= 60
    before, after = class_log_probs(predicted), class_log_probs(result(predicted))
    chosen = before.argmax(-1, keepdim=True)
    # the class that was most probable still is; others may have come level with it by rounding
    assert bool((after.gather(-1, chosen) >= after.amax(-1, keepdim=True) - 1e-12).all())


def test_refitting_and_fitting_what_was_fitted():
    logits, targets = simulated(800, 4, 2.0)
    recipe, predicted = TemperatureScaling(), Categorical(logits=logits)
    first = recipe.fit(predicted, targets)
    assert recipe.fit(predicted, targets).temperature == first.temperature
    again = recipe.fit(first(predicted), targets)
    assert again.temperature == pytest.approx(1.0, abs=1e-9)


def test_separable_data_end_at_the_lower_bound():
    predicted = Categorical(logits=torch.eye(3) * 5)
    for scale in (1.0, 1e-3, 400.0):
        with pytest.warns(ConvergenceWarning, match=r"bound 0\.001.*most probable"):
            result = TemperatureScaling().fit(Categorical(logits=torch.eye(3) * scale), torch.arange(3))
        assert result.temperature == 1e-3
        assert result.report.at_bound
        assert result.report.nll_after <= result.report.nll_before
    assert bool(result(predicted).probs.isfinite().all())
    assert torch.equal(result(predicted).probs.argmax(-1), torch.arange(3))


def test_a_single_class_ends_at_the_lower_bound():
    with pytest.warns(ConvergenceWarning, match="bound"):
        result = TemperatureScaling(min_temperature=0.1).fit(Bernoulli(logits=torch.ones(5)), torch.ones(5))
    assert result.temperature == 0.1


def test_forecasts_worse_than_uniform_end_at_the_upper_bound():
    with pytest.warns(ConvergenceWarning, match=r"bound 1e\+06"):
        result = TemperatureScaling().fit(Categorical(logits=torch.eye(3) * 5), torch.tensor([1, 2, 0]))
    assert result.temperature == 1e6
    assert result.report.at_bound
    assert result.report.nll_after == pytest.approx(math.log(3), abs=1e-5)
    assert result.report.num_passes <= 12


def test_uniform_forecasts_are_left_alone():
    result = TemperatureScaling().fit(Categorical(logits=torch.zeros(4, 3)), torch.tensor([0, 1, 2, 0]))
    assert result.temperature == 1.0
    assert not result.report.at_bound


def test_few_passes_warn():
    logits, targets = simulated(200, 4, 50.0)
    with pytest.warns(ConvergenceWarning, match="2 passes"):
        TemperatureScaling(max_passes=2).fit(Categorical(logits=logits), targets)


def test_impossible_outcomes_are_refused_by_row():
    predicted = Categorical(probs=torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.2, 0.2, 0.6]]))
    with pytest.raises(NotFiniteError, match="rows 1 have probability 0"):
        TemperatureScaling().fit(predicted, torch.tensor([0, 1, 2]))
    broken = Bernoulli(logits=torch.tensor([math.nan, 0.0]), validate_args=False)
    with pytest.raises(NotFiniteError, match="rows 0"):
        TemperatureScaling().fit(broken, torch.tensor([0, 1]))


def test_impossible_classes_that_did_not_happen_are_fine():
    logits, targets = simulated(300, 3, 2.0)
    padded = torch.cat([logits, torch.full((300, 1), -math.inf, dtype=torch.float64)], -1)
    without = TemperatureScaling().fit(Categorical(logits=logits), targets)
    result = TemperatureScaling().fit(Categorical(logits=padded), targets)
    assert result.temperature == pytest.approx(without.temperature, rel=1e-12)
    assert result(Categorical(logits=padded)).probs[:, 3].tolist() == [0.0] * 300


def test_several_labels_share_one_temperature():
    logits, targets = simulated(300, 2, 2.0)
    odds = (logits[:, 1] - logits[:, 0]).reshape(100, 3)
    several = Independent(Bernoulli(logits=odds), 1)
    result = TemperatureScaling().fit(several, targets.reshape(100, 3))
    flat = TemperatureScaling().fit(Bernoulli(logits=odds.flatten()), targets)
    assert result.temperature == pytest.approx(flat.temperature, rel=1e-12)
    tempered = result(several)
    assert tempered.event_shape == (3,)
    assert torch.allclose(tempered.base_dist.logits, odds / result.temperature)


@pytest.mark.parametrize("family", [Bernoulli, Categorical])
def test_a_mixture_is_tempered_as_its_mean_probabilities(family):
    generator = torch.Generator().manual_seed(2)
    shape = (6, 200) if family is Bernoulli else (6, 200, 4)
    logits = torch.randn(shape, generator=generator, dtype=torch.float64) * 3
    mixture = MixturePredictive(family(logits=logits, validate_args=False))
    probs = logits.sigmoid().mean(0) if family is Bernoulli else logits.softmax(-1).mean(0)
    targets = family(probs=probs).sample()
    result = TemperatureScaling().fit(mixture, targets)
    plain = TemperatureScaling().fit(family(probs=probs), targets)
    assert result.temperature == pytest.approx(plain.temperature, rel=1e-9)
    assert type(result(mixture)) is family
    assert torch.allclose(class_log_probs(result(mixture)), class_log_probs(plain(family(probs=probs))))


def test_blocks_dtype_order_and_strides_change_nothing(monkeypatch, device):
    logits, targets = simulated(3000, 100, 2.0, dtype=torch.float32)
    logits, targets = logits.to(device), targets.to(device)
    kept = logits.clone(), targets.clone()
    whole = TemperatureScaling().fit(Categorical(logits=logits), targets).temperature
    order = torch.randperm(3000, device=device)
    for predicted, y in (
        (Categorical(logits=logits[order]), targets[order]),
        (Categorical(logits=logits.t().contiguous().t()), targets.int()),
        (Categorical(logits=logits.double()), targets),
        (Categorical(logits=logits.clone().requires_grad_()), targets),
    ):
        assert TemperatureScaling().fit(predicted, y).temperature == pytest.approx(whole, rel=1e-6)
    monkeypatch.setattr(tempering, "_KEPT", 0)
    assert TemperatureScaling().fit(Categorical(logits=logits), targets).temperature == whole
    assert torch.equal(logits, kept[0])
    assert torch.equal(targets, kept[1])


def test_the_result_is_immutable_copies_and_travels():
    logits, targets = simulated(100, 3, 2.0)
    result = TemperatureScaling().fit(Categorical(logits=logits), targets)
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.temperature = 1.0
    for copied in (copy.deepcopy(result), pickle.loads(pickle.dumps(result))):
        assert copied.temperature == result.temperature
        assert copied.report == result.report
        assert torch.equal(copied(Categorical(logits=logits)).logits, result(Categorical(logits=logits)).logits)


def test_refusals():
    normal = Normal(torch.zeros(2), torch.ones(2))
    with pytest.raises(NotSupportedError, match="Normal"):
        TemperatureScaling().fit(normal, torch.zeros(2))
    with pytest.raises(ShapeError, match="empty"):
        TemperatureScaling().fit(Categorical(logits=torch.zeros(0, 3), validate_args=False), torch.zeros(0))
    with pytest.raises(ShapeError, match="one-hot"):
        TemperatureScaling().fit(Categorical(logits=torch.zeros(2, 3)), torch.eye(3)[:2])
    with pytest.raises(ValueError, match="enclose 1"):
        TemperatureScaling(min_temperature=2.0)
    with pytest.raises(ValueError, match="max_passes"):
        TemperatureScaling(max_passes=1)
    with pytest.raises(ValueError, match="tolerance"):
        TemperatureScaling(tolerance=0.0)
