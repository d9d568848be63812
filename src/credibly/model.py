"""A model: a network, a likelihood over its outputs and a prior over its weights, as one probability model.

    log p(targets, weights | inputs) = sum over rows of log p(target | net(input)) + log p(weights)

A mini-batch of B out of N rows stands for all of them by the factor N / B on its log likelihood; the prior counts
once. The network may read and predict standardised values inside; everything that goes in and comes out is in the
units of the user's inputs and targets, and densities change by the change of variables.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from credibly.core.copying import copied
from credibly.core.data import Data, Source, read_batch
from credibly.core.errors import NotSupportedError, ShapeError
from credibly.core.inputs import call_net, leaves, num_rows, take_rows
from credibly.core.params import evaluating, floating_dtype, module_device
from credibly.core.randomness import seeded
from credibly.core.substitution import functional_call
from credibly.core.typing import ArrayLike, Inputs, Params
from credibly.distributions.affine import affine
from credibly.likelihoods.base import Likelihood
from credibly.priors.base import Prior
from credibly.priors.flat import Flat
from credibly.priors.normal import Normal
from credibly.standardization import (
    InputsRecipe,
    InputsStandardization,
    Standardization,
    Standardize,
    fit_inputs,
)

__all__ = ["Core", "Model", "OutputSelector", "Want"]

Want: TypeAlias = Literal["outputs", "parameters", "fisher"]
OutputSelector: TypeAlias = str | int | Callable[[Any], Tensor]


class Core(nn.Module):
    """Network and likelihood as one module on standardised values: what `functional_call` and `vmap` see."""

    def __init__(
        self, net: nn.Module, likelihood: Likelihood, output: OutputSelector | None, offset: str | int | None
    ) -> None:
        super().__init__()
        self.net = net
        self.likelihood = likelihood
        self.output = output
        self.offset = offset

    def forward(
        self, inputs: Inputs, want: Want = "parameters", autocast: torch.dtype | None = None
    ) -> Tensor | dict[str, Tensor]:
        """Outputs, the likelihood's parameters, or its Fisher matrices."""
        outputs = self._outputs(inputs, autocast)
        rows, shape = num_rows(inputs), outputs.shape
        if len(shape) < 2 or shape[0] != rows:
            raise ShapeError(
                f"the network must give outputs of shape (rows, num_outputs) with rows = {rows}, the rows of its "
                f"inputs; it gave {tuple(shape)}"
            )
        if want == "outputs":
            return outputs
        self.likelihood.check_outputs(outputs)
        return self.likelihood.parameters_of(outputs) if want == "parameters" else self.likelihood.fisher(outputs)

    def _outputs(self, inputs: Inputs, autocast: torch.dtype | None) -> Tensor:
        inputs, offset = self._split_offset(inputs)
        try:
            if autocast is None:
                outputs = self._select(call_net(self.net, inputs))
            else:
                with torch.autocast(module_device(self.net).type, dtype=autocast):
                    outputs = self._select(call_net(self.net, inputs)).to(floating_dtype(self.net))
        except RuntimeError as error:
            _explain(error, self.net, inputs)
            raise
        return outputs if offset is None else self.likelihood.with_offset(outputs, offset)

    def _select(self, returned: Any) -> Tensor:
        if callable(self.output):
            returned = self.output(returned)
        elif self.output is not None and isinstance(returned, Tensor):
            raise TypeError(f"`output={self.output!r}` picks a part, but the network returned one tensor")
        elif isinstance(self.output, str) and not isinstance(returned, dict):
            returned = getattr(returned, self.output)
        elif self.output is not None:
            returned = returned[self.output]
        if not isinstance(returned, Tensor):
            raise TypeError(
                f"the network returned {type(returned).__name__}, not a tensor; say which part is meant with "
                "Model(..., output=name, index or callable)"
            )
        return returned

    def _split_offset(self, inputs: Inputs) -> tuple[Inputs, Tensor | None]:
        if self.offset is None:
            return inputs, None
        if isinstance(inputs, Tensor):
            raise TypeError(
                f"`offset={self.offset!r}` names one of several inputs; pass a tuple or dict that holds it beside x"
            )
        keys = list(inputs) if isinstance(inputs, dict) else list(range(len(inputs)))
        if self.offset not in keys:
            raise ValueError(f"`offset` must be one of the inputs {keys}; got {self.offset!r}")
        if isinstance(inputs, dict):
            rest = {key: value for key, value in inputs.items() if key != self.offset}
            return rest, inputs[self.offset]  # type: ignore[index]
        kept = tuple(value for position, value in enumerate(inputs) if position != self.offset)
        return kept, inputs[self.offset]  # type: ignore[index]


