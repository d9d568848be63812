"""MAPIE beside us: prediction sets, calibration error, p-values of a risk."""

from collections.abc import Iterator
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from mapie.classification import CrossConformalClassifier, SplitConformalClassifier
from mapie.metrics.calibration import expected_calibration_error
from mapie.risk_control.methods import compute_hoeffding_bentkus_p_value
from mapie.utils import _compute_classification_quantile, _transform_confidence_level_to_alpha
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold
from torch import Tensor

from benchmarks.aps import GivenProbabilities
from benchmarks.peers.rows import Row, classes, events, share_and_size
from credibly import conformal, distributions, metrics

__all__ = ["rows"]

RANDOMIZED = {"include_last_label": "randomized"}
REPEATS, ROWS = 300, 200
HALF = 2000


def rows() -> Iterator[Row]:
    """What differs, then what agrees."""
    yield from _coverage()
    yield from _ranks()
    yield from _few_rows()
    yield from _risk()
    yield from _calibration_error()
    yield from _folds()
    yield from _agreement()


def mapie_sets(score: str, probs: Tensor, targets: Tensor, coverage: float = 0.9, **params: Any) -> Tensor:
    """Sets of the rows behind the calibration targets."""
    peer = SplitConformalClassifier(
        GivenProbabilities(probs.shape[1]),
        confidence_level=coverage,
        conformity_score=score,
        prefit=True,
        random_state=0,
    )
    peer.conformalize(probs[: len(targets)].numpy(), targets.numpy())
    sets = peer.predict_set(probs[len(targets) :].numpy(), conformity_score_params=params)[1]
    return torch.from_numpy(sets[..., 0])


def _coverage() -> Iterator[Row]:
    """APS over many data sets from known probabilities: coverage and mean size, at 0.9."""
    found: dict[str, list[tuple[float, float]]] = {}
    for seed in range(REPEATS):
        probs, targets = classes(2 * ROWS, seed=1000 + seed)
        seen, came = targets[:ROWS], targets[ROWS:]
        first, second = (distributions.from_probs(part) for part in probs.split(ROWS))
        fixed = conformal.APS(randomized=False).calibrate(first, seen).predict(second, 0.9)
        drawn = conformal.APS().calibrate(first, seen, seed=seed).predict(second, 0.9, seed=seed)
        sets = {
            "theirs, default": mapie_sets("aps", probs, seen),
            "theirs, randomized": mapie_sets("aps", probs, seen, **RANDOMIZED),
            "ours, randomized=False": fixed,
            "ours, default": drawn,
        }
        for name, each in sets.items():
            found.setdefault(name, []).append(share_and_size(each, came))
    text = {name: _summary(each) for name, each in found.items()}
    yield Row("APS by default, coverage and size", text["theirs, default"], text["ours, default"])
    yield Row("APS: randomized; ours, randomized=False", text["theirs, randomized"], text["ours, randomized=False"])


def _summary(results: list[tuple[float, float]]) -> str:
    shares, sizes = zip(*results, strict=True)
    return f"{fmean(shares):.4f} +- {stdev(shares) / len(shares) ** 0.5:.4f}, {fmean(sizes):.3f}"


def _ranks() -> Iterator[Row]:
    alpha = np.array([_transform_confidence_level_to_alpha(0.28)])
    theirs = float(_compute_classification_quantile(np.arange(1.0, 25.0)[:, None], alpha)[0])
    ours = float(conformal.threshold(torch.arange(1.0, 25.0), 0.28))
    yield Row("threshold of 1, ..., 24 at coverage 0.28", theirs, ours)
    wrong = total = 0
    for percent in range(1, 100):
        level = 1 - _transform_confidence_level_to_alpha(percent / 100)
        for n in range(1, 3001):
            total += 1
            wrong += int(np.ceil((n + 1) * level)) != conformal.rank(n, percent / 100)
    yield Row(f"ranks that are not ceil((n + 1) c), of {total:,}", wrong, 0)


