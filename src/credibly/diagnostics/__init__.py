"""What to ask of a fitted posterior: ArviZ and its checks, and where the error of a method comes from."""

from credibly.diagnostics.arviz_export import to_arviz
from credibly.diagnostics.bias_variance import BiasVariance, ErrorParts, bias_variance
from credibly.diagnostics.chains import draws_to_arviz

__all__ = ["BiasVariance", "ErrorParts", "bias_variance", "draws_to_arviz", "to_arviz"]