class Model(nn.Module):
    """A likelihood over a network, with a prior over the network's weights.

    Args:
        net: any module whose first axis is the rows; it is not copied here, and no method changes it.
        likelihood: turns its outputs into a distribution; its constants are in the targets' units.
        prior: over the weights under `net.`; a standard Normal if left out.
        inputs: how inputs are standardised: a recipe (fitted on the training rows by `fit`), a fitted transform,
            or a mapping of those by key or position for several inputs.
        targets: likewise for targets, where the likelihood can be standardised.
        output: which part of what the network returns is meant: an attribute or key, an index, or a callable.
        offset: key or position of an input that is not given to the network but to the likelihood beside its outputs:
            added to those on the scale of a (log) mean, such as a log exposure, or a Binomial's numbers of trials.
        noise_prior: over what the likelihood learns under `likelihood.` (such as `log_scale`), on the scale on which it
            is learned; flat if left out.

    Raises:
        NotSupportedError: a scripted or traced network.
    """

    given_likelihood: Likelihood

    def __init__(
        self,
        net: nn.Module,
        likelihood: Likelihood,
        prior: Prior | None = None,
        *,
        inputs: InputsRecipe | InputsStandardization | None = None,
        targets: Standardize | Standardization | None = None,
        output: OutputSelector | None = None,
        offset: str | int | None = None,
        noise_prior: Prior | None = None,
    ) -> None:
        super().__init__()
        _check_type("net", net, nn.Module)
        if any(isinstance(part, torch.jit.ScriptModule) for part in net.modules()):
            raise NotSupportedError(
                "a scripted or traced network takes no other weights; give the one that it came from"
            )
        _check_type("prior", prior, Prior, type(None))
        _check_type("noise_prior", noise_prior, Prior, type(None))
        _check_type("inputs", inputs, Standardize, Standardization, InputsStandardization, Mapping, type(None))
        _check_type("targets", targets, Standardize, Standardization, type(None))
        if not isinstance(likelihood, Likelihood):
            raise TypeError(f"`likelihood` must be a Likelihood; got {type(likelihood).__name__}")
        if offset is not None and isinstance(inputs, Mapping) and offset in inputs:
            raise ValueError(
                f"`inputs` must not standardise the offset {offset!r}: it is added to the outputs with coefficient 1"
            )
        if targets is not None and offset is not None:
            raise ValueError("`offset` is added on the network's scale and cannot be used with standardised targets")
        self.net = net
        self.prior = Normal() if prior is None else prior
        self.noise_prior = Flat() if noise_prior is None else noise_prior
        self.output = output
        self.offset = offset
        self.inputs = _fitted_parts(inputs)
        self.targets: Standardize | Standardization | None = None
        # as given, in the targets' units; not a submodule, so that a learned scale has one name
        self.__dict__["given_likelihood"] = likelihood
        self.likelihood = likelihood
        self._set_targets(targets)

    def _set_targets(self, targets: Standardize | Standardization | None) -> None:
        if isinstance(targets, Standardization):
            _check_target_shape(targets, self._event_shape())
            self.likelihood = self.given_likelihood.standardized(targets.loc, targets.scale)
        elif targets is not None:
            _check_axes(targets, self.likelihood.elements()[1])
            shift = torch.full((), float(targets.center))  # refused here, not after training
            self.given_likelihood.standardized(shift, torch.ones(()))
        self.targets = targets

    def _event_shape(self) -> torch.Size:
        """The shape of one target, of one element where there are several."""
        element, _ = self.likelihood.elements()
        with torch.no_grad():
            predicted: Distribution = element(torch.zeros(1, element.num_outputs, device=module_device(self)))
        return predicted.event_shape

    @property
    def core(self) -> Core:
        """Network and likelihood, shared with this model, on standardised values."""
        return Core(self.net, self.likelihood, self.output, self.offset)

    def forward(self, inputs: ArrayLike) -> Distribution:
        """The predicted distribution at the current weights, in the targets' units: batch_shape (rows,).

        In evaluation mode, like everything but training.
        """
        return self.distribution(self.call({}, {}, self.read_inputs(inputs), "parameters"))  # type: ignore[arg-type]

    def replace(self, *, prior: Prior) -> "Model":
        """A model of the same network and likelihood, as they are, with another prior over the weights."""
        return self.standardized_by(self.inputs, self.targets, prior=prior)

    def standardized_by(
        self,
        inputs: InputsRecipe | InputsStandardization | None,
        targets: Standardize | Standardization | None,
        *,
        prior: Prior | None = None,
    ) -> "Model":
        """A model of the same network and likelihood, before its standardisation is fitted or with an equal one.

        Args:
            inputs: how inputs are standardised.
            targets: how targets are.
            prior: over the weights; this one's if left out.
        """
        model = Model(
            self.net,
            self.given_likelihood,
            self.prior if prior is None else prior,
            inputs=inputs,
            targets=targets,
            output=self.output,
            offset=self.offset,
            noise_prior=self.noise_prior,
        )
        if self.likelihood is not self.given_likelihood:  # standardised already, with what it learned
            model.likelihood = self.likelihood
        return model

    def call(
        self, params: Params, buffers: Params, inputs: Inputs, want: Want = "outputs"
    ) -> Tensor | dict[str, Tensor]:
        """Evaluate at given weights, in evaluation mode: the one functional entry, made to be `vmap`ped over draws.

        Args:
            params: weights by name; those left out keep the model's own values.
            buffers: buffers by name, likewise.
            inputs: tensors in the user's units.
            want: "outputs" (rows, num_outputs), "parameters" (the likelihood's, on the network's side of any
                standardisation) or "fisher" (rows, num_outputs, num_outputs).
        """
        core = self.core
        with evaluating(core):
            return functional_call(core, {**params, **buffers}, (self.standardize_inputs(inputs), want))  # type: ignore[no-any-return]

    def distribution(self, parameters: dict[str, Tensor]) -> Distribution:
        """The likelihood's parameters, with any leading axes, as a distribution in the targets' units."""
        predicted = self.likelihood.distribution(parameters)
        if self.targets is None:
            return predicted
        transform = _check_fitted("targets", self.targets)
        return affine(predicted, transform.loc, transform.scale)

    def log_likelihood(self, params: Params, buffers: Params, batch: Any) -> Tensor:
        """The log density of each row's target at given weights, weighted and masked: shape (rows,)."""
        data = self.matched(self.read(batch))
        parameters = self.call(params, buffers, data.inputs, "parameters")
        element, axes = self.likelihood.elements()
        return weighted_rows(element.log_prob, parameters, self.standardize(data), self.log_scale(), axes)  # type: ignore[arg-type]

    def log_prior(self, params: Params) -> Tensor:
        """The log density of the weights under `net.` and of what the likelihood learns, under their priors."""
        own = {name: value for name, value in params.items() if name.startswith("net.")}
        noise = {name: value for name, value in params.items() if name.startswith("likelihood.")}
        density = self.prior.log_prob(own)
        return (
            density if not noise or isinstance(self.noise_prior, Flat) else density + self.noise_prior.log_prob(noise)
        )

    def log_joint(self, params: Params, buffers: Params, batch: Any, num_data: int) -> Tensor:
        """`(num_data / B) * sum of log likelihoods + log prior`, a scalar; B counts the batch's rows."""
        rows = self.log_likelihood(params, buffers, batch)
        return num_data / rows.shape[0] * rows.sum() + self.log_prior(params)

    # -- data on both sides of the standardisation ---------------------------------------------------------------

    def read_inputs(self, inputs: ArrayLike) -> Inputs:
        """Inputs of any accepted form as tensors on the model's device, checked."""
        return self.read(Data(inputs), need_targets=False).inputs  # type: ignore[no-any-return]

    def read(self, batch: Any, *, need_targets: bool = True) -> Data:
        """A batch of any accepted form as tensors on the model's device, checked."""
        return read_batch(batch, floating_dtype(self), module_device(self), need_targets=need_targets)

    def matched(self, data: Data, outputs: Tensor | None = None) -> Data:
        """The batch with its targets checked against the likelihood and in its shape, still in their units.

        Args:
            data: a batch of tensors.
            outputs: outputs of any rows, as a template; by default the first rows are evaluated.
        """
        outputs = self.dry_run(data.inputs) if outputs is None else outputs
        if data.mask is None:
            return replace(data, targets=self.likelihood.match_targets(data.targets, outputs))
        mask, targets = data.mask, data.targets
        mask = mask.reshape(-1, *[1] * (targets.dim() - mask.dim())) if mask.dim() < targets.dim() else mask
        mask = mask.expand_as(targets)
        # a missing target is replaced by a possible one, so that what is checked and computed is finite
        possible = self.likelihood.possible_target(outputs)
        targets = self.likelihood.match_targets(torch.where(mask, targets, possible), outputs)
        return replace(data, targets=targets, mask=_target_mask(mask, 1 + self.likelihood.elements()[1]))

    def dry_run(self, inputs: Inputs) -> Tensor:
        """The outputs of the first one or two rows, checked against the likelihood: (rows, num_outputs)."""
        core = self.core
        with torch.no_grad(), evaluating(core), seeded(0, "record", device=module_device(self)):
            outputs = core(self.standardize_inputs(take_rows(inputs, slice(0, 2))), "outputs")
        self.likelihood.check_outputs(outputs)
        return outputs  # type: ignore[no-any-return]

    def standardize_inputs(self, inputs: Inputs) -> Inputs:
        """Inputs on the network's side."""
        if self.inputs is None:
            return inputs
        return _check_fitted("inputs", self.inputs)(inputs)  # type: ignore[no-any-return]

    def standardize(self, data: Data) -> Data:
        """A batch on the network's side."""
        targets = data.targets
        if self.targets is not None and targets is not None:
            targets = _check_fitted("targets", self.targets)(targets)
        return replace(data, inputs=self.standardize_inputs(data.inputs), targets=targets)

    def log_scale(self) -> float:
        """The log Jacobian of the targets' standardisation: what a log density loses on the way back."""
        if not isinstance(self.targets, Standardization) or not self.likelihood.has_density:
            return 0.0
        scale = self.targets.scale.double()
        elements = max(self._event_shape().numel(), 1)
        return float(scale.log().sum()) * (elements if scale.numel() == 1 else 1)

    def fitted(self, source: Source) -> "Model":
        """A copy whose recipes are fitted on the source's rows; what is fitted already stays as it is."""
        model = copied(self).to(module_device(self.net))  # the likelihood goes where the network is
        model.likelihood.to(floating_dtype(self.net))
        if model.inputs is not None and not isinstance(model.inputs, (Standardization, InputsStandardization)):
            recipe, model.inputs = model.inputs, None
            model.inputs = fit_inputs(recipe, (batch.inputs for batch in source.batches(None)))
        if isinstance(model.targets, Standardize):
            model._set_targets(model.targets.fit(model._target_batches(source), name="targets"))
        return model

    def _target_batches(self, source: Source) -> Iterator[Tensor]:
        outputs = None
        for batch in source.batches(None):
            outputs = self.dry_run(batch.inputs) if outputs is None else outputs
            matched = self.matched(batch, outputs)
            yield matched.targets if matched.mask is None else _present(matched.targets, matched.mask)


