"""Linear layers whose weights have noise, forward and backward in as few passes over memory as they take.

    drawn pre-activations:  y = x m' + b + sqrt(x^2 v' + c) e        e standard normal, one per row and output
    turned deviations:      y = x m' + b + r * ((q * x) d' + f)      q, r random signs, one per row and feature

with the variances v and c, or a draw of the deviations d and f, of weight and bias. `local_linear` and `flipped_linear`
are functions of all tensors but e, q and r, and their gradients have gradients. Autograd through the plain formulas,
which is what serves other layers and `torch.func`, gives the same.
"""

from typing import Any

import torch
from torch import Tensor

from credibly.training.variational_signs import flip_bits, flip_bits_, flip_signs

__all__ = ["flipped_linear", "local_linear"]

Grads = tuple[Tensor | None, ...]


def local_linear(
    inputs: Tensor, weight: Tensor, bias: Tensor | None, variance: Tensor, of_bias: Tensor | None, noise: Tensor
) -> Tensor:
    """Drawn pre-activations, (rows, outputs).

    Args:
        inputs: x, (rows, inputs).
        weight: m, (outputs, inputs).
        bias: b, (outputs,).
        variance: v, as the weight.
        of_bias: c, as the bias; None where it has no variance.
        noise: e, (rows, outputs).
    """
    result: Tensor = _Local.apply(  # type: ignore[no-untyped-call]
        inputs, weight, bias, variance, of_bias, noise
    )
    return result


def flipped_linear(
    inputs: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    deviation: Tensor,
    of_bias: Tensor | None,
    before: Tensor,
    after: Tensor,
) -> Tensor:
    """Turned deviations, (rows, outputs), of float32 numbers.

    Args:
        inputs: x, (rows, inputs).
        weight: m, (outputs, inputs).
        bias: b, (outputs,).
        deviation: d, as the weight.
        of_bias: f, as the bias; None where it has no deviation.
        before: q as sign bits, (rows, inputs).
        after: r as sign bits, (rows, outputs).
    """
    result: Tensor = _Flipped.apply(  # type: ignore[no-untyped-call]
        inputs, weight, bias, deviation, of_bias, before, after
    )
    return result


class _Local(torch.autograd.Function):
    """See `local_linear`."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        variance: Tensor,
        of_bias: Tensor | None,
        noise: Tensor,
    ) -> Tensor:
        """Keeps the squares, and the noise over the root: twice the slope."""
        squares = x.square()
        root = _root(squares, variance, of_bias)
        deviation = root * noise if bias is None else torch.addcmul(bias, root, noise)
        ctx.save_for_backward(x, weight, variance, of_bias, squares, torch.div(noise, root, out=root))
        return deviation.addmm_(x, weight.mT)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Grads:
        """Towards inputs, means and variances."""
        x, weight, variance, of_bias, squares, over_root = ctx.saved_tensors
        needs = ctx.needs_input_grad
        if torch.is_grad_enabled():  # gradients of gradients: what was kept has no graph
            squares = x.square()
            root = _root(squares, variance, of_bias)
            over_root = over_root * root.detach() / root
        twice = grad * over_root
        of_inputs = None
        if needs[0]:
            of_inputs = (grad @ weight).addcmul_(x, twice @ variance)
        return (
            of_inputs,
            grad.mT @ x if needs[1] else None,
            grad.sum(0) if needs[2] else None,
            torch.addmm(variance, twice.mT, squares, beta=0, alpha=0.5) if needs[3] else None,
            0.5 * twice.sum(0) if needs[4] else None,
            None,
        )


class _Flipped(torch.autograd.Function):
    """See `flipped_linear`."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        deviation: Tensor,
        of_bias: Tensor | None,
        before: Tensor,
        after: Tensor,
    ) -> Tensor:
        """Keeps the turned inputs."""
        turned = flip_bits(x, before)
        offset = turned @ deviation.mT
        if of_bias is not None:
            offset.add_(of_bias)
        flip_bits_(offset, after)
        ctx.save_for_backward(x, weight, deviation, before, after, turned)
        if bias is not None:
            offset.add_(bias)
        return offset.addmm_(x, weight.mT)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Grads:
        """Towards inputs, means and deviations."""
        x, weight, deviation, before, after, turned = ctx.saved_tensors
        needs = ctx.needs_input_grad
        flip, flip_ = flip_bits, flip_bits_
        if torch.is_grad_enabled():  # gradients of gradients: words have no graph
            flip, flip_, turned = flip_signs, flip_signs, flip_signs(x, before)
        of_offset = flip(grad, after)
        of_inputs = None
        if needs[0]:
            of_inputs = flip_(of_offset @ deviation, before).addmm_(grad, weight)
        return (
            of_inputs,
            grad.mT @ x if needs[1] else None,
            grad.sum(0) if needs[2] else None,
            of_offset.mT @ turned if needs[3] else None,
            of_offset.sum(0) if needs[4] else None,
            None,
            None,
        )


def _root(squares: Tensor, variance: Tensor, of_bias: Tensor | None) -> Tensor:
    """The standard deviations. A row of zeros has no variance, and the root there no slope."""
    tiny = torch.finfo(squares.dtype).tiny
    return (squares @ variance.mT).add_(tiny if of_bias is None else of_bias + tiny).sqrt_()
