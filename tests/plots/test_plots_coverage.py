"""Pictures of coverage show observed shares with the intervals of their tables, and say which do not hold."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from picture_checks import keys, line, segments

from credibly.core.errors import NotFiniteError, ShapeError
from credibly.metrics.conditional_coverage import GroupCoverage, group_coverage
from credibly.metrics.coverage_report import CoverageReport, coverage_report
from credibly.plots.coverage import coverage_against_nominal, coverage_by_group
from credibly.plots.style import ALARM, DATA


def report(hits: int, rows: int, coverage: float, **options: float) -> CoverageReport:
    return coverage_report(torch.arange(rows) < hits, coverage, **options)


def test_dots_and_intervals_are_those_of_the_reports() -> None:
    reports = [report(50, 100, 0.5), report(60, 100, 0.8), report(90, 100, 0.9, num_calibration=50)]
    ax = coverage_against_nominal(reports)
    np.testing.assert_array_equal(line(ax, "observed, 95 % interval"), [[0.5, 0.9], [0.5, 0.9]])
    np.testing.assert_array_equal(line(ax, "does not hold"), [[0.8], [0.6]])
    assert line_color(ax, "does not hold") == ALARM
    expected = segments(ax, "95 % if it holds")
    np.testing.assert_array_equal(expected[:, :, 1], [r.expected for r in reports])
    np.testing.assert_array_equal(expected[:, 0, 0], [r.coverage for r in reports])
    drawn = np.concatenate([part.get_segments() for part in ax.collections if part.get_label().startswith("_")])
    np.testing.assert_array_equal(drawn[:, :, 1], [[r.lower, r.upper] for r in (reports[0], reports[2], reports[1])])


def line_color(ax: plt.Axes, label: str) -> object:
    return next(artist.get_color() for artist in ax.lines if artist.get_label() == label)


def test_one_report_shows_its_part_of_the_diagonal() -> None:
    one = report(93, 100, 0.9)
    ax = coverage_against_nominal(one)
    low, high = ax.get_xlim()
    assert ax.get_ylim() == (low, high)
    assert 0.6 < low < min(one.lower, one.expected[0])
    assert max(one.upper, one.expected[1]) < high <= 1.02
    assert keys(ax) == ["95 % if it holds", "observed, 95 % interval"]


def test_refuses_no_reports_and_different_confidences() -> None:
    with pytest.raises(ShapeError, match="`reports` must hold at least one report"):
        coverage_against_nominal([])
    with pytest.raises(ValueError, match=r"`reports` must share one confidence; got \[0.9, 0.95\]"):
        coverage_against_nominal([report(5, 10, 0.5), report(5, 10, 0.5, confidence=0.9)])
    assert plt.get_fignums() == []


def groups() -> GroupCoverage:
    held = torch.cat([torch.arange(50) < 45, torch.arange(40) < 10, torch.arange(1) < 1])
    return group_coverage(held, torch.tensor([2] * 50 + [5] * 40 + [9]), 0.9)


@pytest.mark.parametrize("simultaneous", [True, False])
def test_groups_stand_from_top_to_bottom_with_their_intervals(simultaneous: bool) -> None:
    table = groups()
    ax = coverage_by_group(table, simultaneous=simultaneous)
    name = "95 % intervals, jointly" if simultaneous else "95 % intervals, each"
    np.testing.assert_array_equal(line(ax, name), [[0.9, 1.0], [0, 2]])
    np.testing.assert_array_equal(line(ax, "differs"), [[0.25], [1]])
    assert (line_color(ax, name), line_color(ax, "differs")) == (DATA, ALARM)
    drawn = {part[0, 1]: part[:, 0] for artist in ax.collections for part in np.asarray(artist.get_segments())}
    low, high = table.interval(simultaneous=simultaneous)
    np.testing.assert_array_equal([drawn[place] for place in (0, 1, 2)], torch.stack([low, high], 1))
    np.testing.assert_array_equal(line(ax, "0.9 asked for")[0], [0.9, 0.9])
    assert [label.get_text() for label in ax.get_yticklabels()] == ["2", "5", "9"]
    assert [text.get_text() for text in ax.texts] == ["50", "40", "1"]
    assert ax.get_ylim()[0] > ax.get_ylim()[1]


def test_names_replace_numbers_and_must_be_as_many() -> None:
    ax = coverage_by_group(groups(), names=["a", "b", "c"], ylabel="size")
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "b", "c"]
    assert ax.get_ylabel() == "size"
    with pytest.raises(ShapeError, match="`names` must name 3 groups; got 1"):
        coverage_by_group(groups(), names=["a"])


def test_many_groups_are_labelled_as_far_as_they_can_be_read() -> None:
    many = group_coverage(torch.arange(4000) % 10 > 0, torch.arange(4000) // 8, 0.9)
    ax = coverage_by_group(many)
    assert sum(len(artist.get_segments()) for artist in ax.collections) == 500
    size = ax.get_yticklabels()[0].get_fontsize()
    spacing = np.diff(ax.get_yticks())[0] * ax.get_position().height * ax.figure.get_figheight() * 72 / 500
    assert 5 <= size <= 1.2 * spacing


def test_refuses_tables_without_rows() -> None:
    nothing = torch.empty(0, dtype=torch.int64)
    with pytest.raises(ShapeError, match=r"`observed` must have shape \(rows,\)"):
        coverage_by_group(GroupCoverage(nothing, nothing, nothing, 0.9))
    zero = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(NotFiniteError, match="`observed` must be finite"):
        coverage_by_group(GroupCoverage(zero, zero, zero, 0.9))
    assert plt.get_fignums() == []
