"""The curvature of a likelihood in a network's weights, and what a Gaussian over them says about its outputs."""

from credibly.curvature.fit import curvature
from credibly.curvature.kinds import GGN, CurvatureKind, EmpiricalFisher
from credibly.curvature.memory import bytes_needed
from credibly.curvature.outputs import jacobians, output_covariance
from credibly.curvature.structures import Dense, Diagonal, Kronecker, LowRank, Structure

__all__ = [
    "GGN",
    "CurvatureKind",
    "Dense",
    "Diagonal",
    "EmpiricalFisher",
    "Kronecker",
    "LowRank",
    "Structure",
    "bytes_needed",
    "curvature",
    "jacobians",
    "output_covariance",
]
