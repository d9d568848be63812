"""The risk-coverage picture passes through its table, and through what lies between."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from picture_checks import keys, line

from credibly.core.errors import NotFiniteError, ShapeError
from credibly.distributions.entry import from_probs
from credibly.metrics.selective import RiskCoverage, risk_coverage
from credibly.plots.risk_coverage import risk_coverage as draw


def table(coverage: list[float], risk: list[float]) -> RiskCoverage:
    columns = [torch.tensor(column, dtype=torch.float64) for column in (coverage, risk)]
    return RiskCoverage(-columns[0], *columns)


def at(points: np.ndarray, x: list[float]) -> np.ndarray:
    return np.array([points[1][np.isclose(points[0], one, rtol=0, atol=1e-12)][0] for one in x])


def test_passes_through_the_table() -> None:
    shown = table([0.25, 0.5, 1.0], [0.0, 0.25, 0.375])
    points = line(draw(shown), "observed")
    np.testing.assert_allclose(at(points, [0.25, 0.5, 1.0]), shown.risk, atol=1e-15)


def test_rows_of_one_confidence_are_answered_in_proportion() -> None:
    x, y = line(draw(table([0.5, 1.0], [0.25, 0.5])), "observed")
    np.testing.assert_allclose(y[x <= 0.5], 0.25, rtol=1e-6)
    np.testing.assert_allclose(x * y, np.where(x <= 0.5, 0.25 * x, 0.125 + 0.75 * (x - 0.5)), atol=1e-12)


def test_best_order_equals_the_table_of_rows_sorted_by_their_losses() -> None:
    probs = torch.linspace(0.51, 0.99, 40, dtype=torch.float64)
    targets = (torch.arange(40) % 4 > 0).long()
    predicted = from_probs(probs)
    order = (targets != 1).double() + torch.linspace(0, 0.5, 40, dtype=torch.float64)
    best = risk_coverage(predicted, targets, confidence=lambda _: -order)
    x, y = line(draw(risk_coverage(predicted, targets)), "best order")
    coverage = np.arange(1, 41) / 40
    np.testing.assert_allclose(np.interp(coverage, x, x * y) / coverage, best.risk, atol=1e-12)


def test_names_and_areas_are_in_the_keys() -> None:
    tables = {"one": table([0.5, 1.0], [0.0, 0.2]), "two": table([1.0], [0.2])}
    assert keys(draw(tables, areas={"one": 0.0123456, "two": 0.2})) == [
        "one, AURC 0.01235",
        "two, AURC 0.2",
        "best order",
    ]
    assert keys(draw(tables["one"], areas=torch.tensor(0.5), best=False)) == ["observed, AURC 0.5"]
    with pytest.raises(ValueError, match=r"`areas` must name the tables, \['one', 'two'\]; got \['one'\]"):
        draw(tables, areas={"one": 0.1})


def test_first_rows_do_not_set_the_height() -> None:
    ax = draw(table([0.01, 0.1, 1.0], [1.0, 0.1, 0.2]))
    assert 0.2 < ax.get_ylim()[1] < 0.3
    assert draw(table([1.0], [0.0])).get_ylim() == (0.0, 1.0)


def test_refuses_what_it_cannot_draw() -> None:
    with pytest.raises(ValueError, match=r"losses of 0 and 1 only, whose risk lies in \[0, 1\]; got 3"):
        draw(table([1.0], [3.0]))
    with pytest.raises(ShapeError, match=r"`coverage` must have shape \(rows,\)"):
        draw(table([], []))
    with pytest.raises(ShapeError, match="as many risks as coverages; got 1 and 2"):
        draw(table([0.5, 1.0], [0.1]))
    with pytest.raises(NotFiniteError, match="`risk` must be finite"):
        draw(table([1.0], [float("nan")]))
    assert plt.get_fignums() == []
    assert keys(draw(table([1.0], [3.0]), best=False)) == ["observed"]
