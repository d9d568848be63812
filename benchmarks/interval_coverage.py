"""How often the intervals of metrics hold the truth: `python -m benchmarks.interval_coverage NAME`.

Data sets are simulated from a known law, the interval of each is made by the public `bootstrap`, and the share that
holds the true value is printed, one JSON line a law. The true value of a binned error is that of ever more rows in the
same bins. With 500 repeats the share has a standard error of 0.01 at 0.95. The parts of a Brier score are listed in the
order of `BrierParts`.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from credibly import distributions, metrics
from credibly.metrics.bins import table_of
from credibly.metrics.equal_mass import edge_bins
from credibly.metrics.smooth_ece import fixed_point

Reality = Callable[[Tensor], Tensor]

REALITIES: dict[str, Reality] = {
    "calibrated": lambda p: p,
    "overconfident": lambda p: 0.08 + 0.8 * p,
    "shifted": lambda p: (p - 0.05).clamp(min=0),
    "wavy": lambda p: (p + 0.03 * torch.sin(9 * p)).clamp(0, 1),
    "squared": lambda p: p.square(),
}
"""The probability with which an event of forecast p comes."""

POPULATION = (torch.arange(2**20, dtype=torch.float64) + 0.5) / 2**20
"""Forecasts are uniform: the whole population of them, in effect."""


@dataclass(frozen=True)
class Case:
    """A metric of one simulated data set, and what it estimates there."""

    draw: Callable[[torch.Generator], tuple[object, object]]
    truth: Callable[[object], Tensor]
    metric: metrics.Metric

    def estimate(self, predicted: object, targets: object, coverage: float, seed: int) -> metrics.Estimate:
        """The interval of one data set."""
        return self.metric.bootstrap(predicted, targets, coverage=coverage, num_replicates=400, seed=seed)


@dataclass(frozen=True)
class Comparison(Case):
    """A metric of the first of two predictions less that of the second; `draw` gives both as `predicted`."""

    def estimate(self, predicted: object, targets: object, coverage: float, seed: int) -> metrics.Estimate:
        """The paired interval of one data set."""
        one, two = predicted
        return self.metric.compare(one, two, targets, coverage=coverage, num_replicates=400, seed=seed)


def event_case(metric: metrics.Metric, truth: Callable[[Tensor, Reality], Tensor], reality: Reality, rows: int) -> Case:
    """Uniform forecasts of an event."""

    def draw(generator: torch.Generator) -> tuple[object, object]:
        p = torch.rand(rows, generator=generator, dtype=torch.float64)
        return distributions.from_probs(p), torch.rand(rows, generator=generator, dtype=torch.float64) < reality(p)

    return Case(draw, lambda predicted: truth(predicted.probs, reality), metric)


def binned_truth(metric: metrics.EventECE) -> Callable[[Tensor, Reality], Tensor]:
    """The error of the population in the bins of the data."""

    def truth(forecasts: Tensor, reality: Reality) -> Tensor:
        edges = metric.table(distributions.from_probs(forecasts), torch.zeros(len(forecasts))).edges
        bins = edge_bins(POPULATION, edges)
        sums = [
            torch.bincount(bins, weights=w, minlength=metric.num_bins)
            for w in (torch.ones_like(POPULATION), POPULATION, reality(POPULATION))
        ]
        counts = torch.stack([sums[0] - sums[2], sums[2]], -1)
        table = table_of(edges, counts, torch.stack([sums[1], torch.zeros_like(sums[1])], -1))
        return table.error("l2" if metric.norm == "l2_debiased" else metric.norm)

    return truth


def smooth_truth(_: Tensor, reality: Reality) -> Tensor:
    """The smooth error of the population, whatever the forecasts of the data."""
    grid = torch.linspace(0, 1, 2**12 + 1, dtype=torch.float64)
    weights = torch.ones_like(grid)
    weights[0] = weights[-1] = 0.5
    return fixed_point(weights * (reality(grid) - grid) / 2**12)


Classes = Callable[[int, torch.Generator], tuple[Tensor, Tensor]]


def classes_law(power: float, num_classes: int, scale: float = 2.0) -> Classes:
    """Softmax forecasts of classes, and the softmax of the logits times a power, with which they come."""

    def law(size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        logits = scale * torch.randn(size, num_classes, generator=generator, dtype=torch.float64)
        return logits.softmax(-1), (power * logits).softmax(-1)

    return law


def draw_classes(law: Classes, rows: int) -> Callable[[torch.Generator], tuple[object, object]]:
    """Predictions and classes of one data set."""

    def draw(generator: torch.Generator) -> tuple[object, object]:
        probs, real = law(rows, generator)
        return distributions.from_probs(probs), torch.multinomial(real, 1, generator=generator).squeeze(1)

    return draw


def class_sums(law: Classes, num_bins: int) -> Tensor:
    """Of the population, over the bins of each class: sums of 1, p, f, p^2 and p f, (5, classes * num_bins)."""
    generator, total = torch.Generator().manual_seed(99), 0
    for _ in range(8):
        probs, real = law(2**17, generator)
        bins = (probs * num_bins).ceil().long().clamp(1, num_bins) - 1 + torch.arange(probs.shape[1]) * num_bins
        columns = (torch.ones_like(probs), probs, real, probs.square(), probs * real)
        size = probs.shape[1] * num_bins
        total = total + torch.stack([torch.bincount(bins.flatten(), c.flatten(), size) for c in columns])
    return total


def classwise_case(metric: metrics.ClasswiseECE, power: float, rows: int, num_classes: int, scale: float = 2.0) -> Case:
    """The mean over classes of the error of each."""
    law = classes_law(power, num_classes, scale)
    count, p, f, _, _ = class_sums(law, metric.num_bins).view(5, num_classes, metric.num_bins)
    gaps, weights = (p - f).abs() / count.clamp(min=1), count / count.sum(-1, keepdim=True)
    errors = (weights * gaps).sum(-1) if metric.norm == "l1" else (weights * gaps.square()).sum(-1).sqrt()
    value = errors.mean() if power != 1 else torch.tensor(0.0, dtype=torch.float64)
    return Case(draw_classes(law, rows), lambda _: value, metric)


def parts_of_events(reality: Reality, rows: int) -> Case:
    """All parts of the Brier score of uniform forecasts of an event."""
    metric = metrics.BrierDecomposition()
    p, f = POPULATION, reality(POPULATION)
    bins = edge_bins(p.unsqueeze(0), torch.arange(metric.num_bins + 1).double().unsqueeze(0) / metric.num_bins)[0]
    columns = (torch.ones_like(p), p, f, p.square(), p * f)
    truth = metric.value({"sums": torch.stack([torch.bincount(bins, c, metric.num_bins) for c in columns])})
    return event_case(metric, lambda *_: truth, reality, rows)


def parts_of_classes(power: float, rows: int) -> Case:
    """All parts of the Brier score of ten classes."""
    metric, law = metrics.BrierDecomposition(), classes_law(power, 10, 3.0)
    truth = metric.value({"sums": class_sums(law, metric.num_bins)})
    return Case(draw_classes(law, rows), lambda _: truth, metric)


def mean_case(metric: metrics.MeanMetric, predicted_scale: float, rows: int) -> Case:
    """Standard normal targets under a normal prediction of another scale."""

    def draw(generator: torch.Generator) -> tuple[object, object]:
        predicted = torch.distributions.Normal(torch.zeros(rows), predicted_scale * torch.ones(rows))
        return predicted, torch.randn(rows, generator=generator)

    levels = (torch.arange(2**18, dtype=torch.float64) + 0.5) / 2**18
    targets = torch.distributions.Normal(levels.new_zeros(()), levels.new_ones(())).icdf(levels)
    value = metric(torch.distributions.Normal(0 * targets, predicted_scale + 0 * targets), targets)
    return Case(draw, lambda _: value, metric)


def mixed_scores_case(metric: metrics.Metric, share: float, rows: int) -> Case:
    """Normal scores; outside rows far above the inside rows, but for a share far below."""

    def draw(generator: torch.Generator) -> tuple[object, object]:
        below = torch.rand(rows, generator=generator) < share
        outside = torch.where(below, -50.0, 50.0) + torch.randn(rows, generator=generator)
        return torch.randn(rows, generator=generator), outside

    value = torch.tensor(1 - share if isinstance(metric, metrics.AUROC) else share)
    return Case(draw, lambda _: value, metric)


def few_errors_case(metric: metrics.AURC, share: float, rows: int) -> Case:
    """A confidence that says nothing, and a share of errors: the area is the share."""

    def draw(generator: torch.Generator, size: int = rows) -> tuple[object, object]:
        top = 0.5 + torch.rand(size, generator=generator, dtype=torch.float64) / 2
        wrong = torch.rand(size, generator=generator) < share
        return distributions.from_probs(torch.stack([top, 1 - top], -1)), wrong.long()

    value = metric(*draw(torch.Generator().manual_seed(99), 2**22))
    return Case(draw, lambda _: value, metric)


def comparison_case(metric: metrics.Metric, rows: int, noise: float) -> Case:
    """Two predictions of one event, both from its log odds: one with more noise than the other."""

    def draw(generator: torch.Generator, size: int = rows) -> tuple[object, object]:
        logits, one, two = 2 * torch.randn(3, size, generator=generator, dtype=torch.float64)
        targets = torch.rand(size, generator=generator, dtype=torch.float64) < logits.sigmoid()
        noisy = (logits + 0.3 * one, logits + 0.3 * one + noise * two)
        return tuple(distributions.from_probs(x.sigmoid()) for x in noisy), targets

    (one, two), targets = draw(torch.Generator().manual_seed(99), 2**22)
    value = metric(one, targets) - metric(two, targets)
    return Comparison(draw, lambda _: value, metric)


def scores_case(metric: metrics.Metric, shift: float, rows: int) -> Case:
    """Normal scores, those of outside rows shifted."""

    def draw(generator: torch.Generator) -> tuple[object, object]:
        return torch.randn(rows, generator=generator), shift + torch.randn(rows, generator=generator)

    levels = (torch.arange(2**17, dtype=torch.float64) + 0.5) / 2**17
    scores = torch.distributions.Normal(levels.new_zeros(()), levels.new_ones(())).icdf(levels)
    value = metric(scores, scores + shift)
    return Case(draw, lambda _: value, metric)


def selective_case(metric: metrics.AURC, reality: Reality, rows: int) -> Case:
    """Uniform forecasts of an event; the truth from the loss expected at each confidence, by simulation."""

    def draw(generator: torch.Generator, size: int = rows) -> tuple[object, object]:
        p = torch.rand(size, generator=generator, dtype=torch.float64)
        return distributions.from_probs(p), torch.rand(size, generator=generator, dtype=torch.float64) < reality(p)

    value = metric(*draw(torch.Generator().manual_seed(99), 2**22))
    return Case(draw, lambda _: value, metric)


def families() -> dict[str, Callable[[], dict[str, Case]]]:
    """All simulations, by name."""

    def binned(norm: str, rows: int, *, equal_mass: bool = False) -> Callable[[], dict[str, Case]]:
        metric = metrics.EventECE(15, norm, equal_mass)
        return lambda: {name: event_case(metric, binned_truth(metric), law, rows) for name, law in REALITIES.items()}

    return {
        **{f"{norm}_{rows}": binned(norm, rows) for norm in ("l1", "l2", "max", "l2_debiased") for rows in (300, 2000)},
        "equal_mass_l1_2000": binned("l1", 2000, equal_mass=True),
        "smooth_300": lambda: {k: event_case(metrics.SmoothECE(), smooth_truth, v, 300) for k, v in REALITIES.items()},
        "smooth_2000": lambda: {
            k: event_case(metrics.SmoothECE(), smooth_truth, v, 2000) for k, v in REALITIES.items()
        },
        "classwise_1000": lambda: {
            f"{k} classes, power {power}": classwise_case(metrics.ClasswiseECE(15), power, 1000, k)
            for k in (2, 5)
            for power in (1.0, 0.7)
        },
        "classwise_debiased": lambda: {
            f"10 classes, power {power}, {rows} rows": classwise_case(
                metrics.ClasswiseECE(15, "l2_debiased"), power, rows, 10, 3.0
            )
            for rows in (500, 2000)
            for power in (1.0, 0.625)
        },
        **{
            f"brier_events_{rows}": lambda rows=rows: {k: parts_of_events(v, rows) for k, v in REALITIES.items()}
            for rows in (300, 2000)
        },
        **{
            f"brier_classes_{rows}": lambda rows=rows: {
                f"power {power}": parts_of_classes(power, rows) for power in (1.0, 0.625)
            }
            for rows in (500, 2000)
        },
        "ood_few": lambda: {
            **{
                f"{type(metric).__name__} at shift {shift}, {rows} + {rows}": scores_case(metric, shift, rows)
                for metric, rows in ((metrics.AUROC(), 50), (metrics.AUROC(), 20), (metrics.FPR(), 100))
                for shift in (1.0, 2.5, 3.2)
            },
            **{
                f"{type(metric).__name__}, a share of {share} misplaced, {rows} + {rows}": mixed_scores_case(
                    metric, share, rows
                )
                for metric, rows in ((metrics.AUROC(), 50), (metrics.FPR(), 100))
                for share in (0.03, 0.1)
            },
        },
        "selective_few": lambda: {
            f"{type(metric).__name__}, share of errors {share}, {rows} rows": few_errors_case(metric, share, rows)
            for metric in (metrics.AURC(), metrics.EAURC())
            for share, rows in ((0.01, 50), (0.03, 50), (0.03, 200), (0.2, 50))
        },
        "compare": lambda: {
            f"{type(metric).__name__}, {rows} rows, noise {noise}": comparison_case(metric, rows, noise)
            for metric in (metrics.LogScore(), metrics.Brier(), metrics.RMSE(), metrics.Accuracy(), metrics.AURC())
            for rows, noise in ((100, 0.0), (100, 0.3), (500, 0.3))
        },
        "mean": lambda: {
            f"{type(metric).__name__} at scale {scale}, {rows} rows": mean_case(metric, scale, rows)
            for metric in (metrics.LogScore(), metrics.CRPS(), metrics.RMSE())
            for scale in (1.0, 0.5)
            for rows in (50, 200)
        },
        "ood": lambda: {
            f"{type(metric).__name__} at shift {shift}": scores_case(metric, shift, 200)
            for metric in (metrics.AUROC(), metrics.AUPR(), metrics.FPR())
            for shift in (0.0, 1.0, 2.5)
        },
        "selective": lambda: {
            f"{type(metric).__name__}, {name}": selective_case(metric, REALITIES[name], 500)
            for metric in (metrics.AURC(), metrics.EAURC())
            for name in ("calibrated", "squared")
        },
    }


def measure(case: Case, repeats: int, coverage: float) -> dict[str, float | list[float]]:
    """The share of intervals that hold the truth, and on which side the others miss it."""
    generator = torch.Generator().manual_seed(0)
    above = below = width = torch.zeros((), dtype=torch.float64)
    for seed in range(repeats):
        predicted, targets = case.draw(generator)
        truth = case.truth(predicted)
        estimate = case.estimate(predicted, targets, coverage, seed)
        above = above + (estimate.lower > truth + 1e-12).double()
        below = below + (estimate.upper < truth - 1e-12).double()
        width = width + (estimate.upper - estimate.lower)
    found = {
        "truth": truth,
        "covered": 1 - (above + below) / repeats,
        "too_high": above / repeats,
        "too_low": below / repeats,
        "width": width / repeats,
    }
    return {name: _rounded(numbers) for name, numbers in found.items()}


def _rounded(numbers: Tensor) -> float | list[float]:
    return round(float(numbers), 5) if numbers.dim() == 0 else [round(float(x), 5) for x in numbers]


def main() -> None:
    """Read the name from the command line and print the shares."""
    known = families()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.interval_coverage", description=__doc__)
    parser.add_argument("name", choices=known)
    parser.add_argument("--repeats", type=int, default=500)
    parser.add_argument("--coverage", type=float, default=0.95)
    given = parser.parse_args()
    for name, case in known[given.name]().items():
        print(json.dumps({"law": name, **measure(case, given.repeats, given.coverage)}), flush=True)


if __name__ == "__main__":
    main()
