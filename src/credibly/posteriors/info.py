"""How a posterior came to be."""

import functools
import platform
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

import torch
from torch import Tensor

from credibly.training.history import History

__all__ = ["Info"]


@functools.cache
def _version() -> str:
    try:
        return version("credibly")
    except PackageNotFoundError:
        return "unknown"


def _versions() -> dict[str, str]:
    return {"credibly": _version(), "torch": str(torch.__version__), "python": platform.python_version()}


@dataclass(frozen=True, eq=False)
class Info:
    """The record of a fit.

    Attributes:
        method: the recipe's name.
        seed: the base seed of the fit.
        histories: the course of training, one per trained member; empty where nothing was trained.
        temperature: T, where the posterior density was taken to the power 1/T; 1 is the Bayesian posterior.
        stacked: whether members were trained as one stack; None where one network was trained by itself.
        score: what the histories' scores of validation data are: mean log densities, or minus the loss of a training
            head that has no density.
        reason: why members were trained one by one, what they shared, or which layers an estimator of variational
            training left to another and why; empty where there is nothing to say.
        in_bag: how often the sample of each member holds each row, (members, rows), int16, where members were trained
            on bootstrap samples; otherwise None.
        dropout_rates: those that were learned, by the name of the layer in the network; empty where none were, and for
            ensembles, whose members have their own.
        versions: of this library, torch and Python.
    """

    method: str
    seed: int
    histories: list[History] = field(default_factory=list)
    temperature: float = 1.0
    stacked: bool | None = None
    reason: str = ""
    score: str = "log_prob"
    in_bag: Tensor | None = field(default=None, repr=False)
    dropout_rates: dict[str, float] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=_versions)

    @property
    def history(self) -> History:
        """The course of training of the only, or first, member."""
        return self.histories[0] if self.histories else History()
