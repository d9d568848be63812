"""Recalibration: maps from forecasts to calibrated forecasts, fitted on held-out outcomes."""

from credibly.calibration.base import Recalibration, Recalibrator
from credibly.calibration.bayesian import (
    BayesianRecalibration,
    Bootstrap,
    DrawsOfMap,
    LaplaceTemperature,
    MixedRecalibration,
)
from credibly.calibration.beta import BetaCalibratedClasses, BetaCalibration
from credibly.calibration.conformal_predictive import (
    ConformalPredictive,
    ConformalPredictiveMap,
    ConformalPredictiveSystem,
)
from credibly.calibration.ensemble_temperature import EnsembleTemperatureScaling, TemperedMembers
from credibly.calibration.histogram import BinnedClasses, HistogramBinning
from credibly.calibration.isotonic import CenteredIsotonic, Isotonic, MonotoneClasses
from credibly.calibration.mixed import MixedPredictive
from credibly.calibration.platt import PlattScaledClasses, PlattScaling
from credibly.calibration.quantile_recalibration import QuantileRecalibration, RecalibratedQuantiles
from credibly.calibration.recalibrated import RecalibratedPredictive
from credibly.calibration.report import FitReport
from credibly.calibration.scaling import (
    DirichletCalibratedClasses,
    DirichletCalibration,
    MatrixScaledClasses,
    MatrixScaling,
    VectorScaledClasses,
    VectorScaling,
)
from credibly.calibration.temperature import TemperatureReport, TemperatureScaling, TemperedClasses
from credibly.calibration.variance_scaling import ScaledSpread, VarianceScaling
from credibly.calibration.venn_abers import VennAbers, VennAbersClasses

__all__ = [
    "BayesianRecalibration",
    "BetaCalibratedClasses",
    "BetaCalibration",
    "BinnedClasses",
    "Bootstrap",
    "CenteredIsotonic",
    "ConformalPredictive",
    "ConformalPredictiveMap",
    "ConformalPredictiveSystem",
    "DirichletCalibratedClasses",
    "DirichletCalibration",
    "DrawsOfMap",
    "EnsembleTemperatureScaling",
    "FitReport",
    "HistogramBinning",
    "Isotonic",
    "LaplaceTemperature",
    "MatrixScaledClasses",
    "MatrixScaling",
    "MixedPredictive",
    "MixedRecalibration",
    "MonotoneClasses",
    "PlattScaledClasses",
    "PlattScaling",
    "QuantileRecalibration",
    "RecalibratedPredictive",
    "RecalibratedQuantiles",
    "Recalibration",
    "Recalibrator",
    "ScaledSpread",
    "TemperatureReport",
    "TemperatureScaling",
    "TemperedClasses",
    "TemperedMembers",
    "VarianceScaling",
    "VectorScaledClasses",
    "VectorScaling",
    "VennAbers",
    "VennAbersClasses",
]
