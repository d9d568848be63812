"""Scores of classes: definitions, exact inverses, invariances, coverage laws, tuning, numbers of other libraries."""

import copy
import math
import pickle
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch.distributions import Bernoulli, Categorical

from credibly.conformal.aps import APS
from credibly.conformal.lac import LAC
from credibly.conformal.margin import Margin
from credibly.conformal.ranks import rank
from credibly.conformal.raps import RAPS
from credibly.conformal.saps import SAPS
from credibly.conformal.top_k import TopK
from credibly.conformal.tuning import best_score
from credibly.core.errors import NotSupportedError
from credibly.distributions.entry import from_logits, from_probs
from credibly.distributions.mixture import MixturePredictive

SCORES = {
    "lac": LAC(),
    "aps": APS(),
    "aps_deterministic": APS(randomized=False),
    "raps": RAPS(penalty=0.05, k_reg=1),
    "raps_free": RAPS(penalty=1e-3, k_reg=0),
    "raps_deterministic": RAPS(penalty=0.3, k_reg=2, randomized=False),
    "saps": SAPS(rank_weight=0.1),
    "saps_of_one_price": SAPS(rank_weight=0.0, randomized=False),
    "top_k": TopK(),
    "top_k_randomized": TopK(randomized=True),
    "margin": Margin(),
}
EXACT_LAW = ("lac", "aps", "raps", "raps_free", "saps", "top_k_randomized", "margin")


@pytest.fixture(params=SCORES)
def score(request):
    return SCORES[request.param]


def table_of(score, predicted, classes, u):
    """Every class as if it were the target."""
    rows = predicted.batch_shape[-1]
    return torch.stack([score.score(predicted, torch.full((rows,), k), u) for k in range(classes)], -1)


def assert_inverse(score, predicted, classes, u):
    table = table_of(score, predicted, classes, u)
    assert torch.equal(score.scores_of_classes(predicted, u), table)
    below = torch.nextafter(table, torch.full_like(table, -math.inf))
    for k in range(classes):
        for limits in (table[:, k], below[:, k], table[:, k].flip(0)):
            assert torch.equal(score.region(predicted, limits, u).members, table <= limits.unsqueeze(-1))
    for limit in (*table.flatten()[:6].tolist(), -math.inf, math.inf, 0.0, 1.0, 2.0):
        assert torch.equal(score.region(predicted, limit, u).members, table <= limit)
    assert torch.equal(score.region(predicted, table[:1], u).members, table <= table[:1])
    assert torch.equal(score.region(predicted, below, u).members, table <= below)


LEVELS = st.sampled_from([0.0, 1e-300, 1e-20, 1e-9, 0.1, 0.2, 1 / 3, 0.5, 1.0])
ROWS = st.integers(2, 5).flatmap(
    lambda c: st.lists(
        st.tuples(st.lists(LEVELS, min_size=c, max_size=c).filter(lambda p: sum(p) > 0), st.floats(0, 1)),
        min_size=1,
        max_size=5,
    )
)
LOGITS = st.lists(
    st.lists(st.floats(-800, 800) | st.just(-math.inf), min_size=3, max_size=3).filter(lambda z: max(z) > -math.inf),
    min_size=1,
    max_size=5,
)


@pytest.mark.parametrize("name", SCORES)
@given(ROWS)
def test_inversion_on_tied_one_hot_and_tiny_probabilities(name, rows):
    probs = torch.tensor([p for p, _ in rows], dtype=torch.float64)
    u = torch.tensor([v for _, v in rows], dtype=torch.float64)
    assert_inverse(SCORES[name], Categorical(probs=probs), probs.shape[-1], u)


@pytest.mark.parametrize("name", SCORES)
@given(LOGITS, st.floats(0, 1))
def test_inversion_on_extreme_and_infinite_logits(name, rows, u):
    predicted = from_logits(torch.tensor(rows, dtype=torch.float64))
    assert_inverse(SCORES[name], predicted, 3, torch.full((len(rows),), u, dtype=torch.float64))


def test_inversion_on_random_rows(score, dtype, device):
    generator = torch.Generator().manual_seed(7)
    logits = (torch.randn(100, 9, generator=generator, dtype=dtype) * 4).to(device)
    u = torch.rand(100, generator=generator, dtype=torch.float64).to(device)
    assert_inverse(score, Categorical(logits=logits), 9, u)
    assert_inverse(score, from_probs(logits.softmax(-1)), 9, u)
    assert_inverse(score, Bernoulli(logits=logits[:, 0]), 2, u)
    assert_inverse(score, MixturePredictive(Categorical(logits=logits.reshape(4, 25, 9))), 9, u[:25])
    assert_inverse(score, Categorical(logits=logits[:, :1]), 1, u)


