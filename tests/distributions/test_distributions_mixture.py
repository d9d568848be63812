"""Mixtures: against brute force, the law of total variance, mutual information, quantiles, the final forms."""

import math

import numpy as np
import pytest
import torch
from distribution_cases import DRAWS, MIXTURES, PREDICTIVE, ROWS, build, targets
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch.distributions import Bernoulli, Categorical, Independent, Laplace, Normal, Poisson

from credibly.core.errors import NotSupportedError, ShapeError
from credibly.distributions import mixture_cumulative
from credibly.distributions.class_predictive import ClassPredictive
from credibly.distributions.classes import class_draw_log_probs, class_log_probs
from credibly.distributions.cumulative import cdf, icdf
from credibly.distributions.density import safe_log_prob
from credibly.distributions.gaussian import GaussianPredictive
from credibly.distributions.kinds import kind
from credibly.distributions.mixture import MixturePredictive
from credibly.distributions.moments import entropy, mean, variance
from credibly.distributions.rows import select


def _weights(d: MixturePredictive) -> list[float]:
    return d.log_weights.double().exp().tolist()


@pytest.mark.parametrize("name", MIXTURES)
def test_log_prob_equals_brute_force(name: str, dtype: torch.dtype, device: torch.device) -> None:
    d = build(name, dtype, device)
    y = targets(d)
    each = safe_log_prob(d.components, y).double()  # (draws, rows)
    for row in range(ROWS):
        total = sum(w * math.exp(v) for w, v in zip(_weights(d), each[:, row].tolist(), strict=True))
        assert float(d.log_prob(y)[row]) == pytest.approx(math.log(total), abs=1e-5)
    joint = sum(w * math.exp(v) for w, v in zip(_weights(d), each.sum(1).tolist(), strict=True))
    assert float(d.joint_log_prob(y)) == pytest.approx(math.log(joint), abs=1e-5)


@pytest.mark.parametrize("name", MIXTURES)
def test_cdf_is_the_weighted_mean(name: str, dtype: torch.dtype, device: torch.device) -> None:
    d = build(name, dtype, device)
    y = targets(d).to(dtype)
    each = cdf.formula(d.components, y)
    expected = sum(w * each[k].double() for k, w in enumerate(_weights(d)))
    torch.testing.assert_close(d.cdf(y), expected.to(dtype))