def _check_type(name: str, value: object, *kinds: type) -> None:
    if not isinstance(value, kinds):
        wanted = ", ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
        shown = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
        raise TypeError(f"`{name}` must be one of {wanted}; got {shown}")


def _explain(error: RuntimeError, net: nn.Module, inputs: Inputs) -> None:
    """Turn torch's words about dtypes and shapes into advice; anything else is left as it is."""
    text = str(error)
    found = [f"{tuple(leaf.shape)} {str(leaf.dtype).removeprefix('torch.')}" for leaf in leaves(inputs)]
    other = any(leaf.is_floating_point() and leaf.dtype != floating_dtype(net) for leaf in leaves(inputs))
    if "dtype" in text or "scalar type" in text.lower() or (other and "type" in text):
        own = str(floating_dtype(net)).removeprefix("torch.")
        raise TypeError(
            f"the network, whose weights are {own}, cannot read inputs {', '.join(found)}: tensors are not converted; "
            f"pass inputs.to(torch.{own}). Indices for an Embedding must be integer tensors ({text.splitlines()[0]})"
        ) from error
    if "shape" in text or "size" in text:
        raise ShapeError(
            f"the network cannot read inputs {', '.join(found)}, rows on axis 0: {text.splitlines()[0]}"
        ) from error


