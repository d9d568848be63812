"""Every likelihood against scipy, brute force and itself: one contract over `cases.LIKELIHOODS`.

What applies to a likelihood follows from its target's kind (real, count or class), the shape of its event, the support
of its law, and whether the elements of a vector depend on each other; never from its name.
"""

import functools
import re
import warnings

import numpy as np
import pytest
import torch
from likelihood_oracles import (
    brute_fisher,
    draw_targets,
    event_axes,
    flat,
    is_joint,
    is_mixture,
    is_vector,
    kind_of,
    log_density,
    outputs_for,
    over_event,
    scipy_law,
    spread_of,
    unflat,
    whole,
)
from scipy import special, stats
from torch import nn
from torch.func import vmap

from cases import HEADS, LIKELIHOODS, linear, outputs_shape
from credibly.core.data import Data
from credibly.core.errors import NotFiniteError, NotSupportedError, ShapeError, SupportError
from credibly.distributions import functions as waist
from credibly.distributions.affine import affine
from credibly.distributions.kinds import base_of
from credibly.distributions.survival import survival
from credibly.likelihoods import Gaussian, HeteroscedasticGaussian, Likelihood
from credibly.model import Model

TAILS = np.array([1e-200, 1e-100, 1e-50, 1e-20, 1e-10, 1e-5, 1e-3, 0.05, 0.3, 0.5])
LEVELS = np.array([1e-100, 1e-30, 1e-12, 1e-6, 1e-3, 0.1, 0.4, 0.5, 0.6, 0.9, 0.999])


def make(name, dtype=torch.float64, device="cpu"):
    return (LIKELIHOODS | HEADS)[name]().to(device=device, dtype=dtype)


def allows(action, name, error=NotSupportedError):
    """Whether a likelihood does it, or refuses by name."""
    try:
        action(make(name))
    except error:
        return False
    return True


def law_for(name):
    likelihood = make(name)
    return scipy_law(likelihood, outputs_for(likelihood, 1))


def move(likelihood):
    return likelihood.standardized(torch.ones(()), torch.ones(()))


def divide(likelihood):
    return likelihood.standardized(torch.zeros(()), torch.ones(()))


def is_positive(law):
    lower, upper = law.support()
    return bool(np.all(lower == 0) and np.all(np.isposinf(upper)))


def takes_bounds(likelihood):
    """Whether a target may be a pair of bounds."""
    outputs = outputs_for(likelihood, 1)
    targets = draw_targets(likelihood, outputs)
    try:
        likelihood.match_targets(torch.stack([targets, targets], -1), outputs)
    except ShapeError:
        return False
    return True


EVERY = pytest.mark.parametrize("name", LIKELIHOODS)
ANY = pytest.mark.parametrize("name", LIKELIHOODS | HEADS)
"""Of heads too, whose training score stands for the density where one is asked for."""
ELEMENTS = [name for name in LIKELIHOODS if make(name).elements()[1]]
REAL = [name for name in LIKELIHOODS if kind_of(make(name)) == "real"]
COUNTED = [name for name in LIKELIHOODS if name not in REAL]
SCALAR = [name for name in LIKELIHOODS if not is_vector(make(name))]
JOINT = [name for name in LIKELIHOODS if is_joint(law_for(name))]
BOUNDED = [name for name in LIKELIHOODS if np.isfinite(law_for(name).support()).any()]
INFORMED = [name for name in LIKELIHOODS if allows(lambda part: part.fisher(outputs_for(part, 1)), name)]
MEASURED = [name for name in LIKELIHOODS if allows(lambda part: waist.mean(part(outputs_for(part, 1))), name)]
BOUNDS = [name for name in LIKELIHOODS if takes_bounds(make(name))]
MOVABLE = [name for name in LIKELIHOODS if allows(move, name)]
DIVISIBLE = [name for name in LIKELIHOODS if allows(divide, name)]
POSITIVE = [name for name in REAL if is_positive(law_for(name))]


def eps(dtype):
    return torch.finfo(dtype).eps


def as_numpy(values):
    return values.detach().double().cpu().numpy()


def on_rows(name, dtype, rows, **options):
    """The likelihood, outputs for some rows, and their law."""
    likelihood = make(name, dtype)
    outputs = outputs_for(likelihood, rows, dtype=dtype, **options)
    return likelihood, outputs, scipy_law(likelihood, outputs)


# -- densities ---------------------------------------------------------------------------------------------------


