"""Detection of outside rows against scikit-learn, ties included, and the scores read off predictions."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve
from torch.distributions import Bernoulli, Categorical, MultivariateNormal, Normal

from credibly import metrics
from credibly.core.errors import NotFiniteError, NotSupportedError, ShapeError
from credibly.distributions.mixture import MixturePredictive
from credibly.metrics import ood
from credibly.metrics.ood import aupr, auroc, fpr

SCORES = st.lists(st.integers(-3, 3).map(float) | st.floats(-1, 1, width=32), min_size=1, max_size=25)


@given(SCORES, SCORES)
def test_equal_to_scikit_learn_with_ties(inside, outside):
    scores = np.array(inside + outside)
    is_out = np.array([0] * len(inside) + [1] * len(outside))
    assert auroc(inside, outside).item() == pytest.approx(roc_auc_score(is_out, scores), abs=1e-12)
    assert aupr(inside, outside).item() == pytest.approx(average_precision_score(is_out, scores), abs=1e-12)
    expected = average_precision_score(1 - is_out, -scores)
    assert aupr(inside, outside, positive="in").item() == pytest.approx(expected, abs=1e-12)
    rates, found, _ = roc_curve(1 - is_out, -scores, drop_intermediate=False)
    enough = rates[np.round(found * len(inside)) >= math.ceil(0.75 * len(inside))].min()
    assert fpr(inside, outside, tpr=0.75).item() == pytest.approx(enough, abs=1e-12)


def test_golden_values():
    inside, outside = [0.1, 0.2, 0.3, 0.4], [0.3, 0.5, 0.6]
    assert auroc(inside, outside).item() == pytest.approx((2.5 + 4 + 4) / 12)
    assert aupr(inside, outside).item() == pytest.approx((1 + 1 + 3 / 5) / 3)
    assert fpr(inside, outside).item() == pytest.approx(1 / 3)
    assert fpr(inside, outside, tpr=0.5).item() == 0


def test_the_share_of_inside_rows_is_exact():
    """0.07 of 100 rows are 7: floats would ask for 8."""
    inside = torch.arange(100.0)
    assert fpr(inside, torch.tensor([6.0, 6.5]), tpr=0.07).item() == 0.5
    assert fpr(inside, torch.tensor([94.0, 94.5]), tpr=0.95).item() == 0.5


def test_all_tied_and_perfect_scores():
    assert auroc([1.0, 1.0], [1.0]).item() == 0.5
    assert aupr([1.0, 1.0], [1.0]).item() == pytest.approx(1 / 3)
    assert fpr([1.0, 1.0], [1.0]).item() == 1
    assert (auroc([0.0], [1.0]).item(), aupr([0.0], [1.0]).item(), fpr([0.0], [1.0]).item()) == (1, 1, 0)


def test_infinite_scores_have_ranks():
    assert auroc([-math.inf, 0.0], [math.inf, math.inf]).item() == 1
    assert auroc([math.inf], [math.inf]).item() == 0.5


def copies(scores):
    """Rows drawn with replacement and moved by far less than they lie apart, so that copies do not tie."""
    drawn = scores[torch.randint(len(scores), scores.shape)].double()
    return drawn + 1e-9 * torch.rand(len(drawn), dtype=torch.float64)


@pytest.mark.parametrize("positive", ["out", "in"])
def test_average_precision_of_copies_equals_scikit_learn(positive):
    """Of resampled counts, with copies of one row at scores of their own, and real ties left as they are."""
    inside, outside = torch.tensor([0.0, 1.0, 2.0, 2.0, 5.0]), torch.tensor([0.5, 2.0, 3.0, 4.0])
    metric = metrics.AUPR(positive=positive)
    state = metric.state(inside, outside)
    got = metric.replicates(state, 50, torch.Generator().manual_seed(3))
    (places_in, size), (places_out, _) = ood._groups(state)
    generator = torch.Generator().manual_seed(3)
    counts = [ood._resampled(places, size, 50, generator).long() for places in (places_in, places_out)]
    moved = [i not in (places_in[2].item(),) for i in range(size)]  # all but the score that rows share
    for value, row_in, row_out in zip(got, *counts, strict=True):
        scores, labels = [], []
        for label, row in enumerate((row_in, row_out)):
            for place, number in enumerate(row.tolist()):
                scores += [place + moved[place] * 1e-3 * copy for copy in range(number)]
                labels += [label] * number
        found = (scores, labels) if positive == "out" else ([-s for s in scores], [1 - k for k in labels])
        assert value.item() == pytest.approx(average_precision_score(found[1], found[0]), abs=1e-12)


def test_the_interval_of_average_precision_lies_between_0_and_1_and_holds_the_value():
    perfect = metrics.AUPR().bootstrap([0.0, 1.0, 2.0], [3.0, 4.0], seed=0)
    assert perfect.value == perfect.upper == 1
    one_each = metrics.AUPR().bootstrap([1.0], [0.0], seed=0)
    for estimate in (perfect, one_each, metrics.AUPR().bootstrap([0.0] * 4, [0.0] * 9, seed=0)):
        assert 0 <= estimate.lower <= estimate.value <= estimate.upper <= 1


def test_replicates_agree_with_resampled_scores():
    """Mean within 5 standard errors, deviation within 15 %, of 1000 against 200 replicates."""
    generator = torch.Generator().manual_seed(0)
    inside, outside = torch.randn(80, generator=generator), 1 + torch.randn(60, generator=generator)
    for metric in (metrics.AUROC(), metrics.AUPR(), metrics.AUPR(positive="in"), metrics.FPR(tpr=0.8)):
        ours = metric.bootstrap(inside, outside, seed=0).replicates
        rows = torch.stack([metric(copies(inside), copies(outside)) for _ in range(200)])
        assert abs(ours.mean() - rows.mean()) < 5 * (ours.var() / 1000 + rows.var() / 200).sqrt()
        assert 0.75 < ours.std() / rows.std() < 1.35


def test_the_interval_of_wholly_misplaced_rows_is_that_of_clopper_and_pearson():
    """Also of none: a bootstrap would call 20 out of 20 certain."""
    inside = torch.linspace(0, 1, 30)
    for wrong in (0, 1, 4, 20):
        outside = torch.cat([torch.full((wrong,), -5.0), torch.linspace(2, 3, 20 - wrong)])
        estimate = metrics.AUROC().bootstrap(inside, outside, seed=0)
        exact = stats.binomtest(20 - wrong, 20).proportion_ci(0.95, "exact")
        assert (estimate.lower.item(), estimate.upper.item()) == pytest.approx((exact.low, exact.high), abs=1e-9)
        mirrored = metrics.AUROC().bootstrap(-inside, -outside, seed=0)
        assert mirrored.lower.item() == pytest.approx(1 - exact.high, abs=1e-9)
        assert mirrored.upper.item() == pytest.approx(1 - exact.low, abs=1e-9)


def test_the_interval_of_auroc_has_the_width_of_its_variance():
    generator = torch.Generator().manual_seed(0)
    inside, outside = torch.randn(400, generator=generator), 0.7 + torch.randn(600, generator=generator)
    estimate = metrics.AUROC().bootstrap(inside, outside, seed=0)
    width = (estimate.upper - estimate.lower).item()
    assert width == pytest.approx(2 * 1.96 * estimate.replicates.std().item(), rel=0.1)


def test_the_interval_of_fpr_adds_up_the_binomial_laws_of_threshold_and_outside_rows():
    """Against simulation of the same law; the quantile of 200,000 draws has an error of some 0.001."""
    generator = np.random.default_rng(0)
    inside, outside = np.sort(generator.normal(size=150)), 2 + generator.normal(size=80)
    estimate = metrics.FPR().bootstrap(inside, outside, seed=0)
    rank = generator.binomial(150, 0.95, 200_000)
    below = np.array([0, *(int((outside <= s).sum()) for s in inside), 80])
    low, high = below[rank], below[rank + 1]
    lower = np.where(low > 0, generator.beta(low.clip(1), 80 - low + 1), 0.0)
    upper = np.where(high < 80, generator.beta(high + 1, (80 - high).clip(1)), 1.0)
    assert estimate.lower.item() == pytest.approx(np.quantile(lower, 0.025), abs=0.004)
    assert estimate.upper.item() == pytest.approx(np.quantile(upper, 0.975), abs=0.004)


def test_fpr_of_0_is_not_certain_and_few_inside_rows_do_not_bound_the_threshold():
    inside = torch.linspace(0, 1, 200)
    estimate = metrics.FPR().bootstrap(inside, 5 + inside[:60], seed=0)
    assert estimate.lower == estimate.value == 0
    assert 1 - 0.025 ** (1 / 60) < estimate.upper < 0.1
    for num_rows, bounded in ((71, False), (72, True)):
        upper = metrics.FPR().bootstrap(inside[:num_rows], 5 + inside, seed=0).upper
        assert (upper < 1) == bounded


def test_refusals():
    with pytest.raises(ShapeError, match="scores_out"):
        auroc([1.0], [])
    with pytest.raises(ShapeError, match="scores_in"):
        aupr([], [1.0])
    with pytest.raises(ShapeError, match=r"\(1, 1\)"):
        fpr([[1.0]], [1.0])
    with pytest.raises(NotFiniteError, match="scores_in"):
        auroc([float("nan")], [1.0])


def test_scores_of_predictions(dtype):
    logits = torch.randn(5, 7, 3, generator=torch.Generator().manual_seed(1), dtype=dtype) * 3
    mixture = MixturePredictive(Categorical(logits=logits, validate_args=False))
    marginal = logits.double().softmax(-1).mean(0)
    entropy = -(marginal * marginal.log()).sum(-1)
    each = logits.double().softmax(-1)
    information = entropy + (each * each.log()).sum(-1).mean(0)
    tolerance = {"atol": 1e-6 if dtype == torch.float32 else 1e-12}
    assert torch.allclose(metrics.entropy_score(mixture), entropy, **tolerance)
    assert torch.allclose(metrics.mutual_information_score(mixture), information, **tolerance)
    assert torch.allclose(metrics.least_confidence_score(mixture), 1 - marginal.max(-1).values, **tolerance)
    assert metrics.entropy_score(mixture).dtype == torch.float64


def test_confident_rows_do_not_tie():
    sure = Categorical(logits=torch.tensor([[50.0, 0.0], [60.0, 0.0]], dtype=torch.float64))
    first, second = metrics.least_confidence_score(sure)
    assert 0 < second < first < 1e-20


def test_density_of_inputs():
    points = torch.randn(6, 2)
    density = MultivariateNormal(torch.zeros(6, 2), torch.eye(2).expand(6, 2, 2), validate_args=False)
    expected = 0.5 * points.double().square().sum(-1) + math.log(2 * math.pi)
    assert torch.allclose(metrics.negative_log_density_score(density, points), expected, atol=1e-5)


def test_mutual_information_needs_draws():
    with pytest.raises(NotSupportedError, match="Bernoulli"):
        metrics.mutual_information_score(Bernoulli(probs=torch.tensor([0.5])))
    with pytest.raises(NotSupportedError, match="Normal"):
        metrics.least_confidence_score(Normal(torch.zeros(1), torch.ones(1)))
