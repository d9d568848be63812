"""Training: one loop for every objective, with its options, schedules and losses."""

from credibly.training.averaging import EMA, SWA
from credibly.training.history import History
from credibly.training.losses import BetaNLL, FocalLoss, LabelSmoothing, TrainingLoss
from credibly.training.optimizers import fused_adam
from credibly.training.options import EarlyStopping, Epoch, TrainingOptions
from credibly.training.schedules import constant, cosine, linear

__all__ = [
    "EMA",
    "SWA",
    "BetaNLL",
    "EarlyStopping",
    "Epoch",
    "FocalLoss",
    "History",
    "LabelSmoothing",
    "TrainingLoss",
    "TrainingOptions",
    "constant",
    "cosine",
    "fused_adam",
    "linear",
]