@EVERY
def test_log_prob_is_scipys_and_that_of_the_distribution(name, dtype, device):
    likelihood, outputs, law = on_rows(name, dtype, 200)
    targets = draw_targets(likelihood, outputs)
    density = functools.partial(log_density, y=as_numpy(targets), axes=event_axes(likelihood))
    expected = density(law)
    rounding = spread_of(likelihood, outputs, density, 4 * eps(dtype)) + 32 * eps(dtype) * (1 + np.abs(expected).max())
    likelihood, outputs, targets = likelihood.to(device), outputs.to(device), targets.to(device)
    own = likelihood.log_prob(likelihood.parameters_of(outputs), targets)
    assert own.dtype == dtype
    assert own.shape == (200,)
    for given_by in (
        own,
        likelihood(outputs).log_prob(targets),
        waist.log_prob(likelihood(outputs), targets),
        Likelihood.log_prob(likelihood, likelihood.parameters_of(outputs), targets),
    ):
        assert np.all(np.abs(as_numpy(given_by) - expected) <= rounding)


def far_points(likelihood, outputs):
    """Targets far into both tails, as float64 arrays (K, rows, *event) of numbers that exist in the outputs' dtype."""
    predicted = likelihood.double()(outputs.double())
    points = torch.stack([waist.icdf(predicted, level) for level in (*LEVELS, *(1 - LEVELS[2:5]))]).to(outputs.dtype)
    likelihood.to(outputs.dtype)
    return as_numpy(points)


@pytest.mark.parametrize("name", REAL)
def test_real_targets_equal_scipy_far_into_both_tails(name, dtype):
    likelihood, outputs, law = on_rows(name, dtype, 5)
    exact, step = far_points(likelihood, outputs), 8 * eps(dtype)
    values = torch.as_tensor(exact).to(dtype)
    own, expected = as_numpy(waist.cdf(likelihood(outputs), values)), law.cdf(exact)
    rounding = spread_of(likelihood, outputs, lambda law: law.cdf(exact), step) + (1e-10 + step) * expected
    in_value = np.maximum(*(np.abs(law.cdf(exact * (1 + s)) - expected) for s in (step, -step)))
    assert np.all(np.abs(own - expected) <= rounding + in_value + torch.finfo(dtype).tiny)
    if is_joint(law):
        return
    lower, upper = law.support()
    inside = ((exact > lower) & (exact < upper) & np.isfinite(exact)).reshape(*exact.shape[:2], -1).all((1, 2))
    assert inside.sum() > len(inside) / 2
    density = functools.partial(log_density, y=exact[inside], axes=event_axes(likelihood))
    own = as_numpy(likelihood.log_prob(likelihood.parameters_of(outputs), values[inside]))
    rounding = spread_of(likelihood, outputs, density, step) + (1e-10 + 4 * step) * (1 + np.abs(density(law)))
    assert np.all(np.abs(own - density(law)) <= rounding)


def both_tails(name, law):
    """Targets from one far tail to the other, (K, rows, *event): of classes the whole support, and beyond."""
    if name in REAL:
        levels = TAILS.reshape(-1, *[1] * np.ndim(law.mean()))
        with warnings.catch_warnings():  # far levels have no quantile for some laws
            warnings.simplefilter("ignore")
            points = np.concatenate([law.ppf(levels), law.isf(levels)])
        return points[np.isfinite(points).reshape(len(points), -1).all(1)]
    deviations = np.array([-40, -20, -10, -5, -2, 0, 2, 5, 10, 20, 40.0]).reshape(-1, *[1] * np.ndim(law.mean()))
    around = np.round(law.mean() + deviations * np.sqrt(law.var()))
    few = np.arange(-1, 12).reshape(-1, *deviations.shape[1:])
    return np.concatenate([np.maximum(around, 0), few + np.zeros(np.shape(law.mean()))])


@EVERY
@pytest.mark.parametrize("shift", [0.0, 5.0, 9.0])
def test_both_tails_are_scipys_to_1e_10(name, shift):
    """Relative to each tail, also where it is 1e-100; shifted, counts have means of some hundreds and a lower tail."""
    likelihood = make(name)
    outputs = outputs_for(likelihood, 5) + shift
    law = scipy_law(likelihood, outputs)
    points = both_tails(name, law)
    assert len(points) > 12
    predicted, targets = likelihood(outputs), torch.as_tensor(points)
    np.testing.assert_allclose(as_numpy(waist.cdf(predicted, targets)), law.cdf(points), rtol=1e-10, atol=1e-290)
    np.testing.assert_allclose(as_numpy(survival(predicted, targets)), law.sf(points), rtol=1e-10, atol=1e-290)


@pytest.mark.parametrize("name", REAL)
def test_quantiles_of_real_targets_are_inverse_to_the_distribution_function_and_to_scipys(name, dtype):
    likelihood, outputs, law = on_rows(name, dtype, 5)
    predicted, step = likelihood(outputs), 8 * eps(dtype)
    for level in (1e-30, 1e-12, 1e-3, 0.1, 0.5, 0.9, 0.999, 1 - 1e-6):
        q = torch.tensor(level, dtype=dtype)
        quantile, exact = waist.icdf(predicted, q), float(q)
        y = as_numpy(quantile)
        rounding = spread_of(likelihood, outputs, lambda law: law.cdf(y), step) + (1e-10 + step) * exact  # noqa: B023
        ends = (quantile * (1 + step), quantile * (1 - step), quantile + torch.finfo(dtype).smallest_normal)
        rounding = rounding + np.max([np.abs(law.cdf(as_numpy(end)) - law.cdf(y)) for end in ends], 0)
        assert np.all(np.abs(law.cdf(y) - exact) <= rounding)
        assert np.all(np.abs(as_numpy(waist.cdf(predicted, quantile)) - exact) <= rounding)
        lower, upper = law.support()
        assert np.all((y >= lower) & (y <= upper))


