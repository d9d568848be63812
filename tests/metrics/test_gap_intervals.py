"""Resampled tables and the intervals of binned calibration errors.

The simulations draw data sets with a known gap function, all repeats at once. An interval of coverage 0.9 must hold the
truth in at least 0.9 - 4 standard errors of 160 repeats: below 0.805 with a probability near 1e-4 a law.
"""

import pytest
import torch
from metric_data import make
from torch.distributions import Bernoulli, Categorical

from credibly import metrics
from credibly.metrics.bin_resampling import Cells, cells_of, resampled_cells, resampled_counts, resampled_rows
from credibly.metrics.bins import cell_sums, equal_width_bins, gap_size
from credibly.metrics.gap_intervals import Noise, dependent_noise, gap_interval
from credibly.metrics.resampling import over_resamples

NUM_BINS, REPEATS, REPLICATES, ROWS = 10, 160, 100, 400
FLOOR = 0.9 - 4 * (0.9 * 0.1 / REPEATS) ** 0.5

LAWS = {
    "calibrated": lambda p: p,
    "overconfident": lambda p: 0.08 + 0.8 * p,
    "shifted": lambda p: (p - 0.05).clamp(min=0),
    "squared": lambda p: p.square(),
}


@pytest.fixture(scope="module")
def generator():
    return torch.Generator().manual_seed(3)


def tables(p, hits):
    """Counts, confidence, frequency and spread of every data set, (repeats, 1, bins)."""
    bins = equal_width_bins(p, NUM_BINS)

    def total(values):
        return torch.zeros(len(p), NUM_BINS, dtype=torch.float64).scatter_add_(1, bins, values)

    counts, sums, squares, came = (total(v) for v in (torch.ones_like(p), p, p.square(), hits.double()))
    mean = sums / counts.clamp(min=1)
    spread = (squares / counts.clamp(min=1) - mean.square()).clamp(min=0)
    return [column.unsqueeze(1) for column in (counts, mean, came / counts.clamp(min=1), spread)]


def simulated(law, generator):
    p = torch.rand(REPEATS, ROWS, generator=generator, dtype=torch.float64)
    return tables(p, torch.rand(p.shape, generator=generator, dtype=torch.float64) < law(p))


def true_error(law, norm):
    p = ((torch.arange(10**5, dtype=torch.float64) + 0.5) / 10**5).unsqueeze(0)
    counts, mean, came, _ = (column[0, 0] for column in tables(p, torch.zeros_like(p)))
    came = torch.zeros(NUM_BINS, dtype=torch.float64).scatter_add_(0, equal_width_bins(p[0], NUM_BINS), law(p[0]))
    return gap_size(mean - came / counts, came, counts, "l2" if norm == "l2_debiased" else norm)


@pytest.mark.parametrize("norm", ["l1", "l2", "max", "l2_debiased"])
@pytest.mark.parametrize("law", LAWS)
def test_intervals_cover_at_their_rate_or_above(law, norm, generator):
    counts, confidence, frequency, spread = simulated(LAWS[law], generator)
    hits = (counts * frequency).round()
    cells = torch.stack([counts - hits, hits], -1)
    resampled = resampled_counts(cells.flatten(-3), REPLICATES, generator).view(REPLICATES, *cells.shape).sum(-1)
    normals = torch.randn(resampled.shape, generator=generator, dtype=torch.float64)
    noise = Noise(resampled, normals, torch.ones_like(counts))
    low, high = gap_interval(counts, confidence, frequency, spread, norm, noise, 0.9)
    truth = true_error(LAWS[law], norm) if law != "calibrated" else 0.0
    rate = ((low <= truth + 1e-12) & (truth - 1e-12 <= high)).double().mean().item()
    assert rate > FLOOR
    assert bool((high > low).double().mean() > 0.9)


