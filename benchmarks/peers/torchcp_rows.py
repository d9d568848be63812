"""TorchCP beside us: scores of classes and their sets, thresholds, quantile intervals."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torchcp.classification.predictor import ClassConditionalPredictor, SplitPredictor
from torchcp.classification.score import APS, LAC, RAPS, SAPS, TOPK, Margin
from torchcp.regression.score import CQR
from torchcp.utils.common import calculate_conformal_value

from benchmarks.peers.rows import Row, classes, share_and_size
from credibly import conformal, distributions

__all__ = ["rows"]

HALF = 2000
FIXED = {"score_type": "identity", "randomized": False}


def rows() -> Iterator[Row]:
    """What differs, then what agrees."""
    yield from _ranks()
    yield from _saps()
    yield from _ties()
    yield from _confident()
    yield _crossing()
    yield _callers_tensor()
    yield from _agreement()


def torchcp_sets(
    score: LAC, given: Tensor, targets: Tensor, predictor: type[SplitPredictor] = SplitPredictor, coverage: float = 0.9
) -> Tensor:
    """Sets of the rows behind the calibration targets; numbers are read as the score's `score_type` says."""
    torch.manual_seed(0)
    n, alpha = len(targets), round(1 - coverage, 10)
    peer = predictor(score, alpha=alpha)
    peer.calculate_threshold(given[:n].clone(), targets, alpha)
    return peer.predict_with_logits(given[n:].clone()).bool()


def our_sets(score: conformal.ClassScore, probs: Tensor, targets: Tensor, coverage: float = 0.9) -> Tensor:
    """The same, by us, from probabilities."""
    first, second = (distributions.from_probs(part) for part in (probs[: len(targets)], probs[len(targets) :]))
    return score.calibrate(first, targets, seed=0).predict(second, coverage, seed=0).members


def _ranks() -> Iterator[Row]:
    theirs = float(calculate_conformal_value(torch.arange(1.0, 150.0), 0.18))
    yield Row(
        "threshold of 1, ..., 149 at coverage 0.82", theirs, float(conformal.threshold(torch.arange(1.0, 150.0), 0.82))
    )
    wrong = total = 0
    for percent in range(1, 100):
        for n in range(1, 3001):
            total += 1
            wrong += math.ceil((n + 1) * (1 - percent / 100)) != conformal.rank(n, 1 - percent / 100)
    yield Row(f"ranks that are not ceil((n + 1) c), alpha = i / 100, of {total:,}", wrong, 0)
    few = float(calculate_conformal_value(torch.arange(1.0, 9.0), 0.1))
    yield Row("threshold of 8 scores at coverage 0.9", few, float(conformal.threshold(torch.arange(1.0, 9.0), 0.9)))


def _saps() -> Iterator[Row]:
    """Without randomisation, at an accuracy below and above the coverage of 0.9."""
    for scale in (2.0, 12.0):
        probs, targets = classes(2 * HALF, scale=scale)
        seen, came = targets[:HALF], targets[HALF:]
        accuracy = float((probs.argmax(-1) == targets).double().mean())
        theirs = torchcp_sets(SAPS(**FIXED, weight=0.2), probs, seen)
        ours = our_sets(conformal.SAPS(randomized=False), probs, seen)
        yield Row(
            f"SAPS, randomized=False, accuracy {accuracy:.3f}: coverage and size",
            share_and_size(theirs, came),
            share_and_size(ours, came),
        )


def _ties() -> Iterator[Row]:
    """Four classes of equal probability."""
    probs, targets = torch.full((201, 4), 0.25, dtype=torch.float64), torch.arange(200) % 4
    for name, peer, score in (
        ("APS", APS(**FIXED), conformal.APS(randomized=False)),
        ("TOPK", TOPK(**FIXED), conformal.TopK()),
    ):
        predicted = distributions.from_probs(probs[:1])
        yield Row(
            f"{name} scores of four equal classes",
            peer(probs[:1]).tolist(),
            score.scores_of_classes(predicted).tolist(),
        )
        theirs, ours = torchcp_sets(peer, probs, targets, coverage=0.5), our_sets(score, probs, targets, 0.5)
        yield Row(f"{name} sets of them at coverage 0.5", theirs.int().tolist(), ours.int().tolist())