@pytest.mark.parametrize("name", COUNTED)
def test_counts_and_classes_equal_scipy_and_quantiles_are_inverse(name, dtype):
    likelihood, outputs, law = on_rows(name, dtype, 20)
    top = np.max(law.support()[1])
    top = int(top) if np.isfinite(top) else int(np.max(law.mean() + 12 * np.sqrt(law.var()))) + 8
    shape = np.shape(law.mean())
    counts = np.arange(-1.0, min(top, 60) + 1).reshape(-1, *[1] * len(shape)) + np.zeros(shape)
    predicted, step = likelihood(outputs), 8 * eps(dtype)
    upto = law.cdf(counts)
    own = waist.cdf(predicted, torch.as_tensor(counts).to(dtype))
    rounding = spread_of(likelihood, outputs, lambda law: law.cdf(counts), step) + (step + 1e-10) * upto
    assert np.all(np.abs(as_numpy(own) - upto) <= rounding + 1e-300)
    density = log_density(law, counts[1:], axes=event_axes(likelihood))
    moved = spread_of(likelihood, outputs, lambda law: log_density(law, counts[1:], axes=event_axes(likelihood)), step)
    given_by = as_numpy(predicted.log_prob(torch.as_tensor(counts[1:]).to(dtype)))
    terms = special.gammaln(counts[1:] + 1) + law.mean() + counts[1:] * (1 + np.abs(as_numpy(outputs)).max())
    terms = over_event(terms, event_axes(likelihood))
    possible = np.isfinite(density)
    assert np.all(np.abs(given_by - density)[possible] <= (moved + step * (1 + np.abs(density) + terms))[possible])
    # the smallest value at which F reaches its own level is the value itself, wherever F still rises
    levels = as_numpy(own)
    rises = (levels[1:] > levels[:-1]) & ((levels[1:] < 1) | (counts[1:] == np.max(law.support()[1])))
    np.testing.assert_array_equal(as_numpy(waist.icdf(predicted, own[1:]))[rises], counts[1:][rises])


@pytest.mark.parametrize("name", MEASURED)
def test_moments_are_the_laws(name, dtype):
    likelihood, outputs, law = on_rows(name, dtype, 20)
    predicted, step = likelihood(outputs), 16 * eps(dtype)
    for own, of in (
        (waist.mean(predicted), lambda law: law.mean()),
        (waist.variance(predicted), lambda law: law.var()),
    ):
        rounding = spread_of(likelihood, outputs, of, step) + (1e-10 + step) * np.abs(of(law))
        assert own.shape == np.shape(of(law))
        assert np.all(np.abs(as_numpy(own) - of(law)) <= rounding)


@EVERY
def test_randomised_pits_of_draws_are_uniform(name, dtype):
    """`F(y-) + u (F(y) - F(y-))` for draws of the likelihood itself; fails by chance once in a million."""
    likelihood, outputs, _ = on_rows(name, dtype, 40)
    predicted = likelihood(outputs)
    drawn = predicted.sample(torch.Size([60]))
    u = torch.rand(drawn.shape, dtype=torch.float64)
    upto = waist.cdf(predicted, drawn).double()
    before = upto if kind_of(likelihood) == "real" else waist.cdf(predicted, drawn - 1).double()
    pit = before + u * (upto - before)
    for element in pit.reshape(2400, -1).T:
        assert stats.kstest(as_numpy(element), "uniform").pvalue > 1e-6 / max(1, pit[0, 0].numel())


# -- draw axes -----------------------------------------------------------------------------------------------------


@ANY
def test_parameters_and_log_prob_pass_through_vmap_and_equal_the_loop(name, dtype):
    likelihood = make(name, dtype)
    outputs = outputs_for(likelihood, 5, 7, dtype=dtype)
    targets = draw_targets(likelihood, outputs[0])

    def density(out):
        return likelihood.training_score(likelihood.parameters_of(out), targets)

    looped = torch.stack([density(out) for out in outputs])
    torch.testing.assert_close(vmap(density)(outputs), looped)
    torch.testing.assert_close(density(outputs), looped)
    if not likelihood.has_density:
        return
    torch.testing.assert_close(likelihood.log_prob(likelihood.parameters_of(outputs), targets), looped)
    base = vmap(lambda out: Likelihood.log_prob(likelihood, likelihood.parameters_of(out), targets))(outputs)
    torch.testing.assert_close(base, looped)
    torch.testing.assert_close(waist.safe_log_prob(likelihood(outputs), targets), looped)


