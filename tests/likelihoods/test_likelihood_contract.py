"""Every likelihood against scipy, brute force and itself: one contract over `cases.LIKELIHOODS`."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from likelihood_oracles import brute_fisher, draw_targets, is_vector, kind_of, log_density, outputs_for, scipy_law
from scipy import special, stats
from torch.func import vmap

from cases import LIKELIHOODS
from credibly.core.errors import NotFiniteError, NotSupportedError, ShapeError, SupportError
from credibly.distributions import functions as waist
from credibly.likelihoods import Categorical, Gaussian, HeteroscedasticGaussian, Likelihood

EVERY = pytest.mark.parametrize("name", LIKELIHOODS)
REAL = [name for name, make in LIKELIHOODS.items() if kind_of(make()) == "real"]
COUNTED = [name for name in LIKELIHOODS if name not in REAL]
SCALAR = [name for name, make in LIKELIHOODS.items() if not is_vector(make())]


def make(name, dtype, device="cpu"):
    return LIKELIHOODS[name]().to(device=device, dtype=dtype)


def eps(dtype):
    return torch.finfo(dtype).eps


def as_numpy(values):
    return values.detach().double().cpu().numpy()


# -- densities ---------------------------------------------------------------------------------------------------


@EVERY
def test_log_prob_is_scipys_and_that_of_the_distribution(name, dtype, device):
    likelihood = make(name, dtype, device)
    outputs = outputs_for(likelihood, 200, dtype=dtype)
    targets = draw_targets(likelihood, outputs)
    expected = log_density(scipy_law(likelihood.cpu(), outputs), as_numpy(targets))
    expected = expected.sum(-1) if expected.ndim > 1 else expected
    likelihood, outputs, targets = likelihood.to(device), outputs.to(device), targets.to(device)
    own = likelihood.log_prob(likelihood.parameters_of(outputs), targets)
    assert own.dtype == dtype
    tolerance = 32 * eps(dtype) * (1 + np.abs(expected).max())
    np.testing.assert_allclose(as_numpy(own), expected, rtol=32 * eps(dtype), atol=tolerance)
    for other in (
        likelihood(outputs).log_prob(targets),
        waist.log_prob(likelihood(outputs), targets),
        Likelihood.log_prob(likelihood, likelihood.parameters_of(outputs), targets),
    ):
        torch.testing.assert_close(other, own, rtol=32 * eps(dtype), atol=tolerance)


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("scales", [-10.0, -6.0, -1.0, 0.0, 1.0, 6.0, 10.0])
def test_real_likelihoods_equal_scipy_ten_scales_from_the_centre(name, scales, dtype):
    likelihood = make(name, dtype)
    outputs = outputs_for(likelihood, 20, dtype=dtype)
    law = scipy_law(likelihood, outputs)
    values = torch.as_tensor(law.mean() + scales * law.std()).to(dtype)
    exact = as_numpy(values)
    predicted = likelihood(outputs)
    # a rounding of z is one of z^2 in the log of a far tail; that of the location counts in scales
    rounding = 16 * eps(dtype) * (1 + scales**2) * (1 + (np.abs(law.mean()) / law.std()).max())
    np.testing.assert_allclose(as_numpy(waist.cdf(predicted, values)), law.cdf(exact), rtol=rounding)
    expected = law.logpdf(exact)
    expected = expected.sum(-1) if is_vector(likelihood) else expected
    np.testing.assert_allclose(as_numpy(predicted.log_prob(values)), expected, rtol=rounding, atol=rounding)

    level = torch.as_tensor(special.ndtr(scales)).to(dtype)
    if level < 1:
        reached = law.mean() + law.std() * special.ndtri(float(level))
        spread = 16 * eps(dtype) * (np.abs(law.mean()) + (1 + abs(scales)) * law.std()).max()
        np.testing.assert_allclose(as_numpy(waist.icdf(predicted, level)), reached, atol=spread)


@pytest.mark.parametrize("name", COUNTED)
@pytest.mark.parametrize("scales", [-10.0, -6.0, -1.0, 0.0, 1.0, 6.0, 10.0])
def test_counts_and_classes_equal_scipy_ten_scales_from_the_centre(name, scales, dtype):
    likelihood = make(name, dtype)
    outputs = outputs_for(likelihood, 20, dtype=dtype) + (3 if name.startswith("poisson") else 0)
    law = scipy_law(likelihood, outputs)
    values = np.floor(law.mean() + scales * np.sqrt(law.var()))
    predicted = likelihood(outputs)
    own = as_numpy(waist.cdf(predicted, torch.as_tensor(values).to(dtype)))
    # relative rounding of a rate moves the log of the distribution function by about |value - rate| of it
    rounding = 16 * eps(dtype) * (1 + np.abs(values - law.mean()).max()) * (1 + np.abs(as_numpy(outputs)).max())
    # torch's incomplete gamma function is good to 1e-8 only
    np.testing.assert_allclose(own, law.cdf(values), rtol=max(rounding, 1e-8), atol=1e-300)

    top = {"bernoulli": 1, "categorical": 3}.get(name.removesuffix("_vector"), np.inf)
    inside = np.clip(values, 0, top)
    parts = inside * np.abs(as_numpy(outputs)).max() + special.gammaln(inside + 1) + law.mean()
    densities = log_density(law, inside)
    np.testing.assert_allclose(
        as_numpy(predicted.log_prob(torch.as_tensor(inside).to(dtype))),
        densities.sum(-1) if is_vector(likelihood) else densities,
        atol=64 * eps(dtype) * (1 + parts.max()),
        rtol=32 * eps(dtype),
    )

    below, upto = law.cdf(values - 1), law.cdf(values)
    wide = (upto - below > 1e-4) | ((upto < 1e-4) & (upto > 2 * below) & (upto > 1e-30))
    middle = torch.as_tensor(np.where(wide, 0.5 * (below + upto), 0.5)).to(dtype)
    assert wide.any() or abs(scales) > 1
    np.testing.assert_array_equal(as_numpy(waist.icdf(predicted, middle))[wide], values[wide])


@EVERY
def test_moments_of_draws_are_the_laws_within_their_standard_error(name, dtype):
    likelihood = make(name, dtype)
    outputs = outputs_for(likelihood, 6, dtype=dtype)
    law, num_draws = scipy_law(likelihood, outputs), 20_000
    drawn = as_numpy(likelihood(outputs).sample(torch.Size([num_draws])))
    # 5 standard errors: a failure in 10^6 for each of at most 36 numbers
    mean_error = np.sqrt(law.var() / num_draws)
    assert np.all(np.abs(drawn.mean(0) - law.mean()) < 5 * mean_error)
    squares = (drawn - law.mean()) ** 2
    assert np.all(np.abs(squares.mean(0) - law.var()) < 5 * squares.std(0) / np.sqrt(num_draws))
    if not isinstance(likelihood, Categorical):  # whose classes are names, not numbers
        exact = 32 * eps(dtype)
        np.testing.assert_allclose(as_numpy(waist.mean(likelihood(outputs))), law.mean(), rtol=exact)
        np.testing.assert_allclose(as_numpy(waist.variance(likelihood(outputs))), law.var(), rtol=exact)


# -- draw axes -----------------------------------------------------------------------------------------------------


@EVERY
def test_parameters_and_log_prob_pass_through_vmap_and_equal_the_loop(name, dtype):
    likelihood = make(name, dtype)
    outputs = outputs_for(likelihood, 5, 7, dtype=dtype)
    targets = draw_targets(likelihood, outputs[0])

    def density(out):
        return likelihood.log_prob(likelihood.parameters_of(out), targets)

    looped = torch.stack([density(out) for out in outputs])
    torch.testing.assert_close(vmap(density)(outputs), looped)
    torch.testing.assert_close(density(outputs), looped)
    torch.testing.assert_close(vmap(likelihood.fisher)(outputs), likelihood.fisher(outputs))
    base = vmap(lambda out: Likelihood.log_prob(likelihood, likelihood.parameters_of(out), targets))(outputs)
    torch.testing.assert_close(base, looped)


@EVERY
def test_leading_axes_of_outputs_are_the_batch_shape(name, dtype):
    likelihood = make(name, dtype)
    outputs = outputs_for(likelihood, 4, 3, dtype=dtype)
    predicted = likelihood(outputs)
    assert predicted.batch_shape == (4, 3)
    assert len(predicted.event_shape) == int(bool(is_vector(likelihood)))
    for values in likelihood.parameters_of(outputs).values():
        assert values.shape[:2] == (4, 3)
    strided = outputs.transpose(0, 1).contiguous().transpose(0, 1)
    torch.testing.assert_close(likelihood(strided).mean, predicted.mean, equal_nan=True)


# -- Fisher information --------------------------------------------------------------------------------------------


@EVERY
def test_fisher_is_the_expected_outer_product_of_the_score(name):
    likelihood = make(name, torch.float64)
    outputs = outputs_for(likelihood, 4)
    brute = torch.stack([brute_fisher(likelihood, row) for row in outputs])
    torch.testing.assert_close(likelihood.fisher(outputs), brute, rtol=1e-9, atol=1e-9)
    assert likelihood.fisher(outputs[:0]).shape == (0, likelihood.num_outputs, likelihood.num_outputs)


@pytest.mark.parametrize("name", SCALAR)
def test_the_default_fisher_equals_the_closed_form(name, dtype):
    likelihood = make(name, dtype)
    outputs = outputs_for(likelihood, 2, 3, dtype=dtype)
    before = outputs.clone()
    default = Likelihood.fisher(likelihood, outputs)
    assert default.dtype == dtype
    torch.testing.assert_close(default, likelihood.fisher(outputs), rtol=1e-5, atol=1e-6)
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
    likelihood, num_scores = make(name, dtype), 20_000
    outputs = outputs_for(likelihood, 2, dtype=dtype)
    state = torch.get_rng_state()
    scores = likelihood.sample_scores(outputs, num_scores, seed=3)
    assert torch.equal(torch.get_rng_state(), state)
    assert scores.shape == (num_scores, 2, likelihood.num_outputs)
    assert torch.equal(scores[:, :1], likelihood.sample_scores(outputs, num_scores, seed=3)[:, :1])
    assert not torch.equal(scores, likelihood.sample_scores(outputs, num_scores, seed=4))
    products = torch.einsum("kbc,kbd->kbcd", scores, scores)
    # 6 standard errors: a failure in 10^8 for each of at most 50 numbers
    error = products.std(0) / num_scores**0.5
    exact = likelihood.fisher(outputs)
    assert torch.all((products.mean(0) - exact).abs() <= 6 * error + 1e-6)
    assert torch.all(scores.mean(0).abs() <= 6 * scores.std(0) / num_scores**0.5)


@EVERY
def test_fisher_scoring_on_simulated_data_recovers_the_truth(name):
    likelihood, rows = make(name, torch.float64), 4000
    truth = 0.7 * outputs_for(likelihood, 1, seed=5)
    targets = draw_targets(likelihood, truth.expand(rows, -1), seed=6)
    found = torch.zeros_like(truth)
    for _ in range(30):
        spread = found.expand(rows, -1).clone().requires_grad_()
        total = likelihood.log_prob(likelihood.parameters_of(spread), targets).sum()
        score = torch.autograd.grad(total, spread)[0].sum(0)
        information = rows * likelihood.fisher(found)[0].detach()
        found = found + torch.linalg.pinv(information, hermitian=True) @ score
    difference = (found - truth)[0]
    if isinstance(likelihood, Categorical):
        difference = difference - difference.mean()  # only differences of logits matter
    # the squared distance in the metric of the information is chi-squared: beyond it once in 10^6
    distance = float(difference @ (rows * likelihood.fisher(truth)[0].detach()) @ difference)
    assert distance < stats.chi2(likelihood.num_outputs).isf(1e-6)


# -- shapes and support ------------------------------------------------------------------------------------------------


@EVERY
def test_a_wrong_number_of_outputs_names_both(name):
    likelihood = make(name, torch.float32)
    with pytest.raises(ShapeError, match=rf"{likelihood.num_outputs}\).*\(3, {likelihood.num_outputs + 1}\)"):
        likelihood(torch.zeros(3, likelihood.num_outputs + 1))


@EVERY
def test_a_column_of_targets_means_the_same_and_another_shape_is_refused(name, dtype):
    likelihood = make(name, dtype)
    outputs = outputs_for(likelihood, 6, dtype=dtype)
    targets = draw_targets(likelihood, outputs)
    matched = likelihood.match_targets(targets, outputs)
    assert matched.shape == targets.shape
    if not is_vector(likelihood):
        assert torch.equal(likelihood.match_targets(targets.unsqueeze(-1), outputs), matched)
        assert torch.equal(likelihood.match_targets(targets.numpy().tolist(), outputs), matched)
    width = 7 if not is_vector(likelihood) else targets.shape[-1] + 1
    wrong = torch.zeros(6, width, dtype=dtype)
    with pytest.raises(ShapeError, match=rf"\(6.*\(6, {width}\)"):
        likelihood.match_targets(wrong, outputs)


IMPOSSIBLE = {"bernoulli": [-1.0, 0.5, 2.0], "categorical": [-1.0, 1.5, 4.0, 1e6], "poisson": [-1.0, 1.5, -0.5]}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name in COUNTED for value in IMPOSSIBLE[name.removesuffix("_vector")]]
)
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
    with pytest.raises(SupportError, match=r"target .* outside the support of"):
        likelihood.match_targets(targets, outputs)


@EVERY
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_targets_that_are_not_finite_are_refused(name, value, dtype):
    likelihood = make(name, dtype)
    outputs = outputs_for(likelihood, 3, dtype=dtype)
    targets = draw_targets(likelihood, outputs)
    targets.reshape(3, -1)[1, 0] = value
    with pytest.raises(NotFiniteError, match="targets"):
        likelihood.match_targets(targets, outputs)


@pytest.mark.parametrize("name", COUNTED)
@given(value=st.floats(-1e6, 1e6) | st.integers(-3, 60).map(float), output=st.floats(-30, 30))
def test_log_prob_is_never_nan_and_finite_inside_the_support_only(name, value, output):
    likelihood = make(name, torch.float64)
    outputs = torch.full((1, likelihood.num_outputs), output, dtype=torch.float64)
    targets = torch.full((1, likelihood.num_outputs) if is_vector(likelihood) else (1,), value, dtype=torch.float64)
    density = float(likelihood.log_prob(likelihood.parameters_of(outputs), targets))
    possible = value >= 0 and value == int(value)
    if name.startswith("categorical"):
        possible &= value < 4
    if name.startswith("bernoulli"):
        possible &= value < 2
    assert density <= 0
    assert (density > -np.inf) == possible


@pytest.mark.parametrize("dtype_name", ["float16", "bfloat16"])
@EVERY
def test_half_precision_gives_finite_densities(name, dtype_name):
    half = getattr(torch, dtype_name)
    likelihood = make(name, torch.float32)
    outputs = outputs_for(likelihood, 4, dtype=torch.float32)
    targets = draw_targets(likelihood, outputs)
    parameters = likelihood.parameters_of(outputs.to(half))
    exact = likelihood.log_prob(likelihood.parameters_of(outputs), targets)
    density = likelihood.log_prob(parameters, targets.to(half))
    assert density.isfinite().all()
    loose = 64 * torch.finfo(half).eps * (1 + exact.abs().max().item())
    torch.testing.assert_close(density.float(), exact, atol=loose, rtol=0)
    assert likelihood(outputs.to(half)).sample().isfinite().all()


# -- standardisation -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REAL)
def test_a_standardised_likelihood_obeys_the_change_of_variables(name, dtype):
    likelihood = make(name, dtype)
    outputs = outputs_for(likelihood, 9, dtype=dtype)
    targets = draw_targets(likelihood, outputs)
    width = targets.shape[1:]
    loc, scale = torch.full(width, 3.0, dtype=dtype), torch.arange(1, width.numel() + 1, dtype=dtype).reshape(width) + 1
    inside = likelihood.standardized(loc, scale)
    # the same law on the network's side: locations and predicted scales are moved by hand
    parameters = likelihood.parameters_of(outputs)
    moved = {"loc": (parameters["loc"] - loc) / scale, "scale": parameters["scale"] / scale}
    if isinstance(likelihood, Gaussian) and likelihood.scale is not None:
        given_outputs = moved["loc"].reshape(9, -1)
        torch.testing.assert_close(inside.parameters_of(given_outputs)["scale"], moved["scale"])
    density = inside.log_prob(moved, (targets - loc) / scale) - (scale.log().sum())
    torch.testing.assert_close(density, likelihood.log_prob(parameters, targets), rtol=1e-4, atol=1e-4)


def test_one_scale_may_serve_several_outputs():
    inside = Gaussian(2, scale=[1.0, 3.0]).standardized(torch.zeros(1), torch.full((1,), 2.0))
    torch.testing.assert_close(inside.scale, torch.tensor([0.5, 1.5], dtype=torch.float64))


@pytest.mark.parametrize("name", COUNTED)
def test_counts_and_classes_refuse_standardisation_by_name(name):
    likelihood = make(name, torch.float32)
    with pytest.raises(NotSupportedError, match=type(likelihood).__name__):
        likelihood.standardized(torch.zeros(()), torch.ones(()))


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
