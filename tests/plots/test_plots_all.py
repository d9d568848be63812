"""What holds for every picture: Axes given and returned, options, words that fit, figures only where one is drawn."""

from collections.abc import Callable
from itertools import pairwise

import matplotlib.pyplot as plt
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from picture_checks import keys, words_fit

from credibly.distributions.entry import from_probs
from credibly.metrics.calibration_error import event_bins
from credibly.metrics.conditional_coverage import group_coverage
from credibly.metrics.coverage_report import coverage_report
from credibly.metrics.regression_calibration import central_calibration_curve, pit_histogram
from credibly.metrics.selective import risk_coverage
from credibly.metrics.smooth_curve import smooth_curve
from credibly.plots.calibration_curve import calibration_curve
from credibly.plots.class_grid import class_reliability_grid
from credibly.plots.coverage import coverage_against_nominal, coverage_by_group
from credibly.plots.pit_histogram import pit_histogram as draw_pit_histogram
from credibly.plots.prior_predictive import prior_predictive, prior_predictive_histogram
from credibly.plots.reliability import reliability_diagram
from credibly.plots.risk_coverage import risk_coverage as draw_risk_coverage
from credibly.plots.scores import score_histograms
from credibly.plots.series import series_color, series_line
from credibly.plots.smooth_reliability import smooth_reliability
from credibly.plots.style import ALARM, DATA, INK, PALE, SECOND

UNIFORM = torch.linspace(0.01, 0.99, 60, dtype=torch.float64)
HITS = torch.arange(60) % 3 > 0
LONG = "A title that is far too long for one line above a picture as small as this one is"


def probabilities() -> tuple[torch.distributions.Distribution, torch.Tensor]:
    return from_probs(UNIFORM), HITS.long()


PICTURES: dict[str, Callable[..., Axes]] = {
    "calibration_curve": lambda ax=None, **options: calibration_curve(
        central_calibration_curve(UNIFORM), ax, **options
    ),
    "pit_histogram": lambda ax=None, **options: draw_pit_histogram(pit_histogram(UNIFORM.square()), ax, **options),
    "reliability_diagram": lambda ax=None, **options: reliability_diagram(event_bins(*probabilities()), ax, **options),
    "smooth_reliability": lambda ax=None, **options: smooth_reliability(
        smooth_curve(*probabilities(), num_replicates=20, seed=0), ax, **options
    ),
    "risk_coverage": lambda ax=None, **options: draw_risk_coverage(
        risk_coverage(*probabilities()), ax, areas=0.25, **options
    ),
    "coverage_against_nominal": lambda ax=None, **options: coverage_against_nominal(
        [coverage_report(HITS, level) for level in (0.4, 0.6, 0.8)], ax, **options
    ),
    "coverage_by_group": lambda ax=None, **options: coverage_by_group(
        group_coverage(HITS, torch.arange(60) % 4, 0.7), ax, **options
    ),
    "prior_predictive": lambda ax=None, **options: prior_predictive(
        UNIFORM, UNIFORM * torch.linspace(-1, 1, 9, dtype=torch.float64)[:, None], ax, **options
    ),
    "prior_predictive_histogram": lambda ax=None, **options: prior_predictive_histogram(
        UNIFORM.logit().repeat(5, 1), ax, observed=UNIFORM, **options
    ),
    "score_histograms": lambda ax=None, **options: score_histograms(UNIFORM, UNIFORM + 0.4, ax, **options),
}


@pytest.mark.parametrize(
    ("draw", "source"),
    [
        (reliability_diagram, "BinTable, from metrics.top_label_bins or metrics.event_bins"),
        (class_reliability_grid, "BinTable, from metrics.classwise_bins"),
        (smooth_reliability, "SmoothCurve, from metrics.smooth_curve"),
        (draw_pit_histogram, "PITHistogram, from metrics.pit_histogram"),
        (calibration_curve, "CalibrationCurve, from metrics.one_sided_calibration_curve"),
        (draw_risk_coverage, "RiskCoverage, from metrics.risk_coverage"),
        (coverage_by_group, "GroupCoverage, from metrics.class_coverage"),
        (coverage_against_nominal, "CoverageReport, from metrics.coverage_report"),
    ],
)
def test_predictions_in_place_of_tables_are_refused(draw: Callable[..., Axes], source: str) -> None:
    with pytest.raises(TypeError, match=f"must be a {source}.*; got Bernoulli"):
        draw(probabilities()[0])
    assert plt.get_fignums() == []


@pytest.fixture(params=sorted(PICTURES))
def picture(request: pytest.FixtureRequest) -> Callable[..., Axes]:
    return PICTURES[request.param]


def test_draws_on_the_given_axes_and_returns_them(picture: Callable[..., Axes]) -> None:
    figure, (left, right) = plt.subplots(1, 2)
    assert picture(right, title="T", legend=False) is right
    assert plt.get_fignums() == [figure.number]
    assert not left.has_data()
    assert right.get_title() == "T"
    assert right.get_legend() is None


def test_makes_a_figure_of_its_own_with_keys(picture: Callable[..., Axes]) -> None:
    ax = picture()
    assert plt.get_fignums() == [ax.figure.number]
    assert ax.get_title() == ""
    assert keys(ax)
    assert len(set(keys(ax))) == len(keys(ax))


def test_words_fit_into_a_figure_of_its_own(picture: Callable[..., Axes]) -> None:
    words_fit([picture(title=LONG)])


@pytest.mark.parametrize("layout", ["constrained", None])
def test_words_fit_into_a_grid(layout: str | None) -> None:
    _, axes = plt.subplots(3, 4, figsize=(18, 12), layout=layout)
    drawn = [draw(ax, title=LONG) for draw, ax in zip(PICTURES.values(), axes.flat, strict=False)]
    words_fit(drawn)


def test_series_can_be_told_apart_in_colour_and_in_grey() -> None:
    looks = [(series_color(index), series_line(index)) for index in range(12)]
    assert len(set(looks)) == 12
    assert all(one[1] != two[1] for one, two in pairwise(looks))


@pytest.mark.parametrize("color", [DATA, ALARM, INK, *(series_color(index) for index in range(4))])
def test_lines_stand_out_from_paper(color: str | tuple[float, float, float]) -> None:
    """Contrast of at least 3 : 1 to white, as accessibility guidelines ask of graphics."""
    assert contrast(color, "white") >= 3.0


def test_two_quantities_in_one_picture_differ_in_grey() -> None:
    assert contrast(DATA, SECOND) >= 1.5
    assert contrast(DATA, PALE) >= 3.0


def contrast(one: str | tuple[float, float, float], two: str | tuple[float, float, float]) -> float:
    dark, light = sorted([luminance(one), luminance(two)])
    return (light + 0.05) / (dark + 0.05)


def luminance(color: str | tuple[float, float, float]) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
