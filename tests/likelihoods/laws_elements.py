"""The laws of structured targets: that of one element, for outputs in any layout."""

import numpy as np
from laws import law_of, typical_outputs

from credibly.likelihoods import PerElement


@law_of.register
def _(likelihood: PerElement, outputs):
    if likelihood.axis is None:
        return law_of(likelihood.of, outputs[..., None])
    return law_of(likelihood.of, np.moveaxis(outputs, likelihood.axis, -1))


@typical_outputs.register
def _(likelihood: PerElement, normal):
    if likelihood.axis is None:
        return typical_outputs(likelihood.of, normal[..., None])[..., 0]
    moved = typical_outputs(likelihood.of, np.moveaxis(normal, likelihood.axis, -1))
    return np.moveaxis(moved, -1, likelihood.axis)
