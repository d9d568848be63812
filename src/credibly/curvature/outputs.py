r"""What a Gaussian over weights says about the outputs of the linearised network: J S J'.

    outputs(w) = outputs(m) + J (w - m),    w ~ Normal(m, S)

Where S has a block for each weight, the covariance is a sum over weights, and none of them needs its Jacobian: inputs
and output gradients of a layer are projected on the eigenbases of its block, (Fast Predictive Uncertainty for
Classification with Bayesian Deep Networks, Hobbhahn, Kristiadi, Hennig 2022; Improving predictions of Bayesian neural
nets via local linearization, Immer, Korzepa, Bauer 2021)

    Sigma_cc' = sum over ij of g_ci g_c'i a_j^2 values_ij.

A weight that is used at several positions is summed over them first.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from credibly.core.errors import ShapeError
from credibly.core.inputs import map_inputs, split_inputs
from credibly.core.linalg.base import PositiveDefinite
from credibly.core.params import evaluating
from credibly.core.typing import Inputs
from credibly.curvature.passes import Pass, rows_at_once
from credibly.curvature.plan import make_plan, random_weights
from credibly.curvature.spectra import split
from credibly.curvature.uses import Use
from credibly.curvature.vectors import Vectors
from credibly.model import Core, Model

__all__ = ["jacobians", "output_covariance"]


def output_covariance(
    model: Model, inputs: Inputs, names: Sequence[str], covariance: PositiveDefinite, *, joint: bool = False
) -> Tensor:
    """The covariance J S J' of the outputs, (rows, C, C), or (rows, C, rows, C) if `joint`.

    It keeps a graph where the inputs require gradients, and none otherwise.

    Args:
        model: never changed; the Jacobian is taken at its weights, in evaluation mode.
        inputs: tensors in the user's units, as `Model.call` takes them.
        names: the random weights, in the order of the flat vector.
        covariance: S, over their flat vector; weight by weight for Blocks and Diagonal, or the Inverse of one.
        joint: with covariances between rows.

    Returns:
        of the network's outputs (on the network's side of any standardisation), flattened to C per row.

    Raises:
        ShapeError: the covariance is over another number of weights.
    """
    if torch.is_inference_mode_enabled():  # in which there is no Jacobian
        with torch.inference_mode(False), torch.no_grad():
            own = map_inputs(lambda part: part.clone() if part.is_inference() else part, inputs)
            return output_covariance(model, own, names, covariance, joint=joint)
    sizes = [weight.numel() for weight in random_weights(model.core, names).values()]
    if covariance.size != sum(sizes):
        raise ShapeError(f"`covariance` must be over the {sum(sizes)} weights that are named; got {covariance.size}")
    blocks = split(covariance, sizes)
    if blocks is None:
        if joint:
            return _joint(jacobians(model, inputs, names), covariance)
        parts = [_marginal(_flat(uses), covariance) for uses in _passes(model, inputs, names, written_out=True)]
        return torch.cat(parts)
    if joint:
        return _joint_by_block(model, inputs, names, blocks)
    return torch.cat([_by_block(uses, blocks) for uses in _passes(model, inputs, names)])


def jacobians(model: Model, inputs: Inputs, names: Sequence[str]) -> Tensor:
    """The Jacobians of the outputs, flattened to C per row, in the flat vector of the named weights: (rows, C, d).

    Args:
        model: never changed; at its weights, in evaluation mode.
        inputs: tensors in the user's units.
        names: of weights under `net.`, in the order of the flat vector.
    """
    return torch.cat([_flat(uses) for uses in _passes(model, inputs, names, written_out=True)])


def _passes(
    model: Model, inputs: Inputs, names: Sequence[str], *, written_out: bool = False
) -> Iterator[Iterator[tuple[str, Use]]]:
    """The uses of the weights along each output of the rows, some rows at a time."""
    core, own = model.core, model.standardize_inputs(inputs)
    with evaluating(core):
        with torch.no_grad():
            plan = make_plan(core, own, names)
            num = _num_outputs(core, own)
        size = rows_at_once(plan, num, sum(plan.sizes) if written_out else 0)
        for rows in split_inputs(own, size):
            yield _along_outputs(Pass.of(core, plan, rows))


def _num_outputs(core: Core, inputs: Inputs) -> int:
    outputs: Any = core(next(iter(split_inputs(inputs, 1))), "outputs")
    return int(outputs.numel())


def _along_outputs(passed: Pass) -> Iterator[tuple[str, Use]]:
    outputs = passed.outputs
    num = outputs[0].numel()
    eye = torch.eye(num, dtype=outputs.dtype, device=outputs.device).unsqueeze(1)
    return passed.uses(eye.expand(num, len(outputs), num).reshape(num, *outputs.shape))


def _by_block(uses: Iterator[tuple[str, Use]], blocks: list[PositiveDefinite]) -> Tensor:
    """The sum over weights; a layer's weight and bias share the basis of its outputs, and are projected once."""
    parts: list[Tensor] = []
    found: list[Vectors] = []
    for (_, use), block in zip(uses, blocks, strict=True):
        own = _cast(use, block)
        vectors = own.vectors(block)
        both = found[-1].plus(vectors) if found and vectors is not None else None
        if both is not None:
            found[-1] = both
        elif vectors is not None:
            found.append(vectors)
        else:
            parts.append(own.covariance(block))
    return _sum(parts + [vectors.covariance() for vectors in found])


def _sum(parts: Iterable[Tensor]) -> Tensor:
    first, *rest = parts
    return sum(rest, start=first)


def _cast(use: Use, matrix: PositiveDefinite) -> Use:
    """In the precision of the matrix."""
    return use.map(lambda values: values.to(matrix.like.dtype))  # type: ignore[no-any-return]


def _flat(uses: Iterator[tuple[str, Use]]) -> Tensor:
    return torch.cat([use.rows() for _, use in uses], -1).transpose(0, 1)


def _marginal(rows: Tensor, covariance: PositiveDefinite) -> Tensor:
    """(rows, C, C) of Jacobians (rows, C, d)."""
    own = rows.to(covariance.like.dtype)
    return own @ covariance.matmul(own).mT


def _joint(rows: Tensor, covariance: PositiveDefinite) -> Tensor:
    """(rows, C, rows, C) of Jacobians (rows, C, d)."""
    own = rows.to(covariance.like.dtype).flatten(0, 1)
    return (own @ covariance.matmul(own).mT).reshape(*rows.shape[:2], *rows.shape[:2])


def _joint_by_block(model: Model, inputs: Inputs, names: Sequence[str], blocks: list[PositiveDefinite]) -> Tensor:
    """Weight by weight, so that the Jacobian of one is held at a time."""
    parts = (_joint(jacobians(model, inputs, [name]), block) for name, block in zip(names, blocks, strict=True))
    return _sum(parts)
