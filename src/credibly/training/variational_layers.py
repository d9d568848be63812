"""Linear layers whose weights have noise, forward and backward in as few passes over memory as they take.

    drawn pre-activations:  y = x m' + b + sqrt(x^2 v' + c) e        e standard normal, one per row and output
    turned deviations:      y = x m' + b + r * ((q * x) d' + f)      q, r random signs, one per row and feature

with the variances v and c, or a draw of the deviations d and f, of weight and bias. `local_linear` and `flipped_linear`
are functions of all tensors but e, q and r. Autograd through the plain formulas, which is what serves other layers,
gives the same.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

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
    )[0]
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
    )[0]
    return result


class _Local(torch.autograd.Function):
    """See `local_linear`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        inputs: Tensor, weight: Tensor, bias: Tensor | None, variance: Tensor, of_bias: Tensor | None, noise: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The result, and what the way back needs: the squares and the slope of the root times the noise."""
        squares = inputs.square()
        # a row of zeros has no variance, and the root there no slope
        scale = F.linear(squares, variance, of_bias).add_(torch.finfo(variance.dtype).tiny).sqrt_()
        result = F.linear(inputs, weight, bias).addcmul_(scale, noise)
        return result, squares, torch.div(noise, scale.mul_(2), out=scale)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Keep both, and the layer's tensors."""
        x, weight, _, variance, _, _ = inputs
        _, squares, slope = output
        ctx.mark_non_differentiable(squares, slope)
        ctx.save_for_backward(x, weight, variance, squares, slope)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> Grads:
        """Towards inputs, means and variances."""
        x, weight, variance, squares, slope = ctx.saved_tensors
        needs = ctx.needs_input_grad
        of_variance = grad * slope
        of_inputs = None
        if needs[0]:
            of_inputs = (grad @ weight).addcmul_(x, of_variance @ variance, value=2)
        return (
            of_inputs,
            grad.mT @ x if needs[1] else None,
            grad.sum(0) if needs[2] else None,
            of_variance.mT @ squares if needs[3] else None,
            of_variance.sum(0) if needs[4] else None,
            None,
        )


class _Flipped(torch.autograd.Function):
    """See `flipped_linear`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        deviation: Tensor,
        of_bias: Tensor | None,
        before: Tensor,
        after: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """The result, and the turned inputs."""
        turned = _flipped(inputs, before)
        offset = F.linear(turned, deviation, of_bias)
        offset.view(torch.int32).bitwise_xor_(after)
        return F.linear(inputs, weight, bias).add_(offset), turned

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        """Keep the layer's tensors and signs."""
        x, weight, _, deviation, _, before, after = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(x, weight, deviation, before, after, output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> Grads:
        """Towards inputs, means and deviations."""
        x, weight, deviation, before, after, turned = ctx.saved_tensors
        needs = ctx.needs_input_grad
        of_offset = _flipped(grad, after)
        of_inputs = None
        if needs[0]:
            through = of_offset @ deviation
            through.view(torch.int32).bitwise_xor_(before)
            of_inputs = through.addmm_(grad, weight)
        return (
            of_inputs,
            grad.mT @ x if needs[1] else None,
            grad.sum(0) if needs[2] else None,
            of_offset.mT @ turned if needs[3] else None,
            of_offset.sum(0) if needs[4] else None,
            None,
            None,
        )


def _flipped(values: Tensor, bits: Tensor) -> Tensor:
    return (values.view(torch.int32) ^ bits).view(torch.float32)