@pytest.mark.parametrize("scale", [0.5, 5.0, 50.0])
def test_sets_of_many_classes_are_their_table(score, scale):
    # 300 classes: where few of them can be in a set, only those are sorted
    generator = torch.Generator().manual_seed(4)
    logits = (scale * torch.randn(60, 300, generator=generator)).mul(2).round().div(2)  # some are tied
    predicted, u = Categorical(logits=logits), torch.rand(60, generator=generator, dtype=torch.float64)
    table = score.scores_of_classes(predicted, u)
    limits = table.gather(-1, torch.randint(300, (60, 1), generator=generator)).squeeze(-1)
    for q in (limits, limits.median(), limits.min(), 0.3, 0.9, 0.999, 1.0, 1 - 2.0**-52):
        members = score.region(predicted, q, u).members
        assert torch.equal(members, table <= torch.as_tensor(q, dtype=torch.float64).reshape(-1, 1))


def by_definition(name, p, v):
    """The score of every class of one row, from the papers' formulas in rational arithmetic; no ties in p."""
    order = sorted(range(len(p)), key=lambda k: -p[k])
    top, table = p[order[0]], []
    for k, own in enumerate(p):
        o = order.index(k) + 1
        mass = sum(q for q in p if q > own) + v * own
        table.append(
            {
                "lac": 1 - own,
                "aps": mass,
                "raps": mass + Fraction(0.05) * max(o - 1, 0),
                "saps": v * top if o == 1 else top + (o - 2 + v) * Fraction(0.1),
                "top_k_randomized": o - 1 + v,
                "top_k": o,
                "margin": 1 + max(q for j, q in enumerate(p) if j != k) - own,
            }[name]
        )
    return [float(value) for value in table]


@pytest.mark.parametrize("name", ["lac", "aps", "raps", "saps", "top_k", "top_k_randomized", "margin"])
def test_scores_equal_their_papers(name):
    whole = [[8, 4, 3, 1], [13, 1, 2, 0], [1, 5, 4, 6], [2, 3, 4, 7]]
    shares = [Fraction(1, 4), Fraction(1, 2), Fraction(3, 4), Fraction(1)]
    predicted = from_probs(torch.tensor(whole, dtype=torch.float64) / 16)
    u = torch.tensor([float(v) for v in shares], dtype=torch.float64)
    found = SCORES[name].scores_of_classes(predicted, u if SCORES[name].uses_uniforms else None)
    for row, (counts, v) in enumerate(zip(whole, shares, strict=True)):
        expected = by_definition(name, [Fraction(c, 16) for c in counts], v)
        keep = [k for k in range(4) if counts[k] > 0 or name not in ("aps", "raps")]
        assert found[row, keep].tolist() == pytest.approx([expected[k] for k in keep], abs=1e-15)


def test_ties_share_a_place_and_zero_comes_last():
    predicted = from_probs(torch.tensor([[0.25, 0.25, 0.5, 0.0, 0.0]], dtype=torch.float64))
    u = torch.tensor([0.5], dtype=torch.float64)
    assert TopK().scores_of_classes(predicted).tolist() == [[3, 3, 1, 5, 5]]
    assert TopK(randomized=True).scores_of_classes(predicted, u).tolist() == [[2, 2, 0.5, 4, 4]]
    assert SAPS(rank_weight=0.25).scores_of_classes(predicted, u).tolist() == [[0.75, 0.75, 0.25, 1.25, 1.25]]
    assert APS().scores_of_classes(predicted, u).tolist() == [[0.75, 0.75, 0.25, 2, 2]]
    assert RAPS(penalty=0.5, k_reg=2).scores_of_classes(predicted, u).tolist() == [[1.25, 1.25, 0.25, 3.5, 3.5]]
    assert Margin().scores_of_classes(predicted).tolist() == [[1.25, 1.25, 0.75, 1.5, 1.5]]


