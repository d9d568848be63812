"""RCPS and learn-then-test: hand values, duality with the bounds, and how often they are wrong."""

import math

import pytest
import torch
from scipy import stats

import credibly
from credibly.conformal.bounds import Betting, ExactBinomial, HoeffdingBentkus
from credibly.conformal.learn_then_test import RCPS, LearnThenTest
from credibly.conformal.multiple_testing import BenjaminiHochberg, Bonferroni, FixedSequence, Holm
from credibly.conformal.risk_control import ConformalRiskControl
from credibly.core.errors import NotFiniteError, NotSupportedError, ShapeError, SupportError

BOUNDS = {"exact": ExactBinomial(), "hoeffding_bentkus": HoeffdingBentkus(), "betting": Betting()}
PROCEDURES = {"bonferroni": Bonferroni(), "holm": Holm(), "sequence": FixedSequence()}


@pytest.fixture(params=BOUNDS)
def bound(request):
    return BOUNDS[request.param]


def counted(counts, rows):
    """0/1 losses with the given column sums, in an order that is the same for all columns and fair to bets."""
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(0))
    return torch.stack([(order < count).double() for count in counts], -1)


def test_rcps_by_hand():
    # exact upper bounds of 20, 8, 5, 0 of 100 at delta .1: by scipy
    losses = counted([20, 8, 5, 0], 100)
    result = RCPS(level=0.1, bound=ExactBinomial()).calibrate(losses, [1.0, 2.0, 3.0, 4.0])
    limits = [stats.beta(c + 1, 100 - c).ppf(0.9) for c in (20, 8, 5, 0)]
    assert result.bounds.tolist() == pytest.approx(limits)
    assert [limit < 0.1 for limit in limits] == [False, False, True, True]
    assert (result.index, result.parameter.item(), result.controlled) == (2, 3.0, True)
    assert result.risks.tolist() == pytest.approx([0.2, 0.08, 0.05, 0.0])


def test_rcps_goes_back_from_the_conservative_end(bound):
    # a dip below the level further down does not count
    losses = counted([0, 60, 2, 1], 200)
    assert RCPS(level=0.2, bound=bound).calibrate(losses, [1, 2, 3, 4]).index == 2


def test_too_few_rows_control_nothing(bound):
    result = RCPS(level=0.05, delta=0.05, bound=bound).calibrate(torch.zeros(10, 3), [1, 2, 3])
    assert (result.index, result.controlled) == (2, False)
    tested = LearnThenTest(level=0.05, delta=0.05, bound=bound).calibrate(torch.zeros(10, 3), [1, 2, 3])
    assert not tested.controlled
    assert tested.best([1.0, 2.0, 3.0]) is None


def test_rcps_is_learn_then_test_in_the_order_of_the_grid(bound):
    generator = torch.Generator().manual_seed(1)
    level = torch.linspace(0.6, 0.0, 25, dtype=torch.float64)
    losses = (torch.rand(300, 1, generator=generator, dtype=torch.float64) < level).double()
    grid = torch.arange(25)
    for delta in (0.05, 0.2):
        control = RCPS(level=0.25, delta=delta, bound=bound).calibrate(losses, grid)
        tested = LearnThenTest(level=0.25, delta=delta, bound=bound, procedure=FixedSequence()).calibrate(losses, grid)
        assert tested.valid.nonzero().squeeze(-1).tolist() == list(range(control.index, 25))


def test_high_probability_is_more_conservative_than_the_mean(bound):
    generator = torch.Generator().manual_seed(2)
    level = torch.linspace(0.6, 0.0, 50, dtype=torch.float64)
    losses = (torch.rand(400, 1, generator=generator, dtype=torch.float64) < level).double()
    mean = ConformalRiskControl(level=0.25).calibrate(losses, torch.arange(50)).index
    assert RCPS(level=0.25, bound=bound).calibrate(losses, torch.arange(50)).index > mean


@pytest.mark.parametrize("scale", [0.01, 40.0])
def test_the_unit_of_the_losses(bound, scale):
    losses = counted([60, 20, 8, 2], 150)
    grid = [1, 2, 3, 4]
    plain = RCPS(level=0.2, bound=bound).calibrate(losses, grid)
    scaled = RCPS(level=0.2 * scale, bound=bound, maximum=scale).calibrate(losses * scale, grid)
    assert plain.index == scaled.index
    assert torch.allclose(plain.bounds * scale, scaled.bounds)
    tests = [
        LearnThenTest(level=0.2 * s, bound=bound, maximum=s).calibrate(losses * s, grid).valid for s in (1.0, scale)
    ]
    assert torch.equal(*tests)


def test_learn_then_test_by_hand():
    losses = counted([1, 15, 2, 0], 100)
    result = LearnThenTest(level=0.1, delta=0.1, bound=ExactBinomial()).calibrate(losses, [10.0, 20.0, 30.0, 40.0])
    tails = stats.binom(100, 0.1).cdf([1, 15, 2, 0])
    assert result.p_values.tolist() == pytest.approx(tails.tolist())
    assert result.valid.tolist() == (tails <= 0.1 / 4).tolist() == [True, False, True, True]
    assert result.best([3.0, 0.0, 1.0, 2.0]) == 2
    assert result.best([3.0, math.nan, 1.0, 1.0]) == 2
    order = [0, 2, 1, 3]
    sequence = LearnThenTest(level=0.1, bound=ExactBinomial(), procedure=FixedSequence())
    assert sequence.calibrate(losses, [1, 2, 3, 4], order=order).valid.tolist() == [True, False, True, False]
    assert sequence.calibrate(losses, [1, 2, 3, 4]).valid.tolist() == [False, False, True, True]


