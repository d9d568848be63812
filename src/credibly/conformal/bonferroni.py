"""Several one-dimensional predictors that hold together: each at 1 - (1 - c)/K, by Bonferroni's inequality.

If each of K regions misses its target with probability (1 - c)/K at most, all of them hold with probability c at least,
however they depend on each other.
"""

from credibly.core.checks import check_coverage, exact_level

__all__ = ["part_coverage"]


def part_coverage(coverage: float, num_parts: int) -> float:
    """The coverage of each of several parts that gives the coverage of all together; 0 for 0."""
    level = exact_level(check_coverage(coverage))
    return float(1 - (1 - level) / num_parts) if level else 0.0
