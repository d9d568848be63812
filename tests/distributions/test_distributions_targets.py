"""Targets at the boundary, densities outside the support, kinds."""

import math

import numpy as np
import pytest
import torch
from distribution_cases import ALL, CLASSES, WITH_DENSITY, build, targets
from torch.distributions import (
    Bernoulli,
    Beta,
    Categorical,
    Distribution,
    Exponential,
    Gamma,
    Independent,
    LogNormal,
    Normal,
    OneHotCategorical,
    Poisson,
    Uniform,
)

from credibly.core.errors import NotFiniteError, NotSupportedError, ShapeError, SupportError
from credibly.distributions.affine import AffineView
from credibly.distributions.density import log_prob, safe_log_prob
from credibly.distributions.kinds import kind
from credibly.distributions.mixture import MixturePredictive
from credibly.distributions.targets import match_targets

ONE = torch.ones(1)

IMPOSSIBLE = {
    "exponential": (Exponential(2 * ONE), -5.0),
    "gamma": (Gamma(ONE, ONE), -1.0),
    "beta": (Beta(ONE, ONE), 5.0),
    "log_normal": (LogNormal(0 * ONE, ONE), -0.5),
    "uniform": (Uniform(0 * ONE, ONE), 1.5),
    "poisson_negative": (Poisson(3 * ONE), -1.0),
    "poisson_fraction": (Poisson(3 * ONE), 1.5),
    "bernoulli": (Bernoulli(logits=ONE), 300.0),
    "bernoulli_fraction": (Bernoulli(probs=0.5 * ONE), 0.5),
    "categorical": (Categorical(logits=torch.zeros(1, 3)), 10.0),
    "categorical_negative": (Categorical(probs=torch.full((1, 3), 1 / 3)), -1.0),
    "categorical_fraction": (Categorical(logits=torch.zeros(1, 3)), 0.5),
    "view": (AffineView(Exponential(2 * ONE), 1.0, 2.0), 0.5),
    "mixture": (MixturePredictive(Exponential(torch.ones(3, 1))), -5.0),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_impossible_targets_score_minus_infinity_or_stop(name: str) -> None:
    d, y = IMPOSSIBLE[name]
    assert safe_log_prob(d, torch.tensor([y])).tolist() == [-math.inf]
    base = name.split("_", maxsplit=1)[0].capitalize() if name not in ("view", "mixture", "log_normal") else ""
    with pytest.raises(SupportError, match=rf"target {y:g} lies outside the support of {base}"):
        log_prob(d, [y])


@pytest.mark.parametrize("name", ["exponential", "gamma", "beta", "log_normal", "poisson_fraction", "view"])
def test_impossible_targets_keep_gradients_finite(name: str) -> None:
    _, y = IMPOSSIBLE[name]
    parameter = torch.ones(2, requires_grad=True)
    rebuilt = {
        "exponential": lambda p: Exponential(p, validate_args=False),
        "gamma": lambda p: Gamma(p, p, validate_args=False),
        "beta": lambda p: Beta(p, p, validate_args=False),
        "log_normal": lambda p: LogNormal(p, p, validate_args=False),
        "poisson_fraction": lambda p: Poisson(p, validate_args=False),
        "view": lambda p: AffineView(Exponential(p, validate_args=False), 1.0, 2.0),
    }[name](parameter)
    values = safe_log_prob(rebuilt, torch.tensor([y, 3.0 if name != "beta" else 0.5]))
    values[1].backward(retain_graph=True)
    values[0].backward()
    assert bool(torch.isfinite(parameter.grad).all())
    assert float(parameter.grad[0]) == 0


def test_certain_events_from_probabilities_are_exact() -> None:
    d = Bernoulli(probs=torch.tensor([0.0, 1.0, 0.0, 1.0]), validate_args=False)
    assert safe_log_prob(d, torch.tensor([0.0, 1.0, 1.0, 0.0])).tolist() == [0, 0, -math.inf, -math.inf]
    c = Categorical(probs=torch.tensor([[0.0, 1.0]]), validate_args=False)
    assert float(safe_log_prob(c, torch.tensor([0]))) == -math.inf
    logits = Bernoulli(logits=torch.tensor([-math.inf, math.inf]), validate_args=False)
    assert safe_log_prob(logits, torch.tensor([0.0, 1.0])).tolist() == [0, 0]


def test_the_ends_of_a_uniform_belong_to_it() -> None:
    d = Uniform(torch.tensor([-1.0, -1.0]), torch.tensor([1.0, 1.0]))
    assert log_prob(d, [-1.0, 1.0]).tolist() == pytest.approx([-math.log(2)] * 2)


@pytest.mark.parametrize("name", WITH_DENSITY)
def test_log_prob_passes_through_vmap(name: str, dtype: torch.dtype, device: torch.device) -> None:
    d = build(name, dtype, device)
    ys = torch.stack([targets(d, seed) for seed in range(3)])
    mapped = torch.func.vmap(lambda y: safe_log_prob(d, y))(ys)
    torch.testing.assert_close(mapped, torch.stack([log_prob(d, y) for y in ys]))
    assert mapped.shape == (3, *d.batch_shape)


@pytest.mark.parametrize("name", ALL)
def test_matched_targets_have_the_shape_of_the_prediction(name: str, dtype: torch.dtype, device: torch.device) -> None:
    d = build(name, dtype, device)
    y = targets(d)
    before = y.clone()
    matched = match_targets(d, y)
    assert matched.shape == d.batch_shape + d.event_shape
    assert torch.equal(y, before)
    if not d.event_shape:
        torch.testing.assert_close(match_targets(d, y.unsqueeze(-1)), matched)
    torch.testing.assert_close(match_targets(d, y.cpu().numpy()), matched.to(matched.dtype))
    for wrong in (y[:-1], y.unsqueeze(0), torch.stack([y, y], -1)):
        with pytest.raises(ShapeError, match=r"`targets` must have shape"):
            match_targets(d, wrong)


def test_one_output_takes_both_shapes_and_never_broadcasts(dtype: torch.dtype) -> None:
    column = Independent(Normal(torch.zeros(5, 1, dtype=dtype), torch.ones(5, 1, dtype=dtype)), 1)
    y = torch.arange(5, dtype=dtype)
    assert torch.equal(log_prob(column, y), log_prob(column, y.unsqueeze(-1)))
    assert log_prob(column, y).shape == (5,)
    with pytest.raises(ShapeError, match=r"\(5, 1\); got \(1, 5\)"):
        log_prob(column, y.unsqueeze(0))


def test_one_hot_rows_are_told_to_be_indices() -> None:
    d = Categorical(logits=torch.zeros(5, CLASSES))
    for y in (torch.eye(CLASSES)[[0, 1, 2, 0, 1]], np.eye(CLASSES, dtype=int)[[0, 1, 2, 0, 1]]):
        with pytest.raises(ShapeError, match="indices, not one-hot"):
            match_targets(d, y)


@pytest.mark.parametrize("dtype_in", [torch.int32, torch.uint8, torch.float32, torch.float64, torch.int64])
def test_class_targets_become_int64(dtype_in: torch.dtype) -> None:
    matched = match_targets(Categorical(logits=torch.zeros(3, 3)), torch.tensor([0, 2, 1], dtype=dtype_in))
    assert matched.dtype == torch.int64
    assert matched.tolist() == [0, 2, 1]


def test_class_targets_name_the_classes() -> None:
    with pytest.raises(SupportError, match=r"target 10 .* Categorical: whole numbers from 0 to 2"):
        match_targets(Categorical(logits=torch.zeros(3, 3)), [10, 20, 30])


@pytest.mark.parametrize("name", ["normal", "poisson", "bernoulli_logits"])
def test_integers_and_booleans_are_cast_to_the_prediction(name: str, dtype: torch.dtype, device: torch.device) -> None:
    d = build(name, dtype, device)
    for y in ([0, 1, 1, 0], torch.tensor([False, True, True, False])):
        matched = match_targets(d, y)
        assert matched.dtype == dtype
        assert matched.tolist() == [0, 1, 1, 0]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("name", ["normal", "categorical_logits", "empirical", "mixture_normal"])
def test_targets_that_are_not_finite_stop(name: str, bad: float, dtype: torch.dtype, device: torch.device) -> None:
    with pytest.raises(NotFiniteError, match="`targets` must be finite; 1 of 4"):
        match_targets(build(name, dtype, device), [0.0, bad, 1.0, 0.0])


def test_a_target_needs_mass_under_one_draw_only() -> None:
    d = MixturePredictive(Uniform(torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0], [3.0]])))
    assert float(log_prob(d, [2.5])) == pytest.approx(math.log(0.5))
    with pytest.raises(SupportError, match=r"target 1\.5"):
        log_prob(d, [1.5])


KINDS = {
    "real": ["normal", "view_gamma", "empirical", "quantiles", "gaussian", "mixture_outputs", "independent_normal"]
}
KINDS["count"] = ["poisson", "independent_poisson", "mixture_poisson"]
KINDS["class"] = ["bernoulli_logits", "categorical_probs", "independent_bernoulli", "mixture_categorical", "classes"]


@pytest.mark.parametrize(("expected", "name"), [(k, n) for k, names in KINDS.items() for n in names])
def test_kind(expected: str, name: str, dtype: torch.dtype, device: torch.device) -> None:
    assert kind(build(name, dtype, device)) == expected


def test_kind_refuses_what_it_cannot_know() -> None:
    with pytest.raises(NotSupportedError, match="use Categorical"):
        kind(OneHotCategorical(torch.ones(2, 3)))
    with pytest.raises(NotSupportedError, match="Distribution"):
        kind(Distribution(torch.Size([2]), validate_args=False))