def test_grids_of_several_dimensions():
    grid = torch.cartesian_prod(torch.arange(3.0), torch.arange(2.0))
    result = LearnThenTest(level=0.3).calibrate(torch.zeros(80, 6), grid)
    assert result.parameters.shape == (6, 2)
    assert result.valid.tolist() == [True] * 6


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("procedure", PROCEDURES)
def test_how_often_a_bad_parameter_is_called_valid(name, procedure):
    # Half of the grid has a risk just above the level, the worst case; losses of one row are independent over the grid,
    # the worst case for several tests. 4000 repeats, 4 standard errors: failure rate 3e-5.
    generator = torch.Generator().manual_seed(3)
    risks = torch.tensor([0.2001] * 4 + [0.02] * 4, dtype=torch.float64)
    losses = (torch.rand(80, 4000, 8, generator=generator, dtype=torch.float64) < risks).double()
    p_values = BOUNDS[name].p_values(losses, 0.2, delta=0.1).flip(-1)
    valid = PROCEDURES[procedure].reject(p_values, 0.1).flip(-1)
    assert valid[:, :4].any(-1).double().mean().item() <= 0.1 + 4 * math.sqrt(0.09 / 4000)
    control = LearnThenTest(level=0.2, delta=0.1, bound=BOUNDS[name], procedure=PROCEDURES[procedure])
    for repeat in range(20):  # the same, one calibration at a time
        assert torch.equal(control.calibrate(losses[:, repeat], torch.arange(8)).valid, valid[repeat])


def test_how_often_rcps_exceeds_the_level(bound):
    # the loss 1{U > lambda} has risk 1 - lambda: exact. 400 repeats, 4 standard errors: failure rate 3e-5
    generator = torch.Generator().manual_seed(4)
    grid = torch.linspace(0, 1, 51, dtype=torch.float64)
    control = RCPS(level=0.2, delta=0.1, bound=bound)
    wrong = 0
    for _ in range(400):
        losses = torch.rand(60, 1, generator=generator, dtype=torch.float64) > grid
        wrong += 1 - control.calibrate(losses, grid).parameter.item() > 0.2 + 1e-9
    assert wrong / 400 <= 0.1 + 4 * math.sqrt(0.09 / 400)


def test_bad_arguments(bound):
    for control in (RCPS(level=0.1, bound=bound), LearnThenTest(level=0.1, bound=bound)):
        for losses, lambdas, error in (
            (torch.empty(0, 2), [1, 2], ShapeError),
            (torch.empty(3, 0), [], ShapeError),
            (torch.ones(3), [1, 2, 3], ShapeError),
            (torch.ones(3, 2), [1, 2, 3], ShapeError),
            (torch.ones(3, 2) * math.nan, [1, 2], NotFiniteError),
            (torch.ones(3, 2) * 2, [1, 2], SupportError),
        ):
            with pytest.raises(error):
                control.calibrate(losses, lambdas)
    with pytest.raises(ValueError, match="increase"):
        RCPS(level=0.1).calibrate(torch.ones(3, 2), [2, 1])
    for order in ([0, 0], [1, 2], [0]):
        with pytest.raises(ValueError, match="order"):
            LearnThenTest(level=0.1).calibrate(torch.ones(3, 2), [1, 2], order=order)
    with pytest.raises(NotSupportedError, match="family-wise"):
        LearnThenTest(level=0.1, procedure=BenjaminiHochberg())
    for recipe in (RCPS, LearnThenTest):
        for options in ({"level": -1}, {"level": math.nan}, {"level": 0.1, "delta": 0}, {"level": 0.1, "maximum": 0}):
            with pytest.raises(ValueError, match="must"):
                recipe(**options)
    result = LearnThenTest(level=0.5).calibrate(torch.zeros(50, 2), [1, 2])
    with pytest.raises(ShapeError, match="costs"):
        result.best([1.0])
    with pytest.raises(NotFiniteError, match="costs"):
        result.best([1.0, math.nan])


def test_levels_at_their_ends(bound):
    zeros, ones = torch.zeros(50, 2), torch.ones(50, 2)
    assert not RCPS(level=0, bound=bound).calibrate(zeros, [1, 2]).controlled
    assert not LearnThenTest(level=0, bound=bound).calibrate(zeros, [1, 2]).controlled
    assert RCPS(level=2, bound=bound).calibrate(ones, [1, 2]).index == 0
    assert LearnThenTest(level=1, bound=bound).calibrate(zeros, [1, 2]).controlled


def test_recipes_and_results_are_saved(tmp_path, bound):
    recipe = LearnThenTest(level=0.2, bound=bound, procedure=FixedSequence(num_starts=2))
    result = recipe.calibrate(counted([60, 20, 8, 2], 150), [1, 2, 3, 4])
    control = RCPS(level=0.2, bound=bound).calibrate(counted([60, 20, 8, 2], 150), [1, 2, 3, 4])
    for name, value in (("recipe", recipe), ("result", result), ("control", control)):
        credibly.save(value, tmp_path / name)
    assert credibly.load(tmp_path / "recipe") == recipe
    assert torch.equal(credibly.load(tmp_path / "result").valid, result.valid)
    loaded = credibly.load(tmp_path / "control")
    assert (loaded.index, loaded.controlled, loaded.parameter.item()) == (control.index, True, control.parameter.item())
