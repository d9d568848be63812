"""How much of the dependence between weights a Gaussian keeps: the structures of curvatures, as options of recipes."""

from credibly.curvature.structures import Dense, Diagonal, Kronecker, LowRank, Structure

__all__ = ["Dense", "Diagonal", "Kronecker", "LowRank", "Structure"]
