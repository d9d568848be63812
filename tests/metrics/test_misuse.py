"""What a first user gets wrong: each mistake is an error that says what is needed, and none a plausible number."""

import itertools

import numpy as np
import pytest
import torch
from metric_data import make
from sklearn.metrics import roc_auc_score
from torch.distributions import Bernoulli, Categorical, Independent, MultivariateNormal, Normal, Poisson

import cases
from credibly import distributions, metrics
from credibly.core.errors import NotSupportedError, ShapeError
from credibly.distributions import MixturePredictive, Ordinal, from_probs

ARRAYS = np.ones(3), [0, 1, 1]
OUTCOMES = {
    "an event": lambda: (from_probs(torch.full((2,), 0.9)), [1, 0]),
    "one of 2 classes": lambda: (from_probs(torch.full((2, 2), 0.5)), [1, 0]),
    "one of 3 classes": lambda: (MixturePredictive(Categorical(torch.ones(4, 2, 3))), [1, 0]),
    r"events of shape \(2,\)": lambda: (Independent(Bernoulli(torch.full((2, 2), 0.5)), 1), np.zeros((2, 2))),
    "a number": lambda: (Normal(torch.zeros(2), 1.0), [0.0, 1.0]),
    "a count": lambda: (Poisson(torch.ones(2)), [0, 1]),
    r"numbers of shape \(3,\)": lambda: (Independent(Normal(torch.zeros(2, 3), 1.0), 1), np.zeros((2, 3))),
}


def outcomes(*, of_classes):
    return [
        name for name, make_pair in OUTCOMES.items() if (distributions.kind(make_pair()[0]) == "class") == of_classes
    ]


MIXED = [
    *((metrics.ECE, *pair) for pair in itertools.permutations(outcomes(of_classes=True), 2)),
    *((metrics.NLL, *pair) for pair in itertools.permutations(OUTCOMES, 2)),
    *((metrics.CRPS, *pair) for pair in itertools.permutations(outcomes(of_classes=False), 2)),
    (metrics.Brier, "an event", "one of 2 classes"),
    (metrics.Accuracy, "one of 2 classes", "one of 3 classes"),
    (metrics.ClasswiseECE, "one of 2 classes", "one of 3 classes"),
    (metrics.BrierDecomposition, "one of 3 classes", "one of 2 classes"),
    (metrics.AURC, "an event", "one of 3 classes"),
]


@pytest.mark.parametrize(("recipe", "first", "second"), MIXED)
def test_streams_refuse_another_kind_of_prediction(recipe, first, second):
    stream, other = recipe().stream(), recipe().stream()
    stream.update(*OUTCOMES[first]())
    before = stream.compute()
    with pytest.raises(ShapeError, match=f"has seen {first} a row, and now came {second} a row"):
        stream.update(*OUTCOMES[second]())
    assert torch.equal(stream.compute(), before)
    other.update(*OUTCOMES[second]())
    with pytest.raises(ShapeError, match=f"has seen {first} a row, and now came {second} a row"):
        stream.merge(other)
    empty = recipe().stream()
    assert torch.equal(empty.merge(stream).compute(), stream.merge(empty).compute())
    with pytest.raises(ShapeError, match="now came"):
        empty.merge(stream).update(*OUTCOMES[second]())


def test_ordered_and_unordered_classes_do_not_mix():
    stream = metrics.RankedProbabilityScore().stream()
    stream.update(Ordinal(torch.zeros(2), torch.tensor([[0.0, 1.0]] * 2)), [0, 1])
    with pytest.raises(ShapeError, match="one of 3 classes in order a row, and now came one of 3 classes a row"):
        stream.update(from_probs(torch.full((2, 3), 1 / 3)), [0, 1])


def test_only_streams_are_merged():
    with pytest.raises(TypeError, match="`other` must be a Streaming"):
        metrics.ECE().stream().merge(3)


@pytest.mark.parametrize("name", [name for name, (kind, _) in cases.METRICS.items() if kind not in ("scores", "draws")])
def test_arrays_are_no_predictions(name):
    metric = cases.METRICS[name][1]()
    for call in (metric, metric.bootstrap, metric.stream().update):
        with pytest.raises(TypeError, match="a torch Distribution is needed; got ndarray"):
            call(*ARRAYS)


