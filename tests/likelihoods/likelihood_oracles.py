"""What scipy and brute force say about a likelihood, computed in float64 from the outputs alone."""

import importlib
from pathlib import Path

import numpy as np
import torch
from laws import law_of, typical_outputs
from scipy import special

from cases import outputs_shape
from credibly.distributions.kinds import kind

for module in sorted(Path(__file__).parent.glob("laws_*.py")):
    importlib.import_module(module.stem)  # they register themselves


def outputs_for(likelihood, *leading, dtype=torch.float64, seed=0):
    """Outputs of moderate size: (*leading, *outputs_shape)."""
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(*leading, *outputs_shape(likelihood), generator=generator, dtype=torch.float64)
    return torch.as_tensor(typical_outputs(likelihood, normal.numpy())).to(dtype)


def scipy_law(likelihood, outputs):
    """The law of every element of the target, with arrays (*batch, *event) as parameters."""
    return law_of(likelihood, outputs.detach().double().cpu().numpy())


def is_joint(law):
    """Whether the elements of a vector depend on each other."""
    return hasattr(law, "joint_logpdf")


def is_mixture(law):
    """Whether the law has several components, between which its quantile function may jump."""
    return hasattr(law, "weights")


def element_density(law, y):
    """The elements' log density or log probability at y."""
    return law.logpmf(y) if hasattr(law, "logpmf") and not _has_density(law) else law.logpdf(y)


def _has_density(law):
    return hasattr(getattr(law, "dist", law), "pdf")


def log_density(law, y, *, axes):
    """The joint log density or log probability of targets y, (*batch,), whose last `axes` axes are one target's."""
    return law.joint_logpdf(y) if is_joint(law) else over_event(element_density(law, y), axes)


def over_event(values, axes):
    """The sum over the last `axes` axes."""
    return values.sum(tuple(range(-axes, 0)))


def example(likelihood):
    """The distribution of one row at outputs 0."""
    return likelihood(torch.zeros(1, *outputs_shape(likelihood)))


def event_axes(likelihood):
    """The number of axes of one target."""
    return len(example(likelihood).event_shape)


def is_vector(likelihood):
    """Whether a target holds several numbers."""
    return event_axes(likelihood) > 0


def as_table(likelihood, outputs):
    """Outputs in any layout with those of one element last: (*batch, *elements, num_outputs), an array or a tensor."""
    axis = getattr(likelihood, "axis", -1)
    move = torch.movedim if isinstance(outputs, torch.Tensor) else np.moveaxis
    return outputs[..., None] if axis is None else move(outputs, axis, -1)


def flat(likelihood, outputs):
    """All outputs of a row on one axis, those of one element beside each other: (*batch, numbers)."""
    return as_table(likelihood, outputs).flatten(-1 - likelihood.elements()[1])


def unflat(likelihood, numbers):
    """The layout of the network's outputs, from what `flat` gives."""
    shape = as_table(likelihood, torch.empty(outputs_shape(likelihood))).shape
    table, axis = numbers.reshape(*numbers.shape[:-1], *shape), getattr(likelihood, "axis", -1)
    return table.squeeze(-1) if axis is None else table.movedim(-1, axis)


def whole(likelihood, blocks):
    """The Fisher matrix of all numbers of `flat`: where it comes as a block an element, zeros lie between elements."""
    axes = likelihood.elements()[1]
    if not axes:
        return blocks
    each = blocks.flatten(-2 - axes, -3)
    apart = torch.eye(each.shape[-3], dtype=each.dtype)
    return torch.einsum("...ecd,ef->...ecfd", each, apart).flatten(-4, -3).flatten(-2)


def kind_of(likelihood):
    """What its target is: "real", "count" or "class"."""
    return kind(example(likelihood))


