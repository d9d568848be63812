"""The course of training: the loss, and how well held-out rows were predicted meanwhile."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from credibly.plots.style import DATA, INK, SECOND, axes_of, quiet
from credibly.training.history import History

__all__ = ["training_history"]


def training_history(
    history: History | Sequence[History], ax: Axes | None = None, *, title: str = "", legend: bool = True
) -> Axes:
    """Draw the training loss of each epoch and the negative log score of the validation rows.

    Both are in nats per row, on one axis; the loss of MAP holds the prior's share besides. With validation rows a dot
    marks each run's best epoch. Several runs, the members of an ensemble, are drawn as thin lines.

    Args:
        history: of one run (`posterior.info.history`), or of several (`posterior.info.histories`).
        ax: where to draw; by default a new figure.
        title: above the picture.
        legend: whether to say what the lines mean.
    """
    runs = [history] if isinstance(history, History) else list(history)
    if not any(run.loss for run in runs):
        raise ValueError("`history` holds no epoch: nothing was trained")
    ax = axes_of(ax, width=5.5, height=3.5)
    width, alpha = (1.7, 1.0) if len(runs) == 1 else (0.8, 0.6)
    for first, run in zip([True] + [False] * len(runs), runs, strict=False):
        epochs = np.arange(len(run.loss))
        name = "training loss" if first else None
        ax.plot(epochs, run.loss, color=DATA, linewidth=width, alpha=alpha, label=name)
        if not run.validation_log_prob:
            continue
        scores = -np.asarray(run.validation_log_prob)
        name = "validation" if first else None
        ax.plot(epochs, scores, color=SECOND, linewidth=width, alpha=alpha, label=name)
        best, name = run.best_epoch, "best" if first else None
        ax.plot(best, scores[best], "o", color=SECOND, markersize=5, markeredgecolor="white", label=name)
    ax.set(xlabel="epoch", ylabel="nats per row")
    ax.margins(x=0.02)
    quiet(ax)
    ax.yaxis.grid(visible=True, color=INK, alpha=0.12, linewidth=0.8)
    if legend:
        ax.legend(frameon=False, fontsize="small", handlelength=1.4)
    if title:
        ax.set_title(title)
    return ax
