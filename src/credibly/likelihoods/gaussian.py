"""Gaussian noise of one scale for all rows: fixed, or learned along with the weights."""

import math

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, Normal

from credibly.core.checks import check_count
from credibly.core.errors import ShapeError
from credibly.core.typing import ArrayLike
from credibly.likelihoods.base import Likelihood

__all__ = ["Gaussian", "gaussian_distribution", "gaussian_log_prob"]

_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)
_FLOOR = 1e-4


def gaussian_log_prob(loc: Tensor, scale: Tensor, targets: Tensor, *, event: bool) -> Tensor:
    """The log density of independent Gaussians, summed over the last axis where the target is a vector."""
    z = (targets - loc) / scale
    density = torch.sub(-_HALF_LOG_TWO_PI - scale.log(), z.square(), alpha=0.5)
    return density.sum(-1) if event else density


def gaussian_distribution(loc: Tensor, scale: Tensor, *, event: bool) -> Distribution:
    """A Normal per element, joint over the last axis where the target is a vector."""
    normal = Normal(loc, scale, validate_args=False)
    return Independent(normal, 1, validate_args=False) if event else normal


class Gaussian(Likelihood):
    """`y ~ Normal(output, scale)`, the scale shared by all rows.

    Args:
        num_outputs: the number of targets per row; with 1 a target is a number, otherwise a vector.
        scale: the standard deviation of the noise in the units of the targets, one number or one per output. None
            learns it: a parameter `log_scale`, trained with the weights, on the network's side of any standardisation.
        initial_scale: where a learned scale starts, on the network's side of any standardisation.
        per_output: whether each output learns a scale of its own.

    A learned scale is `exp(log_scale) + 1e-4` on the network's side, so that it cannot reach 0.
    """

    scale: Tensor | None

    def __init__(
        self,
        num_outputs: int = 1,
        *,
        scale: float | ArrayLike | None = None,
        initial_scale: float = 1.0,
        per_output: bool = True,
    ) -> None:
        super().__init__()
        self.num_outputs = check_count("num_outputs", num_outputs)
        self.initial_scale = initial_scale
        self.per_output = per_output
        self.log_scale: nn.Parameter | None
        if scale is None:
            if not _FLOOR < initial_scale < math.inf:
                raise ValueError(f"`initial_scale` must be finite and above {_FLOOR}; got {initial_scale}")
            shape = (num_outputs,) if per_output and num_outputs > 1 else ()
            self.log_scale = nn.Parameter(torch.empty(shape))
            self.register_buffer("scale", None)
            self.reset_parameters()
        else:
            self.log_scale = None
            self.register_buffer("scale", _fixed_scale(scale, num_outputs))

    def reset_parameters(self) -> None:
        """Put a learned scale back to its start."""
        if self.log_scale is not None:
            nn.init.constant_(self.log_scale, math.log(self.initial_scale - _FLOOR))

    def noise_scale(self) -> Tensor:
        """The standard deviation of the noise, () or (num_outputs,), on the network's side of any standardisation."""
        return self.scale if self.log_scale is None else self.log_scale.exp() + _FLOOR  # type: ignore[return-value]

    def parameters_of(self, outputs: Tensor) -> dict[str, Tensor]:
        """`loc` and `scale`, each (*batch,) or (*batch, num_outputs)."""
        loc = outputs if self.num_outputs > 1 else outputs.squeeze(-1)
        return {"loc": loc, "scale": self.noise_scale().to(loc.dtype).expand_as(loc)}

    def distribution(self, parameters: dict[str, Tensor]) -> Distribution:
        """A Normal; over vectors, an Independent of them."""
        return gaussian_distribution(parameters["loc"], parameters["scale"], event=self.num_outputs > 1)

    def log_prob(self, parameters: dict[str, Tensor], targets: Tensor) -> Tensor:
        """The Gaussian log density."""
        return gaussian_log_prob(parameters["loc"], parameters["scale"], targets, event=self.num_outputs > 1)

    def fisher(self, outputs: Tensor) -> Tensor:
        """`diag(1 / scale^2)`."""
        return torch.diag_embed(self.noise_scale().to(outputs.dtype).expand_as(outputs) ** -2)

    def standardized(self, loc: Tensor, scale: Tensor) -> "Gaussian":
        """A fixed scale is divided; a learned one keeps its start, which is on the network's side already."""
        shared = scale.double().reshape(()) if scale.numel() == 1 else scale.double()
        fixed = None if self.scale is None else self.scale.to(scale.device) / shared
        other = Gaussian(self.num_outputs, scale=fixed, initial_scale=self.initial_scale, per_output=self.per_output)
        if self.log_scale is not None and other.log_scale is not None:
            other.log_scale.data = self.log_scale.detach().clone()
            other.log_scale.requires_grad_(self.log_scale.requires_grad)
        return other


def _fixed_scale(scale: float | ArrayLike, num_outputs: int) -> Tensor:
    value = torch.as_tensor(scale, dtype=torch.float64).detach().clone()
    if value.shape == (1,) and num_outputs == 1:
        value = value.squeeze(0)
    if value.shape not in (torch.Size([]), torch.Size([num_outputs])):
        raise ShapeError(f"`scale` must be a number or have shape ({num_outputs},); got {tuple(value.shape)}")
    if not bool(((value > 0) & value.isfinite()).all()):
        raise ValueError(f"`scale` must be finite and above 0; got {scale}")
    return value
