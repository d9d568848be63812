"""Every public score at the edges of its arrays and of class predictions; no name of `metrics` may be missing."""

import math

import numpy as np
import pytest
import torch
from edge_outcomes import examples, holds_nan, names_its_argument, outcome
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Bernoulli, Categorical, Normal

import cases
from credibly import distributions as waist
from credibly import metrics
from credibly.core.errors import NotFiniteError, NotSupportedError, ShapeError, SupportError
from metrics.metric_data import make, pick

NAN, INF = math.nan, math.inf
ROWS = 6
HELD = torch.tensor([True, False, True, True, False, True])

# -- arrays of anything --------------------------------------------------------------------------------------------

ARRAYS = {
    "nothing": torch.zeros(0),
    "no_columns": torch.zeros(ROWS, 0),
    "one": torch.tensor([0.5]),
    "a_number": torch.tensor(0.5),
    "numbers": torch.linspace(0.1, 0.9, ROWS),
    "all_equal": torch.full((ROWS,), 0.5),
    "nan": torch.tensor([0.1, NAN, 0.3, 0.4, 0.5, 0.6]),
    "infinite": torch.tensor([0.1, INF, 0.3, 0.4, 0.5, 0.6]),
    "minus_infinite": torch.tensor([0.1, -INF, 0.3, 0.4, 0.5, 0.6]),
    "all_infinite": torch.full((ROWS,), INF),
    "negative": -torch.linspace(0.1, 0.9, ROWS),
    "huge": torch.linspace(0, 1e300, ROWS, dtype=torch.float64),
    "half": torch.linspace(0, 1, ROWS).half(),
    "brain": torch.linspace(0, 1, ROWS).bfloat16(),
    "whole": torch.arange(ROWS),
    "bytes": torch.tensor([0, 1, 1, 0, 1, 0], dtype=torch.uint8),
    "booleans": HELD,
    "column": torch.linspace(0, 1, ROWS).unsqueeze(-1),
    "table": torch.linspace(0, 1, ROWS * 5).reshape(ROWS, 5),
    "table_of_nan": torch.full((ROWS, 5), NAN),
    "table_of_ones": torch.ones(ROWS, 5),
    "cube": torch.linspace(0, 1, 2 * ROWS * 3).reshape(2, ROWS, 3),
    "channels_last": torch.rand(2, 3, 4, ROWS).contiguous(memory_format=torch.channels_last),
    "strided": torch.linspace(0, 1, 2 * ROWS, dtype=torch.float64)[::2],
    "numpy": np.linspace(0, 1, ROWS),
    "reversed_numpy": np.linspace(0, 1, ROWS)[::-1],
    "words": ["no", "yes"],
    "ragged": [[0.1], [0.2, 0.3]],
}


def normal():
    return Normal(torch.zeros(ROWS), torch.ones(ROWS), validate_args=False)


def draws():
    return torch.linspace(-1, 1, 4 * ROWS).reshape(4, ROWS)


