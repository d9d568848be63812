"""netcal beside us: calibration errors and recalibration."""

from collections.abc import Iterator

import numpy as np
import torch
from netcal.binning import HistogramBinning, IsotonicRegression
from netcal.metrics import ACE, ECE, ENCE, MCE
from netcal.scaling import BetaCalibration, LogisticCalibration, TemperatureScaling
from torch import Tensor
from torch.distributions import Distribution, Normal

from benchmarks.peers.rows import Row, classes, events, from_events, largest_gap
from credibly import calibration, distributions, metrics

__all__ = ["rows"]


def rows() -> Iterator[Row]:
    """What differs, then what agrees."""
    yield from _errors()
    yield from _histograms()
    yield from _extremes()
    yield from _other_names()
    yield from _agreement()


def _event(probs: list[float], outcomes: list[int], num_bins: int) -> Row:
    theirs = float(ECE(num_bins).measure(np.array(probs), np.array(outcomes)))
    ours = float(metrics.event_ece(from_events(probs), outcomes, num_bins=num_bins))
    return Row(f"ECE of p = {probs}, y = {outcomes}, {num_bins} bins", theirs, ours)


def _errors() -> Iterator[Row]:
    yield _event([0.25, 0.5], [0, 1], 2)
    probs, targets = classes(6, num_classes=3)
    targets = targets.clamp(max=1)
    try:
        theirs: object = float(ECE(10).measure(probs.numpy(), targets.numpy()))
    except RuntimeError as error:
        theirs = f"RuntimeError: {error}"
    ours = float(metrics.top_label_ece(distributions.from_probs(probs), targets, num_bins=10))
    yield Row("three classes, of which two came", theirs, ours)


def _transformed(peer: TemperatureScaling | HistogramBinning, points: list[float]) -> list[float]:
    return [round(float(prob), 4) for prob in peer.transform(np.array(points))]


def _recalibrated(fitted: calibration.Recalibration, points: list[float]) -> list[float]:
    return [round(float(prob), 4) for prob in distributions.mean(fitted(from_events(points)))]


def _histograms() -> Iterator[Row]:
    for num_bins, probs, outcomes, fresh in (
        (2, [0.1, 0.5, 0.5, 0.9], [0, 1, 1, 0], [0.1, 0.5, 0.9]),
        (10, [0.05, 0.95], [0, 1], [0.05, 0.45, 0.95]),
    ):
        peer = HistogramBinning(num_bins)
        peer.fit(np.array(probs), np.array(outcomes))
        fitted = calibration.HistogramBinning(num_bins=num_bins, equal_mass=False).fit(from_events(probs), outcomes)
        what = f"{num_bins} bins of p = {probs}, y = {outcomes}, at {fresh}"
        yield Row(what, _transformed(peer, fresh), _recalibrated(fitted, fresh))


def _extremes() -> Iterator[Row]:
    """Forecasts that are in order, and in reverse order."""
    probs = [0.9, 0.8, 0.3, 0.2]
    for outcomes in ([1, 1, 0, 0], [0, 0, 1, 1]):
        for peer, recipe in (
            (TemperatureScaling(), calibration.TemperatureScaling()),
            (LogisticCalibration(), calibration.PlattScaling()),
        ):
            peer.fit(np.array(probs), np.array(outcomes))
            fitted = recipe.fit(from_events(probs), outcomes)
            name = type(recipe).__name__
            yield Row(f"{name}: {probs}, y = {outcomes}", _transformed(peer, probs), _recalibrated(fitted, probs))
            if isinstance(fitted, calibration.TemperedClasses):
                yield Row("    temperature", 1 / float(peer.temperature[0]), f"{fitted.temperature}, at_bound=True")


def _other_names() -> Iterator[Row]:
    probs, outcomes = events(10_000)
    predicted = distributions.from_probs(probs)
    mass = metrics.EventECE(15, equal_mass=True)(predicted, outcomes)
    yield Row("their ACE; our ECE of equal mass", float(ACE(15).measure(probs.numpy(), outcomes.numpy())), float(mass))
    gaps = metrics.event_bins(predicted, outcomes)
    yield Row("    unweighted mean of our gaps", float((gaps.confidence - gaps.frequency).abs().mean()))
    generator = torch.Generator().manual_seed(0)
    noise, spread = torch.randn(2, 2000, generator=generator, dtype=torch.float64)
    scale = (0.5 * spread).exp()
    came = 1.3 * scale * noise
    theirs = float(ENCE(10).measure((np.zeros(2000), scale.numpy()), came.numpy(), kind="meanstd"))
    ours = float(metrics.ENCE(10)(Normal(torch.zeros_like(scale), scale), came))
    yield Row("ENCE, 10 bins, 2000 rows", theirs, ours)


def _agreement() -> Iterator[Row]:
    yield _event([0.95, 1.0], [1, 0], 10)
    yield _event([1.0, 1.0, 1.0, 1.0, 0.0], [0, 0, 1, 1, 1], 2)
    probs, outcomes = events(10_000)
    predicted = distributions.from_probs(probs)
    for name, peer, norm in (("ECE", ECE(15), "l1"), ("MCE", MCE(15), "max")):
        ours = metrics.event_ece(predicted, outcomes, norm=norm)
        yield Row(f"{name} of 10,000 events", float(peer.measure(probs.numpy(), outcomes.numpy())), float(ours))
    table, targets = classes(10_000)
    theirs = float(ECE(15).measure(table.numpy(), targets.numpy()))
    yield Row("top label, 10,000 rows", theirs, float(metrics.top_label_ece(distributions.from_probs(table), targets)))
    yield from _temperatures(table, targets)
    yield from _maps(probs, outcomes)


def _temperatures(table: Tensor, targets: Tensor) -> Iterator[Row]:
    sharp = (2.5 * table.log()).softmax(-1)
    given = ((torch.full((4,), 2.0, dtype=torch.float64).sigmoid(), torch.tensor([1, 1, 1, 0])), (sharp, targets))
    for name, (probs, came) in zip(("four logits of 2, y = 1, 1, 1, 0", "10,000 rows, 10 classes"), given, strict=True):
        peer = TemperatureScaling()
        peer.fit(probs.numpy(), came.numpy())
        ours = calibration.TemperatureScaling().fit(distributions.from_probs(probs), came).temperature
        yield Row(f"temperature, {name}", 1 / float(peer.temperature[0]), ours)


def _maps(probs: Tensor, outcomes: Tensor) -> Iterator[Row]:
    odds = torch.logit(probs)
    sharp = torch.sigmoid(2 * odds)
    predicted: Distribution = distributions.from_probs(sharp)
    for peer, recipe in (
        (LogisticCalibration(), calibration.PlattScaling()),
        (BetaCalibration(), calibration.BetaCalibration()),
        (HistogramBinning(15), calibration.HistogramBinning(num_bins=15, equal_mass=False)),
        (IsotonicRegression(), calibration.Isotonic()),
    ):
        peer.fit(sharp.numpy(), outcomes.numpy())
        ours = distributions.mean(recipe.fit(predicted, outcomes)(predicted))
        yield Row(f"{type(recipe).__name__}, 10,000 events", largest_gap(peer.transform(sharp.numpy()), ours))
