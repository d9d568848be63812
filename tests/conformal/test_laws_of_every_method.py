"""The exact laws of coverage of every split method in every group, over 2,000 repeats, through its own predictor.

Repeats are groups: each is calibrated and judged by itself, and the path of groups, thresholds and regions is the
user's. A chi-square test at 1e-4 each; the marginal law of every score of classes is tested beside it.
"""

import numpy as np
import pytest
import torch
from scipy import stats
from torch.distributions import Categorical, Independent, Normal, Poisson

from cases import SCORES
from credibly.conformal.aps import APS
from credibly.conformal.class_conditional import ClassConditional
from credibly.conformal.class_score import ClassScore
from credibly.conformal.cqr import AsymmetricCQR
from credibly.conformal.cv_plus import ClassCVPlus
from credibly.conformal.margin import Margin
from credibly.conformal.multi_target import BonferroniBox
from credibly.conformal.online.dtaci import DtACI
from credibly.conformal.ranks import rank, threshold
from credibly.conformal.residual import AbsoluteResidual
from credibly.conformal.saps import SAPS
from credibly.conformal.top_k import TopK

F64 = {"dtype": torch.float64}
REPEATS, N, M = 2000, 21, 10
OF_CLASSES = [name for name, make in SCORES.items() if isinstance(make(), ClassScore)]
TIED = {"aps_deterministic", "top_k"}  # the law is a bound where scores are tied
OF_VECTORS = {"box", "box_of_cqr", "one_of_several_targets", "ellipsoid", "ellipsoid_given"}


def p_value(counts, num_calibration, num_test, coverage):
    """Of counts against Beta-binomial, in cells of 5 expected or more."""
    k = rank(num_calibration, coverage)
    law = stats.betabinom(num_test, k, num_calibration + 1 - k)
    seen = np.bincount(np.asarray(counts), minlength=num_test + 1)
    cells, mass = [], np.zeros(2)
    for count in range(num_test + 1):
        mass += (seen[count], len(counts) * law.pmf(count))
        if mass[1] >= 5:
            cells.append(mass)
            mass = np.zeros(2)
    cells[-1] = cells[-1] + mass
    observed, expected = np.array(cells).T
    assert len(cells) >= 4
    return stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue


def data(name, seed=3):
    """Forecasts that are wrong, their targets, and which rows calibrate."""
    rows, generator = REPEATS * (N + M), torch.Generator().manual_seed(seed)
    held_out = torch.arange(rows) % (N + M) < N
    if name in OF_CLASSES:
        logits = 2 * torch.randn(rows, 4, generator=generator, **F64)
        targets = torch.multinomial((logits / 3).softmax(-1), 1, generator=generator).squeeze(-1)
        return lambda keep: Categorical(logits=logits[keep]), targets, held_out
    if name == "pit_score_randomized":
        rate = 1 + 3 * torch.rand(rows, generator=generator, **F64)
        return lambda keep: Poisson(rate[keep]), torch.poisson(1.3 * rate, generator=generator), held_out
    shape = (rows, 2) if name in OF_VECTORS else (rows,)
    loc, noise = (torch.randn(shape, generator=generator, **F64) for _ in range(2))
    scale = 0.3 + torch.rand(shape, generator=generator, **F64)

    def build(keep):
        each = Normal(loc[keep], scale[keep])
        return Independent(each, 1) if name in OF_VECTORS else each

    return build, loc + 0.3 + noise, held_out


def inside_by_group(recipe, name, coverage, **options):
    build, targets, held_out = data(name)
    groups, test = torch.arange(len(targets)) // (N + M), ~held_out
    extras = {key: value[held_out] for key, value in options.items()}
    seeds = {"seed": 1} if getattr(recipe, "uses_uniforms", False) else {}
    fitted = recipe.calibrate(build(held_out), targets[held_out], groups=groups[held_out], **extras, **seeds)
    extras = {key: value[test] for key, value in options.items()}
    seeds = {"seed": 2} if seeds else {}
    region = fitted.predict(build(test), coverage, groups=groups[test], **extras, **seeds)
    return fitted, region, targets[test], region.contains(targets[test]).reshape(REPEATS, M)


@pytest.mark.parametrize("name", [name for name in SCORES if name not in TIED and not name.startswith("pit")])
def test_the_law_in_every_group(name):
    *_, inside = inside_by_group(SCORES[name](), name, 0.8)
    assert p_value(inside.sum(-1), N, M, 0.8) > 1e-4


