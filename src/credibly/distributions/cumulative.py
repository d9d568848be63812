"""Cumulative distribution functions and quantiles, accurate in the tails.

The upper tail P(Y > y), where 1 - F(y) has no digits left, is `credibly.distributions.survival`.
"""

# The modules imported for nothing but their entries fill the tables.
import credibly.distributions.cumulative_counts
import credibly.distributions.cumulative_real
import credibly.distributions.cumulative_student  # noqa: F401
from credibly.distributions.cumulative_classes import class_cdf, class_icdf
from credibly.distributions.cumulative_tables import cdf, icdf

__all__ = ["cdf", "class_cdf", "class_icdf", "icdf"]
