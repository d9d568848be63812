"""Pictures of computed values. Each function takes numbers and an optional Axes, and returns the Axes."""

from credibly.plots.bands import consistency_band
from credibly.plots.history import training_history
from credibly.plots.intervals import prediction_intervals
from credibly.plots.reliability import reliability_diagram

__all__ = ["consistency_band", "prediction_intervals", "reliability_diagram", "training_history"]