@pytest.mark.parametrize("law", ["calibrated", "squared"])
def test_percentiles_would_not_cover_calibrated_forecasts(law, generator):
    """Why there are paths at all: the percentile interval misses a calibrated truth always, and only that."""
    p = torch.rand(ROWS, generator=generator, dtype=torch.float64)
    covered = 0
    for seed in range(20):
        hits = torch.rand(ROWS, generator=generator, dtype=torch.float64) < LAWS[law](p)
        replicates = metrics.EventECE(NUM_BINS).bootstrap(Bernoulli(probs=p), hits, seed=seed).replicates
        covered += int(replicates.quantile(0.025) <= (0.0 if law == "calibrated" else true_error(LAWS[law], "l1")))
    assert covered == 0 if law == "calibrated" else covered > 10


def test_intervals_hold_their_estimate_and_widen_with_coverage():
    predicted, hits = make("events", 500, seed=8)
    wide, narrow = (metrics.ECE().bootstrap(predicted, hits, coverage=c, seed=0) for c in (0.99, 0.5))
    assert wide.lower <= narrow.lower <= narrow.upper <= wide.upper
    assert 0 <= wide.lower <= wide.value


def test_forecasts_without_noise_have_intervals_of_a_point():
    certain = Bernoulli(probs=torch.tensor([0.0, 1.0, 1.0]))
    right = metrics.ECE().bootstrap(certain, [0, 1, 1], seed=0)
    assert (right.value, right.lower, right.upper) == (0, 0, 0)


# Resampled tables


def event_rows(generator, num_rows=10_000):
    p = torch.rand(num_rows, generator=generator, dtype=torch.float64).square()
    return p, torch.rand(num_rows, generator=generator, dtype=torch.float64) < 0.1 + 0.7 * p


def test_replicates_of_bin_sums_agree_with_those_of_rows(generator):
    """5 standard errors of each quantile, of a density taken as normal: fails by chance below 1e-5."""
    p, hits = event_rows(generator)
    ours = metrics.EventECE(15).bootstrap(Bernoulli(probs=p), hits, num_replicates=2000, seed=1).replicates
    residuals, bins = p - hits.double(), equal_width_bins(p, 15)

    def errors(index):
        where = (bins[index] + torch.arange(len(index)).unsqueeze(1) * 15).flatten()
        sums = torch.bincount(where, weights=residuals[index].flatten(), minlength=15 * len(index))
        return sums.view(-1, 15).abs().sum(-1) / len(p)

    rows = over_resamples(len(p), 2000, generator, errors)
    levels = torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95], dtype=torch.float64)
    normal = torch.distributions.Normal(torch.zeros_like(levels), torch.ones_like(levels))
    density = normal.log_prob(normal.icdf(levels)).exp() / rows.std()
    error = (2 * levels * (1 - levels) / 2000).sqrt() / density
    assert bool(((ours.quantile(levels) - rows.quantile(levels)).abs() < 5 * error).all())
    assert abs(ours.std() / rows.std() - 1) < 5 / 2000**0.5


def test_resampled_counts_are_multinomial(generator):
    counts = torch.tensor([0, 5, 20, 0, 75, 0])
    drawn = resampled_counts(counts, 20_000, generator)
    share = counts / 100
    assert bool((drawn.sum(-1) == 100).all())
    assert bool((drawn[:, counts == 0] == 0).all())
    covariance = 100 * (torch.diag(share) - share.outer(share)).double()
    assert bool(((drawn.mean(0) - counts).abs() <= 5 * (covariance.diag() / 20_000).sqrt() + 1e-12).all())
    spread = (covariance.diag().outer(covariance.diag()) + covariance.square()) / 20_000
    assert bool(((drawn.T.cov() - covariance).abs() <= 6 * spread.sqrt() + 1e-9).all())