@pytest.mark.parametrize("name", INFORMED)
def test_fisher_passes_through_vmap(name, dtype):
    likelihood = make(name, dtype)
    outputs = outputs_for(likelihood, 3, 4, dtype=dtype)
    torch.testing.assert_close(vmap(likelihood.fisher)(outputs), likelihood.fisher(outputs))


@ANY
def test_leading_axes_of_outputs_are_the_batch_shape(name, dtype):
    likelihood = make(name, dtype)
    outputs = outputs_for(likelihood, 4, 3, dtype=dtype)
    predicted = likelihood(outputs)
    assert predicted.batch_shape == (4, 3)
    if likelihood.has_density:
        assert predicted.event_shape == np.shape(scipy_law(likelihood, outputs).mean())[2:]
    for values in likelihood.parameters_of(outputs).values():
        assert values.shape[:2] == (4, 3)
    targets = draw_targets(likelihood, outputs)
    strided = outputs.transpose(0, 1).contiguous().transpose(0, 1)
    torch.testing.assert_close(waist.icdf(likelihood(strided), 0.3), waist.icdf(predicted, 0.3))
    if likelihood.has_density:
        own, other = (waist.safe_log_prob(d, targets) for d in (predicted, likelihood(strided)))
        torch.testing.assert_close(other, own)


# -- Fisher information --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in INFORMED if name not in JOINT])
def test_fisher_is_the_covariance_of_the_score(name):
    likelihood = make(name)
    outputs = outputs_for(likelihood, 3)
    brute = torch.stack([brute_fisher(likelihood, row) for row in outputs])
    own = whole(likelihood, likelihood.fisher(outputs))
    torch.testing.assert_close(own, brute, rtol=1e-8, atol=1e-8 * float(brute.abs().max()))
    assert whole(likelihood, likelihood.fisher(outputs[:0])).shape == (0, *brute.shape[1:])


@pytest.mark.parametrize("name", INFORMED)
def test_the_root_of_fisher_gives_it_back(name, dtype):
    likelihood = make(name, dtype)
    outputs = outputs_for(likelihood, 3, dtype=dtype)
    root, fisher = likelihood.fisher_root(outputs).detach(), likelihood.fisher(outputs).detach()
    assert root.dtype == dtype
    largest = fisher.diagonal(dim1=-2, dim2=-1).amax(-1)[..., None, None]
    off = (root @ root.mT - fisher).abs() / largest.clamp(min=torch.finfo(dtype).tiny)
    assert float(off.max()) <= 100 * fisher.shape[-1] * torch.finfo(dtype).eps


@pytest.mark.parametrize("name", [name for name in SCALAR if not is_mixture(law_for(name))])
def test_the_default_fisher_equals_the_closed_form(name, dtype):
    likelihood = make(name, dtype)
    outputs = outputs_for(likelihood, 2, 3, dtype=dtype)
    before = outputs.clone()
    default = Likelihood.fisher(likelihood, outputs)
    assert default.dtype == dtype
    own = likelihood.fisher(outputs).detach()
    torch.testing.assert_close(default, own, rtol=1e-5, atol=1e-6 * float(1 + own.abs().max()))
    assert torch.equal(outputs, before)


def test_the_default_fisher_refuses_several_outputs_by_name():
    with pytest.raises(NotSupportedError, match=r"Gaussian.*override `fisher`"):
        Likelihood.fisher(Gaussian(3), torch.zeros(2, 3))


def test_the_default_fisher_of_large_counts():
    likelihood = make("poisson", torch.float32)
    outputs = torch.tensor([[-8.0], [7.0]])
    default = Likelihood.fisher(likelihood, outputs)
    torch.testing.assert_close(default, outputs.exp().unsqueeze(-1), rtol=1e-5, atol=0)


@EVERY
def test_sampled_scores_average_to_fisher_within_their_error(name, dtype):
    likelihood, num_scores = make(name, dtype), 10_000
    outputs = outputs_for(likelihood, 2, dtype=dtype)
    state = torch.get_rng_state()
    scores = likelihood.sample_scores(outputs, num_scores, seed=3)
    assert torch.equal(torch.get_rng_state(), state)
    assert scores.shape == (num_scores, *outputs.shape)
    assert torch.equal(scores[:, :1], likelihood.sample_scores(outputs, num_scores, seed=3)[:, :1])
    assert not torch.equal(scores, likelihood.sample_scores(outputs, num_scores, seed=4))
    assert torch.all(scores.mean(0).abs() <= 6 * scores.std(0) / num_scores**0.5)
    if name in INFORMED:
        scores = flat(likelihood, scores)
        products = torch.einsum("kbc,kbd->kbcd", scores, scores)
        # 6 standard errors: a failure in 10^8 for each of at most 50 numbers
        error = products.std(0) / num_scores**0.5
        exact = whole(likelihood, likelihood.fisher(outputs))
        assert torch.all((products.mean(0) - exact).abs() <= 6 * error + 1e-6 * (1 + exact.abs()))


