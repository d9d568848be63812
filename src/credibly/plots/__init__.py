"""Pictures of computed values. Each function takes numbers and an optional Axes, and returns the Axes."""

from credibly.plots.bands import consistency_band
from credibly.plots.calibration_curve import calibration_curve
from credibly.plots.class_grid import class_reliability_grid
from credibly.plots.coverage import coverage_against_nominal, coverage_by_group
from credibly.plots.history import training_history
from credibly.plots.intervals import prediction_intervals
from credibly.plots.pit_histogram import pit_histogram
from credibly.plots.prior_predictive import prior_predictive, prior_predictive_histogram
from credibly.plots.reliability import reliability_diagram
from credibly.plots.risk_coverage import risk_coverage
from credibly.plots.scores import score_histograms
from credibly.plots.smooth_reliability import smooth_reliability

__all__ = [
    "calibration_curve",
    "class_reliability_grid",
    "consistency_band",
    "coverage_against_nominal",
    "coverage_by_group",
    "pit_histogram",
    "prediction_intervals",
    "prior_predictive",
    "prior_predictive_histogram",
    "reliability_diagram",
    "risk_coverage",
    "score_histograms",
    "smooth_reliability",
    "training_history",
]
