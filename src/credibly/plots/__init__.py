"""Pictures of computed values. Each function takes numbers and an optional Axes, and returns the Axes."""

from credibly.plots.bands import consistency_band
from credibly.plots.calibration_curve import calibration_curve
from credibly.plots.class_grid import class_reliability_grid
from credibly.plots.coverage import coverage_against_nominal, coverage_by_group
from credibly.plots.decision_regions import decision_regions
from credibly.plots.history import training_history
from credibly.plots.intervals import prediction_intervals
from credibly.plots.online_coverage import online_coverage
from credibly.plots.pit_histogram import pit_histogram
from credibly.plots.prior_predictive import prior_predictive, prior_predictive_histogram
from credibly.plots.recalibration_map import recalibration_map
from credibly.plots.reliability import reliability_diagram
from credibly.plots.risk_coverage import risk_coverage
from credibly.plots.scores import score_histograms
from credibly.plots.set_sizes import set_sizes
from credibly.plots.smooth_reliability import smooth_reliability
from credibly.plots.widths import widths_against_difficulty

__all__ = [
    "calibration_curve",
    "class_reliability_grid",
    "consistency_band",
    "coverage_against_nominal",
    "coverage_by_group",
    "decision_regions",
    "online_coverage",
    "pit_histogram",
    "prediction_intervals",
    "prior_predictive",
    "prior_predictive_histogram",
    "recalibration_map",
    "reliability_diagram",
    "risk_coverage",
    "score_histograms",
    "set_sizes",
    "smooth_reliability",
    "training_history",
    "widths_against_difficulty",
]