def _few_rows() -> Iterator[Row]:
    probs, targets = classes(30)
    for n, coverage in ((8, 0.9), (9, 0.9), (10, 0.9), (18, 0.9)):
        try:
            theirs: object = mapie_sets("lac", probs[: n + 3], targets[:n], coverage).sum(1).tolist()
        except ValueError as error:
            theirs = f"ValueError: {str(error).splitlines()[0]}"
        predictor = conformal.LAC().calibrate(distributions.from_probs(probs[:n]), targets[:n])
        ours = predictor.predict(distributions.from_probs(probs[n : n + 3]), coverage)
        yield Row(f"LAC, {n} rows, coverage {coverage}: sizes", theirs, ours.members.sum(1).tolist())


def _risk() -> Iterator[Row]:
    for hits in (7, 5):
        losses = torch.zeros(100, dtype=torch.float64)
        losses[:hits] = 1
        mean = np.array([float(losses.mean())])
        theirs = float(compute_hoeffding_bentkus_p_value(mean, 100, 0.1)[0, 0])
        ours = float(conformal.HoeffdingBentkus().p_values(losses, 0.1))
        yield Row(f"Hoeffding-Bentkus, {hits} of 100 losses, risk 0.1", theirs, ours)
        theirs = float(compute_hoeffding_bentkus_p_value(mean, 100, 0.1, binary=True)[0, 0])
        ours = float(conformal.ExactBinomial().p_values(losses, 0.1))
        yield Row(f"binary losses, {hits} of 100, risk 0.1; ours exact", theirs, ours)


def _calibration_error() -> Iterator[Row]:
    probs, outcomes = events(10_000)
    predicted = distributions.from_probs(probs)
    theirs = expected_calibration_error(outcomes.numpy(), probs.numpy(), num_bins=15, split_strategy="uniform")
    yield Row("10,000 events, 15 bins", theirs, float(metrics.event_ece(predicted, outcomes, num_bins=15)))
    yield Row(
        "10,000 events, their 15 bins, our 14", theirs, float(metrics.event_ece(predicted, outcomes, num_bins=14))
    )


def _folds() -> Iterator[Row]:
    """CV+ of classes by LAC on the digits, five folds."""
    x, y = load_digits(return_X_y=True)
    for n in (301, 308):
        inputs, targets, fresh = x[:n] / 16, y[:n], x[n : n + 400] / 16
        cut = KFold(5, shuffle=True, random_state=0)
        probs, folds, members = np.empty((n, 10)), np.empty(n, dtype=int), []
        for number, (train, left) in enumerate(cut.split(inputs)):
            model = LogisticRegression(max_iter=200).fit(inputs[train], targets[train])
            folds[left], probs[left] = number, model.predict_proba(inputs[left])
            members.append(distributions.from_probs(model.predict_proba(fresh)))
        peer = CrossConformalClassifier(
            LogisticRegression(max_iter=200), confidence_level=0.9, conformity_score="lac", cv=cut
        )
        peer.fit_conformalize(inputs, targets)
        theirs = torch.from_numpy(peer.predict_set(fresh, agg_scores="crossval")[1][..., 0])
        predictor = conformal.ClassCVPlus(conformal.LAC()).calibrate(distributions.from_probs(probs), targets, folds)
        ours = predictor.predict(members, 0.9).members
        yield Row(f"CV+ of classes, {n} rows: labels in 400 sets", int(theirs.sum()), int(ours.sum()))


def _agreement() -> Iterator[Row]:
    probs, targets = classes(2 * HALF)
    first, second = (distributions.from_probs(part) for part in probs.split(HALF))
    seen = targets[:HALF]
    for name, score in (("lac", conformal.LAC()), ("top_k", conformal.TopK())):
        ours = score.calibrate(first, seen).predict(second, 0.9).members
        yield _differing(name, mapie_sets(name, probs, seen), ours)
    # their randomised score takes u times the class's own probability off, ours counts u times it: u is 1 - u
    u = 1 - torch.from_numpy(np.random.RandomState(0).uniform(size=HALF))
    scores = conformal.APS().score(first, seen, u).sort().values
    ours = conformal.APS().region(second, conformal.threshold(scores, 0.9), u).members
    yield _differing("aps at equal u", mapie_sets("aps", probs, seen, **RANDOMIZED), ours)


def _differing(name: str, theirs: Tensor, ours: Tensor) -> Row:
    return Row(f"{name}: sets of {HALF} rows", f"{int((theirs != ours).any(1).sum())} differ")
