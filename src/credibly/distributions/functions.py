"""The functions of the waist in one place: what the lower half of the library asks of a distribution.

They work on plain torch distributions and on this library's own; each is a table with one entry a type.
"""

from credibly.distributions.classes import class_draw_log_probs, class_log_probs
from credibly.distributions.crps import crps
from credibly.distributions.cumulative import cdf, icdf
from credibly.distributions.density import log_prob, safe_log_prob
from credibly.distributions.kinds import kind
from credibly.distributions.moments import entropy, mean, variance
from credibly.distributions.rows import concatenate, select, to
from credibly.distributions.survival import survival
from credibly.distributions.targets import match_targets

__all__ = [
    "cdf",
    "class_draw_log_probs",
    "class_log_probs",
    "concatenate",
    "crps",
    "entropy",
    "icdf",
    "kind",
    "log_prob",
    "match_targets",
    "mean",
    "safe_log_prob",
    "select",
    "survival",
    "to",
    "variance",
]
