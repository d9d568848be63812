r"""A Gaussian over weights as a Gaussian over functions: the network linearised around its mean weights.

    f(x; w) = f(x; w*) + J(x) (w - w*),   w ~ Normal(w*, S),   so that   f(x) ~ Normal(f(x; w*), J(x) S J(x)').

Where the Gaussian comes from a curvature, this is the function that the curvature saw, and its predictions are far
better than those of the network at drawn weights (Improving predictions of Bayesian neural nets via local
linearization, Immer, Korzepa, Bauer 2021).

With Gaussian noise the prediction is Gaussian, in closed form. Classes are predicted without draws by the probit
approximation (The Evidence Framework Applied to Classification Networks, MacKay 1992; for several classes, each logit
by itself: Bayesian Gaussian Processes for Regression and Classification, Gibbs 1997),

    p(y = k) = softmax_k(m_k / sqrt(1 + pi v_k / 8)).

Adding one number to all logits of a row changes nothing, so m_k and v_k must not see it: m_k is the mean of a logit
less that of all, and v_k the variance of the logit less the mean of the *others*. Of two classes that is MacKay's
formula for their difference. The variance of each bare logit, which is often taken, flattens the probabilities by what
the data say nothing about, the level of all logits. Under every other likelihood, or on request, predictions are by
draws of the linear function.
"""

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from credibly.core.checks import check_count
from credibly.core.errors import NotSupportedError
from credibly.core.linalg.base import PositiveDefinite
from credibly.core.randomness import base_seed
from credibly.core.typing import ArrayLike, Inputs, Params
from credibly.curvature.outputs import output_covariance
from credibly.distributions.affine import affine
from credibly.distributions.class_predictive import ClassPredictive
from credibly.distributions.gaussian import GaussianPredictive
from credibly.distributions.multivariate_predictive import MultivariateGaussianPredictive
from credibly.distributions.predictive import Predictive
from credibly.distributions.rows import concatenate
from credibly.likelihoods.base import Likelihood
from credibly.likelihoods.bernoulli import Bernoulli
from credibly.likelihoods.categorical import Categorical
from credibly.likelihoods.gaussian import Gaussian
from credibly.model import Model, Want
from credibly.posteriors.base import DEFAULT_NUM_DRAWS, WeightPosterior, network_randomness
from credibly.posteriors.evaluation import grad_if_needed
from credibly.posteriors.gaussian import GaussianPosterior
from credibly.posteriors.info import Info
from credibly.posteriors.laplace import LaplacePosterior
from credibly.posteriors.linear_outputs import linear_outputs
from credibly.priors.base import Prior
from credibly.standardization import Standardization

__all__ = ["LinearizedPosterior", "closed_form"]

_DATASET_ROWS = 1024


