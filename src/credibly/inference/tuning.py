r"""How strong the prior is, and how loud the noise, chosen by the data after training.

The precision of the prior is multiplied by a factor a, one for all weights, one a layer or one a tensor. By the
evidence (A Practical Bayesian Framework for Backpropagation Networks, MacKay 1992), with the weights w* as they are,

    log p(data | w*, noise) + log p(w* | a) + (d/2) log(2 pi) - 1/2 log det(H / noise + a P)

is raised, for the curvature H of the likelihood and the precision P of the prior. Its optimum for weights that are the
mode under it is that of the exact evidence where the log joint is quadratic; training again under the tuned prior, and
tuning again, goes there (`num_rounds`). Or a is chosen by the log score of validation data.
"""

import glob
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import torch
from torch import Tensor

from credibly.core.checks import check_count, check_positive
from credibly.core.errors import ConvergenceWarning, NotSupportedError
from credibly.core.linalg.base import PositiveDefinite
from credibly.core.linalg.dense import Dense
from credibly.core.linalg.diagonal import Diagonal
from credibly.core.typing import Params
from credibly.distributions.mixture_crps import gaussian_parameters
from credibly.priors.base import FactorisedPrior, Prior
from credibly.priors.by_name import ByName
from credibly.priors.normal import Normal

__all__ = ["Evidence", "LogJointAtMode", "Residuals", "Tuned", "Tuning", "ValidationLogScore", "rescaled", "scales_of"]

Per: TypeAlias = Literal["all", "layer", "tensor"]
_GROUPS: dict[str, Callable[[str], str]] = {
    "all": lambda name: "",  # noqa: ARG005
    "layer": lambda name: name.rpartition(".")[0],
    "tensor": lambda name: name,
}
_STILL_RISING = 1e-3  # nats a row from one factor to the next
_LARGEST = 25.0  # of the logarithm of a factor: beyond e^25 the data say nothing
_FLAT = 1e-2  # nats by which the evidence may still change at its optimum, per unit of such a logarithm
_FAR = 20.0  # of the same: no optimum, or one that is as good as none
_GRID = tuple(10 ** (k / 2) for k in range(-6, 13))


@dataclass(frozen=True, eq=False)
class Residuals:
    """What Gaussian noise of a tunable scale sees.

    Attributes:
        squares: the sum of squared residuals over the noise's scale, each times its row's weight.
        count: the sum of those weights.
    """

    squares: float
    count: float


@dataclass(frozen=True, eq=False)
class LogJointAtMode:
    """The log joint around the weights, as a quadratic function.

    Attributes:
        curvature: of the likelihood, over the random weights.
        names: the tensor of each random weight.
        precision: of the prior, one for each random weight, (k,).
        squares: of the random weights, (k,).
        log_likelihood: at the weights.
        residuals: where the likelihood learns its noise; otherwise None.
    """

    curvature: PositiveDefinite
    names: Sequence[str]
    precision: Tensor
    squares: Tensor
    log_likelihood: float
    residuals: Residuals | None


@dataclass(frozen=True, eq=False)
class Tuned:
    """What was chosen.

    Attributes:
        factors: on the precision of the prior, by tensor.
        noise: factor on the variance of the noise.
    """

    factors: dict[str, float]
    noise: float = 1.0


@dataclass(frozen=True, eq=False)
class Tuning(ABC):
    """A way to choose the strength of the prior."""

    num_rounds: int = 1
    needs_validation: ClassVar[bool] = False

    @abstractmethod
    def tune(self, joint: LogJointAtMode, score: Callable[[Tuned], float]) -> Tuned:
        """The choice.

        Args:
            joint: the log joint at the weights.
            score: the mean log density of validation data under a choice; raises where there are none.
        """


@dataclass(frozen=True, eq=False, kw_only=True)
class Evidence(Tuning):
    """By the evidence.

    Attributes:
        per: one factor on the prior's precision for "all" weights, for each "layer" or for each "tensor".
        noise: whether the noise's scale is tuned too, where the likelihood is a `Gaussian` that learns it; with several
            outputs, all scales by one factor.
        num_rounds: how often to tune; before every time but the first the weights are trained again, under the prior
            and the noise as tuned. More than 1 needs a recipe to train by.
    """

    per: Per = "layer"
    noise: bool = True
    num_rounds: int = 1

    def __post_init__(self) -> None:
        check_count("num_rounds", self.num_rounds)
        if self.per not in _GROUPS:
            raise ValueError(f"`per` must be one of {list(_GROUPS)}; got {self.per!r}")

    def tune(self, joint: LogJointAtMode, score: Callable[[Tuned], float]) -> Tuned:
        """The optimum of the evidence."""
        group_of = _GROUPS[self.per]
        groups = list(dict.fromkeys(group_of(name) for name in joint.names))
        index = torch.tensor([groups.index(group_of(name)) for name in joint.names])
        objective = _Objective.of(joint, index, tunes_noise=self.noise and joint.residuals is not None)
        found = _maximised(objective, len(groups))
        ends = [group for group, log in zip(groups, found.tolist(), strict=False) if abs(log) > _FAR]
        if ends:
            warnings.warn(
                f"Evidence: no best strength of the prior was found for {ends}: the evidence still rises, if by "
                f"little, where the precision has changed by a factor of e^{_FAR:g}; weights that are all 0 want that",
                ConvergenceWarning,
                stacklevel=2,
            )
        factors = {name: float(found[groups.index(group_of(name))].exp()) for name in dict.fromkeys(joint.names)}
        return Tuned(factors, float(found[-1].exp()) if objective.residuals is not None else 1.0)


