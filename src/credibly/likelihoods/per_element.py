"""One likelihood for every element of a structured target: steps of a sequence, pixels of an image, outputs of a row.

The elements of one row are independent given the network's outputs, so a row's log density is the sum over its
elements, and elements become part of the event: the batch shape stays the rows. An element whose target is missing
(`Data(mask=...)` in the shape of the targets) adds nothing.
"""

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent

from credibly.core.checks import as_tensor, check_count
from credibly.core.errors import NotSupportedError, ShapeError
from credibly.core.typing import ArrayLike
from credibly.likelihoods.base import Likelihood

__all__ = ["PerElement"]

_NUMBERS = 2**22  # of the template distribution against which targets are checked, at a time


class PerElement(Likelihood):
    """`y[row, element] ~ of`, each element with outputs of its own.

    The network gives (rows, *elements, num_outputs), or has the outputs on another axis; targets are (rows, *elements).

    Args:
        of: the likelihood of one element; its constants and learned parameters are shared by all elements.
        num_axes: the number of element axes: 1 for sequences and several outputs, 2 for images.
        axis: where in the network's outputs, rows being axis 0, the outputs of one element lie: -1 is last, 1 is right
            after the rows, as convolutions give classes. None: there is no such axis, and each output is the only one
            of its element.
    """

    def __init__(self, of: Likelihood, *, num_axes: int = 1, axis: int | None = -1) -> None:
        super().__init__()
        if isinstance(of, PerElement):
            raise NotSupportedError(
                "`of` must be the likelihood of one element, not PerElement; raise `num_axes` instead"
            )
        self.of = of
        self.num_axes = check_count("num_axes", num_axes)
        self.axis = self._counted_from_the_end(axis)
        self.num_outputs = of.num_outputs
        self.has_density = of.has_density

    def _counted_from_the_end(self, axis: int | None) -> int | None:
        if axis is None:
            if self.of.num_outputs != 1:
                raise ValueError(
                    f"`axis=None` is for one output per element; {type(self.of).__name__} reads {self.of.num_outputs}"
                )
            return None
        total = self.num_axes + 2
        if not -self.num_axes - 1 <= axis < total or axis == 0:
            raise ValueError(
                f"`axis` must name one of the axes 1 to {total - 1} of the outputs, or from the end; got {axis}"
            )
        return axis - total if axis > 0 else axis

    def elements(self) -> tuple[Likelihood, int]:
        """The likelihood of one element, and the number of element axes."""
        return self.of, self.num_axes

    def parameters_of(self, outputs: Tensor) -> dict[str, Tensor]:
        """The parameters of every element: (*batch, *elements, ...)."""
        return self.of.parameters_of(self._last(outputs))

    def distribution(self, parameters: dict[str, Tensor]) -> Distribution:
        """Independent elements: batch shape `batch`, event shape (*elements, *event of one)."""
        each = self.of.distribution(parameters)
        return Independent(each, self.num_axes, validate_args=False)

    def log_prob(self, parameters: dict[str, Tensor], targets: Tensor) -> Tensor:
        """The sum over elements of their log densities."""
        return self.of.log_prob(parameters, targets).sum(tuple(range(-self.num_axes, 0)))

    def fisher(self, outputs: Tensor) -> Tensor:
        """The blocks of the elements, between which it is 0: (*batch, *elements, C, C)."""
        return self.of.fisher(self._last(outputs))

    def fisher_root(self, outputs: Tensor) -> Tensor:
        """Those of the elements: (*batch, *elements, C, J)."""
        return self.of.fisher_root(self._last(outputs))

    def sample_scores(self, outputs: Tensor, num_scores: int, *, seed: int | None = None) -> Tensor:
        """Scores in the outputs at drawn targets, in the layout of the outputs: (num_scores, *outputs.shape)."""
        return self._back(self.of.sample_scores(self._last(outputs), num_scores, seed=seed))

    def standardized(self, loc: Tensor, scale: Tensor) -> "PerElement":
        """All elements on one scale: `loc` and `scale` must each be one number, or one per target of an element."""
        return PerElement(self.of.standardized(loc, scale), num_axes=self.num_axes, axis=self.axis)

    def match_targets(self, targets: ArrayLike, outputs: Tensor) -> Tensor:
        """The targets, (rows, *elements, ...), checked a block of rows at a time."""
        with torch.no_grad():
            one = self(outputs[:1].detach())
        values = as_tensor(targets, dtype=outputs.dtype, device=outputs.device)
        if values.shape[1:] not in (one.event_shape, (*one.event_shape, 1)):
            raise ShapeError(
                f"`targets` must have shape (rows, {', '.join(map(str, one.event_shape))}), one for each element of "
                f"the outputs {tuple(outputs.shape[1:])}; got {tuple(values.shape)}"
            )
        block = max(1, _NUMBERS // max(1, outputs[0].numel()))
        match = super().match_targets
        return torch.cat([match(values[start : start + block], outputs) for start in range(0, len(values), block)])

    def check_outputs(self, outputs: Tensor) -> None:
        """Raise a ShapeError unless the element axes are there, and `num_outputs` entries on the axis of outputs."""
        needed = self.num_axes + (1 if self.axis is None else 2)
        found = None if self.axis is None or outputs.dim() < needed else outputs.shape[self.axis]
        if outputs.dim() < needed or (self.axis is not None and found != self.num_outputs):
            layout = ["elements"] * self.num_axes
            if self.axis is not None:
                layout.insert(len(layout) + 1 + self.axis, str(self.num_outputs))
            raise ShapeError(
                f"PerElement({type(self.of).__name__}) reads outputs of shape (rows, {', '.join(layout)}); "
                f"the network gave {tuple(outputs.shape)}"
            )

    def with_offset(self, outputs: Tensor, offset: Tensor) -> Tensor:
        """The outputs with an offset for each element, (*batch, *elements), or for each row, (*batch,)."""
        table = self._last(outputs)
        if offset.shape == table.shape[: -self.num_axes - 1]:
            offset = offset.reshape(offset.shape + (1,) * self.num_axes).expand(table.shape[:-1])
        elif offset.shape == outputs.shape:
            offset = self._last(offset)
        return self._back(self.of.with_offset(table, offset))

    def _last(self, outputs: Tensor) -> Tensor:
        """The outputs of an element on the last axis."""
        if self.axis is None:
            return outputs.unsqueeze(-1)
        return outputs if self.axis == -1 else outputs.movedim(self.axis, -1)

    def _back(self, table: Tensor) -> Tensor:
        """The layout of the network's outputs, from that with an element's outputs last."""
        return table.squeeze(-1) if self.axis is None else table.movedim(-1, self.axis)
