"""The interval of the calibration error of 1,000,000 predictions, against the error alone and against drawing rows."""

from collections.abc import Iterator

import torch

from benchmarks.harness import Benchmark, Fact
from credibly import distributions, metrics
from credibly.metrics.base import Estimate
from credibly.metrics.resampling import over_resamples

NUM_ROWS, NUM_CLASSES, NUM_REPLICATES = 1_000_000, 10, 1000
FEW_ROWS, NUM_BINS = 10_000, 15


def _data(num_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(num_rows, NUM_CLASSES, generator=generator)
    return logits.softmax(-1), torch.multinomial((0.7 * logits).softmax(-1), 1, generator=generator).squeeze(1)


def _of_bin_sums() -> torch.Tensor:
    probs, targets = _data(FEW_ROWS)
    metric = metrics.ECE(num_bins=NUM_BINS)
    return metric.bootstrap(distributions.from_probs(probs), targets, num_replicates=4000, seed=1).replicates


def _of_rows() -> torch.Tensor:
    """The same replicates the slow way: rows drawn with replacement, and the error of each choice."""
    probs, targets = _data(FEW_ROWS)
    confidence, label = probs.double().max(-1)
    residuals = confidence - (label == targets).double()
    bins = (confidence * NUM_BINS).ceil().long().clamp(1, NUM_BINS) - 1

    def errors(index: torch.Tensor) -> torch.Tensor:
        where = bins[index] + torch.arange(len(index)).unsqueeze(1) * NUM_BINS
        sums = torch.bincount(where.flatten(), weights=residuals[index].flatten(), minlength=len(index) * NUM_BINS)
        return sums.view(-1, NUM_BINS).abs().sum(-1) / FEW_ROWS

    return over_resamples(FEW_ROWS, 4000, torch.Generator().manual_seed(2), errors)


def _agree() -> bool:
    """Quantiles within 5 standard errors of each other, the density taken as normal."""
    ours, rows = _of_bin_sums(), _of_rows()
    levels = torch.tensor([0.025, 0.25, 0.5, 0.75, 0.975], dtype=torch.float64)
    normal = torch.distributions.Normal(torch.zeros_like(levels), torch.ones_like(levels))
    density = normal.log_prob(normal.icdf(levels)).exp() / rows.std()
    error = (2 * levels * (1 - levels) / len(rows)).sqrt() / density
    return bool(((ours.quantile(levels) - rows.quantile(levels)).abs() < 5 * error).all())


def parts() -> Iterator[Benchmark | Fact]:
    """From a table of probabilities to the interval; the floor is the error itself."""
    probs, targets = _data(NUM_ROWS)
    metric = metrics.ECE(num_bins=NUM_BINS)

    def ours() -> Estimate:
        return metric.bootstrap(distributions.from_probs(probs), targets, num_replicates=NUM_REPLICATES, seed=0)

    def floor() -> torch.Tensor:
        return metrics.ece(distributions.from_probs(probs), targets, num_bins=NUM_BINS)

    def check(estimate: Estimate, others: dict[str, torch.Tensor]) -> None:
        """The interval is one about the same number."""
        assert abs(float(estimate.value - others["floor"])) < 1e-12
        assert estimate.lower <= estimate.value <= estimate.upper

    yield Benchmark(name="ece_bootstrap", ours=ours, floor=floor, at_most=20, check=check, rounds=7, warmups=1)
    yield Fact(name="ece_bootstrap of 10,000 rows", promise="quantiles of the row bootstrap", holds=_agree)
