"""Many rows are resampled in random groups: the same law of means, at the cost of a few thousand rows."""

import pytest
import torch

from credibly import metrics
from credibly.metrics import resampling
from credibly.metrics.bin_resampling import resampled_sums
from credibly.metrics.resampling import NUM_GROUPS, grouped_sums, grouping, resampled_means, resampled_moments

NUM_ROWS = 2**15 + 7


def skewed(num_rows=NUM_ROWS):
    """Sorted, so that neighbours are alike."""
    return torch.empty(num_rows, dtype=torch.float64).exponential_(generator=torch.Generator().manual_seed(0)).sort()[0]


def test_few_rows_are_left_alone_and_many_are_shared_out_evenly():
    generator = torch.Generator().manual_seed(0)
    assert grouping(2**15, generator) is None
    group = grouping(NUM_ROWS, generator)
    counts = torch.bincount(group, minlength=NUM_GROUPS)
    assert int(counts.min()) == NUM_ROWS // NUM_GROUPS
    assert int(counts.max()) == NUM_ROWS // NUM_GROUPS + 1
    rows = skewed().unsqueeze(1)
    assert grouped_sums(rows, group).sum(0).item() == pytest.approx(rows.sum().item())


def test_means_of_groups_have_the_variance_and_skewness_of_means_of_rows():
    """2000 replicates; 5 standard errors of a mean, a deviation and a skewness, a failure in a million."""
    rows = skewed()
    means = resampled_means(rows.unsqueeze(1), 2000, torch.Generator().manual_seed(1))[:, 0]
    error = rows.std() / NUM_ROWS**0.5
    assert abs(means.mean() - rows.mean()) < 5 * error / 2000**0.5
    assert abs(means.std() / error - 1) < 5 * (1 / (2 * 2000) + 1 / (2 * NUM_GROUPS)) ** 0.5
    skewness = ((means - means.mean()) / means.std()).pow(3).mean()
    assert abs(skewness - 2 / NUM_ROWS**0.5) < 5 * (6 / 2000) ** 0.5


def test_the_interval_agrees_with_that_of_rows(monkeypatch):
    """Widths of 400 replicates have a relative error of some 0.07; the deviations inside them none to speak of."""
    rows = skewed()
    grouped = resampled_moments(rows, 400, torch.Generator().manual_seed(1))
    monkeypatch.setattr(resampling, "_MANY_ROWS", 2**20)
    by_row = resampled_moments(rows, 400, torch.Generator().manual_seed(1))
    ratio = grouped.std(0) / by_row.std(0)
    assert bool(((ratio - 1).abs() < 5 * (2 / (2 * 400)) ** 0.5).all()), ratio
    assert torch.allclose(grouped.mean(0), by_row.mean(0), rtol=0.01)


def test_sums_over_cells_of_groups_add_up_and_vary_as_those_of_rows():
    """Binomial counts with the cells' shares, 5 standard errors of their deviation."""
    cells = (torch.arange(NUM_ROWS) % 16).clamp(max=3).unsqueeze(1)
    drawn = resampled_sums(cells, (torch.ones(NUM_ROWS, 1).double(),), 4, 600, torch.Generator().manual_seed(2))[:, 0]
    share = torch.bincount(cells[:, 0]) / NUM_ROWS
    assert drawn.shape == (600, 4)
    assert bool((drawn.sum(-1) / NUM_ROWS - 1).abs().lt(0.01).all())  # groups differ in size by one row
    expected = (NUM_ROWS * share * (1 - share)).sqrt()
    assert bool((drawn.std(0) / expected - 1).abs().lt(5 * (1 / 1200 + 1 / (2 * NUM_GROUPS)) ** 0.5).all())


def test_a_million_rows_have_an_interval_of_the_right_width():
    rows = torch.rand(10**6, generator=torch.Generator().manual_seed(3))
    predicted = torch.distributions.Bernoulli(probs=rows, validate_args=False)
    estimate = metrics.Brier().bootstrap(predicted, torch.zeros(10**6), seed=0)
    error = rows.double().square().std().item() / 1e3
    assert (estimate.upper - estimate.lower).item() == pytest.approx(2 * 1.96 * error, rel=0.15)