def test_resampled_sums_have_the_mean_and_variance_of_the_cells(generator):
    p, hits = event_rows(generator, 500)
    bins = equal_width_bins(p, 4)
    counts, sums = cell_sums(p, hits, bins, 4)
    centres = torch.full((4, 1), 0.5, dtype=torch.float64)
    cells = cells_of(counts, sums, cell_sums((p - 0.5).square(), hits, bins, 4)[1], centres)
    inside = [p[(bins == b) & (hits == h)].var(unbiased=False) for b in range(4) for h in (False, True)]
    assert torch.allclose(cells.variance.flatten(), torch.stack(inside), atol=1e-12)
    whole = torch.stack([p[bins == b].var(unbiased=False) for b in range(4)])
    assert torch.allclose(cells.spread(), whole, atol=1e-12)
    new_counts, new_sums = resampled_cells(cells, 20_000, generator)
    row_counts, row_sums = resampled_rows((2 * bins + hits)[:, None], p[:, None], 8, 20_000, generator)
    for ours, rows in ((new_counts, row_counts), (new_sums, row_sums)):
        error = rows.std(0) * (2 / 20_000) ** 0.5
        assert bool(((ours.flatten(1).mean(0) - rows.mean(0)).abs() < 5 * error + 1e-9).all())
        assert bool(((ours.flatten(1).std(0) / rows.std(0) - 1).abs() < 0.06).all())


def test_an_empty_cell_has_no_variance():
    empty = torch.zeros(1, 2, dtype=torch.int64)
    cells = cells_of(empty, empty.double(), empty.double(), torch.full((1, 1), 0.5))
    assert isinstance(cells, Cells)
    assert cells.variance.tolist() == [[0.0, 0.0]]


# Several forecasts of one row depend on each other


def test_two_classes_count_as_one_event():
    """The tables of both classes mirror each other: drawn apart, the interval would be too short by a root of 2."""
    p, hits = event_rows(torch.Generator().manual_seed(2), 800)
    both = metrics.ClasswiseECE(10).bootstrap(Categorical(probs=torch.stack([1 - p, p], -1)), hits, seed=0)
    event = metrics.EventECE(10).bootstrap(Bernoulli(probs=p), hits, seed=0)
    assert both.value.item() == pytest.approx(event.value.item(), abs=1e-9)
    assert (both.replicates.std() / event.replicates.std()).item() == pytest.approx(1, abs=0.15)
    assert ((both.upper - both.lower) / (event.upper - event.lower)).item() == pytest.approx(1, abs=0.25)


def test_labels_that_repeat_each_other_widen_the_interval():
    p, hits = event_rows(torch.Generator().manual_seed(4), 500)
    once = metrics.EventECE(10).bootstrap(Bernoulli(probs=p), hits, seed=0)
    several = torch.distributions.Independent(Bernoulli(probs=p.unsqueeze(1).expand(-1, 4)), 1)
    repeated = metrics.EventECE(10).bootstrap(several, hits.unsqueeze(1).expand(-1, 4), seed=0)
    assert repeated.value.item() == pytest.approx(once.value.item(), abs=1e-12)
    assert ((repeated.upper - repeated.lower) / (once.upper - once.lower)).item() == pytest.approx(1, abs=0.2)


def test_resampled_rows_have_the_noise_of_independent_ones_also_in_bins_of_few():
    """Three forecasts with one hit: the error of n* of them has the variance 2 / (9 n*); 4 standard errors."""
    generator = torch.Generator().manual_seed(0)
    counts = torch.poisson(torch.full((4000, 1, 2), 3.0).double(), generator=generator)
    hits = torch.binomial(counts, torch.tensor(1 / 3).double().expand_as(counts).contiguous(), generator)
    errors = torch.where(counts > 0, hits / counts.clamp(min=1) - 1 / 3, 0.0)
    noise = dependent_noise(counts, errors, torch.full((1, 2), 2 / 9).double(), generator)
    assert torch.allclose(noise.inflation, torch.ones(1, 2).double(), atol=4 * (1 / 4000) ** 0.5)
    again = noise.normals * noise.inflation * (2 / 9 / counts.clamp(min=1)).sqrt()
    assert torch.allclose(again, errors)


def test_data_that_look_too_good_have_an_interval_with_a_width():
    p = torch.arange(1, 100, dtype=torch.float64).repeat_interleave(100) / 100
    hits = torch.cat([torch.arange(100) < k for k in range(1, 100)])
    for metric in (metrics.EventECE(10), metrics.EventECE(10, "l2"), metrics.BrierDecomposition(10)):
        estimate = metric.bootstrap(Bernoulli(probs=p), hits, seed=0)
        lower, upper = estimate.lower.flatten()[0], estimate.upper.flatten()[0]
        assert lower == 0
        assert 1e-5 < upper < 0.02
