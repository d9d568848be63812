"""Sets decided on float32: the same as those of the exact table, wherever the rounding could tell."""

import pytest
import torch

from credibly.conformal.aps import APS
from credibly.conformal.raps import RAPS
from credibly.conformal.rounded_rows import RoundedRows
from credibly.conformal.saps import SAPS
from credibly.conformal.top_k import TopK
from credibly.distributions.entry import from_probs

SCORES = [APS(), RAPS(penalty=0.01, k_reg=2), SAPS(rank_weight=0.05), TopK(randomized=True)]
NAMES = [type(score).__name__ for score in SCORES]


def simulated(rows, classes, scale, seed=0):
    generator = torch.Generator().manual_seed(seed)
    probs = (scale * torch.randn(rows, classes, generator=generator, dtype=torch.float64)).softmax(-1)
    return probs, torch.rand(rows, generator=generator, dtype=torch.float64)


def assert_sets_are_the_table(score, probs, u, thresholds):
    predicted = from_probs(probs)
    table = score.scores_of_classes(predicted, u)
    assert torch.equal(score.region(predicted, thresholds, u).members, table <= thresholds.unsqueeze(-1))


@pytest.mark.parametrize("score", SCORES, ids=NAMES)
@pytest.mark.parametrize("offset", [1e-5, 1e-7, 1e-9, 1e-13, 0.0])
def test_thresholds_at_and_about_a_score(score, offset):
    probs, u = simulated(200, 30, 1.0)
    for column in (0, 7, 29):
        own = score.scores_of_classes(from_probs(probs), u)[:, column]
        for sign in (-1, 1):
            assert_sets_are_the_table(score, probs, u, own + sign * offset)


@pytest.mark.parametrize("score", SCORES, ids=NAMES)
@pytest.mark.parametrize("apart", [0.0, 1e-16, 1e-12, 1e-9, 1e-8, 1e-7])
def test_classes_that_float32_cannot_tell_apart(score, apart):
    probs, u = simulated(300, 20, 0.5)
    probs = torch.cat([probs, probs * (1 + apart * torch.randn(probs.shape).abs())], -1) / 2
    for threshold in (0.05, 0.3, 0.6, 0.9, 0.999):
        assert_sets_are_the_table(score, probs, u, torch.full((300,), threshold, dtype=torch.float64))


@pytest.mark.parametrize("scale", [0.5, 5.0], ids=["flat", "peaked"])
def test_nearly_all_rows_are_decided(scale):
    probs, u = simulated(4000, 500, scale)
    score, limits = APS(), torch.full((4000, 1), 0.9, dtype=torch.float64)
    least = score.least_value(limits, 500)
    inside, unsure = RoundedRows(probs, least).members(score.formula, limits, u.unsqueeze(-1))
    assert unsure.float().mean() < 0.02
    assert torch.equal(inside[~unsure], (score.table(probs, u.unsqueeze(-1)) <= limits)[~unsure])


@pytest.mark.parametrize("score", SCORES, ids=NAMES)
@pytest.mark.parametrize("classes", [2, 3, 255, 256, 257, 511, 513, 1000, 2050])
def test_any_number_of_classes(score, classes):
    for scale in (0.3, 4.0):
        probs, u = simulated(60, classes, scale)
        table = score.scores_of_classes(from_probs(probs), u)
        middle = table.sort(-1).values
        for position in {0, classes // 4, classes // 2 - 1, classes // 2, classes - 1}:
            assert_sets_are_the_table(score, probs, u, middle[:, position] + 1e-9)
            assert_sets_are_the_table(score, probs, u, middle[:, position] - 1e-9)


def test_every_place_of_the_edge_in_a_row_that_is_halved_twice():
    probs, _ = simulated(1, 700, 1.0)
    u = torch.full((700,), 0.5, dtype=torch.float64)
    rows = probs.expand(700, 700).contiguous()
    thresholds = APS().scores_of_classes(from_probs(probs), u[:1]).squeeze(0)
    assert_sets_are_the_table(APS(), rows, u, thresholds + 1e-8)


@pytest.mark.parametrize("score", SCORES, ids=NAMES)
def test_no_rows_have_no_sets(score):
    probs, u = simulated(3, 1000, 1.0)
    limits = torch.full((3,), 0.9, dtype=torch.float64)
    assert score.region(from_probs(probs[:0]), limits[:0], u[:0]).members.shape == (0, 1000)


def test_values_below_the_least_change_nothing():
    probs, u = simulated(500, 300, 3.0)
    score, limits = APS(), torch.full((500, 1), 0.9, dtype=torch.float64)
    least = score.least_value(limits, 300)
    assert (probs < least).float().mean() > 0.3
    sets = [RoundedRows(probs, each).members(score.formula, limits, u.unsqueeze(-1)) for each in (least, None)]
    decided = ~(sets[0][1] | sets[1][1])
    assert decided.float().mean() > 0.98
    assert torch.equal(sets[0][0][decided], sets[1][0][decided])


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_threads_change_nothing(threads):
    probs, u = simulated(3000, 300, 1.0)
    predicted, score = from_probs(probs), APS()
    limits = torch.full((3000,), 0.9, dtype=torch.float64)
    before = torch.get_num_threads()
    expected, table = score.region(predicted, limits, u).members, score.scores_of_classes(predicted, u)
    try:
        torch.set_num_threads(threads)
        with torch.inference_mode():
            assert torch.equal(score.region(predicted, limits, u).members, expected)
            targets = torch.arange(3000) % 300
            assert torch.equal(score.score(predicted, targets, u), table[range(3000), targets])
    finally:
        torch.set_num_threads(before)


def test_the_first_row_that_is_missing_is_named_whatever_the_threads():
    probs, u = simulated(3000, 300, 1.0)
    probs[2900, 5] = probs[1700, 3] = torch.nan
    predicted = torch.distributions.Categorical(probs=probs, validate_args=False)
    with pytest.raises(ValueError, match="the first is in row 1700"):
        APS().score(predicted, torch.zeros(3000, dtype=torch.long), u)


@pytest.mark.parametrize("score", SCORES, ids=NAMES)
def test_probabilities_that_are_equal_only_once_rounded(score):
    """Multiples of 2^-52 are what is added up; these are finer, and float32 tells them apart."""
    tiny = torch.tensor([1e-30, 3e-25, 2e-20, 1e-17, 1e-9, 1e-9 + 1e-17, 0.25, 0.25 + 2.0**-54], dtype=torch.float64)
    probs = torch.cat([tiny, (1 - tiny.sum()).reshape(1)]).expand(50, -1).contiguous()
    u = torch.linspace(0, 1, 50, dtype=torch.float64)
    for column in range(probs.shape[-1]):
        own = score.scores_of_classes(from_probs(probs), u)[:, column]
        for offset in (0.0, 1e-16, -1e-16, 1e-9, -1e-9, 1e-3, -1e-3):
            assert_sets_are_the_table(score, probs, u, own + offset)
