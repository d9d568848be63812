"""What every recalibrator of class probabilities promises, whatever its map."""

import copy
import pickle
import warnings

import pytest
import torch
from torch.distributions import Bernoulli, Categorical, Independent, Normal

from cases import RECALIBRATORS
from credibly.core.errors import ConvergenceWarning, NotFiniteError, NotSupportedError, ShapeError
from credibly.distributions import class_log_probs, concatenate, from_probs, select
from credibly.distributions.mixture import MixturePredictive
from credibly.metrics import nll

DRAWS = ("bootstrap", "laplace_temperature")  # they depend on the order of rows, and give mixtures
FITS_IDENTITY = ("temperature", "vector_scaling", "beta")  # their family holds the identity: never worse on the fit
SURVIVE = ("temperature", "isotonic", "centered_isotonic", "venn_abers", "platt", "histogram")

recalibrators = pytest.mark.parametrize("name", RECALIBRATORS)


def classes(rows=200, seed=0, dtype=torch.float64, factor=2.5):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, 4, generator=generator, dtype=torch.float64) * 1.5
    targets = torch.multinomial(logits.softmax(-1), 1, generator=generator).squeeze(1)
    return Categorical(logits=(factor * logits).to(dtype)), targets


def events(rows=200, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    odds = torch.randn(rows, generator=generator, dtype=torch.float64) * 1.5
    targets = (torch.rand(rows, generator=generator, dtype=torch.float64) < odds.sigmoid()).long()
    return Bernoulli(logits=(3 * odds + 1).to(dtype)), targets


def quietly(name, predicted, targets):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return RECALIBRATORS[name]().fit(predicted, targets)


def assert_same(a, b, tolerance=1e-6):
    torch.testing.assert_close(class_log_probs(a).exp(), class_log_probs(b).exp(), rtol=0, atol=tolerance)


@recalibrators
@pytest.mark.parametrize("data", [classes, events])
def test_the_result_is_a_plain_distribution_of_the_same_kind(name, data, dtype, device):
    predicted, targets = data(dtype=dtype)
    predicted = type(predicted)(logits=predicted.logits.to(device))
    after = RECALIBRATORS[name]().fit(predicted, targets.to(device))(predicted)
    inner = after.components if name in DRAWS else after
    assert type(inner) is type(predicted)
    assert after.batch_shape == predicted.batch_shape
    assert after.event_shape == predicted.event_shape
    log_probs = class_log_probs(after)
    assert log_probs.dtype == torch.float64
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones_like(log_probs[..., 0]))


@recalibrators
@pytest.mark.parametrize("data", [classes, events])
def test_the_report_tells_the_truth_and_calibration_helps(name, data):
    predicted, targets = data(400)
    fitted = RECALIBRATORS[name]().fit(predicted, targets)
    after = fitted(predicted)
    assert fitted.report.converged
    assert fitted.report.nll_before == pytest.approx(nll(predicted, targets).item(), rel=1e-9)
    assert fitted.report.nll_after == pytest.approx(nll(after, targets).item(), rel=1e-9)
    assert fitted.report.nll_after < fitted.report.nll_before
    assert (class_log_probs(after) - class_log_probs(predicted)).abs().max() > 0.01
    fresh, came = data(4000, seed=1)
    before, now = nll(fresh, came).item(), -class_log_probs(fitted(fresh)).clamp(min=-10)
    assert now.gather(-1, came.unsqueeze(-1)).mean() < before


@pytest.mark.parametrize("name", FITS_IDENTITY)
def test_what_is_calibrated_is_hardly_changed(name):
    predicted, targets = classes(20_000, factor=1.0)
    # each parameter is off by about 1/sqrt(rows): 0.007; sums of a few of them, times log probabilities of size 5
    assert_same(RECALIBRATORS[name]().fit(predicted, targets)(predicted), predicted, 0.05)


@recalibrators
@pytest.mark.parametrize("data", [classes, events])
def test_order_strides_dtype_and_splits_change_nothing(name, data):
    predicted, targets = data(300, dtype=torch.float32)
    logits = predicted.logits
    kept = logits.clone(), targets.clone()
    fitted = RECALIBRATORS[name]().fit(predicted, targets)
    whole = fitted(predicted)
    strided = logits.repeat_interleave(2, 0)[::2] if logits.dim() == 1 else logits.t().contiguous().t()
    family = type(predicted)
    for other, y in ((family(logits=strided), targets.int()), (family(logits=logits.double()), targets.double())):
        # torch rounds the logits of a Categorical once more, and steps are steep: each map sees its own rows
        assert_same(RECALIBRATORS[name]().fit(other, y)(other), whole)
    if name not in DRAWS:
        order = torch.randperm(300)
        assert_same(RECALIBRATORS[name]().fit(select(predicted, order), targets[order])(predicted), whole)
    halves = concatenate([fitted(select(predicted, slice(0, 77))), fitted(select(predicted, slice(77, 300)))])
    assert_same(halves, whole, 1e-12)
    assert torch.equal(logits, kept[0])
    assert torch.equal(targets, kept[1])