@pytest.mark.parametrize("name", [n for n in MIXTURES if "categorical" not in n])
def test_moments_by_hand(name: str, dtype: torch.dtype, device: torch.device) -> None:
    d = build(name, dtype, device)
    w = torch.tensor(_weights(d), dtype=torch.float64).reshape(-1, *(1,) * (1 + len(d.event_shape)))
    means, variances = mean(d.components).double().cpu(), variance(d.components).double().cpu()
    centre = (w * means).sum(0)
    aleatoric, epistemic = (w * variances).sum(0), (w * (means - centre) ** 2).sum(0)
    for ours, theirs in (
        (d.mean, centre),
        (d.aleatoric_variance, aleatoric),
        (d.epistemic_variance, epistemic),
        (d.variance, aleatoric + epistemic),
        (d.stddev, (aleatoric + epistemic).sqrt()),
    ):
        torch.testing.assert_close(ours.cpu(), theirs.to(dtype), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", [n for n in PREDICTIVE if "gaussian" in n or ("mixture" in n and "categ" not in n)])
def test_aleatoric_and_epistemic_add_up(name: str, dtype: torch.dtype, device: torch.device) -> None:
    d = build(name, dtype, device)
    total = d.aleatoric_variance + d.epistemic_variance
    torch.testing.assert_close(total, d.variance)
    assert bool((d.epistemic_variance >= 0).all())


def test_epistemic_variance_is_taken_about_the_mean() -> None:
    far = torch.tensor([[1e4], [1e4 + 1]])
    d = MixturePredictive(Normal(far, torch.full_like(far, 1e-3)))
    assert float(d.epistemic_variance) == 0.25  # E[x^2] - E[x]^2 in float32 gives 0 or 8


@pytest.mark.parametrize("name", [n for n in PREDICTIVE if "mixture" in n or "gaussian" in n or "empir" in n])
@pytest.mark.parametrize("coverage", [0.0, 0.005, 0.5, 0.9, 0.995, 1.0])
def test_intervals_are_equal_tailed(name: str, coverage: float, dtype: torch.dtype, device: torch.device) -> None:
    d = build(name, dtype, device)
    lower, upper = d.interval(coverage)
    assert bool((lower <= upper).all())
    if kind(d) == "real" and "empirical" not in name and 0 < coverage < 1:
        torch.testing.assert_close(d.cdf(lower), torch.full_like(lower, (1 - coverage) / 2), rtol=0, atol=1e-6)
        torch.testing.assert_close(d.cdf(upper), torch.full_like(upper, (1 + coverage) / 2), rtol=0, atol=1e-6)
    if coverage == 0:
        assert torch.equal(lower, upper)
    if coverage == 1:
        assert bool((d.cdf(lower - 1) == 0).all())
        assert bool((d.cdf(upper) == 1).all())


@pytest.mark.parametrize("coverage", [-0.1, 1.1, math.nan])
def test_coverage_outside_0_and_1_is_refused(coverage: float) -> None:
    with pytest.raises(ValueError, match="coverage"):
        MixturePredictive(Normal(torch.zeros(1, 1), torch.ones(1, 1))).interval(coverage)


class CountedMixture:
    """Counts the evaluations of the mixture's cdf, in values."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.values, original = 0, mixture_cumulative._cdf

        def counted(d: MixturePredictive, value: torch.Tensor) -> torch.Tensor:
            self.values += value.numel()
            return original(d, value)

        monkeypatch.setattr(mixture_cumulative, "_cdf", counted)


@pytest.mark.parametrize("q", [1e-6, 0.05, 0.5, 0.975])
def test_quantiles_of_many_gaussians_take_few_evaluations(q: float, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, draws = 500, 200
    generator = torch.Generator().manual_seed(1)
    loc = torch.randn(draws, rows, dtype=torch.float64, generator=generator)
    scale = 0.1 + torch.rand(draws, rows, dtype=torch.float64, generator=generator)
    d = MixturePredictive(Normal(loc, scale))
    count = CountedMixture(monkeypatch)
    x = d.icdf(q)
    assert count.values <= 12 * rows
    density = d.log_prob(x).exp()
    # the error in x is the error in F over the density
    assert bool(((d.cdf(x) - q).abs() / density <= 1e-8 * x.abs() + 1e-15 / density).all())


@given(
    hnp.arrays(np.float64, (3, 2), elements=st.floats(-1e3, 1e3)),
    hnp.arrays(np.float64, (3, 2), elements=st.floats(1e-4, 1e3)),
    hnp.arrays(np.float64, 3, elements=st.floats(-20, 0)),
    st.floats(1e-9, 1 - 1e-9),
)
def test_any_gaussian_mixture_inverts(loc: np.ndarray, scale: np.ndarray, log_w: np.ndarray, q: float) -> None:
    d = MixturePredictive(Normal(*map(torch.from_numpy, (loc, scale))), log_w)
    x = d.icdf(q)
    nudge = 1e-7 * (1e-4 + x.abs())
    assert bool((d.cdf(x - nudge) <= q + 1e-12).all())
    assert bool((d.cdf(x + nudge) >= q - 1e-12).all())
    torch.testing.assert_close(d.aleatoric_variance + d.epistemic_variance, d.variance)
    each = Normal(*map(torch.from_numpy, (loc, scale)))
    assert bool((x >= icdf(each, q).amin(0)).all())
    assert bool((x <= icdf(each, q).amax(0)).all())


@given(hnp.arrays(np.float64, (4, 3, 5), elements=st.one_of(st.floats(-800, 800), st.just(-math.inf))), st.data())
def test_mutual_information_lies_between_0_and_the_entropy(logits: np.ndarray, data: st.DataObject) -> None:
    logits[..., data.draw(st.integers(0, 4))] = 0.0  # one class in every row has mass
    logits[..., 0] = np.where(np.isneginf(logits).all(-1), 0.0, logits[..., 0])
    d = MixturePredictive(Categorical(logits=torch.from_numpy(logits), validate_args=False))
    information, total = d.mutual_information(), d.entropy()
    assert bool(torch.isfinite(total).all())
    assert bool(((information >= 0) & (information <= total)).all())


def test_mutual_information_of_members_that_disagree(dtype: torch.dtype) -> None:
    opposed = torch.tensor([[[0.0, -math.inf, -math.inf]], [[-math.inf, 0.0, -math.inf]]], dtype=dtype)
    d = MixturePredictive(Categorical(logits=opposed, validate_args=False))
    assert float(d.entropy()) == pytest.approx(math.log(2))
    assert float(d.mutual_information()) == pytest.approx(math.log(2))
    agreed = MixturePredictive(Categorical(logits=opposed[:1].expand(2, 1, 3), validate_args=False))
    assert (float(agreed.entropy()), float(agreed.mutual_information())) == (0, 0)
    coin = MixturePredictive(Bernoulli(probs=torch.tensor([[0.0], [1.0]], dtype=dtype)))
    assert float(coin.mutual_information()) == pytest.approx(math.log(2))


def test_class_probabilities_have_torchs_shapes(dtype: torch.dtype, device: torch.device) -> None:
    event, classes = (build(n, dtype, device) for n in ("mixture_bernoulli", "mixture_categorical"))
    assert event.probs.shape == (4,)
    assert classes.probs.shape == (4, 3)
    weights = classes.log_weights.exp()
    torch.testing.assert_close(classes.probs, torch.einsum("k,knc->nc", weights, classes.components.probs))
    torch.testing.assert_close(event.probs, event.components.probs.mean(0))
    torch.testing.assert_close(event.mean, event.probs)
    assert class_draw_log_probs(classes).shape == (3, 4, 3)
    assert class_log_probs(classes).dtype == torch.float64
    with pytest.raises(NotSupportedError, match="class_log_probs"):
        _ = build("mixture_normal", dtype, device).probs


def test_one_draw_is_one_function() -> None:
    d = MixturePredictive(Normal(torch.tensor([[-100.0] * 50, [100.0] * 50]), torch.ones(2, 50)))
    signs = d.draw((200,), seed=0).sign()
    assert bool((signs == signs[:, :1]).all())
    # 200 fair coins: 6 standard errors, a false alarm with probability 2e-9
    assert abs(float(signs[:, 0].mean())) < 6 / math.sqrt(200)


def test_draws_follow_the_weights() -> None:
    d = MixturePredictive(Normal(torch.tensor([[0.0], [10.0], [20.0]]), torch.ones(3, 1)), [0.0, -math.inf, 0.0])
    draws = d.draw((1000,), seed=0)
    assert not bool(((draws > 6) & (draws < 14)).any())


def test_weightless_draws_change_nothing(dtype: torch.dtype) -> None:
    loc, scale = torch.tensor([[0.0, 1.0], [50.0, 50.0]], dtype=dtype), torch.ones(2, 2, dtype=dtype)
    d, alone = MixturePredictive(Normal(loc, scale), [0.0, -math.inf]), Normal(loc[0], scale[0])
    y = torch.tensor([0.3, -0.4], dtype=dtype)
    torch.testing.assert_close(d.log_prob(y), alone.log_prob(y))
    for q in (0.0, 0.2, 1.0):
        torch.testing.assert_close(d.icdf(q), icdf(alone, q))


def test_gradients_reach_the_members(dtype: torch.dtype) -> None:
    loc = torch.zeros(3, 2, dtype=dtype, requires_grad=True)
    d = MixturePredictive(Normal(loc, torch.ones(3, 2, dtype=dtype)))
    (d.log_prob(torch.ones(2, dtype=dtype)).sum() + d.cdf(1.0).sum() + d.variance.sum()).backward()
    assert bool(torch.isfinite(loc.grad).all())
    loc.grad = None
    assert d.has_rsample
    d.rsample((50,)).mean().backward()
    assert float(loc.grad.sum()) == pytest.approx(1)
    assert not d.draw((2,)).requires_grad


def test_rows_in_chunks_give_the_same(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, device: torch.device
) -> None:
    for name in ("mixture_outputs", "mixture_poisson", "mixture_weighted"):
        d = build(name, dtype, device)
        y = targets(d)
        grid = torch.stack([y, y + 1])
        whole = d.cdf(y), d.icdf(0.3), d.cdf(grid)
        with monkeypatch.context() as patch:
            patch.setattr("credibly.distributions.mixture.CHUNK", DRAWS * 2)
            for ours, expected in zip((d.cdf(y), d.icdf(0.3), d.cdf(grid)), whole, strict=True):
                torch.testing.assert_close(ours, expected)


def test_components_of_every_family_can_be_mixed(dtype: torch.dtype) -> None:
    loc = torch.zeros(3, 4, dtype=dtype)
    d = MixturePredictive(Laplace(loc, loc + 1))
    torch.testing.assert_close(d.icdf(0.2), icdf(Laplace(loc[0], loc[0] + 1), 0.2))
    assert float(MixturePredictive(Poisson(loc + 3)).icdf(0.5)[0]) == 3


def test_what_does_not_fit_is_refused() -> None:
    normal = Normal(torch.zeros(3, 4), torch.ones(3, 4))
    for bad in (select(normal, [0]).expand((1, 3, 1)), Normal(torch.zeros(3), torch.ones(3))):
        with pytest.raises(ShapeError, match=r"\(num_draws, rows\)"):
            MixturePredictive(bad)
    with pytest.raises(ShapeError, match=r"`log_weights` must have shape \(3,\).*got \(4,\)"):
        MixturePredictive(normal, torch.zeros(4))
    for weights in ([0.0, math.nan, 0.0], [-math.inf] * 3, [math.inf, 0.0, 0.0]):
        with pytest.raises(ValueError, match="log_weights"):
            MixturePredictive(normal, weights)
    with pytest.raises(ValueError, match="at least one draw"):
        MixturePredictive(Normal(torch.zeros(0, 4), torch.ones(0, 4)))
    d = MixturePredictive(normal)
    for refused in (d.mutual_information, d.entropy, lambda: d.expand((5,))):
        with pytest.raises(NotSupportedError, match="not available for MixturePredictive"):
            refused()
    assert d.num_draws == 3


def test_weights_are_normalised_and_default_to_equal(dtype: torch.dtype) -> None:
    normal = Normal(torch.zeros(4, 2, dtype=dtype), torch.ones(4, 2, dtype=dtype))
    assert MixturePredictive(normal).log_weights.tolist() == pytest.approx([-math.log(4)] * 4)
    d = MixturePredictive(normal, [10.0, 10.0, 10.0, 10.0 + math.log(3)])
    assert d.log_weights.exp().tolist() == pytest.approx([1 / 6] * 3 + [0.5])
    assert d.log_weights.dtype == dtype


def test_gaussian_form(dtype: torch.dtype) -> None:
    centre = torch.tensor([[0.0, 1.0], [2.0, 3.0]], dtype=dtype)
    d = GaussianPredictive(
        centre, torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=dtype), torch.tensor([0.25, 0.0]).to(dtype)
    )
    marginal = Independent(Normal(centre, d.variance.sqrt()), 1)
    y = centre + 0.5
    assert torch.equal(d.log_prob(y), marginal.log_prob(y))
    assert torch.equal(d.mean, centre)
    assert torch.equal(d.aleatoric_variance + d.epistemic_variance, d.variance)
    torch.testing.assert_close(entropy(d), marginal.base_dist.entropy())
    with pytest.raises(NotSupportedError, match="joint_log_prob"):
        d.joint_log_prob(y)
    with pytest.raises(ShapeError, match="`noise_variance`"):
        GaussianPredictive(centre, centre, torch.ones(3))
    with pytest.raises(ValueError, match="`function_variance` must be 0 or above"):
        GaussianPredictive(centre, -1.0, 2.0)
    with pytest.raises(ValueError, match="above 0"):
        GaussianPredictive(centre, 0.0, 0.0)


def test_class_form_has_no_draws_to_compare(dtype: torch.dtype) -> None:
    d = ClassPredictive(torch.tensor([[0.0, -math.inf, 0.0]], dtype=dtype))
    assert d.probs.tolist() == [[0.5, 0.0, 0.5]]
    assert float(d.entropy()) == pytest.approx(math.log(2))
    for name in ("mutual_information", "joint_log_prob"):
        with pytest.raises(NotSupportedError, match=f"{name} is not available for ClassPredictive"):
            getattr(d, name)(*([[0]] if name == "joint_log_prob" else []))
    with pytest.raises(NotSupportedError, match="epistemic_variance"):
        _ = d.epistemic_variance
    with pytest.raises(NotSupportedError):
        class_draw_log_probs(d)
    event = ClassPredictive(torch.zeros(2, dtype=dtype))
    assert event.probs.tolist() == [0.5, 0.5]
    with pytest.raises(ShapeError, match="`logits`"):
        ClassPredictive(torch.zeros(2, 1))
