r"""Many small logistic regressions at once, to a stated gradient norm.

For each map m the weights w minimise the mean over rows of log(1 + exp(z)) - t z with z = w . x and targets t in
[0, 1], which is convex. Newton's method with a backtracking line search; the likelihood is evaluated without overflow
(Hsuan-Tien Lin, Chih-Jen Lin, Ruby Weng, "A Note on Platt's Probabilistic Outputs for Support Vector Machines", 2007).
"""

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["LogisticFit", "fit_logistic"]

_RIDGE = 1e-12
_SUFFICIENT = 1e-4
_SHORTEST = 2.0**-40


class LogisticFit(NamedTuple):
    """Weights (maps, features), mean losses (maps,), gradient norms (maps,), and the steps taken."""

    weights: Tensor
    loss: Tensor
    gradient_norm: Tensor
    num_iterations: int


def fit_logistic(
    features: Tensor,  # (maps, rows, features)
    targets: Tensor,  # (maps, rows)
    *,
    tolerance: float,
    max_iterations: int,
) -> LogisticFit:
    """The weights of every map, from 0 on.

    Args:
        features: float64; of size about 1, so that one tolerance means the same for all.
        targets: numbers in [0, 1].
        tolerance: the gradient norm at which a map is done.
        max_iterations: most steps.
    """
    weights = torch.zeros_like(features[:, 0])
    loss = _loss(weights, features, targets)
    steps = 0
    while True:
        probs = torch.sigmoid(_scores(weights, features))
        gradient = torch.einsum("mn,mnd->md", probs - targets, features) / targets.shape[-1]
        norm = gradient.norm(dim=-1)
        if steps == max_iterations or bool((norm <= tolerance).all()):
            return LogisticFit(weights, loss, norm, steps)
        step = _newton_step(features, probs, gradient)
        step = torch.where((norm > tolerance).unsqueeze(-1), step, 0.0)
        moved, new_loss = _line_search(weights, step, gradient, loss, features, targets)
        if torch.equal(moved, weights):  # as good as rounding allows
            return LogisticFit(weights, loss, norm, steps)
        weights, loss, steps = moved, new_loss, steps + 1


def _scores(weights: Tensor, features: Tensor) -> Tensor:
    return torch.einsum("mnd,md->mn", features, weights)


def _loss(weights: Tensor, features: Tensor, targets: Tensor) -> Tensor:
    """torch.nn.functional.softplus turns linear at 20; logaddexp is exact everywhere."""
    scores = _scores(weights, features)
    return (torch.logaddexp(scores, torch.zeros_like(scores)) - targets * scores).mean(-1)


def _newton_step(features: Tensor, probs: Tensor, gradient: Tensor) -> Tensor:
    curvature = (probs * (1 - probs)).unsqueeze(-1) * features
    hessian = features.mT @ curvature / probs.shape[-1]
    ridge = _RIDGE * torch.eye(features.shape[-1], dtype=features.dtype, device=features.device)
    step: Tensor = torch.linalg.solve(hessian + ridge, -gradient.unsqueeze(-1)).squeeze(-1)
    return step


def _line_search(
    weights: Tensor, step: Tensor, gradient: Tensor, loss: Tensor, features: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor]:
    """The first of 1, 1/2, 1/4, ... that lowers the loss enough, each map its own; else no step."""
    slope = (step * gradient).sum(-1)
    rounding = 4 * torch.finfo(loss.dtype).eps * (1 + loss)
    length = torch.ones_like(loss)
    while True:
        moved = weights + length.unsqueeze(-1) * step
        new_loss = _loss(moved, features, targets)
        good = new_loss <= loss + _SUFFICIENT * length * slope + rounding
        if bool(good.all()) or float(length.amin()) < _SHORTEST:
            keep = good.unsqueeze(-1)
            return torch.where(keep, moved, weights), torch.where(good, new_loss, loss)
        length = torch.where(good, length, length / 2)
