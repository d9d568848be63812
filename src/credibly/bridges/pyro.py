"""A `Model` as a Pyro program, so that any of Pyro's algorithms runs on it.

    w ~ prior,    y_i ~ p(y | x_i, w),  i = 1 ... B,  each counted num_data / B times

Pyro: Deep Universal Probabilistic Programming, Bingham, Chen, Jankowiak, Obermeyer, Pradhan, Karaletsos, Singh,
Szerlip, Horsfall, Goodman 2019. The log density of the program's trace is `Model.log_joint`, constants included:

* A sample site for each trainable tensor of the network, under its name, one for tied weights. Its distribution is the
  prior's. Where a weight's prior is flat, or is not independent of the other weights', the site is improper, and what
  density there is enters as a factor, `prior`.
* A plate `data` over the rows, in which the batch is a subsample of `num_data`, and the site `targets` of the observed
  ones. Row weights and masks belong to its density; values are in the targets' units, whatever the standardisation.
* What the likelihood learns is a `pyro.param` of its name: SVI learns it, MCMC holds it fixed. With
  `sample_noise=True` it is sampled, under the model's `noise_prior`.

The network runs in evaluation mode, like everything but training.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, distributions, nn
from torch.distributions import Distribution, constraints
from torch.func import vmap

from credibly.core.checks import check_count
from credibly.core.copying import copied
from credibly.core.data import ArraySource, Data, as_source
from credibly.core.errors import NotSupportedError, ShapeError
from credibly.core.params import evaluating, floating_dtype, module_device, trainable_params
from credibly.core.substitution import functional_call
from credibly.core.typing import ArrayLike, Inputs, Params
from credibly.distributions.drawing import sampled
from credibly.model import Model, weighted_rows
from credibly.priors.base import FactorisedPrior, Prior
from credibly.priors.flat import Flat

__all__ = ["PyroProgram", "to_pyro"]

_TWINS: dict[type[Distribution], Callable[[Any], Distribution]] = {
    distributions.Normal: lambda d: dist.Normal(d.loc, d.scale, validate_args=False),
    distributions.Laplace: lambda d: dist.Laplace(d.loc, d.scale, validate_args=False),
    distributions.StudentT: lambda d: dist.StudentT(d.df, d.loc, d.scale, validate_args=False),
    distributions.MixtureSameFamily: lambda d: dist.MixtureSameFamily(
        d.mixture_distribution, d.component_distribution, validate_args=False
    ),
}
"""Distributions of single weights, and what Pyro calls them. Any other enters as a factor."""


def to_pyro(
    model: Model,
    data: Any = None,
    *,
    num_data: int | None = None,
    batch_size: int | None = None,
    sample_noise: bool = False,
) -> "PyroProgram":
    """The model as a Pyro program.

    Args:
        model: it is copied, and never changed.
        data: the training data, in any form: a standardisation is fitted on it, and it says how many rows there are.
            Data in memory is what the program reads when it is called without arguments.
        num_data: the number of training rows, where there is no `data` or it does not say.
        batch_size: a call without arguments reads that many rows, drawn anew by the plate; all of them if left out.
        sample_noise: sample what the likelihood learns, as MCMC should; otherwise it is a `pyro.param`.

    Returns:
        A function of `(inputs, targets)` with Pyro's effects.

    Raises:
        ValueError: neither `data` nor `num_data`, or a standardisation that has not been fitted.
    """
    if not isinstance(model, Model):
        raise TypeError(f"`model` must be a Model(net, likelihood, prior); got {type(model).__name__}")
    if num_data is not None:
        check_count("num_data", num_data)
    if batch_size is not None:
        check_count("batch_size", batch_size)
    if data is None:
        if num_data is None or batch_size is not None:
            raise ValueError(
                "`data` or `num_data` is needed: the training rows, or how many there are; `batch_size` is for `data`"
            )
        return PyroProgram(copied(model), num_data, sample_noise=sample_noise)
    whole = data if isinstance(data, Data) else Data(data) if not isinstance(data, (tuple, list)) else Data(*data)
    whole = whole if num_data is None else replace(whole, num_data=num_data)
    source = as_source(whole, floating_dtype(model), module_device(model))
    own = source.data if isinstance(source, ArraySource) else None
    if own is None and batch_size is not None:
        raise NotSupportedError("`batch_size` is for data in memory; call the program with a loader's own batches")
    fitted = model.fitted(source)
    return PyroProgram(fitted, source.num_data, data=own, batch_size=batch_size, sample_noise=sample_noise)


class PyroProgram:
    """A Pyro model: a function of `(inputs, targets)` whose effects are the sites of a `Model`. `to_pyro` makes it.

    Args:
        model: with fitted standardisation; it is used as it is, in evaluation mode.
        num_data: the number of training rows.
        data: what a call without arguments reads, in the user's units.
        batch_size: how many of its rows at a time.
        sample_noise: sample what the likelihood learns.
    """

    def __init__(
        self,
        model: Model,
        num_data: int,
        *,
        data: Data | None = None,
        batch_size: int | None = None,
        sample_noise: bool = False,
    ) -> None:
        self.model = model.eval()
        self.num_data = num_data
        self.batch_size = batch_size
        self._data = None if data is None else self._prepared(data)
        like = trainable_params(model.core)
        self._like = {name: value.clone() for name, value in like.items()}
        noise = {name: value for name, value in self._like.items() if name.startswith("likelihood.")}
        weights = {name: value for name, value in self._like.items() if name not in noise}
        self._groups = [_Group("prior", model.prior, weights)]
        self._learned = {} if sample_noise else noise
        if sample_noise and noise:
            self._groups.append(_Group("noise_prior", model.noise_prior, noise))

    @property
    def start(self) -> Params:
        """The model's own weights by site, for `init_to_value(values=program.start)`."""
        return {name: value.clone() for name, value in self._like.items() if name not in self._learned}

    @property
    def learned(self) -> tuple[str, ...]:
        """The names of the likelihood's `pyro.param`s."""
        return tuple(self._learned)

    def __call__(
        self,
        inputs: ArrayLike | None = None,
        targets: ArrayLike | None = None,
        *,
        weights: ArrayLike | None = None,
        mask: ArrayLike | None = None,
    ) -> Tensor:
        """Run the program on a batch; of its own data without arguments, and with targets drawn without targets.

        Args:
            inputs: of the rows of a batch, in any form that a model reads; a `Data` brings its targets.
            targets: of the same rows; None to draw them.
            weights: (rows,) how much each row counts.
            mask: False where a target is missing.

        Returns:
            The targets, in their units.
        """
        if inputs is None:
            return self._rows_of_own_data()
        batch = inputs if isinstance(inputs, Data) else Data(inputs, targets, weights, mask)
        if batch.targets is not None:
            return self._observe(self._prepared(batch))
        read = self.model.standardize_inputs(self.model.read_inputs(batch.inputs))
        return self._observe(Data(read), scaled=False)

    def on_network_side(self, batch: Data) -> Tensor:
        """Run the program on a batch that is checked and standardised already, as training reads it."""
        return self._observe(batch, standardized=True)

    def _rows_of_own_data(self) -> Tensor:
        if self._data is None:
            raise ValueError("call the program with (inputs, targets): it was made without data in memory")
        if self.batch_size is None or self.batch_size >= self._data.num_rows:
            return self._observe(self._data)
        chosen = torch.randperm(self._data.num_rows)[: self.batch_size].to(module_device(self.model))
        return self._observe(self._data.take(chosen))

    def _prepared(self, batch: Data) -> Data:
        """Inputs on the network's side, targets checked and in their own units."""
        matched = self.model.matched(self.model.read(batch))
        return replace(matched, inputs=self.model.standardize_inputs(matched.inputs))

    def _observe(self, batch: Data, *, standardized: bool = False, scaled: bool = True) -> Tensor:
        params = self._sample_weights()
        rows = batch.num_rows
        parameters, leading = self._over_draws(lambda draw: self.parameters(draw, batch.inputs), params, axes=1)
        subsample = torch.arange(rows, device=module_device(self.model))
        with pyro.plate("data", self.num_data if scaled else rows, subsample=subsample, dim=-1):
            outcome = _Outcome(self.model, parameters, batch, torch.Size((*leading, rows)), standardized=standardized)
            return pyro.sample("targets", outcome, obs=batch.targets)

    def _sample_weights(self) -> Params:
        params: Params = {}
        for group in self._groups:
            own = {name: pyro.sample(name, site) for name, site in group.sites.items()}
            if group.in_factor:
                part = {name: own[name] for name in group.in_factor}
                pyro.factor(group.name, self._over_draws(group.prior.log_prob, part, axes=0)[0])
            params.update(own)
        noise = {name: pyro.param(name, value.clone()) for name, value in self._learned.items()}
        if noise and not isinstance(self.model.noise_prior, Flat):
            pyro.factor("noise_prior", self.model.noise_prior.log_prob(noise))
        return {**params, **noise}

    def parameters(self, params: Params, inputs: Inputs) -> dict[str, Tensor]:
        """The likelihood's parameters at one draw of the weights, of inputs on the network's side: each (rows, ...)."""
        core = self.model.core
        with evaluating(core):
            return functional_call(core, params, (inputs, "parameters"))  # type: ignore[no-any-return]

    def _over_draws(self, function: Callable[[Params], Any], params: Params, *, axes: int) -> tuple[Any, torch.Size]:
        """The function at every draw that lies along leading axes of the weights (particles, parallel predictions).

        Args:
            function: of one draw.
            params: each (*leading, *shape).
            axes: how many of the last leading axes, of size 1, are the plate's and give way to its rows.
        """
        shapes = [value.shape[: value.dim() - self._like[name].dim()] for name, value in params.items()]
        leading: torch.Size = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
        if not leading:
            return function(params), leading
        if leading[-1] != 1:
            raise ShapeError(f"draws must lie on axes left of the plate `data`, (..., 1); got {tuple(leading)}")
        flat = {
            name: value.expand(*leading, *self._like[name].shape).reshape(-1, *self._like[name].shape)
            for name, value in params.items()
        }
        recurrent = any(isinstance(part, nn.RNNBase) for part in self.model.net.modules())  # vmap has no rule for them
        evaluated = _loop(function, flat) if recurrent else vmap(function, randomness="different")(flat)
        kept = leading[: len(leading) - axes]
        if isinstance(evaluated, dict):
            return {name: part.reshape(*kept, *part.shape[1:]) for name, part in evaluated.items()}, kept
        return evaluated.reshape(*kept, *evaluated.shape[1:]), kept