@recalibrators
def test_several_labels_share_one_map(name):
    flat, targets = events(300)
    several = Independent(Bernoulli(logits=flat.logits.reshape(100, 3)), 1)
    fitted = RECALIBRATORS[name]().fit(several, targets.reshape(100, 3))
    after = fitted(several)
    assert after.event_shape == (3,)
    if name not in DRAWS:
        expected = class_log_probs(RECALIBRATORS[name]().fit(flat, targets)(flat)).reshape(100, 3, 2)
        torch.testing.assert_close(class_log_probs(after), expected)


@pytest.mark.parametrize("name", [name for name in RECALIBRATORS if name not in DRAWS])
@pytest.mark.parametrize("family", [Bernoulli, Categorical])
def test_a_mixture_counts_as_its_mean_probabilities(name, family):
    shape = (5, 150) if family is Bernoulli else (5, 150, 3)
    logits = 2 * torch.randn(shape, dtype=torch.float64)
    mixture = MixturePredictive(family(logits=logits))
    probs = logits.sigmoid().mean(0) if family is Bernoulli else logits.softmax(-1).mean(0)
    plain = family(probs=probs)
    targets = plain.sample()
    fitted = RECALIBRATORS[name]().fit(mixture, targets)
    assert type(fitted(mixture)) is family
    assert_same(fitted(mixture), RECALIBRATORS[name]().fit(plain, targets)(plain), 1e-5)


@recalibrators
@pytest.mark.parametrize("case", ["separable", "single_class", "one_row", "one_hot", "wrong_one_hot", "ties"])
@pytest.mark.parametrize("binary", [True, False])
def test_awkward_data_give_probabilities(name, case, binary):
    targets = torch.arange(12) % (2 if binary else 3)
    if case == "single_class":
        targets = torch.zeros(12, dtype=torch.long)
    if case == "one_row":
        targets = targets[:1]
    table = torch.nn.functional.one_hot(targets, 2 if binary else 3).double()
    scores = (
        4 * table - 1 if case == "separable" else torch.linspace(-1, 2, table.numel()).reshape(table.shape).double()
    )
    scores = torch.zeros_like(scores) if case == "ties" else scores
    probs = scores.softmax(-1)
    if "one_hot" in case:
        probs = table.clone()
    if case == "wrong_one_hot":
        probs[0] = probs[0].roll(1)
    predicted = from_probs(probs[:, 1] if binary else probs)
    if case == "wrong_one_hot" and name in ("temperature", "laplace_temperature"):
        with pytest.raises(NotFiniteError, match="probability 0"):
            quietly(name, predicted, targets)
        return
    fitted = quietly(name, predicted, targets)
    probs = class_log_probs(fitted(predicted)).exp()
    assert bool(probs.isfinite().all())
    torch.testing.assert_close(probs.sum(-1), torch.ones_like(probs[..., 0]))
    if case == "separable" and name in SURVIVE:
        assert bool((probs.argmax(-1) == targets).all())
        assert fitted.report.nll_after <= fitted.report.nll_before or name in ("venn_abers", "platt")


@recalibrators
def test_refitting_copying_and_pickling(name):
    predicted, targets = classes(120)
    recipe = RECALIBRATORS[name]()
    fitted = recipe.fit(predicted, targets)
    others = [recipe.fit(predicted, targets), copy.deepcopy(fitted), pickle.loads(pickle.dumps(fitted))]
    for other in others:
        assert other.report == fitted.report
        assert torch.equal(class_log_probs(other(predicted)), class_log_probs(fitted(predicted)))


@recalibrators
def test_refusals(name):
    recipe = RECALIBRATORS[name]()
    with pytest.raises(NotSupportedError, match="Normal"):
        recipe.fit(Normal(torch.zeros(2), torch.ones(2)), torch.zeros(2))
    with pytest.raises(ShapeError, match="empty"):
        recipe.fit(Categorical(logits=torch.zeros(0, 3), validate_args=False), torch.zeros(0))
    with pytest.raises(ShapeError, match="one-hot"):
        recipe.fit(Categorical(logits=torch.zeros(2, 3)), torch.eye(3)[:2])
    broken = Categorical(logits=torch.tensor([[0.0, float("nan")], [0.0, 1.0]]), validate_args=False)
    with pytest.raises(NotFiniteError, match="NaN"):
        recipe.fit(broken, torch.tensor([0, 1]))


@recalibrators
def test_a_class_that_never_comes(name):
    predicted, targets = classes(300)
    present = targets != 2
    fitted = quietly(name, select(predicted, present), targets[present])
    probs = class_log_probs(fitted(predicted)).exp()
    assert bool(probs.isfinite().all())
    if "temperature" not in name:  # which treats all classes alike
        assert probs[:, 2].mean() < class_log_probs(predicted).exp()[:, 2].mean()