OF_ARRAYS = {
    "auroc": [lambda a: metrics.auroc(a, [0.1, 0.2]), lambda a: metrics.auroc([0.1, 0.2], a)],
    "aupr": [lambda a: metrics.aupr(a, [0.1]), lambda a: metrics.aupr([0.1], a, positive="in")],
    "fpr": [lambda a: metrics.fpr(a, [0.1]), lambda a: metrics.fpr([0.1], a)],
    "clopper_pearson": [
        lambda a: metrics.clopper_pearson(a, torch.full((ROWS,), ROWS)),
        lambda a: metrics.clopper_pearson(torch.zeros(ROWS), a),
    ],
    "coverage_report": [lambda a: metrics.coverage_report(a, 0.9)],
    "group_coverage": [
        lambda a: metrics.group_coverage(a, torch.tensor([0, 1, 2, 0, 1, 2]), 0.9),
        lambda a: metrics.group_coverage(HELD, a, 0.9),
    ],
    "class_coverage": [lambda a: metrics.class_coverage(HELD, a, 0.9)],
    "size_stratified_coverage": [lambda a: metrics.size_stratified_coverage(HELD, a, 0.9)],
    "worst_slab_coverage": [
        lambda a: metrics.worst_slab_coverage(a, torch.arange(ROWS), 0.9, mass=0.5, search_share=0.5, seed=0),
        lambda a: metrics.worst_slab_coverage(HELD, a, 0.9, mass=0.5, search_share=0.5, seed=0),
    ],
    "one_sided_calibration_curve": [
        metrics.one_sided_calibration_curve,
        lambda a: metrics.one_sided_calibration_curve([0.5], levels=a),
    ],
    "central_calibration_curve": [metrics.central_calibration_curve],
    "pit_histogram": [metrics.pit_histogram],
    "size": [metrics.size],
    "ess": [metrics.ess, lambda a: metrics.ess(a, kind="tail")],
    "rhat": [metrics.rhat],
    "mcse": [metrics.mcse, lambda a: metrics.mcse(a, kind="median")],
    "pareto_smooth": [metrics.pareto_smooth],
    "psis_loo": [metrics.psis_loo],
    "crps_ensemble": [
        lambda a: metrics.crps_ensemble(a, torch.zeros(3)),
        lambda a: metrics.crps_ensemble(draws(), a),
    ],
    "energy_score": [
        lambda a: metrics.energy_score(a, torch.zeros(3)),
        lambda a: metrics.energy_score(draws(), a),
    ],
    "pit": [
        lambda a: metrics.pit(normal(), a, seed=0),
        lambda a: metrics.pit(waist.from_draws(draws()), torch.zeros(ROWS), u=a),
        lambda a: metrics.pit(waist.from_draws(torch.ones(ROWS, 5)), torch.zeros(5), log_weights=a, seed=0),
    ],
    "pinball": [lambda a: metrics.pinball(normal(), a, 0.5), lambda a: metrics.pinball(normal(), torch.zeros(ROWS), a)],
    "contained": [lambda a: metrics.contained(normal(), a, 0.9)],
    "log_score": [lambda a: metrics.log_score(normal(), a)],
    "rmse": [lambda a: metrics.rmse(normal(), a)],
    "brier": [lambda a: metrics.brier(waist.from_probs(a), torch.zeros(ROWS))],
    "ece": [
        lambda a: metrics.ece(waist.from_probs(a), torch.zeros(ROWS)),
        lambda a: metrics.ece(waist.from_logits(a), torch.zeros(ROWS)),
        lambda a: metrics.ece(waist.from_logits(torch.zeros(ROWS, 3)), a),
    ],
    "negative_log_density_score": [lambda a: metrics.negative_log_density_score(normal(), a)],
    "from_draws": [waist.from_draws],
    "from_quantiles": [
        lambda a: waist.from_quantiles(a, torch.zeros(1, ROWS)),
        lambda a: waist.from_quantiles([0.1, 0.3, 0.5, 0.7, 0.9], a),
    ],
    "Empirical": [lambda a: waist.Empirical(draws(), a)],
    "MixturePredictive": [lambda a: waist.MixturePredictive(Normal(draws().T, 1.0, validate_args=False), a)],
    "select": [lambda a: waist.log_prob(waist.select(normal(), a), [0.0] * 4)],
    "affine": [lambda a: waist.affine(normal(), 0.0, a), lambda a: waist.affine(normal(), a, 1.0)],
    "icdf": [lambda a: waist.icdf(normal(), a)],
    "cdf": [lambda a: waist.cdf(normal(), a)],
}
"""Functions of one array each, in every argument that takes one."""

NAN_BY_DEFINITION = {"ess", "rhat", "mcse"}
"""A parameter with a draw that is not finite has no such number; R-hat of draws that are all equal is 0 / 0."""


@pytest.mark.parametrize("name", OF_ARRAYS)
@examples(12)
@given(st.sampled_from(sorted(ARRAYS)), st.integers(0, 2))
def test_any_array_gives_a_sound_value_or_a_documented_error(name, array, place):
    action, given_array = OF_ARRAYS[name][place % len(OF_ARRAYS[name])], ARRAYS[array]
    before = given_array.clone() if isinstance(given_array, torch.Tensor) else None
    value = outcome(action, given_array)
    if isinstance(value, Exception):
        assert names_its_argument(value), repr(value)
    else:
        assert not holds_nan(value) or name in NAN_BY_DEFINITION, value
    if before is not None:
        torch.testing.assert_close(given_array, before, rtol=0, atol=0, equal_nan=True)
        assert given_array._version == 0


