"""Conformal risk control: split conformal as a special case, and its expected loss over all orders of a set of rows."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from credibly.conformal.learn_then_test import RCPS, LearnThenTest
from credibly.conformal.ranks import threshold
from credibly.conformal.risk_control import ConformalRiskControl, monotone_losses
from credibly.core.errors import NotFiniteError, ShapeError, SupportError


@given(st.integers(1, 60), st.integers(0, 100), st.integers(0, 2**30))
def test_miscoverage_as_the_loss_is_split_conformal(n, percent, seed):
    scores = torch.randint(0, 40, (n,), generator=torch.Generator().manual_seed(seed)).double().sort().values
    grid = torch.arange(-1, 41, dtype=torch.float64)  # -1 covers nothing, 40 everything
    result = ConformalRiskControl(level=percent / 100).calibrate(scores.unsqueeze(-1) > grid, grid)
    limit = threshold(scores, 1 - percent / 100).item()
    if math.isinf(limit):
        assert result.controlled == (limit < 0)
        assert result.parameter.item() == (40.0 if limit > 0 else -1.0)
    else:
        assert result.controlled
        assert result.parameter.item() == limit


@given(
    st.integers(2, 7).flatmap(
        lambda rows: st.lists(st.lists(st.integers(-4, 12), min_size=4, max_size=4), min_size=rows, max_size=rows)
    ),
    st.integers(0, 120),
    st.integers(12, 15),
)
def test_the_expected_loss_over_all_orders_is_at_most_the_level(rows, tenths, maximum):
    # each of the rows in turn is the test row: their mean loss is the conditional expectation, given the set of rows
    table = [sorted(row, reverse=True) for row in rows]
    level, n = Fraction(tenths, 10), len(table) - 1
    control = ConformalRiskControl(level=tenths / 10, maximum=maximum)
    losses = []
    for test in range(len(table)):
        rest = [row for i, row in enumerate(table) if i != test]
        result = control.calibrate(rest, [0.0, 1.0, 2.0, 3.0])
        qualifies = [j for j in range(4) if (sum(row[j] for row in rest) + maximum) <= level * (n + 1)]
        assert result.controlled == bool(qualifies)
        assert result.index == (qualifies[0] if qualifies else 3)
        losses.append(table[test][result.index])
    if all(row[-1] <= level for row in table):  # the theorem's premise: the last lambda is safe
        assert sum(losses) <= level * len(losses)


def test_by_hand_and_at_an_exact_boundary(dtype, device):
    # 9 rows: (total + 1) / 10 <= .3 needs a total of at most 2; floats put 3 / 10 above .1 * 3
    losses = torch.tensor([[1, 1, 0]] * 2 + [[1, 0, 0]] * 7, dtype=dtype, device=device)
    result = ConformalRiskControl(level=0.1 * 3).calibrate(losses, torch.tensor([0.2, 0.4, 0.6], device=device))
    assert (result.index, result.controlled) == (1, True)
    assert result.parameter.item() == pytest.approx(0.4)
    assert result.risks.tolist() == pytest.approx([1.0, 2 / 9, 0.0])
    assert result.bounds.tolist() == pytest.approx([1.0, 0.3, 0.1])
    assert result.risk.item() == pytest.approx(2 / 9)
    assert result.risks.device == losses.device


def test_losses_of_sevenths_add_up():
    losses = torch.full((99, 1), 0.07, dtype=torch.float64)
    assert ConformalRiskControl(level=0.07, maximum=0.07).calibrate(losses, [1.0]).controlled
    assert not ConformalRiskControl(level=0.0699999, maximum=0.07).calibrate(losses, [1.0]).controlled


def test_a_loss_of_the_maximum_is_no_larger_in_single_precision(dtype):
    losses = torch.full((60, 1), 0.07, dtype=dtype)  # in float32 that is more than 0.07
    assert ConformalRiskControl(level=0.07, maximum=0.07).calibrate(losses, [1.0]).controlled
    assert RCPS(level=0.08, maximum=0.07).calibrate(losses, [1.0]).controlled
    assert LearnThenTest(level=0.07, maximum=0.07).calibrate(losses, [1.0]).p_values.tolist() == [1.0]


def test_too_few_rows_control_nothing_and_say_so():
    zeros = torch.zeros(8, 3)
    result = ConformalRiskControl(level=0.1).calibrate(zeros, [1, 2, 3])
    assert (result.index, result.controlled) == (2, False)
    assert ConformalRiskControl(level=0.1).calibrate(torch.zeros(9, 3), [1, 2, 3]).index == 0
    assert not ConformalRiskControl(level=0).calibrate(zeros, [1, 2, 3]).controlled
    assert ConformalRiskControl(level=1).calibrate(torch.ones(8, 3), [1, 2, 3]).index == 0


def test_any_bound_and_any_unit():
    generator = torch.Generator().manual_seed(0)
    losses = torch.rand(50, 20, generator=generator, dtype=torch.float64).sort(-1, descending=True).values
    grid = torch.arange(20.0)
    plain = ConformalRiskControl(level=0.3).calibrate(losses, grid)
    scaled = ConformalRiskControl(level=300, maximum=1000).calibrate(1000 * losses, grid)
    assert (plain.index, plain.controlled) == (scaled.index, scaled.controlled)
    loose = ConformalRiskControl(level=0.3, maximum=5).calibrate(losses, grid)
    assert loose.index > plain.index


def test_expected_false_negative_rate_by_simulation():
    # 400 repeats of 40 + 200 rows; the mean loss over repeats within 4 standard errors below the level: 3e-5
    generator = torch.Generator().manual_seed(1)
    grid = torch.linspace(0, 1, 51, dtype=torch.float64)
    control = ConformalRiskControl(level=0.2)
    means = []
    for _ in range(400):
        probs = torch.rand(240, 6, generator=generator, dtype=torch.float64)
        labels = torch.rand(240, 6, generator=generator, dtype=torch.float64) < probs
        kept = probs.unsqueeze(1) >= 1 - grid.unsqueeze(-1)  # (rows, lambdas, labels)
        missed = (labels.unsqueeze(1) & ~kept).sum(-1) / labels.sum(-1).clamp(min=1).unsqueeze(-1)
        chosen = control.calibrate(missed[:40], grid).index
        means.append(missed[40:, chosen].mean().item())
    mean = torch.tensor(means, dtype=torch.float64)
    error = 4 * mean.std().item() / 20
    assert 0.2 - 1 / 41 - 0.02 - error < mean.mean().item() < 0.2 + error  # not needlessly low: Theorem 2, and the grid


def test_monotone_losses():
    given_losses = torch.tensor([[0.5, 0.2, 0.4, 0.1], [0.1, 0.9, 0.0, 0.0]])
    found = monotone_losses(given_losses)
    assert torch.equal(found, torch.tensor([[0.5, 0.4, 0.4, 0.1], [0.9, 0.9, 0.0, 0.0]]).double())
    with pytest.raises(ValueError, match="monotone_losses"):
        ConformalRiskControl(level=0.5).calibrate(given_losses, [0, 1, 2, 3])
    assert ConformalRiskControl(level=0.9).calibrate(found, [0, 1, 2, 3]).controlled


def test_bad_arguments():
    control = ConformalRiskControl(level=0.1)
    ones = torch.ones(3, 2)
    for losses, lambdas, error in (
        (torch.empty(0, 2), [1, 2], ShapeError),
        (torch.empty(3, 0), [], ShapeError),
        (torch.ones(3), [1, 2, 3], ShapeError),
        (ones, [1, 2, 3], ShapeError),
        (ones, [2, 1], ValueError),
        (ones, [1.0, math.nan], ValueError),
        (ones * math.nan, [1, 2], NotFiniteError),
        (-ones * math.inf, [1, 2], NotFiniteError),
        (2 * ones, [1, 2], SupportError),
        (2 * ones.long(), [1, 2], SupportError),
    ):
        with pytest.raises(error):
            control.calibrate(losses, lambdas)
    for options in ({"level": math.nan}, {"level": 0.1, "maximum": math.inf}):
        with pytest.raises(ValueError, match="finite"):
            ConformalRiskControl(**options)


def test_the_callers_tensors_are_unchanged():
    losses = torch.rand(30, 5).sort(-1, descending=True).values
    before = losses.clone()
    ConformalRiskControl(level=0.5).calibrate(losses, torch.arange(5))
    assert torch.equal(losses, before)