def draw_targets(likelihood, outputs, seed=0):
    """Targets (*batch, *event) of the law, by numpy; where the dtype rounds one to the end of an open support, the
    next number inside. For a head, which has no law, normal numbers."""
    if not likelihood.has_density:
        return torch.as_tensor(np.random.RandomState(seed).normal(size=outputs.shape[:-1])).to(outputs.dtype)
    law = scipy_law(likelihood, outputs)
    drawn = law.rvs(size=np.shape(law.mean()), random_state=np.random.RandomState(seed))
    targets = torch.as_tensor(np.asarray(drawn, dtype=float)).to(outputs.dtype)
    if kind_of(likelihood) != "real":
        return targets
    lower, upper = (torch.as_tensor(end).to(outputs.dtype) for end in np.broadcast_arrays(*law.support()))
    return targets.clamp(_next(lower, torch.inf), _next(upper, -torch.inf))


def _next(end, towards):
    return torch.where(end.isinf(), end, torch.nextafter(end, torch.full_like(end, towards)))


def element_nodes(likelihood, law):
    """Values (K, *shape) and masses (K, *shape) of every element of a law, whose weighted sums are expectations."""
    if kind_of(likelihood) != "real":
        lower, upper = law.support()
        top = np.max(upper) if np.isfinite(np.max(upper)) else np.max(law.ppf(1 - 1e-15)) + 1
        values = np.arange(np.min(lower), top + 1).reshape(-1, *[1] * np.ndim(law.mean()))
        values = np.broadcast_to(values, (len(values), *np.shape(law.mean())))
        return values, np.exp(law.logpmf(values))
    nodes, lengths = np.polynomial.legendre.leggauss(48)
    z, lengths = np.concatenate([4 * nodes - 4, 4 * nodes + 4]), 4 * np.tile(lengths, 2)
    masses = lengths * np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
    shape = (-1, *[1] * np.ndim(law.mean()))
    below = law.ppf(special.ndtr(np.minimum(z, 0)).reshape(shape))
    above = law.isf(special.ndtr(-np.maximum(z, 0)).reshape(shape))
    values = np.where(z.reshape(shape) < 0, below, above)
    return values, np.broadcast_to(masses.reshape(shape), values.shape)


def brute_fisher(likelihood, outputs):
    """The covariance of the score of the distribution's own log density, for one row, in the order of `flat`.

    The log density is a sum over the elements, so that its covariance is the sum of those that each element has alone.
    """
    law = scipy_law(likelihood, outputs)
    values, masses = (np.reshape(v, (len(v), -1)) for v in element_nodes(likelihood, law))
    anchor = draw_targets(likelihood, outputs)
    event, anchor = anchor.shape, anchor.flatten().numpy()
    total = torch.zeros(outputs.numel(), outputs.numel(), dtype=torch.float64)
    for element in range(values.shape[1]):
        targets = np.tile(anchor, (len(values), 1))
        targets[:, element] = values[:, element]
        given = torch.as_tensor(targets).reshape(-1, *event)
        repeated = outputs.expand(len(targets), *outputs.shape).clone().requires_grad_()
        density = likelihood(repeated).log_prob(given)
        mass = torch.as_tensor(masses[:, element] / masses[:, element].sum())
        scores = flat(likelihood, torch.autograd.grad(density[mass > 0].sum(), repeated)[0])
        centred = scores - mass @ scores
        total += torch.einsum("k,kc,kd->cd", mass, centred, centred)
    return total


def spread_of(likelihood, outputs, function, step):
    """By how much a function of the law moves when each of the outputs moves by `step`, relative to 1 or its size.

    A result as precise as its inputs lies within a few such spreads. (*result).
    """
    values = outputs.detach().double().cpu().numpy()
    centre = function(law_of(likelihood, values))
    moved = np.zeros_like(centre)
    rng = np.random.RandomState(0)
    for _ in range(6):
        signs = rng.choice([-1.0, 1.0], size=values.shape[-len(outputs_shape(likelihood)) :])
        shifted = values + step * signs * (1 + np.abs(values))
        moved = np.maximum(moved, np.abs(function(law_of(likelihood, shifted)) - centre))
    return moved