@pytest.mark.parametrize("name", INFORMED)
def test_fisher_scoring_on_simulated_data_recovers_the_truth(name):
    likelihood, rows = make(name), 3000
    truth = outputs_for(likelihood, 1, seed=5)
    targets = draw_targets(likelihood, truth.expand(rows, *truth.shape[1:]), seed=6)
    found = truth + 0.2 * torch.sin(torch.arange(truth.numel())).reshape(truth.shape)
    for _ in range(15):
        spread = found.expand(rows, *found.shape[1:]).clone().requires_grad_()
        total = likelihood.log_prob(likelihood.parameters_of(spread), targets).sum()
        score = flat(likelihood, torch.autograd.grad(total, spread)[0].sum(0))
        information = rows * whole(likelihood, likelihood.fisher(found))[0].detach()
        found = found + unflat(likelihood, torch.linalg.pinv(information, hermitian=True) @ score)
    information = rows * whole(likelihood, likelihood.fisher(truth))[0].detach()
    difference = flat(likelihood, found - truth)[0]
    # the squared distance in the metric of the information, which does not see what shifts all logits of a softmax
    # alike, is chi-squared: beyond it once in 10^6
    assert float(difference @ information @ difference) < stats.chi2(truth.numel()).isf(1e-6)


# -- shapes and support ------------------------------------------------------------------------------------------------


@ANY
def test_outputs_of_another_shape_are_named_beside_what_is_needed(name):
    likelihood = make(name, torch.float32)
    axis, shape = getattr(likelihood, "axis", -1), [3, *outputs_shape(likelihood)]
    if axis is None:
        shape, needed = [3], "elements"
    else:
        shape[axis] += 1
        needed = str(likelihood.num_outputs)
    with pytest.raises(ShapeError, match=rf"{needed}.*; the network gave {re.escape(str(tuple(shape)))}"):
        likelihood(torch.zeros(shape))


@ANY
def test_a_column_of_targets_means_the_same_and_another_shape_is_refused(name, dtype):
    likelihood = make(name, dtype)
    outputs = outputs_for(likelihood, 6, dtype=dtype)
    targets = draw_targets(likelihood, outputs)
    matched = likelihood.match_targets(targets, outputs)
    assert torch.equal(matched, targets.to(matched.dtype))
    if not is_vector(likelihood) or likelihood.elements()[1]:
        assert torch.equal(likelihood.match_targets(targets.unsqueeze(-1), outputs), matched)
        assert torch.equal(likelihood.match_targets(targets.numpy().tolist(), outputs), matched)
    width = 7 if not is_vector(likelihood) else targets.shape[-1] + 1
    wrong = torch.zeros(6, width, dtype=dtype)
    with pytest.raises(ShapeError, match=rf"\((6|rows).*\(6, {width}\)"):
        likelihood.match_targets(wrong, outputs)


def impossible(name):
    """Numbers that no row can have as target."""
    lower, upper = (float(end) for end in (np.min(law_for(name).support()[0]), np.max(law_for(name).support()[1])))
    values = [lower - 1, lower - 1e-3, lower - 5] if np.isfinite(lower) else []
    values += [upper + 1, upper + 1e-3, upper + 5, 1e6] if np.isfinite(upper) else []
    return values + ([lower + 0.5] if name in COUNTED else [])


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in BOUNDED for value in impossible(name)])
def test_an_impossible_target_has_log_prob_minus_infinity_and_is_refused_at_the_boundary(name, value, dtype):
    likelihood = make(name, dtype)
    outputs = outputs_for(likelihood, 3, dtype=dtype).requires_grad_()
    targets = draw_targets(likelihood, outputs)
    targets.reshape(3, -1)[1, 0] = value
    for density in (
        likelihood.log_prob(likelihood.parameters_of(outputs), targets),
        Likelihood.log_prob(likelihood, likelihood.parameters_of(outputs), targets),
    ):
        assert density[1] == -torch.inf
        assert density[[0, 2]].isfinite().all()
        gradient = torch.autograd.grad(density[[0, 2]].sum(), outputs)[0]
        assert gradient.isfinite().all()
    family = type(base_of(likelihood(outputs))).__name__
    with pytest.raises(SupportError, match=rf"(target|row) .* outside the support of {family}: .*\w"):
        likelihood.match_targets(targets, outputs)


@ANY
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_targets_that_are_not_finite_are_refused(name, value, dtype):
    likelihood = make(name, dtype)
    outputs = outputs_for(likelihood, 3, dtype=dtype)
    targets = draw_targets(likelihood, outputs)
    targets.reshape(3, -1)[1, 0] = value
    with pytest.raises(NotFiniteError, match="targets"):
        likelihood.match_targets(targets, outputs)


