"""Student's t noise around a predicted location, with a predicted scale: regression that outliers do not bend.

    log p(y) = log Gamma((df + 1)/2) - log Gamma(df/2) - log(pi df)/2 - log scale - (df + 1)/2 log(1 + z^2/df)

with z = (y - loc)/scale. Robust Statistical Modeling Using the t Distribution, Lange, Little and Taylor 1989.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, distributions, nn
from torch.distributions import Distribution

from credibly.core.checks import check_count, check_positive
from credibly.likelihoods.base import Likelihood
from credibly.likelihoods.elements import blocks, element_fisher, joined, stirling_error
from credibly.likelihoods.offsets import add_offset

__all__ = ["StudentT"]

_LEAST_DF = 2.0
_LARGEST_LOG = math.log(1e6)  # as good as a Gaussian


class StudentT(Likelihood):
    """`y ~ StudentT(df, loc, softplus(raw) + min_scale)`; location and scale are read from the network.

    Args:
        num_targets: the number of targets per row; the network gives `2 * num_targets` outputs, locations first.
        df: the degrees of freedom, above 0, for all rows: 1 is Cauchy's distribution, 4 is robust, above 30 it is
            nearly a Gaussian. None learns it: one parameter `log_excess_df`, trained with the weights. By name only,
            `StudentT(df=4)`: `StudentT(4)` has 4 targets a row, and learns it.
        initial_df: where learned degrees of freedom start, above 2.
        min_scale: the floor of the scale, on the network's side of any standardisation.

    Learned degrees of freedom are `2 + exp(log_excess_df)`, so that every prediction has a variance.
    """

    def __init__(
        self, num_targets: int = 1, *, df: float | None = None, initial_df: float = 5.0, min_scale: float = 1e-4
    ) -> None:
        super().__init__()
        self.num_targets = check_count("num_targets", num_targets)
        self.num_outputs = 2 * num_targets
        self.df = df if df is None else check_positive("df", df)
        if not _LEAST_DF < initial_df < math.inf:
            raise ValueError(f"`initial_df` must be finite and above {_LEAST_DF:g}; got {initial_df}")
        self.initial_df = initial_df
        self.min_scale = check_positive("min_scale", min_scale)
        self.log_excess_df = nn.Parameter(torch.empty(())) if df is None else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Put learned degrees of freedom back to their start."""
        if self.log_excess_df is not None:
            nn.init.constant_(self.log_excess_df, math.log(self.initial_df - _LEAST_DF))

    def degrees_of_freedom(self) -> Tensor | float:
        """The degrees of freedom of all rows: the given number, or the learned one as a tensor ()."""
        if self.log_excess_df is None:
            return self.df  # type: ignore[return-value]
        return _LEAST_DF + self.log_excess_df.clamp(max=_LARGEST_LOG).exp()

    def _df_of(self, loc: Tensor) -> Tensor:
        df = self.degrees_of_freedom()
        return df.to(loc).expand_as(loc) if isinstance(df, Tensor) else torch.full_like(loc, df)

    def parameters_of(self, outputs: Tensor) -> dict[str, Tensor]:
        """`loc`, `scale` and `df`, each (*batch,) or (*batch, num_targets)."""
        loc, raw = blocks(outputs, 2, self.num_targets)
        return {"loc": loc, "scale": F.softplus(raw) + self.min_scale, "df": self._df_of(loc)}

    def distribution(self, parameters: dict[str, Tensor]) -> Distribution:
        """A StudentT; over vectors, an Independent of them."""
        df, loc, scale = (parameters[name] for name in ("df", "loc", "scale"))
        return joined(distributions.StudentT(df, loc, scale, validate_args=False), self.num_targets)

    def log_prob(self, parameters: dict[str, Tensor], targets: Tensor) -> Tensor:
        """The log density; degrees of freedom in the thousands keep it precise."""
        df, scale = parameters["df"], parameters["scale"]
        z = (targets - parameters["loc"]) / scale
        half = df / 2
        # log Gamma(half + 1/2) - log Gamma(half) - log(pi df)/2, by Stirling's formula and its remainders
        constant = half * torch.log1p(1 / df) - 0.5 + stirling_error(half + 0.5) - stirling_error(half)
        constant = constant - 0.5 * math.log(2 * math.pi) - scale.log()
        density = constant - (half + 0.5) * _log1p_square(z / df.sqrt())
        return density.sum(-1) if self.num_targets > 1 else density

    def fisher(self, outputs: Tensor) -> Tensor:
        """Diagonal: `(df + 1)/(df + 3) / scale^2`, `2 df/(df + 3) (scale' / scale)^2`."""
        _, raw = outputs.chunk(2, -1)
        df = self._df_of(raw)
        scale = F.softplus(raw) + self.min_scale
        location = (df + 1) / (df + 3) * scale**-2
        return element_fisher(location, 2 * df / (df + 3) * (raw.sigmoid() / scale) ** 2)

    def with_offset(self, outputs: Tensor, offset: Tensor) -> Tensor:
        """The outputs with the offset added to the locations, not to the raw scales."""
        return add_offset(outputs, offset, first=self.num_targets)

    def standardized(self, loc: Tensor, scale: Tensor) -> "StudentT":
        """The same degrees of freedom: location and scale are predicted on the network's side."""
        other = StudentT(self.num_targets, df=self.df, initial_df=self.initial_df, min_scale=self.min_scale)
        if self.log_excess_df is not None and other.log_excess_df is not None:
            other.log_excess_df.data = self.log_excess_df.detach().clone()
            other.log_excess_df.requires_grad_(self.log_excess_df.requires_grad)
        return other


def _log1p_square(ratio: Tensor) -> Tensor:
    """`log(1 + ratio^2)`, also where the square would overflow."""
    far = ratio.abs() > torch.finfo(ratio.dtype).eps ** -0.5
    near = torch.log1p(torch.where(far, 0.0, ratio).square())
    return torch.where(far, 2 * torch.where(far, ratio, 1.0).abs().log(), near)