# -- class predictions at the edges --------------------------------------------------------------------------------

OBSERVED = torch.tensor([0, 1, 2, 3, 0, 1, 2, 3])
EYE = torch.eye(4, dtype=torch.float64)
CLASSES = {
    "one_hot_right": lambda: (waist.from_probs(EYE[OBSERVED]), OBSERVED),
    "one_hot_wrong": lambda: (waist.from_probs(EYE[OBSERVED]), (OBSERVED + 1) % 4),
    "one_hot_logits": lambda: (waist.from_logits(EYE[OBSERVED].log()), OBSERVED),
    "all_tied": lambda: (waist.from_probs(torch.full((8, 4), 0.25)), OBSERVED),
    "a_class_missing": lambda: (waist.from_logits(torch.randn(8, 4)), OBSERVED % 3),
    "constant_target": lambda: (waist.from_logits(torch.randn(8, 4)), torch.full((8,), 2)),
    "a_class_of_probability_0": lambda: (waist.from_probs([[0.5, 0.5, 0.0, 0.0]] * 8), OBSERVED % 2),
    "a_thousand_classes": lambda: (waist.from_logits(20 * torch.randn(8, 1000)), torch.arange(0, 1000, 125)),
    "a_thousand_probabilities": lambda: (waist.from_probs((20 * torch.randn(8, 1000)).softmax(-1)), 999 - OBSERVED),
    "float16": lambda: (waist.from_logits(torch.randn(8, 4).half()), OBSERVED.to(torch.uint8)),
    "bfloat16": lambda: (waist.from_probs(torch.randn(8, 4).softmax(-1).bfloat16()), OBSERVED.float()),
    "huge_logits": lambda: (waist.from_logits(1e30 * torch.randn(8, 4)), OBSERVED),
    "draws": lambda: (waist.from_probs(torch.stack([EYE[OBSERVED], EYE[(OBSERVED + 1) % 4]])), OBSERVED),
    "one_row": lambda: (waist.from_logits(torch.randn(1, 4)), [3]),
    "strided": lambda: (waist.from_logits(torch.randn(4, 8).T), torch.stack([OBSERVED, OBSERVED], -1)[:, 0]),
}
EVENTS = {
    "certain_and_right": lambda: (waist.from_probs([0.0, 1.0] * 4), [0, 1] * 4),
    "certain_and_wrong": lambda: (waist.from_probs([0.0, 1.0] * 4), [1, 0] * 4),
    "infinite_logits": lambda: (waist.from_logits([-INF, INF] * 4), [False, True] * 4),
    "all_tied": lambda: (waist.from_probs([0.5] * 8), [0, 1] * 4),
    "constant_event": lambda: (waist.from_probs(torch.linspace(0.25, 1, 8)), torch.ones(8)),
    "float16": lambda: (waist.from_probs(torch.linspace(0, 1, 8).half()), [0, 1] * 4),
    "one_row": lambda: (waist.from_probs([0.25]), [1]),
}
OF_KIND = {"classes": CLASSES, "events": EVENTS}
CLASS_CASES = [
    (metric, edge)
    for metric, (kind, _) in cases.METRICS.items()
    if kind in OF_KIND or metric in ("log_score_of_reals", "crps")
    for edge in (CLASSES if kind == "classes" else EVENTS)
]
IMPOSSIBLE = {"one_hot_wrong", "certain_and_wrong", "huge_logits", "a_thousand_probabilities"}
"""What came had, or may have had, probability 0: the log score is minus infinity, and nothing else is infinite."""


@pytest.mark.parametrize(("name", "edge"), CLASS_CASES)
def test_class_predictions_at_the_edges_have_finite_scores_and_intervals(name, edge):
    kind, recipe = cases.METRICS[name]
    metric = recipe()
    predicted, targets = (CLASSES if kind == "classes" else EVENTS)[edge]()
    value = outcome(metric, predicted, targets)
    if isinstance(value, Exception):
        assert isinstance(value, NotSupportedError), repr(value)  # a CRPS of classes whose order is not known
        return
    may_be_infinite = edge in IMPOSSIBLE and isinstance(metric, (metrics.LogScore, metrics.NLL))
    assert bool(value.isfinite().all()) or may_be_infinite, value
    if edge == "one_row" and not isinstance(metric, metrics.Accuracy):
        with pytest.raises(ShapeError, match="at least 2 rows"):
            metric.bootstrap(predicted, targets, seed=0)
        return
    estimate = metric.bootstrap(predicted, targets, num_replicates=40, seed=0)
    assert not holds_nan(estimate)
    assert bool((estimate.lower <= estimate.upper).all())