def any_number(generator, *shape):
    """Numbers of any size, whole ones, and those between 0 and 1."""
    size = 10 ** (12 * torch.rand(*shape, generator=generator, dtype=torch.float64) - 6)
    size = torch.where(torch.rand(*shape, generator=generator) < 0.5, size, -size)
    whole = torch.randint(-3, 60, shape, generator=generator).double()
    share = torch.rand(*shape, generator=generator, dtype=torch.float64)
    return torch.stack([size, whole, share, size.round()])[
        torch.randint(4, shape[:1], generator=generator), torch.arange(shape[0])
    ]


@pytest.mark.parametrize("name", [name for name in LIKELIHOODS if name not in JOINT])
def test_log_prob_is_never_nan_and_finite_inside_the_support_only(name):
    generator, likelihood = torch.Generator().manual_seed(1), make(name)
    outputs = 60 * torch.rand(500, *outputs_shape(likelihood), generator=generator, dtype=torch.float64) - 30
    law = scipy_law(likelihood, outputs)
    targets = any_number(generator, *likelihood(outputs).batch_shape, *likelihood(outputs).event_shape)
    density = likelihood.log_prob(likelihood.parameters_of(outputs), targets)
    values, (lower, upper) = targets.numpy(), law.support()
    if name in COUNTED:
        possible = (values >= lower) & (values <= upper) & (values == np.round(values))
        assert bool((density <= 0).all())
    else:
        possible = (values > lower) & (values < upper)
    possible = possible.reshape(len(values), -1).all(-1)
    assert 0 < possible.sum() <= len(possible)
    np.testing.assert_array_equal(density.isfinite().numpy(), possible)
    assert bool((density[torch.as_tensor(~possible)] == -torch.inf).all())
    default = Likelihood.log_prob(likelihood, likelihood.parameters_of(outputs), targets)
    at_an_end = ((values == lower) | (values == upper)).reshape(len(values), -1).any(1)  # infinite there in both senses
    assert not default[torch.as_tensor(~at_an_end | (name in COUNTED))].isnan().any()


@pytest.mark.parametrize("dtype_name", ["float16", "bfloat16"])
@ANY
def test_half_precision_gives_finite_densities(name, dtype_name):
    half = getattr(torch, dtype_name)
    likelihood = make(name, torch.float32)
    outputs = outputs_for(likelihood, 4, dtype=half)
    targets = draw_targets(likelihood, outputs)
    density = likelihood.training_score(likelihood.parameters_of(outputs), targets)
    assert density.dtype == half
    assert density.isfinite().all()
    assert waist.icdf(likelihood(outputs), 0.5).isfinite().all()
    if not likelihood.has_density:
        return
    exact = log_density(scipy_law(likelihood, outputs), as_numpy(targets), axes=event_axes(likelihood))
    np.testing.assert_allclose(as_numpy(density), exact, rtol=0, atol=64 * eps(half) * (1 + np.abs(exact).max()))


# -- in a model ----------------------------------------------------------------------------------------------------


@EVERY
def test_offsets_row_weights_and_masks_act_on_every_likelihood(name, dtype):
    likelihood = make(name, dtype)
    net = linear(2, likelihood).to(dtype)
    model = Model(net, likelihood, offset=1)
    x, shift = torch.randn(6, 2, dtype=dtype), torch.linspace(-1, 1, 6, dtype=dtype)
    if not allows(lambda part: part.to(dtype).with_offset(net(x), shift), name, error=ShapeError):
        shift = torch.randn(net(x).shape, dtype=dtype)  # one number a class: a common one changes nothing
    outputs = likelihood.with_offset(net(x), shift)
    targets = draw_targets(likelihood, outputs)
    expected = likelihood.log_prob(likelihood.parameters_of(outputs), targets)
    torch.testing.assert_close(model.log_likelihood({}, {}, ((x, shift), targets)), expected)
    weights = torch.tensor([1.0, 0.0, 2.0, 0.5, 1.0, 1.0], dtype=dtype)
    mask = torch.tensor([True, True, False, True, True, False])
    targets[~mask] = torch.nan
    rows = model.log_likelihood({}, {}, Data((x, shift), targets, weights=weights, mask=mask))
    torch.testing.assert_close(rows, torch.where(mask, expected * weights, 0.0))