def _loop(function: Callable[[Params], Any], draws: Params) -> Any:
    number = len(next(iter(draws.values())))
    parts = [function({name: value[index] for name, value in draws.items()}) for index in range(number)]
    if isinstance(parts[0], dict):
        return {name: torch.stack([part[name] for part in parts]) for name in parts[0]}
    return torch.stack(parts)


class _Group:
    """The sites of weights that share a prior.

    Attributes:
        name: of the factor.
        prior: of the weights.
        sites: the distribution of each.
        in_factor: the weights whose density is in the factor; none where there is no factor.
    """

    def __init__(self, name: str, prior: Prior, like: Params) -> None:
        self.name = name
        self.prior = prior
        found = prior.distributions(like) if isinstance(prior, FactorisedPrior) else {}
        self.in_factor = [key for key in like if key in found and type(found[key]) not in _TWINS]
        if not isinstance(prior, FactorisedPrior):
            self.in_factor = list(like)
        self.sites = {
            key: _TWINS[type(found[key])](found[key]).to_event(value.dim())  # type: ignore[attr-defined]
            if key in found and key not in self.in_factor
            else _Improper(key, value.shape)
            for key, value in like.items()
        }


class _Improper(dist.ImproperUniform):
    """All real numbers, with density 1."""

    def __init__(self, name: str, shape: torch.Size) -> None:
        self.name = name
        support = constraints.independent(constraints.real, len(shape))  # type: ignore[no-untyped-call]
        super().__init__(support, torch.Size(), shape)  # type: ignore[no-untyped-call]

    def expand(self, batch_shape: Any, _instance: Any = None) -> "_Improper":
        """The same with other batch axes."""
        new = self._get_checked_instance(_Improper, _instance)  # type: ignore[no-untyped-call]
        new.name, new._support = self.name, self._support
        super(dist.ImproperUniform, new).__init__(torch.Size(batch_shape), self.event_shape)
        return new  # type: ignore[no-any-return]

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Refused.

        Raises:
            NotSupportedError: always.
        """
        raise NotSupportedError(
            f"the site `{self.name}` has no distribution of its own to draw from, its prior being flat or joint; begin "
            "at the model's weights, pyro.infer.autoguide.initialization.init_to_value(values=program.start)"
        )


class _Outcome(dist.TorchDistribution):
    """The targets of a batch given the likelihood's parameters, weighted and masked, in the targets' units."""

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012 (as torch has it)

    def __init__(
        self, model: Model, parameters: dict[str, Tensor], batch: Data, shape: torch.Size, *, standardized: bool
    ) -> None:
        self._model = model
        self._parameters = parameters
        self._batch = batch
        self._standardized = standardized
        event = self._predicted().event_shape if batch.targets is None else batch.targets.shape[1:]
        super().__init__(shape, event, validate_args=False)

    @constraints.dependent_property
    def support(self) -> Any:
        """That of the likelihood's distribution."""
        return self._predicted().support

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Targets drawn from the prediction."""
        return sampled(self._predicted(), torch.Size(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """The log density of each row, zero where masked, times its weight."""
        transform = None if self._standardized else self._model.targets
        targets = value if transform is None else transform(value)  # type: ignore[operator]
        element, axes = self._model.likelihood.elements()
        batch = replace(self._batch, targets=targets.expand(*self.batch_shape, *self.event_shape))
        return weighted_rows(element.log_prob, self._parameters, batch, self._model.log_scale(), axes)

    def _predicted(self) -> Distribution:
        return self._model.distribution(self._parameters)
