"""Selective prediction keeps its promise in simulation, and finds what can be found."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from credibly.core.errors import NotFiniteError, ShapeError, SupportError
from credibly.decision import SelectiveRisk
from credibly.decision.selective import candidate_ranks

REPEATS = 2000
RISK, DELTA = 0.1, 0.1
MOST = DELTA + stats.norm.isf(1e-4) * math.sqrt(DELTA * (1 - DELTA) / REPEATS)
"""What the share of broken promises exceeds with a probability of 1e-4, about, if the guarantee is just kept."""


class Hoeffding:
    """A bound as `conformal` has them: any losses in [0, 1]."""

    def p_values(self, losses: torch.Tensor, risk: float, *, delta: float) -> torch.Tensor:
        return torch.exp(-2 * len(losses) * (risk - losses.mean(0)).clamp(min=0) ** 2)


def rows(
    num_rows: int, seed: int, error: float | None = None, levels: int = 0, repeats: int = REPEATS
) -> tuple[torch.Tensor, torch.Tensor]:
    """Confidences, uniform or on some levels, and errors of probability 1 - confidence, or of one for all."""
    generator = torch.Generator().manual_seed(seed)
    sure = torch.rand(repeats, num_rows, generator=generator, dtype=torch.float64)
    sure = (sure * levels).floor() / levels if levels else sure
    wrong = torch.rand(repeats, num_rows, generator=generator, dtype=torch.float64) < (
        1 - sure if error is None else error
    )
    return sure, wrong.double()


@pytest.mark.parametrize("num_rows", [60, 400])
def test_promise_is_broken_with_probability_delta_at_most(num_rows: int) -> None:
    """Above t the risk is (1 - t) / 2: below 0.8 the promise is broken."""
    recipe = SelectiveRisk(risk=RISK, delta=DELTA)
    found = [recipe.calibrate(*one) for one in zip(*rows(num_rows, 1), strict=True)]
    broken = [predictor.controlled and (1 - predictor.threshold) / 2 > RISK for predictor in found]
    assert np.mean(broken) <= MOST


def test_promise_is_not_kept_by_never_answering() -> None:
    """Of many rows more than half of the fifth that may be answered is."""
    found = [SelectiveRisk(risk=RISK).calibrate(*one) for one in zip(*rows(5000, 7, repeats=50), strict=True)]
    assert np.mean([predictor.coverage for predictor in found]) > 0.1


@pytest.mark.parametrize("levels", [0, 3])
def test_all_candidates_at_the_risk_pass_with_probability_delta_at_most(levels: int) -> None:
    recipe = SelectiveRisk(risk=RISK, delta=DELTA)
    found = [recipe.calibrate(*one).controlled for one in zip(*rows(200, 2, RISK, levels), strict=True)]
    assert 0 < np.mean(found) <= MOST


def test_ties_keep_the_promise() -> None:
    """On 10 levels the risk above level k is (8 - k) / 20 + 1 / 10, so that only the highest may be answered."""
    recipe = SelectiveRisk(risk=0.14, delta=DELTA, num_candidates=8)
    found = [recipe.calibrate(*one) for one in zip(*rows(1000, 3, levels=10), strict=True)]
    broken = [predictor.controlled and predictor.threshold < 0.75 for predictor in found]
    assert np.mean(broken) <= MOST
    assert np.mean([predictor.controlled for predictor in found]) > 0.05


def test_fixed_sequence_keeps_the_promise() -> None:
    recipe = SelectiveRisk(risk=RISK, delta=DELTA)
    grid = torch.linspace(0.5, 0.9, 21, dtype=torch.float64)
    found = [recipe.calibrate(*one, thresholds=grid) for one in zip(*rows(600, 4), strict=True)]
    broken = [predictor.controlled and predictor.threshold < 0.8 - 1e-9 for predictor in found]
    assert np.mean(broken) <= MOST
    assert np.mean([predictor.controlled for predictor in found]) > 0.3  # above 0.9, some 3 of 60 are wrong, 2 may be


def test_other_bounds_keep_the_promise_for_other_losses() -> None:
    recipe = SelectiveRisk(risk=0.3, delta=DELTA, bound=Hoeffding(), num_candidates=8)
    sure, wrong = rows(300, 5)
    losses = (1 - sure) * (0.5 + wrong) / 1.5  # of mean (1 - c) (1.5 - c) / 1.5
    found = [recipe.calibrate(*one) for one in zip(sure, losses, strict=True)]
    risks = [integral(predictor.threshold) for predictor in found if predictor.controlled]
    assert len(risks) > REPEATS / 2
    assert (np.array(risks) > 0.3).sum() <= REPEATS * MOST


def integral(threshold: float) -> float:
    """The mean of (1 - c) (1.5 - c) / 1.5 over c uniform above the threshold."""
    d = 1 - max(threshold, 0.0)
    return (d / 4 + d**2 / 3) / 1.5


def test_result_is_what_the_rows_say() -> None:
    """The first 80 of 100 rows are right, and those after them wrong."""
    sure = torch.linspace(1, 0, 100, dtype=torch.float64)
    losses = (torch.arange(100) >= 80).double()
    found = SelectiveRisk(risk=0.1, delta=0.1, num_candidates=100).calibrate(sure, losses)
    answered = found.answers(sure)
    assert found.controlled
    count, wrong = int(answered.sum()), int(losses[answered].sum())
    assert answered[:count].all()
    assert found.coverage == count / 100
    assert found.risk == pytest.approx(wrong / count)
    assert found.p_value == pytest.approx(stats.binom.cdf(wrong, count, 0.1), rel=1e-9)
    level = 0.1 / len(candidate_ranks(100, 0.1, 0.1, 100))
    assert found.p_value <= level < stats.binom.cdf(count + 1 - 80, count + 1, 0.1)
    assert found.select(torch.arange(100), sure).tolist() == [*range(count), *[-1] * (100 - count)]


def test_everything_is_answered_where_nothing_is_wrong() -> None:
    found = SelectiveRisk().calibrate(torch.zeros(400), torch.zeros(400))
    assert (found.controlled, found.threshold, found.coverage, found.risk) == (True, -math.inf, 1.0, 0.0)
    assert found.answers([-3.0, 0.0]).tolist() == [True, True]


@pytest.mark.parametrize(("num_rows", "wrong"), [(1, 0.0), (20, 0.0), (400, 1.0)])
def test_what_cannot_be_shown_is_not_claimed(num_rows: int, wrong: float) -> None:
    """Of 20 rows not even 20 right ones rule out a risk of 5 % at a level of 5 %."""
    found = SelectiveRisk(risk=0.05, delta=0.05).calibrate(torch.arange(num_rows), torch.full((num_rows,), wrong))
    assert not found.controlled
    assert (found.threshold, found.coverage, found.p_value) == (math.inf, 0.0, 1.0)
    assert math.isnan(found.risk)
    assert not found.answers([1e300, torch.inf]).any()


def test_candidates_can_pass_and_reach_all_rows() -> None:
    ranks = candidate_ranks(500, 0.05, 0.1, 16)
    assert len(ranks) == 16
    assert int(ranks[-1]) == 500
    assert 0.95 ** int(ranks[0]) <= 0.1 / 16 < 0.95 ** (int(ranks[0]) - 1)
    assert len(candidate_ranks(10, 0.05, 0.1, 16)) == 0


def test_fixed_sequence_stops_at_the_first_failure() -> None:
    """Above 2 one row is wrong of 1, so that nothing lower is looked at."""
    sure, losses = torch.tensor([3.0] + 200 * [1.0]), torch.tensor([1.0] + 200 * [0.0])
    recipe = SelectiveRisk(risk=0.1, delta=0.1)
    assert not recipe.calibrate(sure, losses, thresholds=[0.5, 2.0]).controlled
    assert recipe.calibrate(sure, losses, thresholds=[0.5]).coverage == 1
    assert recipe.calibrate(sure, losses, thresholds=[-math.inf]).threshold == -math.inf


def test_row_order_precision_and_device_change_nothing(device: torch.device) -> None:
    sure, wrong = (part[0].to(device) for part in rows(300, 6))
    sure = sure.float()
    recipe = SelectiveRisk(risk=0.3, delta=0.1)
    found, order = recipe.calibrate(sure, wrong), torch.randperm(300).to(device)
    assert found.controlled
    for other in (
        recipe.calibrate(sure[order], wrong[order]),
        recipe.calibrate(sure.double(), wrong.float()),
        recipe.calibrate(sure.cpu().numpy(), wrong.bool().cpu().numpy()),
    ):
        assert (other.threshold, other.coverage, other.risk) == (found.threshold, found.coverage, found.risk)


def test_refusals_name_what_is_needed() -> None:
    recipe = SelectiveRisk()
    with pytest.raises(ShapeError, match=r"`confidences` must have shape \(rows,\), of at least one row; got \(0,\)"):
        recipe.calibrate([], [])
    with pytest.raises(ShapeError, match=r"`losses` must have shape \(rows,\), of at least one row; got \(1, 1\)"):
        recipe.calibrate([1.0], [[1.0]])
    with pytest.raises(ShapeError, match="`losses` has 1 rows, `confidences` has 2"):
        recipe.calibrate([1.0, 2.0], [1.0])
    with pytest.raises(NotFiniteError, match="`confidences` must be finite"):
        recipe.calibrate([torch.nan], [1.0])
    with pytest.raises(NotFiniteError, match="`losses` must be finite"):
        recipe.calibrate([1.0], [torch.nan])
    with pytest.raises(SupportError, match=r"`losses` must lie in \[0, 1\]; they range from 0 to 3"):
        recipe.calibrate([1.0, 2.0], [0.0, 3.0])
    with pytest.raises(SupportError, match="needs `losses` of 0 and 1; for others give a `bound`"):
        recipe.calibrate([1.0], [0.5])
    with pytest.raises(NotFiniteError, match="`thresholds` must be finite"):
        recipe.calibrate([1.0], [1.0], thresholds=[torch.nan])
    with pytest.raises(ShapeError, match="`thresholds` must have shape"):
        recipe.calibrate([1.0], [1.0], thresholds=[])
    for wrong in ({"risk": 0.0}, {"delta": 1.0}):
        with pytest.raises(ValueError, match="must lie strictly between 0 and 1"):
            SelectiveRisk(**wrong)
    with pytest.raises(ValueError, match="`num_candidates` must be a whole number"):
        SelectiveRisk(num_candidates=0)
    found = recipe.calibrate(torch.zeros(400), torch.zeros(400))
    with pytest.raises(NotFiniteError, match="`confidences` must not be NaN"):
        found.answers([torch.nan])
    with pytest.raises(ShapeError, match="`acts` and `confidences` must have one shape"):
        found.select([1, 2], [0.5])