def test_functions_say_it_too():
    for function in (
        metrics.smooth_curve,
        metrics.pit,
        metrics.event_bins,
        metrics.risk_coverage,
        metrics.error_spread,
    ):
        with pytest.raises(TypeError, match="a torch Distribution is needed; got ndarray"):
            function(*ARRAYS)
    for call in (lambda: metrics.width(ARRAYS[0], 0.9), lambda: metrics.contained(*ARRAYS, 0.9)):
        with pytest.raises(TypeError, match="a torch Distribution is needed; got ndarray"):
            call()


ORDER = {
    "coverage": lambda d, y: metrics.coverage(d, y, 0.5),
    "contained": lambda d, y: metrics.contained(d, y, 0.5),
    "width": lambda d, _: metrics.width(d, 0.5),
    "Coverage": lambda d, y: metrics.Coverage(0.5)(d, y),
    "Width": lambda d, y: metrics.Width(0.5).bootstrap(d, y),
    "MiscalibrationArea": lambda d, y: metrics.MiscalibrationArea()(d, y),
    "RegressionCalibrationError": lambda d, y: metrics.RegressionCalibrationError().bootstrap(d, y),
}


@pytest.mark.parametrize("name", ORDER)
def test_classes_without_order_are_refused_where_their_numbering_would_count(name):
    predicted, targets = make("classes", 30)
    for d in (predicted, MixturePredictive(predicted.expand((2, 30)))):
        with pytest.raises(NotSupportedError, match=r"needs targets in order; .* is over classes without one"):
            ORDER[name](d, targets)
    in_order = Ordinal(torch.zeros(30), torch.tensor([[-1.0, 0.0, 1.0]]).expand(30, 3))
    ORDER[name](in_order, targets)  # is accepted, and so are events
    ORDER[name](*make("events", 30))


DETECTION = {"auroc": metrics.auroc, "aupr": metrics.aupr, "fpr": metrics.fpr}


@pytest.mark.parametrize("name", DETECTION)
def test_labels_are_no_scores(name, dtype):
    scores = torch.tensor([0.1, 0.9, 0.8, 0.4, 0.7], dtype=dtype)
    labels = torch.tensor([0, 1, 1, 0, 1])
    for marks in (labels, labels.bool(), labels.tolist(), labels.numpy().astype("u1")):
        with pytest.raises(ValueError, match="`scores_in` holds only 0 and 1, which looks like labels"):
            DETECTION[name](marks, scores)
        with pytest.raises(ValueError, match="`scores_out` holds only 0 and 1, which looks like labels"):
            DETECTION[name](scores, marks)
    DETECTION[name](labels, 1 - labels)  # both may be scores of 0 and 1,
    DETECTION[name](labels.to(dtype), scores)  # and scores that are floating may all be 0 or 1
    batch = metrics.AUROC().stream()
    batch.update(labels, scores[:0])


def test_the_area_of_forecasts_of_an_event():
    p, happened = torch.rand(2, 60, generator=torch.Generator().manual_seed(0))
    happened = happened < p
    area = metrics.auroc(p[~happened], p[happened])
    assert float(area) == pytest.approx(roc_auc_score(happened, p))


def test_losses_and_confidences_may_be_arrays():
    d, y = Normal(torch.arange(5.0), 1 + torch.arange(5.0)), np.arange(5.0) ** 2
    arrays = {
        "loss": lambda d, y: (d.mean.numpy() - y) ** 2,
        "confidence": lambda d: -d.stddev.numpy(),
    }
    tensors = {"loss": lambda d, y: (d.mean - torch.as_tensor(y)) ** 2, "confidence": lambda d: -d.stddev}
    assert torch.equal(metrics.aurc(d, y, **arrays), metrics.aurc(d, y, **tensors))
    assert torch.equal(metrics.risk_coverage(d, y, **arrays).risk, metrics.risk_coverage(d, y, **tensors).risk)


def test_what_is_for_classes_says_so():
    d, y = Normal(torch.zeros(3), 1.0), [0.0, 1.0, 2.0]
    for function in (metrics.aurc, metrics.e_aurc, metrics.risk_coverage):
        with pytest.raises(NotSupportedError, match=r"Normal is not .*; pass loss= and confidence="):
            function(d, y)
    with pytest.raises(NotSupportedError, match=r"default `loss`.* pass loss="):
        metrics.aurc(d, y, confidence=lambda d: -d.stddev)
    for function in (metrics.brier, metrics.accuracy, metrics.ece, metrics.classwise_ece):
        with pytest.raises(NotSupportedError, match="`predicted` must be a prediction of classes; Normal has none"):
            function(d, y)
    with pytest.raises(
        NotSupportedError, match=r"^mutual_information is not available for Categorical; it needs draws"
    ):
        metrics.mutual_information_score(from_probs(np.eye(3)))