@pytest.mark.parametrize("name", ELEMENTS)
def test_missing_elements_add_nothing_and_may_hold_anything(name, dtype):
    likelihood = make(name, dtype)
    net = linear(2, likelihood).to(dtype)
    x = torch.randn(6, 2, dtype=dtype)
    targets = draw_targets(likelihood, net(x))
    mask = torch.rand(targets.shape, generator=torch.Generator().manual_seed(0)) < 0.6
    mask[0], mask[1] = False, True
    each = likelihood.of.log_prob(likelihood.parameters_of(net(x)), targets)
    expected = torch.where(mask, each, 0.0).flatten(1).sum(1)
    weights = torch.arange(6, dtype=dtype)
    rows = Model(net, likelihood).log_likelihood({}, {}, Data(x, targets.masked_fill(~mask, torch.nan), weights, mask))
    torch.testing.assert_close(rows, weights * expected)
    assert rows[0] == 0
    torch.testing.assert_close(rows[1], likelihood.log_prob(likelihood.parameters_of(net(x)), targets)[1])


# -- targets of which bounds are known -------------------------------------------------------------------------------

CENSORING = {
    "left": lambda y: (torch.full_like(y, -torch.inf), y),
    "right": lambda y: (y, torch.full_like(y, torch.inf)),
    "interval": lambda y: (y - 0.25 * y.abs(), y + 0.5),
    "exact": lambda y: (y, y),
}
EVERY_BOUND = pytest.mark.parametrize(("name", "censoring"), [(name, kind) for name in BOUNDS for kind in CENSORING])


def log_mass(law, lower, upper):
    """The log probability between bounds, from the tail that is smaller; where they are equal the log density."""
    below, above = law.cdf(upper) - law.cdf(lower), law.sf(lower) - law.sf(upper)
    with np.errstate(divide="ignore"):
        within = np.log(np.where(law.cdf(upper) < 0.5, below, above))
    return np.where(lower == upper, law.logpdf(lower), within)


@EVERY_BOUND
def test_bounds_have_the_probability_between_them(name, censoring, dtype):
    likelihood, outputs, law = on_rows(name, dtype, 200)
    pairs = torch.stack(CENSORING[censoring](draw_targets(likelihood, outputs)), -1)
    lower, upper = as_numpy(pairs).T
    expected = log_mass(law, lower, upper)
    rounding = spread_of(likelihood, outputs, lambda law: log_mass(law, lower, upper), 8 * eps(dtype))
    rounding += (1e-10 + 64 * eps(dtype)) * (1 + np.abs(expected))
    matched = likelihood.match_targets(pairs, outputs)
    assert torch.equal(matched, pairs)
    for own in (
        likelihood.log_prob(likelihood.parameters_of(outputs), matched),
        Likelihood.log_prob(likelihood, likelihood.parameters_of(outputs), matched),
        waist.log_prob(likelihood(outputs), pairs),
    ):
        assert own.shape == (200,)
        assert own.dtype == dtype
        assert np.all(np.abs(as_numpy(own) - expected) <= rounding)


@EVERY_BOUND
def test_bounds_pass_through_vmap_with_finite_gradients(name, censoring, dtype):
    likelihood = make(name, dtype)
    outputs = outputs_for(likelihood, 5, 7, dtype=dtype).requires_grad_()
    pairs = torch.stack(CENSORING[censoring](draw_targets(likelihood, outputs[0])), -1)

    def density(out):
        return likelihood.log_prob(likelihood.parameters_of(out), pairs)

    looped = torch.stack([density(out) for out in outputs])
    torch.testing.assert_close(vmap(density)(outputs), looped)
    torch.testing.assert_close(density(outputs), looped)
    assert torch.autograd.grad(looped.sum(), outputs)[0].isfinite().all()


@EVERY_BOUND
def test_offsets_row_weights_and_masks_act_on_bounds(name, censoring, dtype):
    likelihood = make(name, dtype)
    net = linear(2, likelihood).to(dtype)
    x, shift = torch.randn(6, 2, dtype=dtype), torch.linspace(-1, 1, 6, dtype=dtype)
    outputs = likelihood.with_offset(net(x), shift)
    pairs = torch.stack(CENSORING[censoring](draw_targets(likelihood, outputs)), -1)
    expected = likelihood.log_prob(likelihood.parameters_of(outputs), pairs)
    weights = torch.tensor([1.0, 0.0, 2.0, 0.5, 1.0, 1.0], dtype=dtype)
    mask = torch.tensor([True, True, False, True, True, False])
    pairs[~mask] = torch.nan
    rows = Model(net, likelihood, offset=1).log_likelihood({}, {}, Data((x, shift), pairs, weights, mask))
    torch.testing.assert_close(rows, torch.where(mask, expected * weights, 0.0))


# -- training heads --------------------------------------------------------------------------------------------------


def modelled(head):
    return Model(nn.Identity(), head)


