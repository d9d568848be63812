"""Whether members can train as one stack: only where that equals training each alone.

The answer is a reason against, or None. It is given to the user, so that a slow loop is never a riddle.
"""

from collections.abc import Sequence

import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from credibly.core.data import Data
from credibly.core.params import module_device
from credibly.core.randomness import seeded
from credibly.core.typing import Params
from credibly.model import Model
from credibly.training.dropout import TrainingDropout
from credibly.training.objective import LogJoint
from credibly.training.optimizers import is_elementwise
from credibly.training.options import TrainingOptions
from credibly.training.trainee import Stacked

__all__ = ["why_not_stacked"]


def why_not_stacked(
    model: Model,
    starts: Sequence[Params],
    objective: LogJoint,
    options: TrainingOptions,
    dropout: TrainingDropout,
    example: Data,
    *,
    own_rows: bool,
) -> str | None:
    """A reason to train members one by one, or None."""
    if not options.stacked:
        return "stacked=False was asked for"
    if options.callbacks:
        return "callbacks see one member at a time"
    probe = nn.Parameter(torch.zeros(1))
    optimizer = options.optimizer([probe], lr=options.learning_rate)
    if not is_elementwise(optimizer):
        return f"{type(optimizer).__name__} is not known to update every weight on its own"
    if options.schedule is not None and isinstance(options.schedule(optimizer, 1), ReduceLROnPlateau):
        return "the schedule follows each member's own score"
    if dropout.draws_other_randomness:
        return "the network draws random numbers other than dropout masks while training"
    recurrent = [name for name, part in model.net.named_modules() if isinstance(part, nn.RNNBase)]
    if recurrent:
        return f"recurrent layers ({', '.join(recurrent)}) have no vmap rule"
    return _why_vmap_fails(model, starts, objective, options, dropout, example, own_rows)


def _why_vmap_fails(
    model: Model,
    starts: Sequence[Params],
    objective: LogJoint,
    options: TrainingOptions,
    dropout: TrainingDropout,
    example: Data,
    own_rows: bool,
) -> str | None:
    """Run one step's objective and its gradient on a few rows."""
    try:
        trial = Stacked(model, starts, objective, dropout, options.autocast, own_rows=own_rows)
        if own_rows:
            rows = torch.arange(example.num_rows, device=module_device(model))
            example = example.take(rows.expand(len(starts), -1))
        with seeded(0, "probe", device=module_device(model)):
            trial.objectives(example, 0).sum().backward()  # type: ignore[no-untyped-call]
    except (RuntimeError, NotImplementedError, ValueError, TypeError) as error:
        return f"the network cannot be mapped over members ({str(error).splitlines()[0]})"
    return None