def _check_fitted(name: str, part: Any) -> Standardization | InputsStandardization:
    if isinstance(part, (Standardization, InputsStandardization)):
        return part
    raise ValueError(
        f"the standardisation of `{name}` has not been fitted yet: fit the model, or pass a fitted Standardization"
    )


def _fitted_parts(inputs: Any) -> Any:
    """A mapping of fitted transforms as one transform; anything else as it is."""
    is_fitted = isinstance(inputs, Mapping) and all(isinstance(part, Standardization) for part in inputs.values())
    return InputsStandardization(inputs) if is_fitted else inputs


def _check_target_shape(targets: Standardization, event_shape: torch.Size) -> None:
    if targets.scale.numel() != 1 and targets.scale.shape != event_shape:
        raise ShapeError(
            f"`targets` must standardise one target of shape {tuple(event_shape)}; its scale has shape "
            f"{tuple(targets.scale.shape)}"
        )


def _check_axes(targets: Standardize, element_axes: int) -> None:
    missing = set(range(1, 1 + element_axes)) - set(targets.axes)
    if missing:
        raise ShapeError(
            f"elements share one scale: standardise targets over all their axes, Standardize(axes="
            f"{tuple(range(1 + element_axes))}); got axes={targets.axes}"
        )


def _present(targets: Tensor, mask: Tensor) -> Tensor:
    """The targets that are not missing: rows, or single elements as rows of one element."""
    present = targets[mask]
    return present.reshape(present.shape[:1] + (1,) * (mask.dim() - 1) + present.shape[1:])


