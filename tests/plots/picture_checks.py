"""What the tests of pictures share: reading artists back, and finding words that are cut off or lie on each other."""

import itertools
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import FillBetweenPolyCollection, LineCollection
from matplotlib.transforms import Bbox

__all__ = ["band", "keys", "line", "segments", "words_fit"]


def line(ax: Axes, label: str) -> np.ndarray:
    """The points (2, n) of the one line that the keys call so."""
    (found,) = [artist for artist in ax.lines if artist.get_label() == label]
    return np.asarray(found.get_data(), dtype=float)


def segments(ax: Axes, label: str) -> np.ndarray:
    """The segments (n, 2, 2) of the one collection that the keys call so."""
    (found,) = [a for a in ax.collections if isinstance(a, LineCollection) and a.get_label() == label]
    return np.asarray(found.get_segments())


def band(ax: Axes, label: str) -> dict[float, tuple[float, float]]:
    """Lowest and highest point at each x of the filled area that the keys call so."""
    (found,) = [a for a in ax.collections if isinstance(a, FillBetweenPolyCollection) and a.get_label() == label]
    points = np.concatenate([path.vertices for path in found.get_paths()])
    return {float(x): (points[points[:, 0] == x, 1].min(), points[points[:, 0] == x, 1].max()) for x in points[:, 0]}


def keys(ax: Axes) -> list[str]:
    legend = ax.get_legend()
    return [] if legend is None else [text.get_text() for text in legend.get_texts()]


def words_fit(axes: Sequence[Axes]) -> None:
    """Titles, keys, labels and notes lie on the page, and not on each other, in the drawn figure of these Axes."""
    figure = axes[0].figure
    figure.canvas.draw()
    found = {f"{name} of picture {place}": box for place, ax in enumerate(axes) for name, box in _words(ax).items()}
    for name, box in found.items():
        inside = (min(box.x0, box.y0) >= -1, box.x1 <= figure.bbox.x1 + 1, box.y1 <= figure.bbox.y1 + 1)
        assert all(inside), f"{name} leaves the page: {box}"
    for (one, first), (two, second) in itertools.combinations(found.items(), 2):
        assert not first.padded(-1).overlaps(second.padded(-1)), f"{one} lies on {two}"


def _words(ax: Axes) -> dict[str, Bbox]:
    artists = {"x label": ax.xaxis.label, "y label": ax.yaxis.label, "title": ax.title, "keys": ax.get_legend()}
    artists |= {f"note {index}": text for index, text in enumerate(ax.texts)}
    renderer = ax.figure.canvas.get_renderer()
    boxes = {name: artist.get_window_extent(renderer) for name, artist in artists.items() if artist is not None}
    return {name: box for name, box in boxes.items() if box.width > 0}
