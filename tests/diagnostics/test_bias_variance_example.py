"""What the example on bias and variance says of wider networks is so, on fewer data sets than it takes itself."""

import ast
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "bias_variance.py"


def definitions():
    """The names that the example defines before it begins to train."""
    tree, names = ast.parse(EXAMPLE.read_text()), {"__name__": EXAMPLE.stem}
    last = next(index for index, node in enumerate(tree.body) if getattr(node, "name", "") == "decompose")
    exec(compile(ast.Module(tree.body[: last + 1], []), str(EXAMPLE), "exec"), names)
    return names


def test_a_wider_network_shows_more_variance_and_less_bias(tmp_path, monkeypatch):
    """The bias differs by 4 standard errors. The variance is larger on the same 12 data sets one by one: were widths
    alike, 11 or 12 of 12 would be so once in 300 times (sign test)."""
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), str(tmp_path)])
    decompose = definitions()["decompose"]
    narrow, wide = (decompose(name, num_datasets=12) for name in ("1 unit, MLE", "10 units, MLE"))
    assert narrow.noise == wide.noise
    assert narrow.bias - wide.bias > 4 * (narrow.standard_error.bias**2 + wide.standard_error.bias**2) ** 0.5
    assert wide.variance > narrow.variance
    assert int((_deviations(wide) > _deviations(narrow)).sum()) >= 11


def _deviations(parts):
    """How far each data set's prediction lies from the mean prediction, squared, the mean over inputs."""
    return (parts.means - parts.means.mean(0)).square().mean(1)
