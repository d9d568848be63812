"""Positive definite matrices in the structures that posteriors over weights have."""

from credibly.core.linalg.base import PositiveDefinite
from credibly.core.linalg.blocks import Blocks
from credibly.core.linalg.dense import Dense
from credibly.core.linalg.diagonal import Diagonal
from credibly.core.linalg.factored import Factored
from credibly.core.linalg.inverse import Inverse, inverse
from credibly.core.linalg.kronecker import Kronecker
from credibly.core.linalg.low_rank import LowRankPlusDiagonal
from credibly.core.linalg.selected import Selected

__all__ = [
    "Blocks",
    "Dense",
    "Diagonal",
    "Factored",
    "Inverse",
    "Kronecker",
    "LowRankPlusDiagonal",
    "PositiveDefinite",
    "Selected",
    "inverse",
]
