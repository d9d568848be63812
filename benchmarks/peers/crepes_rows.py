"""crepes beside us: intervals, p-values and sets, predictive distributions."""

from collections.abc import Iterator

import numpy as np
import torch
from crepes import ConformalClassifier, ConformalPredictiveSystem, ConformalRegressor
from crepes.base import p_values_batch
from torch.distributions import Normal

from benchmarks.peers.rows import Row, largest_gap, points, table
from credibly import calibration, conformal, distributions, metrics

__all__ = ["rows"]


def rows() -> Iterator[Row]:
    """What differs, then what agrees."""
    yield from _ranks()
    yield _sets()
    yield from _unseen_group()
    yield from _predictive_systems()
    yield from _agreement()


def _ranks() -> Iterator[Row]:
    residuals = torch.arange(1.0, 20.0, dtype=torch.float64)
    zero = torch.zeros(1, dtype=torch.float64)
    theirs = ConformalRegressor().fit(residuals.numpy()).predict_int(zero.numpy(), confidence=0.9)
    predictor = conformal.AbsoluteResidual().calibrate(points(zero.expand(19)), residuals)
    ours = table(predictor.predict(points(zero), 0.9))
    yield Row("interval of residuals 1, ..., 19 at 0.9", theirs.tolist(), ours.tolist())
    wrong = total = 0
    for percent in range(1, 100):
        for n in range(1, 3001):
            total += 1
            wrong += n + 1 - int((1 - percent / 100) * (n + 1)) != conformal.rank(n, percent / 100)
    yield Row(f"ranks one above ceil((n + 1) c), of {total:,}", wrong, 0)


def _sets() -> Row:
    """Nine calibration scores and a label stranger than all: p = 1 / 10 exactly."""
    calibration_scores, scores = np.arange(1.0, 10.0), np.array([[8.5, 9.5]])
    theirs = ConformalClassifier().fit(calibration_scores).predict_set(scores, confidence=0.9, smoothing=False)
    p_values = conformal.conformal_p_values(scores, calibration_scores)
    ours = conformal.retained(p_values, 0.9)
    return Row(f"labels of p = {p_values.tolist()[0]} in the set of 0.9", theirs.tolist()[0], ours.int().tolist()[0])


def _unseen_group() -> Iterator[Row]:
    residuals, groups, fresh = np.arange(100.0), np.arange(100) % 2, np.array([0, 1, 7])
    theirs = ConformalRegressor().fit(residuals, bins=groups).predict_int(np.zeros(3), bins=fresh, confidence=0.8)
    zeros = torch.zeros(100, dtype=torch.float64)
    predictor = conformal.AbsoluteResidual().calibrate(points(zeros), residuals, groups=groups)
    ours = table(predictor.predict(points(zeros[:3]), 0.8, groups=fresh))
    yield Row("groups 0, 1, and 7 that was not seen, 0.8", theirs.tolist(), ours.tolist())


def _predictive_systems() -> Iterator[Row]:
    """Conformal predictive distributions of three rows, from 99 errors."""
    errors = np.sort(np.random.default_rng(1).normal(size=99))
    centres, came = np.array([0.0, 1.0, -1.0]), np.array([0.3, 5.0, -0.2])
    for scale in (1.0, 2.0):
        scales = np.full(99, scale)
        peer = ConformalPredictiveSystem().fit(errors * scale, sigmas=scales)
        fitted = calibration.ConformalPredictiveSystem().fit(
            Normal(torch.zeros(99, dtype=torch.float64), torch.from_numpy(scales)), errors * scale
        )
        predicted = fitted(Normal(torch.from_numpy(centres), torch.full((3,), scale, dtype=torch.float64)))
        peer_crps = peer.evaluate(centres, came, sigmas=scales[:3], metrics=["CRPS"])["CRPS"]
        yield Row(f"CRPS, all sigmas {scale}", float(peer_crps), float(metrics.crps(predicted, came)))
        yield Row("    by numerical integration", _integrated(centres, came, errors * scale))
        theirs = peer.predict_p(centres, came, sigmas=scales[:3], smoothing=False)
        yield Row("distribution function", theirs.tolist(), distributions.cdf(predicted, came).tolist())
        interval = torch.stack(predicted.interval(0.9), 1)[0].tolist()
        yield Row("interval of 0.9", peer.predict_int(centres, sigmas=scales[:3], confidence=0.9)[0].tolist(), interval)


def _integrated(centres: np.ndarray, came: np.ndarray, errors: np.ndarray) -> float:
    grid = np.linspace(-20, 20, 2_000_001)
    steps = [np.searchsorted(centre + errors, grid, side="right") / len(errors) for centre in centres]
    parts = [np.trapezoid((step - (grid >= y)) ** 2, grid) for step, y in zip(steps, came, strict=True)]
    return float(np.mean(parts))


def _agreement() -> Iterator[Row]:
    random = np.random.default_rng(0)
    scores, seen = random.normal(size=(200, 5)).round(1), random.normal(size=500).round(1)
    theirs = p_values_batch(seen, scores, smoothing=False)
    yield Row("p-values, 200 x 5, with ties", largest_gap(theirs, conformal.conformal_p_values(scores, seen)))
    u = np.random.RandomState(0).rand(200)
    theirs = p_values_batch(seen, scores[:, 0], smoothing=True, seed=0)
    yield Row("smoothed, equal u", largest_gap(theirs, conformal.smoothed_p_values(scores[:, 0], seen, u=u)))
    residuals, difficulty = random.normal(size=507), np.exp(random.normal(size=507))
    centres, fresh = random.normal(size=50), np.exp(random.normal(size=50))
    peer = ConformalRegressor().fit(residuals * difficulty, sigmas=difficulty)
    zeros = torch.zeros(507, dtype=torch.float64)
    predictor = conformal.AbsoluteResidual().calibrate(points(zeros), residuals * difficulty, difficulty=difficulty)
    ours = table(predictor.predict(points(torch.from_numpy(centres)), 0.9, difficulty=fresh))
    yield Row("normalised intervals", largest_gap(peer.predict_int(centres, sigmas=fresh, confidence=0.9), ours))
    peer = ConformalRegressor().fit(np.arange(8.0))
    yield Row("8 residuals at 0.9", peer.predict_int(np.zeros(1), confidence=0.9).tolist(), [[-np.inf, np.inf]])