class LinearizedPosterior(WeightPosterior):
    """The linearised view of a Gaussian over weights. Weights, density and prior are those of the Gaussian.

    `predict` is in closed form where there is one, and takes no draws then; `predict(inputs, num_draws=100)` draws.

    Args:
        of: the Gaussian.
        probit: predict classes in closed form by the probit approximation; otherwise by draws, which also give the
            mutual information.
    """

    def __init__(self, of: GaussianPosterior, *, probit: bool = True) -> None:
        # a view: the model is the Gaussian's own, and is not copied again
        if not isinstance(of, GaussianPosterior):
            raise TypeError(f"`of` must be a GaussianPosterior; got {type(of).__name__}")
        self.of = of
        self.probit = probit

    @property
    def model(self) -> Model:
        """The fitted model, in evaluation mode."""
        return self.of.model

    @property
    def info(self) -> Info:
        """How the posterior came to be."""
        return self.of.info

    @property
    def names(self) -> tuple[str, ...]:
        """Which weights are random."""
        return self.of.names

    @property
    def mean(self) -> Params:
        """The mean of the random weights, by name: where the network is linearised."""
        return self.of.mean

    @property
    def covariance(self) -> PositiveDefinite:
        """Of the flat vector of the random weights."""
        return self.of.covariance

    @property
    def variances(self) -> Params:
        """The marginal variance of each random weight, by name."""
        return self.of.variances

    @property
    def fixed(self) -> Params:
        """The weights that are the same in every draw."""
        return self.of.fixed

    def sample(self, num_draws: int, *, seed: int | None = None) -> Params:
        """Draws of the random weights by name, each (num_draws, ...)."""
        return self.of.sample(num_draws, seed=seed)

    def log_prob(self, params: Params) -> Tensor:
        """The log density of the random weights, a scalar."""
        return self.of.log_prob(params)

    def as_prior(self, *, dense: bool = False) -> Prior:
        """The Gaussian as the prior of the next fit; see `GaussianPosterior.as_prior`."""
        return self.of.as_prior(dense=dense)

    def evidence(self) -> Tensor:
        """The log marginal likelihood; see `LaplacePosterior.evidence`.

        Raises:
            NotSupportedError: the Gaussian does not come from Laplace's method.
        """
        if not isinstance(self.of, LaplacePosterior):
            raise NotSupportedError(
                f"evidence is not available for a view of {type(self.of).__name__}; inference.Laplace gives it"
            )
        return self.of.evidence()

    def output_covariance(self, inputs: ArrayLike, *, joint: bool = False) -> Tensor:
        """The covariance of the network's outputs C, on its side of any standardisation: (rows, C, C).

        Args:
            inputs: arrays or tensors of rows.
            joint: between all rows as well: (rows, C, rows, C).
        """
        return self._covariance(self.model.read_inputs(inputs), joint=joint)

    def predict(
        self,
        inputs: ArrayLike | DataLoader[Any] | Dataset[Any],
        *,
        num_draws: int | None = None,
        seed: int | None = None,
    ) -> Predictive:
        """The predictive distribution of each row, in the targets' units, rows in order.

        Args:
            inputs: arrays or tensors of rows; or a loader or dataset of inputs or of (inputs, targets).
            num_draws: of the linear function. None: the closed form, where there is one, otherwise 100.
            seed: of the draws, shared by all rows and batches.
        """
        if not self._is_closed(num_draws):
            return super().predict(inputs, num_draws=num_draws, seed=seed)
        if isinstance(inputs, Dataset):
            inputs = DataLoader(inputs, batch_size=_DATASET_ROWS)
        if not isinstance(inputs, DataLoader):
            return self._in_closed_form(self.model.read_inputs(inputs), seed)
        parts = [predicted for predicted, _ in self.predict_batches(inputs, seed=seed)]
        if not parts:
            raise ValueError("the loader gave no batch; prediction needs at least one")
        return concatenate(parts)  # type: ignore[return-value]

    def predict_batches(
        self, loader: DataLoader[Any], *, num_draws: int | None = None, seed: int | None = None
    ) -> Iterator[tuple[Predictive, Tensor | None]]:
        """Pairs of prediction and targets, batch by batch; the draws are the same in every batch."""
        if not self._is_closed(num_draws):
            yield from super().predict_batches(loader, num_draws=num_draws, seed=seed)
            return
        seed = base_seed(seed)
        for batch in self._batches(loader, seed):
            yield self._in_closed_form(batch.inputs, seed), batch.targets

    def _is_closed(self, num_draws: int | None) -> bool:
        return num_draws is None and closed_form(self.model.likelihood, probit=self.probit) is not None

    def _in_closed_form(self, inputs: Inputs, seed: int | None) -> Predictive:
        form = closed_form(self.model.likelihood, probit=self.probit)
        assert form is not None
        with network_randomness(self.model, seed), grad_if_needed(inputs):
            outputs = self.model.call({**self.fixed, **self.mean}, {}, inputs, "outputs")
            assert isinstance(outputs, Tensor)
            self.model.likelihood.check_outputs(outputs)
            predicted = form(outputs, self._covariance(inputs).to(outputs))
        units = self.model.targets
        if not isinstance(units, Standardization):
            return predicted
        return affine(predicted, units.loc, units.scale)  # type: ignore[return-value]

    def _covariance(self, inputs: Inputs, *, joint: bool = False) -> Tensor:
        return output_covariance(self.model, inputs, self.names, self.covariance, joint=joint)

    def _evaluate(self, inputs: Inputs, want: Want, num_draws: int | None, seed: int | None) -> Any:
        num_draws = check_count("num_draws", DEFAULT_NUM_DRAWS if num_draws is None else num_draws)
        with grad_if_needed(inputs):
            parts = [self._linear(inputs, draws) for _, draws in self.of._chunks(num_draws, seed)]
            outputs = torch.cat(parts)
            if want == "outputs":
                return outputs
            likelihood = self.model.likelihood
            likelihood.check_outputs(outputs[0])
            return likelihood.parameters_of(outputs)

    def _linear(self, inputs: Inputs, draws: Params) -> Tensor:
        fixed = self.fixed  # detached: a graph towards the inputs leaves no gradient on them

        def call(params: Params, rows: Inputs) -> Tensor:
            return self.model.call({**fixed, **params}, {}, rows, "outputs")  # type: ignore[return-value]

        mean = self.mean
        offsets = {name: draws[name] - mean[name] for name in self.names}
        return linear_outputs(call, self.model.net, mean, offsets, inputs)


ClosedForm: TypeAlias = Callable[[Tensor, Tensor], Predictive]


@functools.singledispatch
def closed_form(likelihood: Likelihood, *, probit: bool) -> ClosedForm | None:  # noqa: ARG001
    """What predicts from mean (rows, C) and covariance (rows, C, C) of the outputs; None where there is no such form.

    All is on the network's side of any standardisation.

    Args:
        likelihood: whose type has an entry, or not: `closed_form.register(MyLikelihood)`.
        probit: whether approximations of classes count.
    """
    return None


@closed_form.register
def _(likelihood: Gaussian, *, probit: bool) -> ClosedForm:  # noqa: ARG001
    return functools.partial(_with_noise, likelihood.noise_scale().detach())


@closed_form.register
def _(likelihood: Categorical, *, probit: bool) -> ClosedForm | None:  # noqa: ARG001
    return _probit if probit else None


@closed_form.register
def _(likelihood: Bernoulli, *, probit: bool) -> ClosedForm | None:
    return _probit if probit and likelihood.num_outputs == 1 else None


def _with_noise(scale: Tensor, mean: Tensor, covariance: Tensor) -> Predictive:
    """The Gaussian of function and independent noise."""
    noise = scale.to(mean).square()
    if mean.shape[-1] == 1:
        return GaussianPredictive(mean.squeeze(-1), covariance[:, 0, 0].clamp(min=0), noise)
    return MultivariateGaussianPredictive(mean, covariance, torch.diag_embed(noise.expand(mean.shape[-1])))


def _probit(mean: Tensor, covariance: Tensor) -> Predictive:
    """Each logit, from the mean of all, shrunk by its variance around the mean of the others; see the module."""
    variance, size = covariance.diagonal(dim1=-2, dim2=-1), mean.shape[-1]
    if size > 1:
        with_all = covariance.mean(-1)  # of each logit with the mean of all
        variance = (variance - 2 * with_all + with_all.mean(-1, keepdim=True)) * (size / (size - 1)) ** 2
        mean = mean - mean.mean(-1, keepdim=True)
    logits = mean / torch.sqrt(1 + math.pi / 8 * variance.clamp(min=0))
    return ClassPredictive(logits if size > 1 else logits.squeeze(-1))