def test_certain_predictions_have_the_extreme_scores():
    right, wrong = CLASSES["one_hot_right"](), CLASSES["one_hot_wrong"]()
    assert (metrics.accuracy(*right), metrics.brier(*right), metrics.ece(*right)) == (1, 0, 0)
    assert (metrics.accuracy(*wrong), metrics.brier(*wrong), metrics.ece(*wrong)) == (0, 2, 1)
    assert (metrics.log_score(*right), metrics.log_score(*wrong)) == (0, -INF)
    tied = CLASSES["all_tied"]()
    assert metrics.accuracy(*tied) == 0.25  # of equally probable classes the first counts
    assert metrics.ece(*tied) == 0
    assert metrics.aurc(*tied) == 0.75
    assert metrics.e_aurc(*EVENTS["certain_and_right"]()) == 0


@pytest.mark.parametrize("name", [name for name, (kind, _) in cases.METRICS.items() if kind in OF_KIND])
@pytest.mark.parametrize("labels", [[1, 2, 3, 4], [10, 20, 30, 10], [-1, 0, 1, 0], [0.5, 0, 1, 1]])
def test_labels_that_are_no_indices_are_refused_by_every_metric(name, labels):
    kind, recipe = cases.METRICS[name]
    predicted = waist.from_probs(torch.full((4, 4), 0.25) if kind == "classes" else [0.5] * 4)
    for action in (recipe(), recipe().stream().update, recipe().bootstrap):
        with pytest.raises(SupportError, match=r"target .* outside the support .* interop\.ClassLabels"):
            action(predicted, labels)


@pytest.mark.parametrize("name", cases.METRICS)
def test_targets_and_predictions_that_are_not_finite_are_refused_by_every_metric(name):
    kind, recipe = cases.METRICS[name]
    predicted, targets = make(kind, 12)
    bad = targets.double()
    bad[5] = NAN
    for action in (recipe(), recipe().stream().update, recipe().bootstrap):
        with pytest.raises(NotFiniteError, match=r"`targets` must be finite|`scores_out` must not be NaN"):
            action(predicted, bad)
    if kind != "scores":
        bad[5] = INF
        with pytest.raises(NotFiniteError, match="`targets` must be finite"):
            recipe()(predicted, bad)


@pytest.mark.parametrize("name", [name for name, (kind, _) in cases.METRICS.items() if kind in OF_KIND])
def test_a_probability_of_nan_is_refused_by_every_metric(name):
    kind, recipe = cases.METRICS[name]
    if kind == "classes":
        predicted = Categorical(logits=torch.tensor([[0.0, 1.0], [NAN, 0.0], [1.0, 0.0]]), validate_args=False)
    else:
        predicted = Bernoulli(probs=torch.tensor([0.5, NAN, 0.25]), validate_args=False)
    for action in (recipe(), recipe().bootstrap):
        with pytest.raises(NotFiniteError, match="`"):
            action(predicted, [0, 1, 1])


@pytest.mark.parametrize("name", cases.METRICS)
def test_targets_never_broadcast(name):
    kind, recipe = cases.METRICS[name]
    predicted, targets = make(kind, 4)
    for wrong in (targets[:3], targets.unsqueeze(0), torch.stack([targets] * 4, 1)):
        if kind == "scores" and wrong.dim() == 1:
            continue  # another number of outside rows is fine
        with pytest.raises(ShapeError, match=r"`targets`|`scores_out`"):
            recipe()(predicted, wrong)


# -- numbers at the edges ------------------------------------------------------------------------------------------


