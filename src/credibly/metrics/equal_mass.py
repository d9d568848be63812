"""Bins of equal mass: as many forecasts in each as ties allow.

Edge j of B bins is the smallest confidence that j / B of the forecasts do not exceed, the ceil(j n / B)-th smallest.
Bins are closed on the right, so that equal confidences share a bin; where one confidence fills more than a bin, the
bins after it are empty and are skipped. The two kinds of bins are compared in "Mitigating Bias in Calibration Error
Estimation" (Roelofs, Cain, Shlens, Mozer, 2022).
"""

import torch
from torch import Tensor

from credibly.core.checks import check_count
from credibly.core.errors import ShapeError

__all__ = ["edge_bins", "equal_mass_edges"]


def equal_mass_edges(
    confidence: Tensor,  # (forecasts,) or (tables, forecasts)
    num_bins: int,
) -> Tensor:
    """Edges from 0 to 1, not decreasing: (num_bins + 1,), or one row a table.

    Raises:
        ShapeError: there are no forecasts.
    """
    check_count("num_bins", num_bins)
    size = confidence.shape[-1]
    if not size:
        raise ShapeError("a calibration error needs at least one row; `predicted` and `targets` are empty")
    ranks = torch.tensor([-(-j * size // num_bins) - 1 for j in range(1, num_bins)], dtype=torch.int64)
    inner = confidence.sort(-1).values[..., ranks.to(confidence.device)]
    ends = torch.zeros_like(confidence[..., :1])
    return torch.cat([ends, inner, ends + 1], -1)


def edge_bins(
    confidence: Tensor,  # (forecasts,) or (tables, forecasts)
    edges: Tensor,  # (num_bins + 1,) or (tables, num_bins + 1)
) -> Tensor:
    """The bin of each confidence, closed on the right, 0 in the first: int64, of the same shape."""
    return torch.searchsorted(edges[..., 1:-1].contiguous(), confidence.contiguous())
