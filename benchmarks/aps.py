"""Adaptive prediction sets of 25,000 rows over 1000 classes: half of the rows calibrate, half are predicted."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from mapie.classification import SplitConformalClassifier
from sklearn.base import BaseEstimator, ClassifierMixin
from torch import Tensor

from benchmarks.harness import Benchmark, Fact, Peer, bytes_of_program
from credibly import conformal, distributions

NUM_ROWS, NUM_CLASSES, COVERAGE = 25_000, 1000, 0.9
HALF = NUM_ROWS // 2
SCALES = {"flat": 0.5, "peaked": 5.0}  # standard deviation of the logits: sets of 780 classes and of 8
MOST_EXTRA_MEMORY = 1.5
BLOCK = 500


class GivenProbabilities(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A fitted classifier whose inputs are its predicted probabilities."""

    def __init__(self, classes: int = NUM_CLASSES) -> None:
        self.classes = classes
        self.classes_ = np.arange(classes)

    def fit(self, X: Any, y: Any) -> "GivenProbabilities":  # noqa: N803
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def predict_proba(self, X: Any) -> Any:  # noqa: N803
        return X

    def predict(self, X: Any) -> Any:  # noqa: N803
        return X.argmax(1)


def forecasts(scale: float) -> tuple[Tensor, Tensor]:
    """Probabilities, float64, and targets drawn from them; made in blocks, so that nothing large lies about."""
    generator = torch.Generator().manual_seed(0)
    probs, targets = torch.empty(NUM_ROWS, NUM_CLASSES, dtype=torch.float64), torch.empty(NUM_ROWS, dtype=torch.int64)
    for block, drawn in zip(probs.split(BLOCK), targets.split(BLOCK), strict=True):
        block.normal_(generator=generator).mul_(scale).copy_(block.softmax(-1))
        drawn.copy_(torch.multinomial(block, 1, generator=generator).squeeze(-1))
    return probs, targets


def our_sets(probs: Tensor, targets: Tensor) -> Tensor:
    """From the table of probabilities to the sets, checks of the table included."""
    predictor = conformal.APS().calibrate(distributions.from_probs(probs[:HALF]), targets[:HALF], seed=0)
    return predictor.predict(distributions.from_probs(probs[HALF:]), COVERAGE, seed=0).members


def mapie_sets(probs: Tensor, targets: Tensor) -> Tensor:
    """The same: scores and sets both randomised."""
    peer = SplitConformalClassifier(
        GivenProbabilities(), confidence_level=COVERAGE, conformity_score="aps", prefit=True, random_state=0
    )
    table = probs.numpy()
    peer.conformalize(table[:HALF], targets[:HALF].numpy())
    sets = peer.predict_set(table[HALF:], conformity_score_params={"include_last_label": "randomized"})[1]
    return torch.from_numpy(sets[..., 0])


def parts() -> Iterator[Benchmark | Fact]:
    """Flat rows, whose sets are large, and peaked rows, whose sets are small; then memory."""
    for kind, scale in SCALES.items():
        yield _speed(kind, *forecasts(scale))
    for kind, scale in SCALES.items():
        yield Fact(
            name=f"aps: peak memory beyond the input, {kind}",
            promise=f"< {MOST_EXTRA_MEMORY} times the input",
            holds=lambda scale=scale: extra_memory(scale) < MOST_EXTRA_MEMORY,  # type: ignore[misc]
        )


def _speed(kind: str, probs: Tensor, targets: Tensor) -> Benchmark:
    def check(members: Tensor, others: dict[str, Tensor]) -> None:
        """The same sets but for their random numbers: sizes within 2 %, coverages within 5 standard errors."""
        for other in others.values():
            sizes = [float(each.sum(-1).double().mean()) for each in (members, other)]
            assert abs(sizes[0] / sizes[1] - 1) < 0.02, f"mean sizes differ: {sizes}"
            for each in (members, other):
                covered = float(each.gather(-1, targets[HALF:, None]).double().mean())
                assert abs(covered - COVERAGE) < 5 * (2 * COVERAGE * (1 - COVERAGE) / HALF) ** 0.5

    return Benchmark(
        name=f"aps, {kind}",
        ours=lambda: our_sets(probs, targets),
        peers=(Peer(label="MAPIE 1.6", run=lambda: mapie_sets(probs, targets), at_least=10),),
        check=check,
        rounds=3,
    )


def extra_memory(scale: float) -> float:
    """Peak memory of our way in a process of its own beyond what it held before, over the size of the input."""
    code = f"from benchmarks.aps import print_extra_memory; print_extra_memory({scale})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)


def print_extra_memory(scale: float) -> None:
    """Measured here, after small sets have loaded all code."""
    probs, targets = forecasts(scale)
    small = slice(HALF - BLOCK // 2, HALF + BLOCK // 2)
    conformal.APS().calibrate(distributions.from_probs(probs[small]), targets[small], seed=0)
    before = bytes_of_program("VmRSS")
    our_sets(probs, targets)
    sys.stdout.write(f"{(bytes_of_program('VmHWM') - before) / probs.nbytes}\n")
