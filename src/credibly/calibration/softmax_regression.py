r"""Multinomial logistic regression of classes on log probabilities, by Newton's method without a Hessian.

Minimises the mean over rows of logsumexp(z) - z_y plus sum_ij r_ij theta_ij^2, where the logits z are linear in the
parameters theta. It is convex. Each Newton direction is found by conjugate gradients, which need only products of the
Hessian with a vector (Stephen Nash, "A survey of truncated-Newton methods", 2000): for a direction with logits d they
are the adjoint of p * (d - sum p d) / n. Only the norm of the gradient decides when to stop. Parameters that change
nothing, such as one number added to all intercepts, do not disturb conjugate gradients.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Diagonal", "Full", "LinearLogits", "SoftmaxFit", "fit_softmax"]

_SUFFICIENT = 1e-4
_SHORTEST = 2.0**-40
_MOST_PRODUCTS = 500
_HALVINGS = 14


class LinearLogits(ABC):
    """How logits depend on parameters and features, with the adjoint."""

    @abstractmethod
    def start(self, features: Tensor) -> Tensor:
        """The parameters under which the logits are the features."""

    @abstractmethod
    def logits(self, theta: Tensor, features: Tensor) -> Tensor:
        """(rows, classes)."""

    @abstractmethod
    def adjoint(self, weights: Tensor, features: Tensor) -> Tensor:
        """The gradient in theta of the sum of weights * logits, weights (rows, classes)."""


@dataclass(frozen=True)
class Diagonal(LinearLogits):
    """z_k = w_k x_k + b_k; parameters (classes, 2)."""

    def start(self, features: Tensor) -> Tensor:
        """Ones and zeros."""
        return torch.stack([torch.ones_like(features[0]), torch.zeros_like(features[0])], -1)

    def logits(self, theta: Tensor, features: Tensor) -> Tensor:
        """(rows, classes)."""
        return features * theta[:, 0] + theta[:, 1]

    def adjoint(self, weights: Tensor, features: Tensor) -> Tensor:
        """(classes, 2)."""
        return torch.stack([(weights * features).sum(0), weights.sum(0)], -1)


@dataclass(frozen=True)
class Full(LinearLogits):
    """z = W x + b; parameters (classes, classes + 1)."""

    def start(self, features: Tensor) -> Tensor:
        """The identity and zeros."""
        size = features.shape[-1]
        return torch.eye(size, size + 1, dtype=features.dtype, device=features.device)

    def logits(self, theta: Tensor, features: Tensor) -> Tensor:
        """(rows, classes)."""
        return torch.addmm(theta[:, -1], features, theta[:, :-1].t())

    def adjoint(self, weights: Tensor, features: Tensor) -> Tensor:
        """(classes, classes + 1)."""
        return torch.cat([weights.t() @ features, weights.sum(0).unsqueeze(-1)], -1)


@dataclass(frozen=True)
class SoftmaxFit:
    """What the search found: parameters, the norm of the gradient there, and the Newton steps taken."""

    theta: Tensor
    gradient_norm: float
    num_iterations: int


def fit_softmax(
    form: LinearLogits,
    features: Tensor,  # (rows, classes), float64
    targets: Tensor,  # (rows,), int64
    penalty: Tensor,  # r, broadcasts to the parameters
    *,
    tolerance: float,
    max_iterations: int,
) -> SoftmaxFit:
    """The parameters of least loss, from the identity map on, or from the best power of the forecasts if it is better.

    Certain forecasts that are wrong leave no curvature at the identity: all probabilities are 0 and 1.
    """
    problem = _Problem(form, features, targets, penalty)
    theta = problem.start()
    steps = 0
    while True:
        loss, gradient, probs = problem.evaluate(theta)
        norm = float(gradient.norm())
        if norm <= tolerance or steps == max_iterations:
            return SoftmaxFit(theta, norm, steps)
        direction = problem.newton_direction(gradient, probs, min(0.1, norm**0.5) * norm)
        moved = problem.line_search(theta, direction, gradient, loss)
        if moved is None:  # as good as rounding allows
            return SoftmaxFit(theta, norm, steps)
        theta, steps = moved, steps + 1


@dataclass(frozen=True, eq=False)
class _Problem:
    form: LinearLogits
    features: Tensor
    targets: Tensor
    penalty: Tensor

    def evaluate(self, theta: Tensor) -> tuple[float, Tensor, Tensor]:
        """The loss, its gradient and the probabilities."""
        log_probs = torch.log_softmax(self.form.logits(theta, self.features), -1)
        probs = log_probs.exp()
        surplus = probs.scatter_add(-1, self.targets.unsqueeze(-1), -torch.ones_like(probs[:, :1]))
        gradient = self.form.adjoint(surplus, self.features) / len(probs) + 2 * self.penalty * theta
        return self._value(theta, log_probs), gradient, probs

    def start(self) -> Tensor:
        """The best of the identity and some multiples of it, down to 0."""
        whole = self.form.start(self.features)
        logits, index = self.form.logits(whole, self.features), self.targets.unsqueeze(-1)
        powers = (1.0, *(2.0**-halving for halving in range(1, _HALVINGS)), 0.0)
        losses = [float(-torch.log_softmax(power * logits, -1).gather(-1, index).mean()) for power in powers]
        return whole * powers[losses.index(min(losses))]

    def _value(self, theta: Tensor, log_probs: Tensor) -> float:
        fit = -log_probs.gather(-1, self.targets.unsqueeze(-1)).mean()
        return float(fit + (self.penalty * theta.square()).sum())

    def _product(self, vector: Tensor, probs: Tensor) -> Tensor:
        """The Hessian times a vector."""
        change = self.form.logits(vector, self.features)
        change = probs * (change - (probs * change).sum(-1, keepdim=True))
        return self.form.adjoint(change, self.features) / len(probs) + 2 * self.penalty * vector

    def newton_direction(self, gradient: Tensor, probs: Tensor, tolerance: float) -> Tensor:
        """Minus the inverse Hessian times the gradient, by conjugate gradients."""
        direction, residual = torch.zeros_like(gradient), -gradient
        conjugate, size = residual, float(residual.square().sum())
        for _ in range(min(_MOST_PRODUCTS, 2 * gradient.numel())):
            product = self._product(conjugate, probs)
            curvature = float((conjugate * product).sum())
            if curvature <= 1e-16 * float(conjugate.square().sum()):  # flat: the loss has no more to give there
                break
            step = size / curvature
            direction, residual = direction + step * conjugate, residual - step * product
            before, size = size, float(residual.square().sum())
            if size**0.5 <= tolerance:
                break
            conjugate = residual + size / before * conjugate
        return direction if bool(direction.any()) else -gradient

    def line_search(self, theta: Tensor, direction: Tensor, gradient: Tensor, loss: float) -> Tensor | None:
        """The first of 1, 1/2, 1/4, ... that lowers the loss enough; None where none does."""
        slope = float((direction * gradient).sum())
        rounding = 4 * torch.finfo(theta.dtype).eps * (1 + abs(loss))
        length = 1.0
        while length >= _SHORTEST:
            moved = theta + length * direction
            log_probs = torch.log_softmax(self.form.logits(moved, self.features), -1)
            if self._value(moved, log_probs) <= loss + _SUFFICIENT * length * slope + rounding:
                return moved
            length /= 2
        return None