def test_randomized_ties_have_the_law_of_a_random_order():
    # two of three classes are equal: with u uniform, a + u m is uniform over the places that a random order gives
    predicted = from_probs(torch.tensor([[0.5, 0.25, 0.25]], dtype=torch.float64).expand(4000, 3))
    u = torch.rand(4000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    reached = TopK(randomized=True).score(predicted, torch.full((4000,), 2), u)
    assert stats.kstest(reached.numpy(), stats.uniform(1, 2).cdf).pvalue > 1e-4  # failure rate 1e-4


def test_limits_of_the_families():
    generator = torch.Generator().manual_seed(3)
    predicted = Categorical(logits=3 * torch.randn(50, 6, generator=generator))
    u = torch.rand(50, generator=generator, dtype=torch.float64)
    aps = APS().scores_of_classes(predicted, u)
    assert torch.equal(RAPS(penalty=0.0).scores_of_classes(predicted, u), aps)
    assert torch.equal(RAPS(penalty=5.0, k_reg=6).scores_of_classes(predicted, u), aps)
    heavy = RAPS(penalty=1e6, k_reg=0).scores_of_classes(predicted, u)
    assert torch.equal(heavy.argsort(-1), TopK().scores_of_classes(predicted).argsort(-1))


def test_confident_rows_do_not_tie():
    predicted = from_logits(torch.tensor([[50.0, 0.0], [60.0, 0.0]]))
    assert Margin().score(predicted, [0, 0]).tolist() == pytest.approx([2 * math.exp(-50), 2 * math.exp(-60)], rel=1e-6)


def test_equally_probable_pairs_tie_at_1_in_every_row():
    pairs = torch.tensor([[k, k, 40 - 2 * k] for k in range(14, 21)], dtype=torch.float64) / 40
    assert Margin().score(from_probs(pairs), torch.zeros(7)).tolist() == [1.0] * 7


@pytest.mark.parametrize("options", [{"penalty": -1.0}, {"penalty": math.nan}, {"k_reg": -1}, {"k_reg": 0.5}])
def test_options_are_checked(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        RAPS(**options)
    with pytest.raises(ValueError, match="rank_weight"):
        SAPS(rank_weight=-0.1)


def test_scores_are_values_and_refuse_numbers(score):
    assert copy.deepcopy(score) == score == pickle.loads(pickle.dumps(score))
    with pytest.raises(NotSupportedError, match=type(score).__name__):
        score.scores_of_classes(torch.distributions.Normal(torch.zeros(2), torch.ones(2)))


def test_nothing_depends_on_order_batch_dtype_strides_or_device(score, device):
    generator = torch.Generator().manual_seed(10)
    logits = (torch.randn(301, 5, generator=generator) * 3).to(device)
    targets, u = torch.randint(0, 5, (301,), generator=generator).to(device), torch.rand(301, generator=generator)
    kept = logits.clone(), targets.clone(), u.clone()
    every = score.scores_of_classes(Categorical(logits=logits.double()), u)
    own = score.score(Categorical(logits=logits), targets, u)
    sets = score.region(Categorical(logits=logits), 0.8, u).members
    order = torch.randperm(301, device=device)
    for z in (logits.double(), logits.t().contiguous().t(), logits.clone().requires_grad_()):
        assert torch.allclose(score.score(Categorical(logits=z), targets, u), own, rtol=1e-6, atol=1e-6)
    moved = score.score(Categorical(logits=logits[order]), targets[order], u[order])
    assert torch.allclose(moved, own[order], rtol=1e-12, atol=1e-15)
    parts = [
        (score.score(Categorical(logits=z), y, v), score.region(Categorical(logits=z), 0.8, v).members)
        for z, y, v in zip(logits.split(17), targets.split(17), u.split(17), strict=True)
    ]
    assert torch.allclose(torch.cat([s for s, _ in parts]), own, rtol=1e-12, atol=1e-15)
    assert torch.equal(torch.cat([m for _, m in parts]), sets)
    columns = torch.randperm(5, generator=generator).to(device)
    shuffled = score.scores_of_classes(Categorical(logits=logits.double()[:, columns]), u)
    assert torch.allclose(shuffled, every[:, columns], rtol=1e-12, atol=1e-15)
    for now, before in zip((logits, targets, u), kept, strict=True):
        assert torch.equal(now, before)


def repeats_of(rows_each, repeats=2000, classes=4):
    """Forecasts that are wrong, targets, and the repeat of each row."""
    generator = torch.Generator().manual_seed(5)
    logits = 2 * torch.randn(repeats * rows_each, classes, generator=generator, dtype=torch.float64)
    targets = torch.multinomial((logits / 3).softmax(-1), 1, generator=generator).squeeze(-1)
    return logits, targets, torch.arange(repeats * rows_each) // rows_each


def assert_law(counts, law, size):
    """Chi-square of counts against their exact law, cells of 20 expected at least: failure rate 1e-4."""
    expected, seen = law.pmf(np.arange(size + 1)) * len(counts), np.bincount(counts, minlength=size + 1)
    cells, mass = [0], 0.0
    for k, each in enumerate(expected):
        mass += each
        if mass >= 20 and expected[k + 1 :].sum() >= 20:
            cells.append(k + 1)
            mass = 0.0
    pooled = [np.add.reduceat(values, cells) for values in (seen, expected)]
    assert len(cells) >= 5
    assert stats.chisquare(pooled[0], pooled[1] * pooled[0].sum() / pooled[1].sum()).pvalue > 1e-4


@pytest.mark.parametrize("name", EXACT_LAW)
def test_coverage_follows_its_beta_binomial_law_in_every_group(name):
    # 2,000 repeats are 2,000 groups of one calibration: each is calibrated and judged by itself
    n, m, coverage = 22, 20, 0.8
    logits, targets, groups = repeats_of(n + m)
    held_out = torch.arange(len(groups)) % (n + m) < n
    predictor = SCORES[name].calibrate(
        Categorical(logits=logits[held_out]), targets[held_out], groups=groups[held_out], seed=1
    )
    test = ~held_out
    sets = predictor.predict(Categorical(logits=logits[test]), coverage, groups=groups[test], seed=2)
    counts = sets.contains(targets[test]).reshape(-1, m).sum(-1).numpy()
    k = rank(n, coverage)
    assert_law(counts, stats.betabinom(m, k, n + 1 - k), m)


@pytest.mark.parametrize("name", sorted(set(SCORES) - set(EXACT_LAW)))
def test_scores_with_ties_cover_at_least_as_often(name):
    n, m, coverage = 22, 20, 0.8
    logits, targets, groups = repeats_of(n + m)
    held_out = torch.arange(len(groups)) % (n + m) < n
    predictor = SCORES[name].calibrate(
        Categorical(logits=logits[held_out]), targets[held_out], groups=groups[held_out], seed=1
    )
    test = ~held_out
    sets = predictor.predict(Categorical(logits=logits[test]), coverage, groups=groups[test], seed=2)
    counts = sets.contains(targets[test]).reshape(-1, m).sum(-1).double()
    law = stats.betabinom(m, rank(n, coverage), n + 1 - rank(n, coverage))
    assert counts.mean() > law.mean() - 5 * law.std() / math.sqrt(2000)  # failure rate 3e-7


def test_tuning_finds_what_the_rows_want():
    generator = torch.Generator().manual_seed(1)
    logits = 2 * torch.randn(600, 30, generator=generator)
    targets = torch.multinomial((logits * 0.7).softmax(-1), 1, generator=generator).squeeze(-1)
    rows, others = Categorical(logits=logits[:300]), Categorical(logits=logits[300:])
    before = torch.get_rng_state()
    tuned = RAPS.tuned(rows, targets[:300], 0.9, seed=4)
    assert torch.equal(torch.get_rng_state(), before)
    assert tuned == RAPS.tuned(rows, targets[:300], 0.9, seed=4)
    ranks = TopK().score(rows, targets[:300]).sort().values
    assert tuned.k_reg == int(ranks[rank(300, 0.9) - 1])

    def size(score):
        return float(score.calibrate(rows, targets[:300], seed=4).predict(rows, 0.9, seed=4).size.double().mean())

    tried = [RAPS(penalty=penalty, k_reg=tuned.k_reg) for penalty in (0.001, 0.01, 0.1, 0.2, 0.5)]
    assert tuned in tried
    assert size(tuned) == min(map(size, tried))
    adaptive = RAPS.tuned(rows, targets[:300], 0.9, aim="adaptiveness", penalties=(0.0, 10.0), seed=4)
    assert adaptive.penalty in (0.0, 10.0)
    saps = SAPS.tuned(rows, targets[:300], 0.9, rank_weights=(0.02, 0.3), seed=4)
    assert size(saps) == min(size(SAPS(rank_weight=w)) for w in (0.02, 0.3))
    # calibrated on other rows, what was tuned keeps its coverage: 5 standard errors of its exact law
    law = stats.betabinom(150, rank(150, 0.9), 151 - rank(150, 0.9))
    halves = Categorical(logits=logits[300:450]), Categorical(logits=logits[450:])
    sets = tuned.calibrate(halves[0], targets[300:450], seed=0).predict(halves[1], 0.9, seed=1)
    assert abs(sets.contains(targets[450:]).sum() - law.mean()) < 5 * law.std()
    assert others.batch_shape == (300,)


def test_tuning_at_the_ends():
    rows = from_probs(torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6]]))
    assert RAPS.tuned(rows, [1, 2], 0.9, seed=0).k_reg == 2  # two rows are too few for 0.9: the worst rank
    assert RAPS.tuned(rows, [1, 2], 0, seed=0).k_reg == 0
    with pytest.raises(ValueError, match="at least one value"):
        RAPS.tuned(rows, [1, 2], penalties=())
    with pytest.raises(ValueError, match="coverage"):
        best_score([LAC()], rows, [1, 2], 1.5, aim="size", seed=0)