PER_PREDICTION = {
    "crps": metrics.crps,
    "nll": metrics.nll,
    "pit": metrics.pit,
    "coverage": lambda d, y: metrics.coverage(d, y, 0.5),
    "width": lambda d, _: metrics.width(d, 0.5),
    "pinball": lambda d, y: metrics.pinball(d, y, [0.5]),
    "interval_score": lambda d, y: metrics.interval_score(d, y, 0.5),
    "weighted_interval_score": lambda d, y: metrics.weighted_interval_score(d, y, [0.5]),
    "energy_score": metrics.energy_score,
    "sharpness": lambda d, _: metrics.sharpness(d),
    "error_spread": metrics.error_spread,
    "bootstrap": metrics.CRPS().bootstrap,
    "stream": metrics.CRPS().stream().update,
}


@pytest.mark.parametrize("name", PER_PREDICTION)
def test_outputs_in_the_batch_shape_get_a_hint(name):
    for columns in (2, 20):  # 20 rows of 20 outputs would fit targets of 20 rows by chance
        wide = Normal(torch.zeros(20, columns), 1.0)
        for targets in (torch.zeros(20, columns), torch.zeros(20)):
            with pytest.raises(ShapeError, match=rf"batch_shape \(20, {columns}\): .*Independent\(predicted, 1\)"):
                PER_PREDICTION[name](wide, targets)
    with pytest.raises(ShapeError, match=r"batch_shape \(\): expand\(\(rows,\)\) gives every row"):
        PER_PREDICTION[name](Normal(0.0, 1.0), torch.zeros(20))
    PER_PREDICTION[name](Normal(0.0, 1.0).expand((20,)), torch.zeros(20))


def test_targets_of_another_shape_name_the_batch_shape_where_it_is_wrong():
    with pytest.raises(ShapeError, match=r"`targets` must have shape .*Independent\(predicted, 1\)"):
        distributions.log_prob(Normal(torch.zeros(20, 2), 1.0), torch.zeros(20, 2))
    with pytest.raises(ShapeError) as caught:
        metrics.crps(Normal(torch.zeros(20), 1.0), torch.zeros(20, 2))
    assert "Independent" not in str(caught.value)
    with pytest.raises(ShapeError, match="Independent"):
        metrics.nll(MultivariateNormal(torch.zeros(3, 4, 2), torch.eye(2)), torch.zeros(3, 4, 2))


@pytest.mark.parametrize("name", ["ece", "top_label_ece", "event_ece", "classwise_ece"])
def test_functions_take_bins_of_equal_mass(name):
    recipes = {
        "ece": metrics.ECE,
        "top_label_ece": metrics.TopLabelECE,
        "event_ece": metrics.EventECE,
        "classwise_ece": metrics.ClasswiseECE,
    }
    pair = make("events", 200)
    value = getattr(metrics, name)(*pair, num_bins=4, equal_mass=True)
    assert torch.equal(value, recipes[name](num_bins=4, equal_mass=True)(*pair))
    assert not torch.equal(value, getattr(metrics, name)(*pair, num_bins=4))


def test_results_are_one_line_to_read():
    classes, targets = make("classes", 40)
    shown = {
        "BinTable(15 bins, 40 forecasts; l1 error": metrics.top_label_bins(classes, targets),
        "BinTable(4 tables of 15 bins, 160 forecasts; l1": metrics.classwise_bins(classes, targets),
        "SmoothCurve(40 forecasts at": metrics.smooth_curve(classes, targets, num_replicates=3, seed=0),
        "RiskCoverage(": metrics.risk_coverage(classes, targets),
        "LeaveOneOut(elpd": metrics.psis_loo(-torch.rand(40, 30)),
        "SmoothedWeights(40 draws, k above 0.38 in": metrics.pareto_smooth(torch.rand(40, 30)),
        "CalibrationCurve(19 levels, 40 values": metrics.one_sided_calibration_curve(torch.rand(40)),
        "PITHistogram(10 bins, 40 values": metrics.pit_histogram(torch.rand(40)),
        "Streaming(NLL(), no rows yet)": metrics.NLL().stream(),
    }
    for beginning, result in shown.items():
        assert repr(result).startswith(beginning)
        assert "\n" not in repr(result)
        assert "tensor" not in repr(result)
        assert len(repr(result)) < 130
    stream = metrics.NLL().stream()
    stream.update(classes, targets)
    assert repr(stream) == "Streaming(NLL(), one of 4 classes a row)"
