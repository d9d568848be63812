"""Learning-rate schedules: factories called as `schedule(optimizer, num_steps)`.

Any scheduler of torch fits through such a factory. It is stepped after every step of the optimiser;
`ReduceLROnPlateau`, which looks at the validation score, after every epoch.
"""

import math

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

__all__ = ["constant", "cosine", "linear"]


def constant(optimizer: Optimizer, num_steps: int, *, warmup: float = 0.0) -> LRScheduler:
    """The same rate throughout, after rising from 0 over the share `warmup` of the steps."""
    return LambdaLR(optimizer, lambda step: _rise(step, num_steps, warmup))


def linear(optimizer: Optimizer, num_steps: int, *, warmup: float = 0.0) -> LRScheduler:
    """A straight fall to 0 at the last step."""
    return LambdaLR(optimizer, lambda step: _rise(step, num_steps, warmup) * (1 - _fall(step, num_steps, warmup)))


def cosine(optimizer: Optimizer, num_steps: int, *, warmup: float = 0.0) -> LRScheduler:
    """Half a cosine from 1 to 0 (SGDR, Loshchilov and Hutter 2017, without restarts)."""
    return LambdaLR(
        optimizer,
        lambda step: _rise(step, num_steps, warmup) * 0.5 * (1 + math.cos(math.pi * _fall(step, num_steps, warmup))),
    )


def _rise(step: int, num_steps: int, warmup: float) -> float:
    return min(1.0, (step + 1) / (warmup * num_steps)) if warmup > 0 else 1.0


def _fall(step: int, num_steps: int, warmup: float) -> float:
    start = warmup * num_steps
    return min(1.0, max(0.0, (step - start) / max(num_steps - start, 1)))