def _target_mask(mask: Tensor, dims: int) -> Tensor:
    """One flag per target, the first `dims` axes, each of which must be whole or missing."""
    flat = mask.flatten(dims) if mask.dim() > dims else mask.unsqueeze(-1)
    if not bool((flat.all(-1) | ~flat.any(-1)).all()):
        raise ValueError(
            "a mask of parts of a target needs a likelihood that treats them one by one: "
            "likelihoods.PerElement(...) of the likelihood of one part"
        )
    return flat.all(-1)


def weighted_rows(
    log_prob: Callable[[dict[str, Tensor], Tensor], Tensor],
    parameters: dict[str, Tensor],
    data: Data,
    log_scale: float = 0.0,
    element_axes: int = 0,
) -> Tensor:
    """Each row's log density in the targets' units, zero where masked, times its weight: shape (*batch,).

    Args:
        log_prob: of one element; (*batch, *elements) of all.
        parameters: of the likelihood.
        data: on the network's side; its mask is (rows,) or (rows, *elements).
        log_scale: what the log density of one element loses on the way back to the targets' units.
        element_axes: how many axes after the rows are summed over.
    """
    rows = log_prob(parameters, data.targets)
    if log_scale:
        rows = rows - log_scale
    if data.mask is not None:
        mask = data.mask.reshape(data.mask.shape + (1,) * (1 + element_axes - data.mask.dim()))
        rows = torch.where(mask, rows, torch.zeros_like(rows))
    if element_axes:
        rows = rows.sum(tuple(range(-element_axes, 0)))
    return rows if data.weights is None else rows * data.weights