def _confident() -> Iterator[Row]:
    one_hot = torch.tensor([[1.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    ours = conformal.APS(randomized=False).scores_of_classes(distributions.from_probs(one_hot))
    yield Row("APS scores of a one-hot row", APS(**FIXED)(one_hot).tolist(), ours.tolist())
    logits = torch.tensor([[20.0, 0.0, 0.0], [30.0, 0.0, 0.0]])
    ours = conformal.LAC().scores_of_classes(distributions.from_logits(logits))
    yield Row("LAC scores of class 0, logits 20 and 30, float32", LAC()(logits)[:, 0].tolist(), ours[:, 0].tolist())
    generator = torch.Generator().manual_seed(0)
    logits = 200 * torch.randn(2 * HALF, 10, generator=generator)
    targets = torch.multinomial(logits.double().softmax(-1), 1, generator=generator).squeeze(1)
    seen, came = targets[:HALF], targets[HALF:]
    first, second = (distributions.from_logits(part) for part in logits.split(HALF))
    sets = conformal.LAC().calibrate(first, seen).predict(second, 0.9)
    yield Row(
        "LAC, confident float32 logits: coverage and size",
        share_and_size(torchcp_sets(LAC(), logits, seen), came),
        share_and_size(sets, came),
    )


def _crossing() -> Row:
    """The threshold is 0.3; see the lines of MAPIE."""
    ends = torch.tensor([[3.0, 2.0]])
    theirs = CQR().generate_intervals(ends, torch.tensor([0.3])).flatten().tolist()
    predicted = distributions.from_quantiles(torch.tensor([0.05, 0.95]), ends)
    ours = conformal.CQR().region(predicted, 0.3)
    return Row("CQR, quantiles 3 and 2, threshold 0.3", theirs, [float(ours.lower), float(ours.upper)])


def _callers_tensor() -> Row:
    probs, targets = classes(4)
    given = probs.clone()
    Margin("identity")(given, targets)
    conformal.Margin().score(distributions.from_probs(probs), targets)
    return Row(
        "Margin of probabilities: the caller's tensor is as it was",
        torch.equal(given, probs),
        torch.equal(probs, classes(4)[0]),
    )


def _agreement() -> Iterator[Row]:
    probs, targets = classes(2 * HALF)
    seen, came = targets[:HALF], targets[HALF:]
    pairs = (
        ("LAC", LAC("identity"), conformal.LAC()),
        ("Margin", Margin("identity"), conformal.Margin()),
        ("TOPK, fixed", TOPK(**FIXED), conformal.TopK()),
        ("APS, fixed", APS(**FIXED), conformal.APS(randomized=False)),
        ("RAPS, fixed", RAPS(**FIXED, penalty=0.1, kreg=2), conformal.RAPS(penalty=0.1, k_reg=2, randomized=False)),
    )
    for name, peer, score in pairs:
        theirs, ours = torchcp_sets(peer, probs, seen), our_sets(score, probs, seen)
        yield Row(f"{name}: sets of {HALF} rows", f"{int((theirs != ours).any(1).sum())} differ")
    for name, peer, score in (
        ("APS", APS("identity"), conformal.APS()),
        ("RAPS", RAPS("identity", penalty=0.1, kreg=2), conformal.RAPS(penalty=0.1, k_reg=2)),
        ("SAPS", SAPS("identity", weight=0.2), conformal.SAPS()),
        ("TOPK", TOPK("identity"), conformal.TopK(randomized=True)),
    ):
        theirs, ours = torchcp_sets(peer, probs, seen), our_sets(score, probs, seen)
        what = f"{name}, random: coverage and size"
        yield Row(what, share_and_size(theirs, came), share_and_size(ours, came))
    yield from _missing_class()


def _missing_class() -> Iterator[Row]:
    """Three classes, of which calibration saw two."""
    probs, targets = classes(2 * HALF, num_classes=3)
    first, second = (distributions.from_probs(part) for part in probs.split(HALF))
    seen = targets[:HALF] % 2
    theirs = torchcp_sets(LAC("identity"), probs, seen, ClassConditionalPredictor)
    ours = conformal.ClassConditional(conformal.LAC()).calibrate(first, seen).predict(second, 0.9).members
    yield Row(
        "class-conditional: share of sets with a class not seen",
        *(float(s[:, 2].double().mean()) for s in (theirs, ours)),
    )
    yield Row("class-conditional, LAC: sets", f"{int((theirs != ours).any(1).sum())} differ")