# 60 rows of whole numbers, 40 to calibrate and 20 to predict. LAC as MAPIE 1.6.0 (lac) and crepes 0.9.1 (hinge) give
# it, the margin as crepes 0.9.1 does: sizes of the sets, and how many hold each class. The deterministic APS is from
# rational arithmetic: MAPIE calibrates it with random numbers and predicts without.
OTHERS = {
    ("lac", 0.5): ("22212212222121212223", [6, 8, 13, 9]),
    ("lac", 0.8): ("33232232322333312223", [10, 12, 15, 12]),
    ("lac", 0.9): ("33242332332333422223", [11, 13, 15, 15]),
    ("margin", 0.5): ("22132232422131412123", [10, 10, 11, 12]),
    ("margin", 0.8): ("44242342442332412234", [14, 12, 17, 16]),
    ("margin", 0.9): ("44242344442343412244", [15, 15, 17, 17]),
    ("aps_deterministic", 0.5): ("22131222222222321121", [6, 9, 10, 12]),
    ("aps_deterministic", 0.8): ("33232232332222322233", [9, 11, 15, 14]),
    ("aps_deterministic", 0.9): ("33232232332332322233", [11, 11, 15, 14]),
}


def table_of_whole_numbers():
    i = torch.arange(60)
    columns = [(7 * i + 3) % 11 + 1, (5 * i + 1) % 13 + 1, (3 * i + 2) % 17 + 1, (i * i) % 19 + 1]
    counts = torch.stack(columns, 1).double()
    return counts / counts.sum(1, keepdim=True), (3 * i * i + i // 4) % 4


@pytest.mark.parametrize(("name", "coverage"), OTHERS)
def test_sets_of_other_libraries(name, coverage):
    probs, targets = table_of_whole_numbers()
    predictor = SCORES[name].calibrate(from_probs(probs[:40]), targets[:40])
    sets = predictor.predict(from_probs(probs[40:]), coverage)
    sizes, held = OTHERS[name, coverage]
    assert "".join(map(str, sets.size.tolist())) == sizes
    assert sets.members.sum(0).tolist() == held


def test_logits_within_0_and_1_are_not_taken_for_probabilities(score):
    # field case B43: what the numbers are is said by the name of the entrance, never read off their range
    logits, targets, u = torch.tensor([[0.0, 1.0], [0.4, 0.6], [0.9, 0.1]]), [1, 0, 0], torch.full((3,), 0.5)
    whole = score.score(from_logits(logits), targets, u)
    single = [score.score(from_logits(logits[i : i + 1]), targets[i : i + 1], u[i : i + 1]) for i in range(3)]
    assert torch.equal(torch.cat(single), whole)
    assert torch.allclose(whole, score.score(from_probs(logits.softmax(-1)), targets, u), atol=1e-6)
    with pytest.raises(ValueError, match="from_logits"):
        score.score(from_probs(torch.tensor([[-1.0, 2.0]])), [0], u[:1])


def test_probabilities_of_exactly_0_and_1(score):
    # field case B41: the ends of the unit interval belong to it
    predicted = from_probs(torch.tensor([0.95, 1.0, 0.0]))
    table = score.scores_of_classes(predicted, torch.full((3,), 0.5))
    assert bool(table.isfinite().all())
    assert bool((table[1, 1] <= table[1, 0]) & (table[2, 0] <= table[2, 1]))


def test_too_few_rows_for_the_coverage_give_every_class(score):
    # field case B48: 8 rows need rank 9 of 8 for 0.9, 18 rows have rank 18 of 18, and 0.95 needs 19
    generator = torch.Generator().manual_seed(2)
    predicted = Categorical(logits=torch.randn(19, 3, generator=generator))
    targets = torch.randint(3, (19,), generator=generator)
    for rows, coverage, everything in ((8, 0.9, True), (18, 0.9, False), (18, 0.95, True), (19, 0.95, False)):
        some = Categorical(logits=predicted.logits[:rows])
        predictor = score.calibrate(some, targets[:rows], seed=0)
        k = rank(rows, coverage)
        assert (k > rows) == everything
        sets = predictor.predict(some, coverage, seed=1)
        if everything:
            assert bool(sets.members.all())
        assert int(predictor.predict(some, 0, seed=1).size.sum()) == 0
        assert bool(predictor.predict(some, 1, seed=1).members.all())