@pytest.mark.parametrize("name", ["pit_score", "pit_score_randomized"])
def test_the_law_of_pits_in_every_group_by_their_scores(name):
    """Regions of 20,000 rows are searched for their ends; what they contain is a matter of their scores."""
    score = SCORES[name]()
    build, targets, _ = data(name)
    u = torch.rand(len(targets), generator=torch.Generator().manual_seed(4), **F64) if score.uses_uniforms else None
    scores = score.score(build(slice(None)), targets, u).reshape(REPEATS, N + M)
    limits = threshold(scores[:, :N].sort(-1).values, 0.8)
    assert p_value((scores[:, N:] <= limits.unsqueeze(-1)).sum(-1), N, M, 0.8) > 1e-4


@pytest.mark.parametrize("name", [name for name in OF_CLASSES if name not in TIED])
@pytest.mark.parametrize("coverage", [0.5, 0.9])
def test_the_marginal_law_of_scores_of_classes(name, coverage):
    score = SCORES[name]()
    build, targets, _ = data(name, seed=11)
    u = torch.rand(len(targets), generator=torch.Generator().manual_seed(5), **F64) if score.uses_uniforms else None
    scores = score.score(build(slice(None)), targets, u).reshape(REPEATS, N + M)
    limits = threshold(scores[:, :N].sort(-1).values, coverage)
    assert p_value((scores[:, N:] <= limits.unsqueeze(-1)).sum(-1), N, M, coverage) > 1e-4
    fitted = score.calibrate(build(slice(0, N)), targets[:N], seed=0)
    if not score.uses_uniforms:  # one repeat through the predictor, for all its test rows
        assert fitted.predict(build(slice(N, N + M)), coverage).contains(targets[N : N + M]).tolist() == (
            (scores[0, N:] <= limits[0]).tolist()
        )


@pytest.mark.parametrize("name", sorted(TIED))
def test_ties_only_raise_the_law(name):
    """The counts are stochastically larger: an exact binomial test at every count, 1e-5 each."""
    *_, inside = inside_by_group(SCORES[name](), name, 0.8)
    k = rank(N, 0.8)
    law, counts = stats.betabinom(M, k, N + 1 - k), inside.sum(-1)
    for count in range(M):
        assert stats.binom(REPEATS, law.cdf(count)).sf(int((counts <= count).sum()) - 1) > 1e-5


def test_a_given_difficulty_keeps_the_law():
    difficulty = 0.1 + torch.rand(REPEATS * (N + M), generator=torch.Generator().manual_seed(6), **F64)
    *_, inside = inside_by_group(AbsoluteResidual(), "absolute_residual", 0.8, difficulty=difficulty)
    assert p_value(inside.sum(-1), N, M, 0.8) > 1e-4


def test_each_side_of_the_asymmetric_form_has_its_own_law():
    _, region, targets, inside = inside_by_group(AsymmetricCQR(0.2, 0.8), "cqr", 0.6)
    empty = region.empty
    for held in ((region.lower <= targets) | empty, (targets <= region.upper) | empty):
        # where the sides cross, neither end is listed; that is rare here, and the test allows nothing for it
        assert int(empty.sum()) == 0
        assert p_value(held.reshape(REPEATS, M).sum(-1), N, M, 0.8) > 1e-4
    assert float(inside.double().mean()) > 0.6


def test_each_target_of_a_bonferroni_box_has_its_own_law():
    _, region, targets, inside = inside_by_group(BonferroniBox(), "box", 0.6)
    for j in range(2):
        held = (region.lower[:, j] <= targets[:, j]) & (targets[:, j] <= region.upper[:, j])
        assert p_value(held.reshape(REPEATS, M).sum(-1), N, M, 0.8) > 1e-4
    assert float(inside.double().mean()) > 0.6


@pytest.mark.parametrize("score", [SAPS(rank_weight=0.1), TopK(randomized=True)], ids=repr)
def test_every_class_of_every_group_has_its_own_law(score):
    counts, m = (9, 14), 10
    each = torch.cat([torch.full((c + m,), y) for y, c in enumerate(counts)])
    held_out = torch.cat([torch.arange(c + m) < c for c in counts]).repeat(REPEATS)
    targets, groups = each.repeat(REPEATS), torch.arange(REPEATS).repeat_interleave(len(each))
    logits = 2 * torch.randn(len(targets), 3, generator=torch.Generator().manual_seed(8), **F64)
    logits[torch.arange(len(targets)), targets] += 0.5 * (targets + 1)
    fitted = ClassConditional(score).calibrate(
        Categorical(logits=logits[held_out]), targets[held_out], groups=groups[held_out], seed=1
    )
    sets = fitted.predict(Categorical(logits=logits[~held_out]), 0.7, groups=groups[~held_out], seed=2)
    inside = sets.contains(targets[~held_out]).reshape(REPEATS, 2, m).sum(-1)
    for y, n in enumerate(counts):
        assert p_value(inside[:, y], n, m, 0.7) > 1e-4


