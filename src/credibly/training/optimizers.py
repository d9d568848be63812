"""The default optimiser, and which optimisers treat every weight on its own."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

__all__ = ["FusedAdam", "fused_adam", "is_elementwise"]

_FUSED_DEVICES = {"cpu", "cuda", "xpu"}


class FusedAdam(torch.optim.Adam):
    """Adam in one kernel over all weights (Adam, Kingma and Ba 2015).

    The numbers are those of `torch.optim.Adam(..., fused=True)`. Torch gathers its lists of state anew, sorts them by
    device and dtype and opens a profiler range at every step; for small networks that costs more than the update. Here
    the lists are gathered once. Where a gradient is missing, or a closure is given, torch's own step is taken.

    Args:
        params: weights of one device and dtype.
        lr: the learning rate.
        betas: the decay rates of the two running means.
        eps: added to the root of the second.
        weight_decay: added to the gradients, times the weights.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=True)
        self._lists: list[tuple[list[Tensor], ...]] = []

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of all weights."""
        grads = [[p.grad for p in group["params"]] for group in self.param_groups]
        if closure is not None or any(grad is None for some in grads for grad in some):
            return super().step(closure)
        if not self._lists:
            result = super().step()
            self._lists = [self._gathered(group["params"]) for group in self.param_groups]
            return result
        with torch.no_grad():
            for group, some, lists in zip(self.param_groups, grads, self._lists, strict=True):
                self._update(group, some, *lists)
        return None

    step.hooked = True  # type: ignore[attr-defined]  # torch adds its profiler range to steps without this mark

    def _gathered(self, params: list[Tensor]) -> tuple[list[Tensor], ...]:
        states = [self.state[p] for p in params]
        return params, *([state[name] for state in states] for name in ("exp_avg", "exp_avg_sq", "step"))

    @staticmethod
    def _update(
        group: dict[str, Any],
        grads: list[Tensor | None],
        params: list[Tensor],
        means: list[Tensor],
        squares: list[Tensor],
        steps: list[Tensor],
    ) -> None:
        torch._foreach_add_(steps, 1)
        torch._fused_adam_(
            params,
            grads,  # type: ignore[arg-type]
            means,
            squares,
            [],
            steps,
            amsgrad=False,
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
            grad_scale=None,
            found_inf=None,
        )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Train more weights."""
        self._lists = []
        super().add_param_group(param_group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self._lists = []
        super().load_state_dict(state_dict)


def fused_adam(params: Iterable[Tensor], lr: float = 1e-3) -> Optimizer:
    """`FusedAdam` where device and dtypes allow it, otherwise torch's Adam."""
    params = list(params)
    kinds = {(p.device, p.dtype) for p in params}
    if len(kinds) == 1 and params[0].device.type in _FUSED_DEVICES and params[0].is_floating_point():
        return FusedAdam(params, lr=lr)
    return torch.optim.Adam(params, lr=lr)


_ELEMENTWISE = (
    FusedAdam,
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.RMSprop,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
    torch.optim.Rprop,
)


def is_elementwise(optimizer: Optimizer) -> bool:
    """Whether updating stacked weights equals updating each member alone: known for the types listed here only."""
    return type(optimizer) in _ELEMENTWISE