@examples(10)
@given(
    st.lists(
        st.lists(st.sampled_from([-INF, -1.0, 0.0, 0.0, 2.0, INF]), min_size=3, max_size=3), min_size=1, max_size=5
    ),
    st.sampled_from([-3.0, 0.0, 2.0]),
)
def test_crossing_equal_and_infinite_quantiles(rows, target):
    """Quantiles are sorted, whatever their order; an interval with an infinite end is infinitely wide and never NaN."""
    levels, values = [0.0025, 0.5, 0.9975], torch.tensor(rows, dtype=torch.float64)
    predicted, targets = waist.from_quantiles(levels, values), torch.full((len(rows),), target, dtype=torch.float64)
    ordered = values.sort(-1).values
    inside = (ordered[:, 0] <= target) & (target <= ordered[:, 2])
    assert torch.equal(metrics.contained(predicted, targets, 0.995), inside)
    for value in (
        metrics.width(predicted, 0.995),
        metrics.coverage(predicted, targets, 0.995),
        metrics.pinball(predicted, targets, levels),
        metrics.interval_score(predicted, targets, 0.995),
        metrics.weighted_interval_score(predicted, targets, [0.995]),
        metrics.crps(predicted, targets),
    ):
        assert value >= 0
    crossed = waist.from_quantiles(levels, values.flip(-1))
    assert torch.equal(metrics.crps(crossed, targets), metrics.crps(predicted, targets))


def test_an_interval_at_infinity_is_a_miss_of_infinite_size():
    predicted = waist.from_quantiles([0.25, 0.5, 0.75], [[INF, INF, INF], [-INF, -INF, -INF], [-INF, 0.0, INF]])
    targets = torch.zeros(3)
    assert metrics.contained(predicted, targets, 0.5).tolist() == [False, False, True]
    assert metrics.width(waist.select(predicted, [0, 1]), 0.5) == 0
    for rows in ([0], [1], [2]):
        assert metrics.interval_score(waist.select(predicted, rows), [0.0], 0.5) == INF


@pytest.mark.parametrize("target", [0.0, 1.0])
def test_a_scale_of_zero_is_refused_or_a_point(target):
    """It is no scale: scores are those of a point mass, or refused; never NaN, and never finite where they are not."""
    predicted = Normal(torch.zeros(3), torch.zeros(3), validate_args=False)
    targets = torch.full((3,), target)
    assert metrics.rmse(predicted, targets) == target
    assert metrics.sharpness(predicted) == 0
    assert metrics.width(predicted, 0.995) == 0
    for level in (0.005, 0.5, 0.995):
        assert metrics.coverage(predicted, targets, level) == (target == 0)
    with pytest.raises(ValueError, match="`predicted` must have finite variances above 0"):
        metrics.ENCE()(predicted, targets)
    for action, point in ((metrics.crps, target), (metrics.log_score, -INF)):
        value = outcome(action, predicted, targets)
        assert isinstance(value, NotFiniteError) or float(value) == point


@pytest.mark.parametrize("coverage", [0.005, 0.5, 0.995])
@pytest.mark.parametrize("rows", [1, 2, 1000])
def test_few_rows_and_extreme_coverages_have_exact_laws(coverage, rows):
    """With n too small no conformal set of this coverage is finite: everything is held, and the law says so."""
    held = torch.arange(rows) < rows * coverage
    for num_calibration in (None, 1, 150):
        report = metrics.coverage_report(held, coverage, num_calibration=num_calibration)
        assert 0 <= report.lower <= report.observed <= report.upper <= 1
        assert 0 <= report.p_value <= 1
        low, high = metrics.coverage_interval(num_calibration, rows, coverage)
        assert 0 <= low <= high <= 1
    if coverage == 0.995:
        assert metrics.coverage_interval(1, rows, coverage) == (1.0, 1.0)


# -- more rows than single precision can count ---------------------------------------------------------------------

