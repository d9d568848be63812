"""Conformal prediction: regions that hold the target with a guaranteed probability."""

from credibly.conformal.aps import APS
from credibly.conformal.base import ConformalPredictor, Score
from credibly.conformal.bounds import Betting, ExactBinomial, HoeffdingBentkus, RiskBound
from credibly.conformal.class_conditional import ClassConditional, ClassConditionalPredictor
from credibly.conformal.class_score import ClassScore
from credibly.conformal.cqr import CQR, AsymmetricCQR, OneSidedCQR, ScaledCQR, TwoSidedPredictor
from credibly.conformal.cv_plus import ClassCVPlus, ClassCVPlusPredictor
from credibly.conformal.distributional import PITScore
from credibly.conformal.hdr import HighestDensity
from credibly.conformal.interval_score import IntervalScore
from credibly.conformal.intervals import Intervals
from credibly.conformal.jackknife import (
    AfterBootstrapPredictor,
    CVPlus,
    JackknifePlus,
    JackknifePlusAfterBootstrap,
    PlusPredictor,
)
from credibly.conformal.lac import LAC
from credibly.conformal.learn_then_test import RCPS, LearnThenTest, TestedRisks
from credibly.conformal.margin import Margin
from credibly.conformal.multi_target import (
    BonferroniBox,
    BonferroniBoxPredictor,
    Box,
    Boxes,
    Ellipsoid,
    Ellipsoids,
    TargetScore,
)
from credibly.conformal.multiple_testing import BenjaminiHochberg, Bonferroni, FixedSequence, Holm, MultipleTest
from credibly.conformal.online.aci import ACI, ACIState
from credibly.conformal.online.base import OnlineMethod, OnlineRun
from credibly.conformal.online.dtaci import DtACI, DtACIState
from credibly.conformal.online.pid import ConformalPID, ConformalPIDState
from credibly.conformal.online.quantile_tracker import QuantileTracker, QuantileTrackerState
from credibly.conformal.online.score_window import ScoreWindow
from credibly.conformal.p_values import Outliers, OutlierTest, conformal_p_values, retained, smoothed_p_values
from credibly.conformal.ranked_score import RankedScore
from credibly.conformal.ranks import rank, threshold, weighted_threshold
from credibly.conformal.raps import RAPS
from credibly.conformal.region import Region
from credibly.conformal.residual import AbsoluteResidual, StandardizedResidual
from credibly.conformal.risk_control import ConformalRiskControl, ControlledRisk, monotone_losses
from credibly.conformal.saps import SAPS
from credibly.conformal.sets import PredictionSets
from credibly.conformal.shift import coverage_gap, density_ratio, effective_sample_size, recency_weights
from credibly.conformal.top_k import TopK
from credibly.conformal.unions import ScoredIntervals, ScoredUnions, UnionOfIntervals

__all__ = [
    "ACI",
    "APS",
    "CQR",
    "LAC",
    "RAPS",
    "RCPS",
    "SAPS",
    "ACIState",
    "AbsoluteResidual",
    "AfterBootstrapPredictor",
    "AsymmetricCQR",
    "BenjaminiHochberg",
    "Betting",
    "Bonferroni",
    "BonferroniBox",
    "BonferroniBoxPredictor",
    "Box",
    "Boxes",
    "CVPlus",
    "ClassCVPlus",
    "ClassCVPlusPredictor",
    "ClassConditional",
    "ClassConditionalPredictor",
    "ClassScore",
    "ConformalPID",
    "ConformalPIDState",
    "ConformalPredictor",
    "ConformalRiskControl",
    "ControlledRisk",
    "DtACI",
    "DtACIState",
    "Ellipsoid",
    "Ellipsoids",
    "ExactBinomial",
    "FixedSequence",
    "HighestDensity",
    "HoeffdingBentkus",
    "Holm",
    "IntervalScore",
    "Intervals",
    "JackknifePlus",
    "JackknifePlusAfterBootstrap",
    "LearnThenTest",
    "Margin",
    "MultipleTest",
    "OneSidedCQR",
    "OnlineMethod",
    "OnlineRun",
    "OutlierTest",
    "Outliers",
    "PITScore",
    "PlusPredictor",
    "PredictionSets",
    "QuantileTracker",
    "QuantileTrackerState",
    "RankedScore",
    "Region",
    "RiskBound",
    "ScaledCQR",
    "Score",
    "ScoreWindow",
    "ScoredIntervals",
    "ScoredUnions",
    "StandardizedResidual",
    "TargetScore",
    "TestedRisks",
    "TopK",
    "TwoSidedPredictor",
    "UnionOfIntervals",
    "conformal_p_values",
    "coverage_gap",
    "density_ratio",
    "effective_sample_size",
    "monotone_losses",
    "rank",
    "recency_weights",
    "retained",
    "smoothed_p_values",
    "threshold",
    "weighted_threshold",
]