@pytest.mark.parametrize("score", [Margin(), APS()], ids=repr)
def test_cv_plus_of_classes_holds_its_bound_over_all_repeats(score):
    """Frequencies by the sign of x as models, all repeats in one table; the first ones through the predictor, too."""
    n, folds, coverage = 20, 4, 0.8
    generator = torch.Generator().manual_seed(9)
    truth = torch.tensor([[0.6, 0.3, 0.1], [0.1, 0.2, 0.7]], **F64)
    x = torch.randint(2, (REPEATS, n + 1), generator=generator)
    y = torch.multinomial(truth[x.flatten()], 1, generator=generator).reshape(REPEATS, n + 1)
    own = torch.arange(n) % folds
    cells = torch.nn.functional.one_hot(3 * x[:, :n] + y[:, :n], 6).double()  # (repeats, n, 6)
    without = [1 + cells[:, own != fold].sum(1).reshape(REPEATS, 2, 3) for fold in range(folds)]
    models = torch.stack(without, 1)  # (repeats, folds, 2, 3)
    models = (models + 1e-3 * torch.rand(models.shape, generator=generator, **F64)) / models.sum(-1, keepdim=True)
    models = models / models.sum(-1, keepdim=True)
    repeat = torch.arange(REPEATS)
    left_out = models[repeat.unsqueeze(1), own, x[:, :n]]  # (repeats, n, 3)
    new = models[repeat, :, x[:, n]]  # (repeats, folds, 3)
    u = torch.rand(REPEATS, n + 1, generator=generator, **F64)
    mine = score.score(Categorical(probs=left_out.reshape(-1, 3)), y[:, :n].flatten(), u[:, :n].flatten())
    target = y[:, n].repeat_interleave(folds)
    theirs = score.score(Categorical(probs=new.reshape(-1, 3)), target, u[:, n].repeat_interleave(folds))
    below = (mine.reshape(REPEATS, n) < theirs.reshape(REPEATS, folds)[:, own]).sum(-1)
    covered = (below < coverage * (n + 1)).double()
    error = (coverage * (1 - coverage) / REPEATS) ** 0.5
    assert float(covered.mean()) + 4 * error > 2 * coverage - 1 - (2 / n) ** 0.5  # the theorem; a failure in 3e4
    assert float(covered.mean()) > coverage - 0.05  # and what is seen in practice
    if not score.uses_uniforms:
        for i in range(20):
            fitted = ClassCVPlus(score).calibrate(Categorical(probs=left_out[i]), y[i, :n], own)
            sets = fitted.predict([Categorical(probs=new[i, k : k + 1]) for k in range(folds)], coverage)
            assert bool(sets.contains(y[i, n:])) == bool(covered[i])


# -- online --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hostile", ["adversary", "contrarian", "drift"])
def test_every_expert_of_dtaci_stays_within_its_bound_on_hostile_streams(hostile):
    steps = torch.tensor([0.02, 0.1, 0.5], **F64)
    method = DtACI(coverage=0.8, step_sizes=tuple(steps.tolist()), horizon=100, window=40)
    state, missed = method.init(torch.empty(3, 0)), []
    noise = torch.rand(600, 3, generator=torch.Generator().manual_seed(1), **F64)
    for step in range(600):
        limits = method.threshold(state)
        over = torch.where(limits < 1, (limits.clamp(min=0.0) + 1) / 2, 0.5)
        scores = {
            "adversary": over,
            "contrarian": over if step // 30 % 2 == 0 else torch.zeros_like(over),
            "drift": noise[step] * (1 + step / 100),
        }[hostile]
        missed.append(scores > limits)
        state = method.update(state, scores)
    # the sum of (0.2 - err) of an expert is the way that its level has gone, divided by its step size
    gap = ((state.miscoverage - 0.2) / steps).abs() / 600
    assert bool((gap <= (0.8 + steps) / (600 * steps) + 1e-9).all())
    if hostile == "drift":  # not against an adversary, for whom the mixture of experts has no such bound
        assert abs(float(torch.stack(missed).double().mean()) - 0.2) < 0.05
