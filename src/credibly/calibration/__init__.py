"""Recalibration: maps from forecasts to calibrated forecasts, fitted on held-out outcomes."""

from credibly.calibration.base import Recalibration, Recalibrator
from credibly.calibration.temperature import TemperatureReport, TemperatureScaling, TemperedClasses

__all__ = ["Recalibration", "Recalibrator", "TemperatureReport", "TemperatureScaling", "TemperedClasses"]