@dataclass(frozen=True, eq=False, kw_only=True)
class ValidationLogScore(Tuning):
    """By the mean log density of validation data under the predictive: `fit` needs `validation`.

    Attributes:
        factors: what to try, on the prior's precision of all weights.
        num_rounds: how often, see `Evidence`.
    """

    factors: Sequence[float] = _GRID
    num_rounds: int = 1
    needs_validation: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_count("num_rounds", self.num_rounds)
        if not self.factors:
            raise ValueError("`factors` must hold at least one number; got none")
        for factor in self.factors:
            check_positive("factors", factor)

    def tune(self, joint: LogJointAtMode, score: Callable[[Tuned], float]) -> Tuned:
        """The factor with the best score, the first of equals; a warning where scores still rose at an end."""
        factors = [float(factor) for factor in self.factors]
        scores = {each: score(Tuned(dict.fromkeys(joint.names, each))) for each in factors}
        best = max(factors, key=scores.__getitem__)
        tried = sorted(scores)
        for end, inner in ((tried[0], tried[1:2]), (tried[-1], tried[-2:-1])):
            rise = max((scores[best] - scores[each] for each in inner), default=0.0)
            if best == end and rise > _STILL_RISING:
                warnings.warn(
                    f"ValidationLogScore: the best factor on the prior's precision, {best:g}, is at the end of those "
                    f"tried, and better than the next by {rise:.3g} nats a row: give `factors` that go further",
                    ConvergenceWarning,
                    stacklevel=2,
                )
        return Tuned(dict.fromkeys(joint.names, best))


@dataclass(frozen=True, eq=False)
class _Objective:
    """The evidence as a function of the logarithms of the factors, that of the noise last."""

    curvature: PositiveDefinite
    precision: Tensor
    squares: Tensor
    groups: Tensor
    residuals: Residuals | None

    @classmethod
    def of(cls, joint: LogJointAtMode, groups: Tensor, *, tunes_noise: bool) -> "_Objective":
        wide = joint.curvature.map(lambda part: part.detach().double())
        precision = joint.precision.double()
        one_number = bool((groups == 0).all()) and bool((precision == precision[0]).all())
        if isinstance(wide, Dense) and one_number:  # determinants need the eigenvalues alone
            wide = Diagonal(torch.linalg.eigvalsh(wide.matrix).clamp(min=0))
        own = groups.to(precision.device)
        return cls(wide, precision, joint.squares.double(), own, joint.residuals if tunes_noise else None)

    def __call__(self, logs: Tensor) -> Tensor:
        precision = self.precision * logs[self.groups].exp()
        curvature, fit = self.curvature, logs.new_zeros(())
        if self.residuals is not None:
            curvature = curvature.times((-logs[-1]).exp())
            fit = -0.5 * (self.residuals.count * logs[-1] + self.residuals.squares * (-logs[-1]).exp())
        determinant = curvature.plus_diagonal(precision).logdet()
        return fit + 0.5 * (precision.log() - precision * self.squares).sum() - 0.5 * determinant


def _maximised(objective: _Objective, num_groups: int) -> Tensor:
    """The best logarithms, within bounds."""
    size = num_groups + (objective.residuals is not None)
    logs = torch.zeros(size, dtype=torch.float64, device=objective.precision.device, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [logs], max_iter=200, tolerance_grad=1e-9, tolerance_change=1e-14, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = -objective(logs.clamp(-_LARGEST, _LARGEST))
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    with torch.enable_grad():
        optimizer.step(closure)  # type: ignore[no-untyped-call]
        closure()
    assert logs.grad is not None
    slope = float(logs.grad.abs().max())
    if not slope < _FLAT:  # nor if it is NaN
        warnings.warn(
            f"Evidence: the search for its optimum ended early, where it still changes by {slope:.3g} nats as a "
            "precision changes by a factor of e",
            ConvergenceWarning,
            stacklevel=3,
        )
    return logs.detach().clamp(-_LARGEST, _LARGEST)


def scales_of(prior: Prior, weights: Params) -> dict[str, float]:
    """The standard deviation of every named tensor under a prior that can be tuned.

    Raises:
        NotSupportedError: another prior than independent Normals around 0, one a tensor.
    """
    found = prior.distributions(weights) if isinstance(prior, FactorisedPrior) else {}
    scales: dict[str, float] = {}
    for name, weight in weights.items():
        try:
            loc, scale = gaussian_parameters(found[name])
        except (KeyError, NotSupportedError):
            raise NotSupportedError(_why_not(name, prior)) from None
        if bool((loc != 0).any()) or bool((scale != scale.flatten()[0]).any()) or not weight.numel():
            raise NotSupportedError(_why_not(name, prior))
        scales[name] = float(scale.flatten()[0])
    return scales


def _why_not(name: str, prior: Prior) -> str:
    return (
        f"a tuned prior must be a Normal around 0 with one scale a tensor; that of `{name}` under "
        f"{type(prior).__name__} is not. Use priors.Normal or Laplace(prior_precision=1.0), or tune=None"
    )


def rescaled(prior: Prior, weights: Params, factors: dict[str, float]) -> Prior:
    """The prior with the precision of the named tensors multiplied by their factors; that of others is as it was."""
    scales = scales_of(prior, {name: weights[name] for name in factors})
    parts: dict[str, FactorisedPrior] = {
        glob.escape(name): Normal(scales[name] * factor**-0.5) for name, factor in factors.items()
    }
    if len(parts) < len(weights):
        assert isinstance(prior, FactorisedPrior)
        parts["*"] = prior
    return ByName(parts)
