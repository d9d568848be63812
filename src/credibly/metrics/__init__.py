"""Scores of predictions: pure functions of a distribution and the targets that came."""

from credibly.metrics.bins import BinTable
from credibly.metrics.calibration_error import ece, event_bins, event_ece, top_label_bins, top_label_ece
from credibly.metrics.coverage_law import coverage_interval
from credibly.metrics.intervals import coverage, size, width
from credibly.metrics.scores import accuracy, brier, crps, log_score, nll, rmse

__all__ = [
    "BinTable",
    "accuracy",
    "brier",
    "coverage",
    "coverage_interval",
    "crps",
    "ece",
    "event_bins",
    "event_ece",
    "log_score",
    "nll",
    "rmse",
    "size",
    "top_label_bins",
    "top_label_ece",
    "width",
]
