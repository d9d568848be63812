r"""Laplace's method: a Gaussian at trained weights, whose precision is the curvature of the log joint there.

    w ~ Normal(w*, P^-1),   P = H + prior precision,

with H the curvature of the negative log likelihood, summed over all rows, of which the positive semi-definite
generalised Gauss-Newton matrix is taken (A Practical Bayesian Framework for Backpropagation Networks, MacKay 1992; A
Scalable Laplace Approximation for Neural Networks, Ritter, Botev, Barber 2018; Laplace Redux, Daxberger, Kristiadi,
Immer, Eschenhagen, Bauer, Hennig 2021). Where the log joint is quadratic, as in linear regression, the result is the
posterior itself.

What the likelihood learns, such as the scale of the noise, is no weight: it stays at its value, or is tuned.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from credibly.core.checks import check_bool, check_positive
from credibly.core.data import Source
from credibly.core.errors import NotSupportedError
from credibly.core.linalg.base import PositiveDefinite
from credibly.core.linalg.dense import Dense as DenseMatrix
from credibly.core.linalg.diagonal import Diagonal as DiagonalMatrix
from credibly.core.params import network_weights
from credibly.core.randomness import base_seed, derived_seed, seeded
from credibly.curvature.fit import curvature
from credibly.curvature.kinds import GGN, CurvatureKind
from credibly.curvature.memory import MAX_BYTES, check_bytes
from credibly.curvature.plan import make_plan
from credibly.curvature.structures import Diagonal, Kronecker, Structure
from credibly.inference.at_mode import AtMode, at_mode, mean_log_prob, on_network_side, scale_noise
from credibly.inference.base import InferenceMethod, check_begins, check_recipe
from credibly.inference.curved import Curved
from credibly.inference.gaussian_prior import prior_term
from credibly.inference.last_layer import head_of
from credibly.inference.members import data_of_members, one_by_one
from credibly.inference.problem import Problem, prepare
from credibly.inference.some_weights import check_some_weights, largest, over_some_weights
from credibly.inference.starts import Start
from credibly.inference.subsets import AllWeights, Subset
from credibly.inference.tuning import LogJointAtMode, Tuned, Tuning, rescaled, scales_of
from credibly.model import Model
from credibly.posteriors.base import Posterior
from credibly.posteriors.gaussian import GaussianPosterior
from credibly.posteriors.info import Info
from credibly.posteriors.laplace import LaplacePosterior
from credibly.posteriors.linearised import LinearizedPosterior
from credibly.priors.normal import Normal

__all__ = ["Laplace"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Laplace(InferenceMethod):
    """A Gaussian around trained weights.

    Attributes:
        structure: how much of the dependence between weights is kept: `Diagonal()`, `Kronecker()` (for each tensor by
            itself), `LowRank(rank)` or `Dense()`.
        subset: which weights are random: `AllWeights()`, `LastLayer()`, `Named(names)` or
            `LargestVariance(num_weights)`.
        curvature: `GGN()`, `GGN(num_scores=...)` for many outputs, or `EmpiricalFisher()`.
        train: how to train first, for example `MAP()`. None does not train: then `fit` needs a `start`.
        prior_precision: of a Normal prior over all weights in place of the model's own prior, also in training.
        tune: how to choose the strength of the prior, and the noise, after training: `Evidence()`,
            `ValidationLogScore()`, or None, which leaves them.
        linearized: predict by the network linearised in its weights; otherwise by the network at drawn weights.
        probit: predict classes without draws, where the network is linearised; see `posteriors.LinearizedPosterior`.
        max_bytes: the most that the curvature may take in memory; what needs more is refused before it is computed.
    """

    structure: Structure = field(default_factory=Kronecker)
    subset: Subset = field(default_factory=AllWeights)
    curvature: CurvatureKind = field(default_factory=GGN)
    train: InferenceMethod | None = None
    prior_precision: float | None = None
    tune: Tuning | None = None
    linearized: bool = True
    probit: bool = True
    max_bytes: int = MAX_BYTES

    def __post_init__(self) -> None:
        options = {"structure": Structure, "subset": Subset, "curvature": CurvatureKind}
        for name, kind in (*options.items(), ("tune", Tuning)):
            value = getattr(self, name)
            if not isinstance(value, kind) and not (value is None and name not in options):
                raise TypeError(f"`{name}` must be a {kind.__name__}, such as {_EXAMPLES[name]}; got {value!r}")
        if self.prior_precision is not None:
            check_positive("prior_precision", self.prior_precision)
        for name in ("linearized", "probit"):
            check_bool(name, getattr(self, name))
        check_positive("max_bytes", self.max_bytes)
        check_recipe("Laplace", self.train)
        if self.tune is not None and self.tune.num_rounds > 1 and self.train is None:
            raise ValueError("`tune` with num_rounds > 1 trains again between rounds; give a recipe, train=MAP()")

    @property
    def trains(self) -> bool:
        """Whether there is a recipe to train by."""
        return self.train is not None

    def fit(
        self,
        model: Model,
        data: Any,
        *,
        validation: Any = None,
        start: Start = None,
        seed: int | None = None,
        progress: bool | None = None,
    ) -> LinearizedPosterior | LaplacePosterior:
        """Train, if asked to, and take the curvature at the weights.

        Raises:
            ValueError: there is neither a `start` nor a recipe to train by.
            NotSupportedError: a prior that is not Gaussian, a layer without a rule for its curvature, or a structure
                that takes more memory than allowed.
            NotFiniteError: data and prior leave some direction of the weights undetermined.
        """
        seed = base_seed(seed)
        if self.train is None:
            check_begins("Laplace", start)
        own = self._with_prior(model)
        if self.train is None:
            problem = prepare(own, data, validation=validation, start=start, seed=seed)
            self._check(problem)
            return self._around(problem, data, Info("Laplace", seed), validation, progress)
        self._check(prepare(own, data, validation=validation, start=start, seed=seed))
        trained = self.train.fit(own, data, validation=validation, start=start, seed=seed, progress=progress)
        return self._after(trained, own, data, validation, progress)

    def fit_members(
        self,
        model: Model,
        data: Any,
        starts: Sequence[Start],
        seeds: Sequence[int],
        *,
        rows: Sequence[Tensor] | None = None,
        validation: Any = None,
        progress: bool | None = None,
    ) -> list[Posterior]:
        """The members are trained together by the recipe, where it can; each gets its own curvature."""
        if self.train is None:
            return super().fit_members(model, data, starts, seeds, rows=rows, validation=validation, progress=progress)
        own = self._with_prior(model)
        self._check(prepare(own, data, validation=validation, seed=seeds[0]))
        options = {"rows": rows, "validation": validation, "progress": progress}
        members = self.train.fit_members(own, data, starts, seeds, **options)
        parts = data_of_members(own, data, rows, len(seeds))
        return one_by_one(
            partial(self._after, member, own, part, validation, progress)
            for part, member in zip(parts, members, strict=True)
        )

    def _with_prior(self, model: Model) -> Model:
        """The model with the prior that is meant."""
        if self.prior_precision is None:
            return model
        return model.replace(prior=Normal(self.prior_precision**-0.5))

    def _check(self, problem: Problem) -> None:
        """Raise what would be raised once training is over."""
        model = problem.model
        model.likelihood.check_density()
        weights = network_weights(model.core)
        dtypes = {value.dtype for value in weights.values()} - {torch.float32, torch.float64}
        if dtypes:
            raise NotSupportedError(
                f"curvatures take float32 or float64; the network has weights of {dtypes.pop()}: fit net.float()"
            )
        names = self.subset.names(model, problem.first_inputs)
        prior_term(model.prior, weights, names)
        if self.tune is not None:
            scales_of(model.prior, {name: weights[name] for name in names})
        if self.tune is not None and self.tune.needs_validation and problem.validation is None:
            name = type(self.tune).__name__
            raise ValueError(f"{name} needs validation data: fit(..., validation=(inputs, targets))")
        if self.subset.most is not None:
            check_bytes(model, names, Diagonal(), self.max_bytes)
            most = min(self.subset.most, sum(weights[name].numel() for name in names))
            check_some_weights(model, most, self.structure, self.curvature, self.max_bytes)
        else:
            check_bytes(model, names, self.structure, self.max_bytes)
            if self.train is not None:  # refuses layers that have no such structure
                self.structure.sum(make_plan(model.core, problem.source.first().inputs, names))

    def _after(
        self, trained: Posterior, own: Model, data: Any, validation: Any, progress: bool | None
    ) -> LinearizedPosterior | LaplacePosterior:
        """Around what the recipe found."""
        info = replace(trained.info, method="Laplace")
        problem = prepare(own, data, validation=validation, start=trained, seed=info.seed)
        return self._around(problem, data, info, validation, progress)

    def _around(
        self, problem: Problem, data: Any, info: Info, validation: Any, progress: bool | None
    ) -> LinearizedPosterior | LaplacePosterior:
        """The posterior at the problem's weights, tuned as often as asked for."""
        posterior = self._once(problem, info)
        for number in range(1, self.tune.num_rounds if self.tune is not None else 1):
            assert self.train is not None
            seed, own = derived_seed(info.seed, "round", number), posterior.to_model()
            again = self.train.fit(own, data, validation=validation, start="current", seed=seed, progress=progress)
            problem = prepare(own, data, validation=validation, start=again, seed=info.seed)
            posterior = self._once(problem, replace(again.info, method="Laplace", seed=info.seed))
        return posterior

    def _once(self, problem: Problem, info: Info) -> LinearizedPosterior | LaplacePosterior:
        model = problem.model
        names = self.subset.names(model, problem.first_inputs)
        work, source, validation = on_network_side(model), problem.source, problem.validation
        head = head_of(work, names, source.first().inputs)
        if head is not None:
            work = head.model
            with seeded(info.seed, "features", device=source.device):
                source = head.source(source)
                validation = None if validation is None else head.source(validation)
        mode = at_mode(work, source, model.log_scale(), info.seed)
        part = self._curvature(work, source, model, names, mode, info.seed)
        if self.tune is not None:
            part, mode = self._tuned(part, mode, model, work, validation, info)
        prior = part.prior(model)
        # in the layout that a file keeps, so that what is loaded predicts the very same numbers
        covariance = part.covariance(prior).map(torch.Tensor.contiguous)
        gaussian = LaplacePosterior(
            model,
            info,
            names=names,
            covariance=covariance,
            log_likelihood=mode.log_likelihood,
            log_prior=prior.log_prob,
        )
        return LinearizedPosterior(gaussian, probit=self.probit) if self.linearized else gaussian

    def _curvature(
        self, work: Model, source: Source, model: Model, names: tuple[str, ...], mode: AtMode, seed: int
    ) -> Curved:
        most = self.subset.most
        if most is None:
            found = curvature(work, source, names, self.structure, self.curvature, seed=seed, max_bytes=self.max_bytes)
            return Curved(_times(found, mode.share), names)
        diagonal = curvature(work, source, names, Diagonal(), self.curvature, seed=seed, max_bytes=self.max_bytes)
        every = Curved(_times(diagonal, mode.share), names)
        mask = largest(every.covariance(every.prior(model), warn=False).diagonal(), most)
        index = mask.nonzero().squeeze(-1)
        if isinstance(self.structure, Diagonal):
            return Curved(DiagonalMatrix(every.matrix.diagonal()[index]), names, mask)
        with seeded(seed, "network", device=source.device):
            matrix = over_some_weights(work, source, names, index)
        return Curved(_times(DenseMatrix(matrix), mode.share), names, mask)

    def _tuned(
        self, part: Curved, mode: AtMode, model: Model, work: Model, validation: Source | None, info: Info
    ) -> tuple[Curved, AtMode]:
        """Sets the model's prior and noise to what is chosen."""
        assert self.tune is not None
        weights, prior = network_weights(model.core), model.prior

        def score(tuned: Tuned) -> float:
            assert validation is not None
            model.prior = rescaled(prior, weights, tuned.factors)
            covariance = part.covariance(part.prior(model), warn=False)
            gaussian = GaussianPosterior(work, info, names=part.names, covariance=covariance)
            posterior = LinearizedPosterior(gaussian, probit=self.probit) if self.linearized else gaussian
            return mean_log_prob(posterior, validation, info.seed)

        precision = part.prior(model).precision.diagonal()
        tensors = part.at([name for name in part.names for _ in range(weights[name].numel())])
        squares = part.flat(weights).square()
        residuals = mode.residuals if isinstance(self.curvature, GGN) else None  # only this one scales with the noise
        joint = LogJointAtMode(part.matrix, tensors, precision, squares, mode.log_likelihood, residuals)
        tuned = self.tune.tune(joint, score)
        model.prior = rescaled(prior, weights, tuned.factors)
        if tuned.noise == 1.0:
            return part, mode
        scale_noise(model, tuned.noise)
        return replace(part, matrix=part.matrix.times(1 / tuned.noise)), mode.with_noise(tuned.noise)


_EXAMPLES = {
    "structure": "Kronecker()",
    "subset": "LastLayer()",
    "curvature": "GGN()",
    "tune": "Evidence()",
}


def _times(matrix: PositiveDefinite, share: float) -> PositiveDefinite:
    return matrix if share == 1 else matrix.times(share)
