"""How often the intervals of metrics hold the truth: `python -m benchmarks.interval_coverage NAME`.

Data sets are simulated from a known law, the interval of each is made by the public `bootstrap`, and the share that
holds the true value is printed, one JSON line a law. The true value of a binned error is that of ever more rows in the
same bins. With 500 repeats the share has a standard error of 0.01 at 0.95.
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


def classwise_case(metric: metrics.ClasswiseECE, power: float, rows: int, num_classes: int) -> Case:
    """Softmax forecasts of classes that come with the softmax of the logits times a power."""

    def law(size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        logits = 2 * torch.randn(size, num_classes, generator=generator, dtype=torch.float64)
        return logits.softmax(-1), (power * logits).softmax(-1)

    def draw(generator: torch.Generator) -> tuple[object, object]:
        probs, real = law(rows, generator)
        return distributions.from_probs(probs), torch.multinomial(real, 1, generator=generator).squeeze(1)

    probs, real = law(2**19, torch.Generator().manual_seed(99))
    bins = (probs * metric.num_bins).ceil().long().clamp(1, metric.num_bins) - 1
    errors = [
        torch.bincount(bins[:, k], weights=(probs - real)[:, k], minlength=metric.num_bins).abs().sum() / len(probs)
        for k in range(num_classes)
    ]
    value = torch.stack(errors).mean() if power != 1 else torch.tensor(0.0, dtype=torch.float64)
    return Case(draw, lambda _: value, metric)


def mean_case(metric: metrics.MeanMetric, predicted_scale: float, rows: int) -> Case:
    """Standard normal targets under a normal prediction of another scale."""

    def draw(generator: torch.Generator) -> tuple[object, object]:
        predicted = torch.distributions.Normal(torch.zeros(rows), predicted_scale * torch.ones(rows))
        return predicted, torch.randn(rows, generator=generator)

    levels = (torch.arange(2**18, dtype=torch.float64) + 0.5) / 2**18
    targets = torch.distributions.Normal(levels.new_zeros(()), levels.new_ones(())).icdf(levels)
    value = metric(torch.distributions.Normal(0 * targets, predicted_scale + 0 * targets), targets)
    return Case(draw, lambda _: value, metric)


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


def measure(case: Case, repeats: int, coverage: float) -> dict[str, float]:
    """The share of intervals that hold the truth, and on which side the others miss it."""
    generator = torch.Generator().manual_seed(0)
    above = below = width = 0.0
    for seed in range(repeats):
        predicted, targets = case.draw(generator)
        truth = case.truth(predicted)
        estimate = case.metric.bootstrap(predicted, targets, coverage=coverage, num_replicates=400, seed=seed)
        above += float(estimate.lower > truth + 1e-12)
        below += float(estimate.upper < truth - 1e-12)
        width += float(estimate.upper - estimate.lower)
    return {
        "truth": round(float(truth), 5),
        "covered": round(1 - (above + below) / repeats, 4),
        "too_high": above / repeats,
        "too_low": below / repeats,
        "width": round(width / repeats, 5),
    }


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