NEEDS_A_DENSITY = {
    "log_prob": lambda head, outputs, y: head.log_prob(head.parameters_of(outputs), y),
    "fisher": lambda head, outputs, y: head.fisher(outputs),
    "sample_scores": lambda head, outputs, y: head.sample_scores(outputs, 2, seed=0),
    "density of the prediction": lambda head, outputs, y: waist.log_prob(head(outputs), y),
    "mean of the prediction": lambda head, outputs, y: waist.mean(head(outputs)),
    "draws": lambda head, outputs, y: head(outputs).sample(),
    "log_likelihood of a model": lambda head, outputs, y: modelled(head).log_likelihood({}, {}, (outputs, y)),
    "log_joint of a model": lambda head, outputs, y: modelled(head).log_joint({}, {}, (outputs, y), 6),
}
"""What the contract asks of likelihoods and not of heads."""


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("clause", NEEDS_A_DENSITY)
def test_a_head_refuses_by_name_what_needs_a_density(name, clause):
    head = make(name)
    assert not head.has_density
    outputs = outputs_for(head, 6)
    with pytest.raises(NotSupportedError, match=r"not available for QuantileHead, which is|QuantileForecast"):
        NEEDS_A_DENSITY[clause](head, outputs, draw_targets(head, outputs))


def test_exactly_the_heads_have_no_density():
    assert all(make(name).has_density for name in LIKELIHOODS)
    assert not any(make(name).has_density for name in HEADS)


# -- standardisation -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DIVISIBLE)
def test_a_standardised_likelihood_obeys_the_change_of_variables(name, dtype):
    likelihood = make(name, dtype)
    outputs = outputs_for(likelihood, 9, dtype=dtype)
    targets = draw_targets(likelihood, outputs)
    width = targets.shape[1 + likelihood.elements()[1] :]  # of one element: all have one scale
    loc = torch.full(width, 3.0 if name in MOVABLE else 0.0, dtype=dtype)
    scale = torch.arange(1, width.numel() + 1, dtype=dtype).reshape(width) + 1
    inside = likelihood.standardized(loc, scale)
    outer = loc + scale * targets
    view = affine(inside(outputs), loc, scale)
    jacobian = scale.log().expand(targets.shape[1:]).sum()
    expected = inside.log_prob(inside.parameters_of(outputs), targets) - jacobian
    torch.testing.assert_close(waist.log_prob(view, outer), expected, rtol=1e-4, atol=1e-4)
    assert type(inside) is type(likelihood)
    fresh = LIKELIHOODS[name]().standardized(loc, scale)
    before = dict(fresh.named_parameters())
    for key, parameter in likelihood.named_parameters():
        torch.testing.assert_close(before[key].to(dtype), parameter.detach())  # learned on the network's side


def test_a_fixed_scale_is_divided():
    inside = Gaussian(2, scale=[1.0, 3.0]).standardized(torch.zeros(1), torch.full((1,), 2.0))
    torch.testing.assert_close(inside.scale, torch.tensor([0.5, 1.5], dtype=torch.float64))
    likelihood, outputs = Gaussian(scale=0.7).double(), torch.tensor([[0.4], [1.0]], dtype=torch.float64)
    loc, scale = torch.tensor(3.0, dtype=torch.float64), torch.tensor(2.0, dtype=torch.float64)
    moved = affine(likelihood.standardized(loc, scale)(outputs), loc, scale)
    torch.testing.assert_close(moved.loc, 3 + 2 * outputs.squeeze(-1))
    torch.testing.assert_close(moved.scale, torch.full((2,), 0.7, dtype=torch.float64))


@pytest.mark.parametrize("name", [name for name in LIKELIHOODS if name not in MOVABLE])
def test_targets_that_cannot_be_shifted_refuse_standardisation_by_name(name):
    likelihood = make(name, torch.float32)
    advice = "center=False" if name in DIVISIBLE else "targets=None|divide the bounds"
    with pytest.raises(NotSupportedError, match=rf"{type(likelihood.elements()[0]).__name__}.*({advice})"):
        likelihood.standardized(torch.ones(()), torch.ones(()))


def test_exactly_the_likelihoods_of_the_whole_line_are_standardised():
    assert set(MOVABLE) == set(LIKELIHOODS) - set(BOUNDED) - set(BOUNDS)
    assert set(DIVISIBLE) - set(MOVABLE) == set(POSITIVE) - set(BOUNDS)
    assert set(COUNTED) <= set(BOUNDED)


def test_a_learned_scale_is_its_own_parameter_after_standardisation():
    likelihood = Gaussian(initial_scale=0.3)
    inside = likelihood.standardized(torch.zeros(()), torch.tensor(10.0))
    torch.testing.assert_close(inside.noise_scale(), torch.tensor(0.3))
    with torch.no_grad():
        inside.log_scale.add_(1)
    torch.testing.assert_close(likelihood.noise_scale(), torch.tensor(0.3))
    likelihood.log_scale.requires_grad_(requires_grad=False)
    assert not likelihood.standardized(torch.zeros(()), torch.ones(())).log_scale.requires_grad
    assert isinstance(HeteroscedasticGaussian(2).standardized(torch.zeros(2), torch.ones(2)), HeteroscedasticGaussian)
