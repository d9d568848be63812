r"""How well a score tells rows from outside the training distribution from rows inside it.

A score is any number a row, larger the less familiar the row: predictive entropy, mutual information, minus the log
density of the inputs. With s the scores, ties counted half,

    AUROC        P(s_out > s_in) + P(s_out = s_in) / 2
    AUPR         sum_k (R_k - R_{k-1}) P_k over distinct thresholds, precision P and recall R (average precision)
    FPR95        the share of outside rows accepted when at least 95 % of the inside rows are

("A Baseline for Detecting Misclassified and Out-of-Distribution Examples in Neural Networks", Hendrycks, Gimpel, 2017;
the last, with inside rows as positives, "Enhancing the Reliability of Out-of-Distribution Image Detection in Neural
Networks", Liang, Li, Srikant, 2018). All are functions of how many rows of each kind lie at each distinct score, which
is also what a bootstrap resamples: inside and outside rows apart.

Average precision is too large in finite samples, because every row found counts in its own precision, and copies of a
row that a bootstrap draws twice tie, which raises it further. So copies of one row are told apart: of k copies below f
positive and F negative rows the precisions add up to

    sum_{j=1..k} (f + j) / (f + j + F) = k - F (psi(f + k + F + 1) - psi(f + F + 1)),

with the digamma function psi, and what such draws estimate is the same with the sum replaced by an integral over copies
ever finer, k - F log((f + k + F) / (f + F)). The difference of both is the bias, on the logit scale that keeps the
interval inside [0, 1] ("Area under the Precision-Recall Curve: Point Estimates and Confidence Intervals", Boyd, Eng,
Page, 2013).

The threshold of FPR is the quantile of the law behind the inside rows. Of m inside rows a number J, binomial with that
level, lies below it, so that it lies between the J-th and the next one; given the threshold, outside rows below it are
binomial too. The interval takes the percentiles over J of the ends of Clopper and Pearson, as distributions. Too few
inside rows to bound the quantile from above (71 for the level 0.95 and the coverage 0.95) leave the upper end at 1. The
interval of AUROC is in `placements`.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Literal

import torch
from scipy import special
from torch import Tensor

from credibly.core.checks import as_tensor, exact_level
from credibly.core.errors import NotFiniteError, ShapeError
from credibly.core.typing import ArrayLike
from credibly.metrics.base import Metric, State
from credibly.metrics.binomial_mixture import binomial_mass, lower_end, upper_end
from credibly.metrics.placements import share_below, weighted_mean, win_interval

__all__ = ["AUPR", "AUROC", "FPR", "TwoSampleMetric", "aupr", "auroc", "fpr"]

Positive = Literal["out", "in"]

_CHUNK_NUMBERS = 2**22


class TwoSampleMetric(Metric):
    """A function of the ranks of the scores of inside rows among those of outside rows.

    It is called with `(scores_in, scores_out)`; a batch of a stream may lack either. Streams keep all scores.
    """

    @abstractmethod
    def of_counts(self, inside: Tensor, outside: Tensor) -> Tensor:
        """The metric from counts at increasing distinct scores, both (*batch, scores), float64: (*batch,)."""

    def state(self, predicted: ArrayLike, targets: ArrayLike) -> State:
        """The scores.

        Raises:
            ShapeError: scores that are not a list of numbers.
            ValueError: one of the two holds labels, integers or booleans that are all 0 or 1, and the other does not.
            NotFiniteError: NaN. Infinite scores are ranked like others.
        """
        _refuse_labels(as_tensor(predicted), as_tensor(targets))
        return {"in": _scores("scores_in", predicted), "out": _scores("scores_out", targets)}

    def merged(self, one: State, other: State) -> State:
        """The scores of both."""
        return {name: torch.cat([one[name], other[name]]) for name in one}

    def value(self, state: State) -> Tensor:
        """The function of the counts."""
        return self.of_counts(*(_histogram(groups, size) for groups, size in _groups(state)))

    def num_rows(self, predicted: ArrayLike, targets: ArrayLike) -> int:
        """How many rows there are of both kinds together."""
        return len(predicted) + len(targets)

    def replicates(self, state: State, num_replicates: int, generator: torch.Generator) -> Tensor:
        """The metric of inside and outside rows, each drawn with replacement."""
        return _over_resamples(state, num_replicates, generator, self.of_counts)


def _refuse_labels(inside: Tensor, outside: Tensor) -> None:
    """Both are scores; labels and scores, in this order, would rank as well and mean nothing."""
    names = ("scores_in", "scores_out")
    marks = [
        s.numel() > 0 and not s.is_floating_point() and bool(((s == 0) | (s == 1)).all()) for s in (inside, outside)
    ]
    if marks[0] != marks[1] and inside.numel() and outside.numel():
        labels, scores = names if marks[0] else names[::-1]
        raise ValueError(
            f"`{labels}` holds only 0 and 1, which looks like labels, and `{scores}` does not; both must be scores, of "
            "inside and of outside rows: auroc(scores[labels == 0], scores[labels == 1])"
        )


def _scores(name: str, scores: ArrayLike) -> Tensor:
    values = as_tensor(scores).detach()
    if values.dim() != 1:
        raise ShapeError(f"`{name}` must have shape (rows,), one score a row; got {tuple(values.shape)}")
    if bool(values.isnan().any()):
        raise NotFiniteError(f"`{name}` must not be NaN; {int(values.isnan().sum())} of {len(values)} scores are")
    return values.to(torch.float64)


def _groups(state: State) -> list[tuple[Tensor, int]]:
    """For inside and outside rows: the place of each among the distinct scores, and the number of those."""
    inside, outside = state["in"], state["out"]
    for name, scores in (("scores_in", inside), ("scores_out", outside)):
        if not len(scores):
            raise ShapeError(f"`{name}` must hold at least one score; got none")
    distinct, places = torch.cat([inside, outside.to(inside.device)]).unique(return_inverse=True)  # type: ignore[no-untyped-call]
    return [(places[: len(inside)], len(distinct)), (places[len(inside) :], len(distinct))]


def _histogram(places: Tensor, size: int) -> Tensor:
    return torch.bincount(places, minlength=size).to(torch.float64)


def _resampled(places: Tensor, size: int, num_replicates: int, generator: torch.Generator) -> Tensor:
    """Counts of rows drawn with replacement, (num_replicates, size), float64."""
    index = torch.randint(len(places), (num_replicates, len(places)), generator=generator, device=places.device)
    first = torch.arange(num_replicates, device=places.device).unsqueeze(1) * size
    return _histogram((places[index] + first).flatten(), num_replicates * size).view(num_replicates, size)


def _over_resamples(
    state: State,
    num_replicates: int,
    generator: torch.Generator,
    of_counts: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    (inside, size), (outside, _) = _groups(state)
    some = max(1, _CHUNK_NUMBERS // (len(inside) + len(outside)))
    parts = []
    for start in range(0, num_replicates, some):
        batch = min(some, num_replicates - start)
        parts.append(of_counts(*(_resampled(rows, size, batch, generator) for rows in (inside, outside))))
    return torch.cat(parts)


def _share(precisions: Tensor, hits: Tensor) -> Tensor:
    return precisions.sum(-1) / hits.sum(-1)


@dataclass(frozen=True)
class AUROC(TwoSampleMetric):
    """The probability that an outside row scores above an inside row, ties counted half."""

    def of_counts(self, inside: Tensor, outside: Tensor) -> Tensor:
        """Each outside row beats the inside rows below it."""
        return weighted_mean(share_below(inside), outside)

    def ends(self, state: State, value: Tensor, replicates: Tensor, coverage: float) -> tuple[Tensor, Tensor]:
        """The ends of Clopper and Pearson for as many trials as have the variance of the placements."""
        inside, outside = (_histogram(groups, size) for groups, size in _groups(state))
        return win_interval(inside, outside, coverage)


@dataclass(frozen=True)
class AUPR(TwoSampleMetric):
    """The area under precision and recall as average precision, without interpolation.

    Args:
        positive: which rows are to be found: "out" by high scores, or "in" by low ones.
    """

    positive: Positive = "out"

    def __post_init__(self) -> None:
        if self.positive not in ("out", "in"):
            raise ValueError(f'`positive` must be "out" or "in"; got {self.positive!r}')

    def of_counts(self, inside: Tensor, outside: Tensor) -> Tensor:
        """The mean over positive rows of the precision at their score."""
        hits, found, missed = self._found(inside, outside)
        return _share(hits * found / (found + missed).clamp(min=1), hits)

    def replicates(self, state: State, num_replicates: int, generator: torch.Generator) -> Tensor:
        """The metric of inside and outside rows, each drawn with replacement; copies of a row are told apart."""
        alone = self._alone(state)

        def of_copies(inside: Tensor, outside: Tensor) -> Tensor:
            hits, found, missed = self._found(inside, outside)
            above = found - hits + missed
            apart = hits - missed * (torch.special.digamma(above + hits + 1) - torch.special.digamma(above + 1))
            return _share(torch.where(alone, apart, hits * found / (found + missed).clamp(min=1)), hits)

        return _over_resamples(state, num_replicates, generator, of_copies)

    def ends(self, state: State, value: Tensor, replicates: Tensor, coverage: float) -> tuple[Tensor, Tensor]:
        """Student's interval on the logit scale, without the bias of finite samples."""
        fewest = min(len(state["in"]), len(state["out"]))
        num_positive = len(state["out" if self.positive == "out" else "in"])
        margin = 0.5 / (num_positive * (len(state["in"]) + len(state["out"])))  # half the least distance from 1
        at_limit, drawn, centre = (
            torch.logit(v, eps=margin) for v in (self._of_ever_finer_copies(state), replicates, value)
        )
        quantile = special.stdtrit(max(fewest - 1, 1), (1 + coverage) / 2) * (fewest / max(fewest - 1, 1)) ** 0.5
        centre = centre - (drawn.mean() - at_limit)
        reach = quantile * drawn.std(correction=0)
        return torch.sigmoid(centre - reach).minimum(value), torch.sigmoid(centre + reach).maximum(value)

    def _of_ever_finer_copies(self, state: State) -> Tensor:
        hits, found, missed = self._found(*(_histogram(groups, size) for groups, size in _groups(state)))
        above = found - hits + missed
        apart = hits - torch.special.xlog1py(missed, hits / above.clamp(min=1e-300))
        return _share(torch.where(self._alone(state), apart, hits * found / (found + missed).clamp(min=1)), hits)

    def _alone(self, state: State) -> Tensor:
        """Which distinct scores are those of one row, by the order in which rows are found."""
        inside, outside = (_histogram(groups, size) for groups, size in _groups(state))
        return self._in_order(inside + outside) == 1

    def _found(self, inside: Tensor, outside: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Positive rows at each score; those found up to there; negative rows found up to there."""
        hits, misses = (outside, inside) if self.positive == "out" else (inside, outside)
        hits, misses = self._in_order(hits), self._in_order(misses)
        return hits, hits.cumsum(-1), misses.cumsum(-1)

    def _in_order(self, counts: Tensor) -> Tensor:
        return counts.flip(-1) if self.positive == "out" else counts


@dataclass(frozen=True)
class FPR(TwoSampleMetric):
    """The share of outside rows that pass for inside at the score that lets in a given share of the inside rows.

    Args:
        tpr: the share of the inside rows, at least; 0.95 makes the FPR95.
    """

    tpr: float = 0.95

    def __post_init__(self) -> None:
        if not 0 < self.tpr <= 1:
            raise ValueError(f"`tpr` must lie above 0, and be at most 1; got {self.tpr}")

    def of_counts(self, inside: Tensor, outside: Tensor) -> Tensor:
        """Outside rows up to the smallest sufficient score."""
        total = inside.sum(-1, keepdim=True)
        needed = ceil(exact_level(self.tpr) * int(total.flatten()[0]))
        first = (inside.cumsum(-1) < needed).sum(-1, keepdim=True)
        return outside.cumsum(-1).gather(-1, first).squeeze(-1) / outside.sum(-1)

    def ends(self, state: State, value: Tensor, replicates: Tensor, coverage: float) -> tuple[Tensor, Tensor]:
        """From the binomial laws of the threshold's rank and of the outside rows below it."""
        inside, outside = state["in"].sort().values, state["out"].sort().values
        below = torch.searchsorted(outside, inside, right=True)
        num_out = torch.tensor([len(outside)], device=below.device)
        accepted = torch.cat([torch.zeros_like(num_out), below, num_out]).cpu().numpy()
        ranks = binomial_mass(len(inside), self.tpr)
        tail = (1 - coverage) / 2
        lower = lower_end(accepted[:-1], ranks, len(outside), tail)
        upper = upper_end(accepted[1:], ranks, len(outside), tail)
        return value.new_tensor(lower).minimum(value), value.new_tensor(upper).maximum(value)


def auroc(scores_in: ArrayLike, scores_out: ArrayLike) -> Tensor:
    """The probability that an outside row scores above an inside row, ties counted half; a float64 scalar.

    Both arguments are scores, unlike those of scikit-learn's `roc_auc_score(labels, scores)`, which for forecasts of an
    event and booleans `happened` is `auroc(scores[~happened], scores[happened])`.

    Args:
        scores_in: of inside rows (or those without the event), (rows,).
        scores_out: of outside rows (or those with it), (other rows,).

    Raises:
        ShapeError: no scores, or of another shape.
        NotFiniteError: NaN.
        ValueError: labels in place of scores.
    """
    return AUROC()(scores_in, scores_out)


def aupr(scores_in: ArrayLike, scores_out: ArrayLike, *, positive: Positive = "out") -> Tensor:
    """The average precision of finding outside rows by high scores (or inside rows by low ones); a float64 scalar."""
    return AUPR(positive)(scores_in, scores_out)


def fpr(scores_in: ArrayLike, scores_out: ArrayLike, *, tpr: float = 0.95) -> Tensor:
    """The share of outside rows accepted when at least `tpr` of the inside rows are; a float64 scalar."""
    return FPR(tpr)(scores_in, scores_out)
