"""Pictures side by side that share an axis: none cuts the others off."""

import matplotlib.pyplot as plt
import torch

from credibly import metrics, plots


def test_the_tallest_histogram_sets_a_shared_axis():
    peaked, flat = torch.full((100,), 0.05), torch.linspace(0, 1, 100)
    _, axes = plt.subplots(1, 2, sharey=True)
    for ax, values in zip(axes, (peaked, flat), strict=True):
        plots.pit_histogram(metrics.pit_histogram(values), ax)
    assert axes[0].get_ylim()[1] > 10
    assert axes[0].get_ylim() == axes[1].get_ylim()
    alone = plots.pit_histogram(metrics.pit_histogram(flat))
    assert alone.get_ylim()[1] < 3
