"""Several real targets whose noise is correlated, with a covariance that the network predicts for each row.

The network gives the mean and the Cholesky factor of the covariance ("Using Neural Networks to Model Conditional
Multivariate Densities", Williams, 1996, with the factor of the covariance in place of that of its inverse).
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Distribution, MultivariateNormal

from credibly.core.checks import check_count, check_positive
from credibly.distributions.joint import multivariate_normal_log_prob
from credibly.likelihoods.base import Likelihood
from credibly.likelihoods.offsets import add_offset

__all__ = ["MultivariateGaussian"]


class MultivariateGaussian(Likelihood):
    """`y ~ Normal(loc, L L^T)` for vectors y, with L lower triangular and `softplus(raw) + min_scale` on its diagonal.

    Args:
        num_targets: D, the number of targets per row. The network gives D locations, then D raw diagonal entries, then
            the D (D - 1) / 2 entries below the diagonal, row by row.
        min_scale: the floor of the factor's diagonal, on the network's side of any standardisation.
    """

    _below: Tensor

    def __init__(self, num_targets: int, *, min_scale: float = 1e-4) -> None:
        super().__init__()
        self.num_targets = check_count("num_targets", num_targets)
        self.num_outputs = num_targets + num_targets * (num_targets + 1) // 2
        self.min_scale = check_positive("min_scale", min_scale)
        where = torch.zeros(num_targets, num_targets, dtype=torch.int64)  # which output each entry of the factor is
        where[tuple(torch.tril_indices(num_targets, num_targets, -1))] = torch.arange(
            num_targets, num_targets * (num_targets + 1) // 2
        )
        where.diagonal().copy_(torch.arange(num_targets))
        self.register_buffer("_below", where, persistent=False)

    def parameters_of(self, outputs: Tensor) -> dict[str, Tensor]:
        """`loc` (*batch, D) and `scale_tril` (*batch, D, D)."""
        size = self.num_targets
        loc, diagonal, below = torch.split(outputs, [size, size, self.num_outputs - 2 * size], -1)
        entries = torch.cat([F.softplus(diagonal) + self.min_scale, below], -1)
        return {"loc": loc, "scale_tril": entries[..., self._below].tril()}

    def distribution(self, parameters: dict[str, Tensor]) -> Distribution:
        """A MultivariateNormal."""
        return MultivariateNormal(parameters["loc"], scale_tril=parameters["scale_tril"], validate_args=False)

    def log_prob(self, parameters: dict[str, Tensor], targets: Tensor) -> Tensor:
        """The joint log density."""
        return multivariate_normal_log_prob(parameters["loc"], parameters["scale_tril"], targets)

    def fisher(self, outputs: Tensor) -> Tensor:
        """`C^-1` for the mean; `tr(C^-1 dC_i C^-1 dC_j) / 2` for the factor, C = L L^T; nothing between the two."""
        scale_tril = self.parameters_of(outputs)["scale_tril"]
        size = self.num_targets
        eye = torch.eye(size, dtype=scale_tril.dtype, device=scale_tril.device).expand_as(scale_tril)
        inverse = torch.linalg.solve_triangular(scale_tril, eye, upper=False)
        of_mean = inverse.mT @ inverse
        of_factor = self._factor_information(outputs, inverse)
        return _block_diagonal(of_mean, of_factor)

    def _factor_information(self, outputs: Tensor, inverse: Tensor) -> Tensor:
        """With A_i = L^-1 dL_i the trace is sum(A_i * A_j) + tr(A_i A_j)."""
        size, num_entries = self.num_targets, self.num_outputs - self.num_targets
        slopes = torch.ones_like(outputs[..., size:])
        slopes = torch.cat([torch.sigmoid(outputs[..., size : 2 * size]), slopes[..., size:]], -1)
        entry_row, entry_column = self._entries()
        # dL_i has one entry, so that L^-1 dL_i is one column of L^-1 put in another place
        columns = inverse[..., entry_row].mT * slopes.unsqueeze(-1)  # (*batch, entries, D)
        place = F.one_hot(entry_column, size).to(inverse)
        moved = columns.unsqueeze(-1) * place.unsqueeze(-2)  # (*batch, entries, D, D)
        flat = moved.flatten(-2)
        turned = moved.mT.flatten(-2)
        assert flat.shape[-2] == num_entries
        return flat @ (flat + turned).mT

    def _entries(self) -> tuple[Tensor, Tensor]:
        """Row and column in the factor of every output after the mean."""
        size = self.num_targets
        device = self._below.device
        below = torch.tril_indices(size, size, -1, device=device)
        diagonal = torch.arange(size, device=device)
        return torch.cat([diagonal, below[0]]), torch.cat([diagonal, below[1]])

    def with_offset(self, outputs: Tensor, offset: Tensor) -> Tensor:
        """The outputs with the offset added to the means, not to the factor."""
        return add_offset(outputs, offset, first=self.num_targets)

    def standardized(self, loc: Tensor, scale: Tensor) -> "MultivariateGaussian":
        """Itself: mean and covariance are predicted on the network's side."""
        return MultivariateGaussian(self.num_targets, min_scale=self.min_scale)


def _block_diagonal(first: Tensor, second: Tensor) -> Tensor:
    upper = F.pad(first, (0, second.shape[-1]))
    lower = F.pad(second, (first.shape[-1], 0))
    return torch.cat([upper, lower], -2)
