"""MAPIE beside us: intervals of numbers."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from mapie.regression import ConformalizedQuantileRegressor, CrossConformalRegressor, SplitConformalRegressor
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.datasets import load_diabetes
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import KFold
from torch import Tensor
from torch.distributions import Distribution

from benchmarks.peers.rows import Row, largest_gap, points, table
from credibly import conformal, distributions

__all__ = ["rows"]

Recipe = conformal.CQR | conformal.AsymmetricCQR
SYMMETRIC: dict[str, Any] = {"symmetric_correction": True}


class Column(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """A fitted regressor whose prediction is a column of its inputs."""

    def __init__(self, column: int = 0) -> None:
        self.column = column

    def fit(self, X: Any, y: Any) -> "Column":  # noqa: N803
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def predict(self, X: Any) -> Any:  # noqa: N803
        return X[:, self.column]


def rows() -> Iterator[Row]:
    """What differs, then what agrees."""
    yield from _few_rows()
    yield from _crossing()
    yield from _agreement()


def _quantiles(ends: Tensor) -> Distribution:
    return distributions.from_quantiles(torch.tensor([0.05, 0.95], dtype=torch.float64), ends)


def _cqr(ends: Tensor, targets: Tensor, fresh: Tensor, **options: Any) -> Tensor:
    """Their intervals, (rows, 2)."""

    def columns(pairs: Tensor) -> np.ndarray:
        return torch.cat([pairs, pairs.mean(1, keepdim=True)], 1).numpy()

    peer = ConformalizedQuantileRegressor([Column(0), Column(1), Column(2)], confidence_level=0.9, prefit=True)
    peer.conformalize(columns(ends), targets.numpy())
    return torch.from_numpy(peer.predict_interval(columns(fresh), **options)[1][..., 0])


def _our_cqr(recipe: Recipe, ends: Tensor, targets: Tensor, fresh: Tensor) -> Tensor:
    return table(recipe.calibrate(_quantiles(ends), targets).predict(_quantiles(fresh), 0.9))


def _data(n: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    centre, noise = torch.randn(2, n, generator=generator, dtype=torch.float64)
    return torch.stack([centre - 1, centre + 1], 1), centre + noise


def _few_rows() -> Iterator[Row]:
    ends, targets = _data(50)
    fresh = ends[40:41]
    kinds: tuple[tuple[str, Recipe, dict[str, Any]], ...] = (
        ("CQR, symmetric", conformal.CQR(), SYMMETRIC),
        ("CQR, two sides", conformal.AsymmetricCQR(), {"allow_infinite_bounds": True}),
    )
    for name, recipe, options in kinds:
        for n in (8, 18, 19, 20):
            theirs = _attempt(lambda n=n, o=options: _cqr(ends[:n], targets[:n], fresh, **o))
            ours = _our_cqr(recipe, ends[:n], targets[:n], fresh)
            yield Row(f"{name}, {n} rows, coverage 0.9", theirs, _rounded(ours))
    for n, unbounded in ((8, False), (8, True), (9, False), (9, True)):
        options = {"allow_infinite_bounds": unbounded}
        theirs = _attempt(lambda n=n, o=options: _split(ends[:n].mean(1), targets[:n], fresh.mean(1), **o))
        residual = conformal.AbsoluteResidual().calibrate(points(ends[:n].mean(1)), targets[:n])
        ours = table(residual.predict(points(fresh.mean(1)), 0.9))
        yield Row(f"absolute residual, {n} rows, coverage 0.9, {options}", theirs, _rounded(ours))


def _attempt(run: Any) -> object:
    try:
        return _rounded(run())
    except ValueError as error:
        return f"ValueError: {str(error).splitlines()[0][:75]}"


def _rounded(intervals: Tensor) -> list[list[float]]:
    return [[round(float(end), 4) for end in row] for row in intervals]


def _split(centres: Tensor, targets: Tensor, fresh: Tensor, coverage: float = 0.9, **options: Any) -> Tensor:
    peer = SplitConformalRegressor(Column(), confidence_level=coverage, prefit=True)
    peer.conformalize(centres[:, None].numpy(), targets.numpy())
    return torch.from_numpy(peer.predict_interval(fresh[:, None].numpy(), **options)[1][..., 0])


def _crossing() -> Iterator[Row]:
    """99 rows with scores from -0.5 to 0.48, whose threshold is 0.39; then a row whose quantiles cross."""
    targets = 1 + (torch.arange(99, dtype=torch.float64) - 50) / 100
    ends = torch.tensor([[0.0, 1.0]], dtype=torch.float64).expand(99, 2)
    fresh = torch.tensor([[3.0, 2.0]], dtype=torch.float64)
    ours = _our_cqr(conformal.CQR(), ends, targets, fresh)
    yield Row("quantiles 3 and 2", _rounded(_cqr(ends, targets, fresh, **SYMMETRIC)), _rounded(ours))
    targets = torch.linspace(0.4, 0.6, 99, dtype=torch.float64)
    fresh = torch.tensor([[2.0, 2.1]], dtype=torch.float64)
    theirs = _rounded(_cqr(ends, targets, fresh, **SYMMETRIC))
    intervals = conformal.CQR().calibrate(_quantiles(ends), targets).predict(_quantiles(fresh), 0.9)
    yield Row("quantiles 2 and 2.1, pulled together by 0.4", theirs, f"empty: {intervals.empty.tolist()}")


def _agreement() -> Iterator[Row]:
    ends, targets = _data(1000)
    centres = ends.mean(1)
    for coverage in (0.5, 0.9, 0.99):
        theirs = _split(centres[:500], targets[:500], centres[500:], coverage)
        residual = conformal.AbsoluteResidual().calibrate(points(centres[:500]), targets[:500])
        ours = table(residual.predict(points(centres[500:]), coverage))
        yield Row(f"absolute residual at {coverage}, 500 rows", largest_gap(theirs, ours))
    kinds: tuple[tuple[str, Recipe, dict[str, Any]], ...] = (
        ("CQR, their default; our AsymmetricCQR", conformal.AsymmetricCQR(), {}),
        ("CQR, symmetric_correction=True; our CQR", conformal.CQR(), SYMMETRIC),
    )
    for name, recipe, options in kinds:
        theirs = _cqr(ends[:500], targets[:500], ends[500:], **options)
        yield Row(name, largest_gap(theirs, _our_cqr(recipe, ends[:500], targets[:500], ends[500:])))
    yield from _folds()


def _folds() -> Iterator[Row]:
    x, y = load_diabetes(return_X_y=True)
    fresh = x[300:]
    cut = KFold(5, shuffle=True, random_state=0)
    left_out, folds, members = np.empty(300), np.empty(300, dtype=int), []
    for number, (train, left) in enumerate(cut.split(x[:300])):
        model = LinearRegression().fit(x[train], y[train])
        folds[left], left_out[left] = number, model.predict(x[left])
        members.append(model.predict(fresh))
    predictor = conformal.CVPlus().calibrate(left_out, y[:300], folds)
    for coverage in (0.5, 0.9, 0.95):
        peer = CrossConformalRegressor(LinearRegression(), confidence_level=coverage, method="plus", cv=cut)
        peer.fit_conformalize(x[:300], y[:300])
        theirs = peer.predict_interval(fresh)[1][..., 0]
        ours = table(predictor.predict(np.stack(members), coverage))
        yield Row(f"CV+ at {coverage}, diabetes, ends near 150", largest_gap(theirs, ours))