MANY = 2**24 + 1


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        (metrics.Accuracy(), 2 / 3),
        (metrics.ECE(), abs(0.75 - 2 / 3)),
        (metrics.ClasswiseECE(), abs(0.75 - 2 / 3)),
        (metrics.Brier(), 2 * (1 / 3 * 0.75**2 + 2 / 3 * 0.25**2)),
        (metrics.SmoothECE(), None),
        (metrics.BrierDecomposition(), None),
    ],
    ids=lambda part: type(part).__name__ if isinstance(part, metrics.Metric) else "",
)
def test_counts_stay_exact_beyond_two_to_the_24(recipe, expected):
    """Shards of equal rows, doubled by merging: in single precision 2^24 + 1 would be 2^24."""
    rows = 3 * 2**14
    predicted = waist.from_probs(torch.tensor([[0.75, 0.25]]).expand(rows, 2))
    targets = (torch.arange(rows) % 3 == 0).long()
    shard = recipe.stream()
    shard.update(predicted, targets)
    while int(_count(shard)) <= MANY:
        shard = shard.merge(shard)
    last = recipe.stream()
    last.update(waist.select(predicted, [0]), targets[:1])
    merged = shard.merge(last)
    total = int(_count(shard)) + 1
    assert int(_count(merged)) == total > MANY
    assert total % 2 == 1
    if expected is not None:
        assert merged.compute().item() == pytest.approx(expected, rel=1e-6)
    assert bool(merged.compute().isfinite().all())


def _count(stream):
    state = stream.state
    if "count" in state:
        return state["count"]
    return state["counts"].reshape(-1, 2).sum() // _tables(state) if "counts" in state else state["sums"][0].sum() / 2


def _tables(state):
    return state["counts"].shape[0] if state["counts"].dim() > 2 else 1


def test_seventeen_million_rows_at_once_are_counted_exactly():
    held = torch.ones(MANY, dtype=torch.bool)
    held[0] = False
    table = metrics.group_coverage(held, torch.zeros(MANY, dtype=torch.int8), 0.5)
    assert (table.hits.tolist(), table.counts.tolist()) == ([MANY - 1], [MANY])
    assert float(table.observed[0]) == (MANY - 1) / MANY
    predicted = Bernoulli(probs=torch.tensor(1.0).expand(MANY), validate_args=False)
    table = metrics.event_bins(predicted, held, num_bins=2)
    assert table.counts.tolist() == [0, MANY]
    assert float(table.frequency[1]) == (MANY - 1) / MANY


# -- nothing is forgotten ------------------------------------------------------------------------------------------

ELSEWHERE = {
    "test_edge_predictions": {
        "accuracy", "aurc", "brier_decomposition", "classwise_ece", "coverage", "crps", "e_aurc", "entropy_score",
        "error_spread", "interval_score", "least_confidence_score", "ranked_probability_score", "sharpness",
        "smooth_ece", "weighted_interval_score", "width",
    },
    "short forms and rows of those": {
        "classwise_bins", "coverage_interval", "event_bins", "event_ece", "largest_prob", "mutual_information_score",
        "nll", "ranked_probability_rows", "risk_coverage", "smooth_curve", "top_label_bins", "top_label_ece",
        "zero_one_loss",
    },
}  # fmt: skip


def test_every_public_function_of_metrics_meets_its_edges():
    functions = {name for name in metrics.__all__ if name[0].islower()}
    assert functions <= OF_ARRAYS.keys() | set().union(*ELSEWHERE.values())


SHORT_FORMS = {
    "classwise_bins": metrics.classwise_bins,
    "event_bins": metrics.event_bins,
    "event_ece": metrics.event_ece,
    "largest_prob": lambda d, y: metrics.largest_prob(d),
    "mutual_information_score": lambda d, y: metrics.mutual_information_score(d),
    "nll": metrics.nll,
    "ranked_probability_rows": metrics.ranked_probability_rows,
    "risk_coverage": metrics.risk_coverage,
    "smooth_curve": lambda d, y: metrics.smooth_curve(d, y, num_replicates=10, seed=0).error,
    "top_label_bins": metrics.top_label_bins,
    "top_label_ece": metrics.top_label_ece,
    "zero_one_loss": metrics.zero_one_loss,
}


@pytest.mark.parametrize("name", SHORT_FORMS)
@examples(4)
@given(st.sampled_from(sorted(CLASSES)), st.sampled_from(sorted(EVENTS)))
def test_short_forms_of_class_predictions_are_sound_at_the_edges(name, classes, event):
    for predicted, targets in (CLASSES[classes](), EVENTS[event](), pick(make("events", 3), slice(0, 0))):
        value = outcome(SHORT_FORMS[name], predicted, targets)
        if isinstance(value, Exception):
            no_rows = isinstance(value, ShapeError) and predicted.batch_shape == (0,)
            assert no_rows or isinstance(value, NotSupportedError), repr(value)
        else:
            assert not holds_nan(value), value
