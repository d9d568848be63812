"""Edges of single likelihoods: impossible classes, vanishing scales, options that make no sense."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from credibly.core.errors import ShapeError, SupportError
from credibly.distributions.functions import entropy, mean
from credibly.distributions.mixture import MixturePredictive
from credibly.likelihoods import (
    Bernoulli,
    Beta,
    Categorical,
    Gamma,
    Gaussian,
    HeteroscedasticGaussian,
    Laplace,
    LogNormal,
    PerElement,
    Poisson,
    StudentT,
    Weibull,
)
from credibly.likelihoods.elements import stirling_error

INF = math.inf


# -- classes of probability 0 --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("logits", "expected"),
    [([0.0, 0.0, -INF], math.log(2)), ([0.0, -INF], 0.0), ([-INF, 3.0, -INF], 0.0), ([0.0] * 4 + [-INF], math.log(4))],
)
def test_a_class_of_probability_zero_adds_nothing_to_the_entropy(logits, expected, dtype):
    outputs = torch.tensor([logits], dtype=dtype)
    likelihood = Categorical(len(logits))
    torch.testing.assert_close(
        entropy(likelihood(outputs)).double(), torch.tensor([expected], dtype=torch.float64), atol=1e-6, rtol=0
    )
    assert likelihood.fisher(outputs).isfinite().all()


@pytest.mark.parametrize("logits", [[0.0, 0.0, -INF], [0.0, -INF], [-INF, 3.0, -INF], [0.0, 200.0, -200.0, 1.0]])
def test_the_root_of_fisher_with_classes_of_probability_zero(logits, dtype):
    outputs = torch.tensor([logits], dtype=dtype)
    root, fisher = Categorical(len(logits)).fisher_root(outputs), Categorical(len(logits)).fisher(outputs)
    torch.testing.assert_close(root @ root.mT, fisher, rtol=0, atol=4 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("place", [0, 1, 3])
def test_the_root_of_fisher_of_a_class_that_is_all_but_certain(place):
    """Its 1 - p is lost in single precision; that of the others is not."""
    logits = torch.tensor([[-20.0, -21.0, -22.0, -23.0]])
    logits[:, place] = 0
    root = Categorical(4).fisher_root(logits)
    exact = Categorical(4).fisher(logits.double())
    scale = exact.diagonal(dim1=-2, dim2=-1).sqrt()
    off = (root @ root.mT - exact) / (scale.unsqueeze(-1) * scale.unsqueeze(-2))
    assert float(off.abs().max()) < 1e-6
    assert root.shape == (1, 4, 3)


def test_binary_logits_of_infinity_have_entropy_zero(dtype):
    assert torch.equal(
        entropy(Bernoulli()(torch.tensor([[INF], [-INF]], dtype=dtype))).double(), torch.zeros(2).double()
    )


@pytest.mark.parametrize("members", [1, 3])
def test_mutual_information_with_an_impossible_class_lies_between_zero_and_the_entropy(members, dtype):
    generator = torch.Generator().manual_seed(members)
    logits = torch.randn(members, 50, 3, generator=generator, dtype=dtype)
    logits[..., 2] = -INF
    logits[:, 0, 1] = -INF
    predicted = MixturePredictive(Categorical(3)(logits))
    information, total = predicted.mutual_information(), predicted.entropy()
    assert information.isfinite().all()
    assert total.isfinite().all()
    assert torch.all(information >= 0)
    assert torch.all(information <= total)
    assert information[0] == 0


def test_an_impossible_class_has_log_prob_minus_infinity_and_finite_gradients_elsewhere(dtype):
    outputs = torch.tensor([[0.0, 0.0, -INF]] * 3, dtype=dtype, requires_grad=True)
    likelihood = Categorical(3)
    density = likelihood.log_prob(likelihood.parameters_of(outputs), torch.tensor([0, 1, 2]))
    torch.testing.assert_close(density[:2], torch.full((2,), -math.log(2), dtype=dtype))
    assert density[2] == -INF
    assert torch.autograd.grad(density[:2].sum(), outputs)[0].isfinite().all()


# -- scales that would vanish --------------------------------------------------------------------------------------

STRETCHED = {
    "heteroscedastic": HeteroscedasticGaussian,
    "laplace": Laplace,
    "student_t": StudentT,
    "student_t_given": lambda: StudentT(df=1.0),
    "log_normal": LogNormal,
    "gamma": Gamma,
    "weibull": Weibull,
    "beta": Beta,
}


@pytest.mark.parametrize("name", STRETCHED)
@pytest.mark.parametrize("second", [-1e4, -200.0, 0.0, 200.0, 1e4])
@pytest.mark.parametrize("first", [-1e4, -200.0, 0.0, 200.0, 1e4])
def test_vanishing_and_huge_outputs_leave_loss_and_gradients_finite(name, first, second, dtype):
    likelihood = STRETCHED[name]().to(dtype)
    outputs = torch.tensor([[first, second]] * 3, dtype=dtype, requires_grad=True)
    targets = torch.tensor([1e-3, 0.5, 0.999], dtype=dtype)
    parts = [outputs, *likelihood.parameters()]
    density = likelihood.log_prob(likelihood.parameters_of(outputs), targets)
    assert density.isfinite().all()
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(density.sum(), parts))


@pytest.mark.parametrize("distance", [0.0, 1.0])
@pytest.mark.parametrize("raw", [-200.0, -1e4, 0.0, 1e4])
def test_a_vanishing_predicted_scale_leaves_loss_and_gradients_finite(raw, distance, dtype):
    outputs = torch.tensor([[0.5, raw]], dtype=dtype, requires_grad=True)
    likelihood = HeteroscedasticGaussian()
    density = likelihood.log_prob(likelihood.parameters_of(outputs), torch.tensor([0.5 + distance], dtype=dtype))
    assert density.isfinite().all()
    assert torch.autograd.grad(density.sum(), outputs)[0].isfinite().all()
    assert likelihood(outputs).stddev > 0


def test_draws_have_the_predicted_standard_deviation(dtype):
    raw = math.log(math.expm1(2.0 - 1e-4))
    predicted = HeteroscedasticGaussian()(torch.tensor([[1.0, raw]], dtype=dtype))
    drawn = predicted.sample(torch.Size([10_000]))
    assert float(drawn.std()) == pytest.approx(2.0, abs=0.05)


def test_a_learned_scale_cannot_reach_zero(dtype):
    likelihood = Gaussian().to(dtype)
    with torch.no_grad():
        likelihood.log_scale.fill_(-1000.0)
    outputs = torch.zeros(1, 1, dtype=dtype)
    density = likelihood.log_prob(likelihood.parameters_of(outputs), torch.ones(1, dtype=dtype))
    gradient = torch.autograd.grad(density.sum(), likelihood.log_scale)[0]
    assert density.isfinite().all()
    assert gradient.isfinite()


def test_a_learned_scale_begins_where_it_is_told_and_returns_there():
    likelihood = Gaussian(3, initial_scale=0.2)
    torch.testing.assert_close(likelihood.noise_scale(), torch.full((3,), 0.2))
    with torch.no_grad():
        likelihood.log_scale.add_(1)
    likelihood.reset_parameters()
    torch.testing.assert_close(likelihood.noise_scale(), torch.full((3,), 0.2))
    assert Gaussian(3, per_output=False).log_scale.shape == ()


@pytest.mark.parametrize("scale", [0.0, -1.0, INF, math.nan, [1.0, 0.0]])
def test_a_fixed_scale_must_be_positive(scale):
    with pytest.raises(ValueError, match="`scale` must be finite and above 0"):
        Gaussian(2, scale=scale)


def test_a_fixed_scale_must_fit_the_outputs():
    with pytest.raises(ShapeError, match=r"\(2,\); got \(3,\)"):
        Gaussian(2, scale=[1.0, 2.0, 3.0])
    assert Gaussian(1, scale=np.array([0.5])).scale.shape == ()


@pytest.mark.parametrize("scale", [0.0, -1.0, INF, 1e-5])
def test_an_initial_scale_must_be_above_the_floor(scale):
    with pytest.raises(ValueError, match="`initial_scale`"):
        Gaussian(initial_scale=scale)


@pytest.mark.parametrize("scale", [0.0, -1.0, INF])
def test_a_floor_must_be_positive(scale):
    with pytest.raises(ValueError, match="`min_scale`"):
        HeteroscedasticGaussian(min_scale=scale)


@pytest.mark.parametrize(
    ("make", "option"),
    [
        (Laplace, "min_scale"),
        (StudentT, "min_scale"),
        (StudentT, "df"),
        (LogNormal, "min_scale"),
        (Gamma, "min_shape"),
        (Weibull, "min_concentration"),
        (Beta, "min_precision"),
    ],
)
@pytest.mark.parametrize("value", [0.0, -1.0, INF, math.nan])
def test_floors_and_degrees_of_freedom_must_be_positive(make, option, value):
    with pytest.raises(ValueError, match=f"`{option}` must be a finite number above 0"):
        make(**{option: value})


@pytest.mark.parametrize(
    "make", [Gaussian, HeteroscedasticGaussian, Bernoulli, Poisson, Laplace, StudentT, LogNormal, Gamma, Weibull, Beta]
)
@pytest.mark.parametrize("number", [0, -1, 1.5, True])
def test_the_number_of_outputs_must_be_a_whole_number(make, number):
    with pytest.raises(ValueError, match=r"`num_\w+` must be a whole number, 1 or more"):
        make(number)


def test_a_single_class_is_refused():
    with pytest.raises(ValueError, match="`num_classes` must be 2 or more; got 1"):
        Categorical(1)


# -- degrees of freedom --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("df", [2.0, 1.0, INF, math.nan])
def test_learned_degrees_of_freedom_start_above_two(df):
    with pytest.raises(ValueError, match="`initial_df` must be finite and above 2"):
        StudentT(initial_df=df)


def test_learned_degrees_of_freedom_start_where_told_and_stay_above_two():
    likelihood = StudentT(initial_df=7.0)
    torch.testing.assert_close(likelihood.degrees_of_freedom(), torch.tensor(7.0))
    for far in (-1e4, 1e4):
        with torch.no_grad():
            likelihood.log_excess_df.fill_(far)
        assert 2 <= float(likelihood.degrees_of_freedom().detach()) < 1.1e6
    inside = likelihood.standardized(torch.zeros(()), torch.ones(()))
    torch.testing.assert_close(inside.degrees_of_freedom(), likelihood.degrees_of_freedom())
    likelihood.reset_parameters()
    torch.testing.assert_close(likelihood.degrees_of_freedom(), torch.tensor(7.0))
    assert StudentT(df=3.0).degrees_of_freedom() == 3.0
    assert not list(StudentT(df=3.0).parameters())


@pytest.mark.parametrize("y", [0.0, 3.0, -40.0, 1e12, -1e25])
@pytest.mark.parametrize("df", [0.5, 4.0, 1e3, 1e6])
def test_student_t_far_out_and_nearly_gaussian(df, y, dtype):
    outputs = torch.zeros(1, 2, dtype=dtype)
    likelihood = StudentT(df=df)
    own = float(likelihood.log_prob(likelihood.parameters_of(outputs), torch.tensor([y], dtype=dtype)))
    scale = math.log(2) + 1e-4
    z = math.hypot(1, y / scale / math.sqrt(df))  # scipy squares, and overflows
    at_zero = stats.t(df).logpdf(0) - math.log(scale)
    assert own == pytest.approx(at_zero - (df + 1) * math.log(z), rel=64 * torch.finfo(dtype).eps, abs=1e-6)


# -- precision of large shapes -------------------------------------------------------------------------------------


def test_the_remainder_of_stirlings_formula():
    x = torch.logspace(-3, 3, 200, dtype=torch.float64)
    direct = torch.lgamma(x) - (x - 0.5) * x.log() + x - 0.5 * math.log(2 * math.pi)
    torch.testing.assert_close(stirling_error(x), direct, rtol=0, atol=1e-11)
    # log Gamma(x + 1) = log Gamma(x) + log x, across the change of formula and far out
    x = torch.logspace(0, 5, 200, dtype=torch.float64)
    step = 1 - (x + 0.5) * torch.log1p(1 / x)
    torch.testing.assert_close(stirling_error(x + 1) - stirling_error(x), step, rtol=0, atol=1e-11)


@pytest.mark.parametrize("size", [10.0, 1e3, 1e5])
def test_large_shapes_keep_their_precision_in_float32(size):
    raw = torch.tensor([[0.3, math.log(size)]])
    relative = torch.tensor([0.9, 1.0, 1.1]) ** (1 / size**0.5)
    for likelihood, centre, law in (
        (Gamma(), math.exp(0.3), lambda a, m: stats.gamma(a, scale=m / a)),
        (Beta(), 1 / (1 + math.exp(-0.3)), lambda a, m: stats.beta(a * m, a * (1 - m))),
    ):
        y = (centre * relative).float()
        parameters = likelihood.parameters_of(raw.expand(3, 2))
        exact = law(size + 0.01, centre).logpdf(y.double())
        # the logarithm of a target is known to one rounding, the score at a standard deviation is sqrt(size)
        np.testing.assert_allclose(likelihood.log_prob(parameters, y), exact, atol=1e-6 * (4 + size**0.5))


# -- ends of the support -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("likelihood", "value", "advice"),
    [
        (Beta(), 0.0, "Binomial"),
        (Beta(), 1.0, "Binomial"),
        (Gamma(), 0.0, "zeros apart"),
        (Weibull(), 0.0, ""),
        (LogNormal(), 0.0, ""),
    ],
)
def test_targets_at_the_end_of_the_support_are_refused_with_advice(likelihood, value, advice, dtype):
    outputs, targets = torch.zeros(2, 2, dtype=dtype), torch.tensor([0.5, value], dtype=dtype)
    name = type(likelihood).__name__
    with pytest.raises(SupportError, match=rf"target {value:g} lies outside the support of {name}.*{advice}"):
        likelihood.match_targets(targets, outputs)
    density = likelihood.log_prob(likelihood.parameters_of(outputs), targets)
    assert density[0].isfinite()
    assert density[1] == -INF
    with pytest.raises(SupportError, match=f"target {value:g} lies outside the support"):
        PerElement(likelihood).match_targets(targets.reshape(1, 2), outputs.reshape(1, 2, 2))


# -- counts --------------------------------------------------------------------------------------------------------


def test_a_rate_that_vanishes_gives_only_zeros(dtype):
    likelihood = Poisson()
    outputs = torch.full((2, 1), -INF, dtype=dtype)
    density = likelihood.log_prob(likelihood.parameters_of(outputs), torch.tensor([0.0, 1.0], dtype=dtype))
    assert density[0] == pytest.approx(0.0, abs=1e-25)
    assert density[1] <= -60  # rates are kept above exp(-60)


def test_an_infinite_count_is_impossible(dtype):
    likelihood = Poisson()
    parameters = likelihood.parameters_of(torch.zeros(1, 1, dtype=dtype))
    assert likelihood.log_prob(parameters, torch.tensor([INF], dtype=dtype)) == -INF


def test_integer_and_boolean_targets_are_taken(dtype):
    outputs = torch.zeros(3, 1, dtype=dtype)
    for values, likelihood in (
        (torch.tensor([0, 3, 7]), Poisson()),
        (torch.tensor([True, False, True]), Bernoulli()),
        (torch.tensor([1, 0, 1], dtype=torch.uint8), Bernoulli()),
        (torch.tensor([1, -2, 3]), Gaussian()),
    ):
        targets = likelihood.match_targets(values, outputs)
        assert targets.dtype == dtype
        expected = likelihood.log_prob(likelihood.parameters_of(outputs), values.to(dtype))
        assert torch.equal(likelihood.log_prob(likelihood.parameters_of(outputs), targets), expected)


@pytest.mark.parametrize("values", [torch.tensor([0, 2]), torch.tensor([0.0, 2.0]), np.array([0, 2], dtype=np.int32)])
def test_class_targets_become_indices(values):
    matched = Categorical(3).match_targets(values, torch.zeros(2, 3))
    assert matched.dtype == torch.int64
    assert matched.tolist() == [0, 2]


def test_one_hot_targets_are_told_to_be_indices():
    with pytest.raises(ShapeError, match="indices"):
        Categorical(3).match_targets(torch.eye(3), torch.zeros(3, 3))


def test_the_mean_of_several_labels_is_their_probability(dtype):
    outputs = torch.tensor([[0.0, INF, -INF]], dtype=dtype)
    torch.testing.assert_close(mean(Bernoulli(3)(outputs)), torch.tensor([[0.5, 1.0, 0.0]], dtype=dtype))


@pytest.mark.parametrize(
    "likelihood",
    [HeteroscedasticGaussian(2), StudentT(2), Laplace(2), LogNormal(2), Gamma(2), Weibull(2), Beta(2)],
    ids=lambda likelihood: type(likelihood).__name__,
)
def test_an_offset_moves_where_targets_lie_and_not_how_they_spread(likelihood):
    outputs, offset = torch.randn(4, likelihood.num_outputs), torch.randn(4)
    moved = likelihood.with_offset(outputs, offset) - outputs
    torch.testing.assert_close(moved[:, :2], offset.unsqueeze(-1).expand(4, 2))
    assert torch.equal(moved[:, 2:], torch.zeros(4, 2))
