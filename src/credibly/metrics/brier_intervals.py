r"""Intervals for the parts of a Brier score, whose estimates are biased where bins hold few forecasts.

Noise in the frequencies f_b makes reliability and resolution too large, both by

    sum_b (n_b / n) f_b (1 - f_b) / n_b

on average ("A Bias-Corrected Decomposition of the Brier Score", Ferro, Fricker, 2012), and neither has a derivative
where it is 0. Their intervals invert tests along paths, as those of calibration errors do (see `gap_intervals`): of the
gaps p_b - f_b for the reliability, of the deviations f_b - f for the resolution. The size that is tested is the one
without the bias, the sum over classes.

The uncertainty is a function of the frequency f of the event, f (1 - f), and its interval is the image of the exact one
for f. Of several classes it is (1 - 1 / K) - sum_k (f_k - 1 / K)^2, which is largest, and flat, at equal frequencies:
the sum of squares is a size again, with the path from 1 / K through the frequencies seen.

The other parts are means over rows of squares or products of distances from the means of a bin, to first order, and
unbiased with n_b / (n_b - 1) in place of 1: their intervals are those of means.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from credibly.metrics.coverage_law import clopper_pearson
from credibly.metrics.gap_intervals import (
    Noise,
    dependent_noise,
    independent_noise,
    outcome_variance,
    path_directions,
    path_interval,
)
from credibly.metrics.mean_intervals import mean_interval

__all__ = ["Interval", "Table", "part_intervals", "table_of_sums"]

Interval: TypeAlias = tuple[Tensor, Tensor]


class Table(NamedTuple):
    """Counts, means and variances of the bins, each (*batch, tables, num_bins), float64."""

    counts: Tensor
    confidence: Tensor
    frequency: Tensor
    spread: Tensor

    def rates(self) -> Tensor:
        """How often each event came, (*batch, tables)."""
        return (self.counts * self.frequency).sum(-1) / self.counts.sum(-1)


def table_of_sums(sums: Tensor) -> Table:
    """The table of the sums of 1, p, y, p^2 and p y, (*batch, 5, tables, num_bins)."""
    size, p, y, squares, _ = sums.unbind(-3)
    divisor = size.clamp(min=1)
    mean = p / divisor
    return Table(size, mean, y / divisor, (squares / divisor - mean.square()).clamp(min=0))


def part_intervals(
    rows: Tensor,  # (rows, forecasts of a row, 3): bin, p and y
    table: Table,
    drawn: Table,  # of resampled rows, (num_replicates, tables, num_bins)
    coverage: float,
    generator: torch.Generator,
) -> list[Interval]:
    """The interval of each part, in the order of `BrierParts`."""
    num_replicates = len(drawn.counts)

    def noise(errors: Tensor, variance: Tensor) -> Noise:
        if rows.shape[1] == 1:
            return independent_noise(drawn.counts, generator)
        return dependent_noise(drawn.counts, errors, variance, generator)

    gaps = drawn.confidence - drawn.frequency - (table.confidence - table.frequency)
    of_gaps = noise(gaps, outcome_variance(table.frequency, table.spread))
    of_frequency = noise(drawn.frequency - table.frequency, table.frequency * (1 - table.frequency))
    return [
        _reliability(table, of_gaps, coverage),
        _resolution(table, of_frequency, coverage),
        _uncertainty(rows, table, drawn, coverage, generator),
        *(mean_interval(scores, num_replicates, coverage, generator) for scores in _row_scores(rows, table)),
    ]


def _row_scores(rows: Tensor, table: Table) -> list[Tensor]:
    """What each row adds to within-bin variance, within-bin covariance and score, (rows,) each."""
    bins, p, y = rows.unbind(-1)
    places = bins.to(torch.int64)
    away_p, away_y = p - table.confidence.flatten()[places], y - table.frequency.flatten()[places]
    size = table.counts.flatten()[places]
    unbiased = size / (size - 1).clamp(min=1)
    per_table = rows.shape[1] / len(table.counts)
    scores = (unbiased * away_p.square(), 2 * unbiased * away_p * away_y, (p - y).square())
    return [score.sum(-1) / per_table for score in scores]


def _unbiased_squares(
    deviations: Tensor,  # (..., tables, num_bins)
    frequency: Tensor,  # likewise
    counts: Tensor,  # likewise, floating, 0 where a bin is empty
) -> Tensor:
    """The sum over tables and bins of weighted squares, less what noise in the frequencies adds to it."""
    noise = frequency * (1 - frequency) / (counts - 1).clamp(min=1)
    weights = counts / counts.sum(-1, keepdim=True)
    return (weights * torch.where(counts > 1, deviations.square() - noise, 0.0)).flatten(-2).sum(-1)


def _squares(deviations: Tensor, counts: Tensor) -> Tensor:
    return (counts / counts.sum(-1, keepdim=True) * deviations.square()).flatten(-2).sum(-1)


def _reliability(table: Table, noise: Noise, coverage: float) -> Interval:
    """The interval of the reliability: its path starts where every frequency is the mean forecast."""

    def variance(frequency: Tensor) -> Tensor:
        return outcome_variance(frequency, table.spread)

    gaps = table.confidence - table.frequency
    return _interval(table.counts, table.confidence, gaps, variance, noise, coverage, lambda gaps, _: gaps)


def _resolution(table: Table, noise: Noise, coverage: float) -> Interval:
    """The interval of the resolution: its path starts where every frequency is that of all."""
    overall = table.rates().unsqueeze(-1)

    def variance(frequency: Tensor) -> Tensor:
        return outcome_variance(frequency, torch.zeros_like(frequency))

    def centred(deviations: Tensor, counts: Tensor) -> Tensor:
        return deviations - (counts * deviations).sum(-1, keepdim=True) / counts.sum(-1, keepdim=True)

    deviations = torch.where(table.counts > 0, overall - table.frequency, 0.0)
    return _interval(table.counts, overall, deviations, variance, noise, coverage, centred)


def _interval(
    counts: Tensor,  # (tables, num_bins)
    centre: Tensor,  # broadcasts to (tables, num_bins): what frequencies would be at size 0
    deviations: Tensor,  # (tables, num_bins): centre less frequency
    variance: Callable[[Tensor], Tensor],  # of an outcome, from its frequency
    noise: Noise,
    coverage: float,
    measured: Callable[[Tensor, Tensor], Tensor],  # the deviations that data show, from those from the centre
) -> Interval:
    error = (variance(centre) / counts.clamp(min=1)).sqrt()
    directions = torch.stack(path_directions(deviations, error, counts > 0))
    reach = _squares(deviations.abs() + error, counts)
    steps = directions * (reach / _squares(directions, counts).clamp(min=1e-300)).sqrt()[:, None, None]

    def expected(t: Tensor) -> Tensor:
        return centre - (centre - t[..., None, None] * steps).clamp(0, 1)

    some, normals = noise.counts[:, None, None], noise.normals[:, None, None]

    def seen(t: Tensor) -> Tensor:
        mean = expected(t)
        errors = (variance(centre - mean) / some.clamp(min=1)).sqrt() * noise.inflation
        shown = mean + normals * errors
        return _unbiased_squares(measured(shown, some), centre - shown, some)

    observed = _unbiased_squares(measured(deviations, counts), centre - deviations, counts)
    return path_interval(
        seen, lambda t: _squares(measured(expected(t), counts), counts), observed.expand(len(steps)), coverage
    )


def _uncertainty(rows: Tensor, table: Table, drawn: Table, coverage: float, generator: torch.Generator) -> Interval:
    """The interval of the uncertainty, of one event or of several classes."""
    if len(table.counts) > 1:
        return _of_classes(table.rates(), drawn.rates(), coverage)
    came = rows[..., 2]
    if came.shape[1] > 1:
        return _of_rate(*mean_interval(came.mean(-1), len(drawn.counts), coverage, generator))
    return _of_rate(*clopper_pearson(came.sum().round().long(), torch.tensor(len(came), device=came.device), coverage))


def _of_rate(low: Tensor, high: Tensor) -> Interval:
    """The range of f (1 - f) for f from `low` to `high`."""
    ends = torch.stack([low, high])
    nearest = low.new_tensor(0.5).clamp(low, high)
    return (ends * (1 - ends)).amin(0), nearest * (1 - nearest)


def _of_classes(
    frequencies: Tensor,  # (classes,)
    resampled: Tensor,  # (num_replicates, classes)
    coverage: float,
) -> Interval:
    """The interval for sum_k f_k (1 - f_k) of several classes."""
    num_classes = len(frequencies)
    even = 1 / num_classes
    noise = resampled - frequencies
    error = noise.square().mean(0).sqrt()
    away = frequencies - even
    direction = torch.where(away.any(), away, error - error.mean())
    reach = (away.abs() + error).square().sum()
    steps = direction * (reach / direction.square().sum().clamp(min=1e-300)).sqrt()

    def shown(t: Tensor) -> Tensor:
        moved = (even + t[..., None] * steps).clamp(0, 1)
        return moved / moved.sum(-1, keepdim=True) - even

    def seen(t: Tensor) -> Tensor:
        return (shown(t) + noise[:, None, None]).square().sum(-1)

    low, high = path_interval(seen, lambda t: shown(t).square().sum(-1), away.square().sum().expand(1), coverage)
    return 1 - even - high, 1 - even - low
