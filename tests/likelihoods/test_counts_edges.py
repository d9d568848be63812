"""Edges of the likelihoods of counts and ordered classes: limits, huge outputs, offsets, numbers of trials."""

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import nn
from torch.func import vmap

from credibly import Model, inference, likelihoods, load, priors, save
from credibly.core.errors import NotSupportedError, ShapeError, SupportError
from credibly.distributions import functions as waist
from credibly.likelihoods import Binomial, Gaussian, NegativeBinomial, Ordinal, Poisson, ZeroInflated
from credibly.likelihoods.negative_binomial import negative_binomial_log_prob
from credibly.likelihoods.offsets import add_offset
from credibly.metrics import crps, nll, ranked_probability_score

INF = math.inf

HUGE = {
    "negative_binomial": lambda: NegativeBinomial(),
    "negative_binomial_predicted": lambda: NegativeBinomial(dispersion="predicted"),
    "binomial": lambda: Binomial(num_trials=7),
    "zero_inflated_negative_binomial": lambda: ZeroInflated(NegativeBinomial(dispersion="predicted")),
    "zero_inflated_binomial": lambda: ZeroInflated(Binomial(num_trials=7)),
    "ordinal": lambda: Ordinal(8),
}


@pytest.mark.parametrize("name", HUGE)
@pytest.mark.parametrize("size", [30.0, 100.0, 1e4])
def test_huge_outputs_leave_log_probabilities_and_gradients_finite(name, size, dtype):
    likelihood = HUGE[name]().to(dtype)
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 0.0, 1.0])] * likelihood.num_outputs)
    outputs = (size * signs.reshape(-1, likelihood.num_outputs)).to(dtype).requires_grad_()
    for count in (0.0, 1.0, 7.0):
        density = likelihood.log_prob(
            likelihood.parameters_of(outputs), torch.full((len(outputs),), count, dtype=dtype)
        )
        assert density.isfinite().all()
        assert torch.all(density <= 0)
        wanted = [outputs, *likelihood.parameters()]
        for gradient in torch.autograd.grad(density.sum(), wanted):
            assert gradient.isfinite().all()
    assert likelihood.fisher(outputs).isfinite().all()


# -- negative binomial ---------------------------------------------------------------------------------------------


def exact_negative_binomial(log_mean, log_dispersion, y):
    with mpmath.workdps(60):
        r, mean = mpmath.exp(-mpmath.mpf(log_dispersion)), mpmath.exp(mpmath.mpf(log_mean))
        arrangements = mpmath.loggamma(y + r) - mpmath.loggamma(r) - mpmath.loggamma(y + 1)
        return float(arrangements + y * mpmath.log(mean / (r + mean)) - r * mpmath.log1p(mean / r))


@pytest.mark.parametrize("log_dispersion", [-13.5, -6.0, -2.0, 0.0, 2.0, 12.0])
@pytest.mark.parametrize("log_mean", [-9.0, 0.0, 3.0, 9.0])
def test_log_probabilities_are_exact_from_the_poisson_limit_to_wild_dispersion(log_mean, log_dispersion, dtype):
    mean = math.exp(log_mean)
    spread = math.sqrt(mean + math.exp(log_dispersion) * mean**2)
    counts = sorted({0, 1, 2, 9, *(max(0, int(min(mean + k * spread, 1e7))) for k in (-2, -0.1, 0, 1, 6))})
    own = negative_binomial_log_prob(
        torch.tensor(log_mean, dtype=dtype), torch.tensor(log_dispersion, dtype=dtype), torch.tensor(counts).to(dtype)
    )
    expected = np.array([exact_negative_binomial(log_mean, log_dispersion, y) for y in counts])
    # a rounding of the mean, relative, moves the log probability by at most (count - mean) / (1 + dispersion mean)
    scaled = np.abs(np.array(counts) - mean) / (1 + math.exp(log_dispersion) * mean)
    rounding = 16 * torch.finfo(dtype).eps * (1 + np.abs(expected) + scaled)
    assert np.all(np.abs(own.double().numpy() - expected) <= rounding)


def test_a_vanishing_dispersion_is_a_poisson():
    nb, poisson = NegativeBinomial(dispersion="predicted").double(), Poisson()
    log_mean = torch.linspace(-6, 4, 11, dtype=torch.float64)
    outputs = torch.stack([log_mean, torch.full_like(log_mean, -100.0)], -1)
    counts = torch.arange(0, 120, 7).double().unsqueeze(-1)
    own = nb.log_prob(nb.parameters_of(outputs), counts)
    other = poisson.log_prob(poisson.parameters_of(log_mean.unsqueeze(-1)), counts)
    # log p(y) moves by dispersion * ((y - mean)^2 - y) / 2 to first order; the floor is 1e-6
    bound = 1e-6 * ((counts - log_mean.exp()) ** 2 + counts)
    assert torch.all((own - other).abs() <= bound + 1e-11 * (1 + other.abs()))
    torch.testing.assert_close(waist.variance(nb(outputs)), log_mean.exp() * (1 + 1e-6 * log_mean.exp()))


@pytest.mark.parametrize("raw", [-16.0, -3.0, 0.0, 3.0])
@pytest.mark.parametrize("log_mean", [-4.0, 1.0, 4.0])
def test_the_information_about_the_dispersion_is_the_sum_over_counts(log_mean, raw):
    likelihood = NegativeBinomial(dispersion="predicted", min_dispersion=1e-4).double()
    outputs = torch.tensor([log_mean, raw], dtype=torch.float64)
    size = 1 / (math.exp(raw) + 1e-4)
    top = stats.nbinom(size, size / (size + math.exp(log_mean))).isf(1e-14)
    counts = torch.arange(int(top) + 2, dtype=torch.float64)
    repeated = outputs.expand(len(counts), -1).clone().requires_grad_()
    density = likelihood.log_prob(likelihood.parameters_of(repeated), counts)
    scores = torch.autograd.grad(density.sum(), repeated)[0]
    brute = torch.einsum("k,kc,kd->cd", density.detach().exp(), scores, scores)
    own = likelihood.fisher(outputs)
    assert torch.all((own - brute).abs() <= 1e-8 * (own[0, 0] * own[1, 1]).sqrt() + 1e-8 * own + 1e-11)


@pytest.mark.parametrize("num_targets", [1, 3])
def test_a_learned_dispersion_is_one_number_per_target_and_comes_from_the_parameters(num_targets):
    likelihood = NegativeBinomial(num_targets, initial_dispersion=0.3)
    assert likelihood.raw_dispersion.shape == (() if num_targets == 1 else (3,))
    start = likelihood.parameters_of(torch.zeros(2, num_targets))["log_dispersion"].exp()
    torch.testing.assert_close(start, torch.full_like(start, 0.3))
    with torch.no_grad():
        likelihood.raw_dispersion.add_(1)
    likelihood.reset_parameters()
    again = likelihood.parameters_of(torch.zeros(2, num_targets))["log_dispersion"].exp()
    torch.testing.assert_close(again, start)
    draws = {"raw_dispersion": torch.randn(5, *likelihood.raw_dispersion.shape)}
    stacked = vmap(lambda p: torch.func.functional_call(likelihood, p, (torch.zeros(2, num_targets),)).variance)(draws)
    own = draws["raw_dispersion"].exp() + 1e-6
    torch.testing.assert_close(stacked, (1 + own).reshape(5, 1, -1).expand(5, 2, -1).reshape(stacked.shape))
    assert NegativeBinomial(num_targets, dispersion="predicted").raw_dispersion is None
    assert not list(NegativeBinomial(dispersion="predicted").parameters())


def test_options_of_the_negative_binomial_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match=r'"learned" or "predicted"; got \'fixed\''):
        NegativeBinomial(dispersion="fixed")
    for start in (0.0, 1e-7, INF, math.nan):
        with pytest.raises(ValueError, match="`initial_dispersion` must be finite and above"):
            NegativeBinomial(initial_dispersion=start)
    with pytest.raises(ValueError, match="`min_dispersion`"):
        NegativeBinomial(min_dispersion=0.0)
    for make in (NegativeBinomial, Binomial):
        with pytest.raises(ValueError, match="`num_targets` must be a whole number"):
            make(0)


# -- offsets -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_targets", [1, 2])
@pytest.mark.parametrize("make", [NegativeBinomial, lambda d, **o: ZeroInflated(NegativeBinomial(d, **o))])
def test_an_offset_multiplies_the_mean_and_leaves_dispersion_and_zeros_alone(make, num_targets):
    likelihood = make(num_targets, dispersion="predicted")
    net = nn.Linear(3, likelihood.num_outputs)
    model = Model(net, likelihood, offset="log_time")
    x, log_time = torch.randn(6, 3), torch.rand(6)
    plain = model.likelihood.parameters_of(net(x))
    for offset in (log_time, log_time.unsqueeze(-1).expand(-1, num_targets)):
        moved = model.call({}, {}, {"input": x, "log_time": offset}, "parameters")
        assert moved.keys() == plain.keys()
        for name, value in plain.items():
            shift = log_time.reshape(-1, *[1] * (value.dim() - 1)) if name == "log_mean" else 0.0
            torch.testing.assert_close(moved[name], value + shift)
    whole = model.call({}, {}, {"input": x, "log_time": torch.ones(6, likelihood.num_outputs)})
    torch.testing.assert_close(whole, net(x) + 1)
    with pytest.raises(ShapeError, match=r"the offset must have shape \(rows,\).*got \(6, 7\)"):
        model.call({}, {}, {"input": x, "log_time": torch.ones(6, 7)})


def test_an_offset_is_added_to_all_outputs_of_other_likelihoods():
    outputs, offset = torch.randn(4, 2), torch.rand(4)
    torch.testing.assert_close(Poisson(2).with_offset(outputs, offset), outputs + offset.unsqueeze(-1))
    torch.testing.assert_close(add_offset(outputs, offset, first=1)[:, 1], outputs[:, 1])


def test_exposure_is_recovered_as_a_factor():
    """Rows watched for different times: without the offset the rate would be off by the mean of the times, 2.75."""
    generator = torch.Generator().manual_seed(0)
    time = 0.5 + 4.5 * torch.rand(4000, generator=generator, dtype=torch.float64)
    truth = stats.nbinom(2, 2 / (2 + 1.5 * time.numpy()))
    y = torch.as_tensor(truth.rvs(random_state=np.random.RandomState(1))).double()
    net = nn.Linear(1, 2).double()
    nn.init.zeros_(net.weight)
    model = Model(net, NegativeBinomial(dispersion="predicted"), priors.Flat(), offset=1)
    data = ((torch.zeros(4000, 1).double(), time.log()), y)
    posterior = inference.MLE(num_epochs=400, batch_size=None, learning_rate=0.05).fit(model, data, seed=0)
    log_mean, raw = posterior.model.net.bias.detach()
    information = posterior.model.likelihood.fisher(
        torch.stack([time.log() + math.log(1.5), torch.full_like(time, math.log(0.5))], -1)
    ).sum(0)
    # 5 standard errors, each way
    assert abs(log_mean - math.log(1.5)) < 5 / information[0, 0].sqrt()
    assert abs(raw - math.log(0.5)) < 5 / information[1, 1].sqrt()


# -- binomial ------------------------------------------------------------------------------------------------------


def grouped(rows=60, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 2, generator=generator)
    trials = torch.randint(0, 12, (rows,), generator=generator).float()
    probs = torch.sigmoid(x @ torch.tensor([1.0, -0.5]))
    y = torch.as_tensor(
        stats.binom(trials.long().numpy(), probs.numpy()).rvs(random_state=np.random.RandomState(seed))
    ).float()
    return x, trials, y


def test_rows_have_their_own_number_of_trials_in_fit_prediction_and_scores():
    x, trials, y = grouped()
    model = Model(nn.Linear(2, 1), Binomial(), priors.Flat(), offset="trials")
    inputs = {"input": x, "trials": trials}
    posterior = inference.MLE(num_epochs=20, batch_size=16).fit(model, (inputs, y), seed=0)
    predicted = posterior.predict(inputs)
    assert predicted.batch_shape == (60,)
    assert predicted.event_shape == ()
    probs = posterior.model.net(x).squeeze(-1).sigmoid().detach()
    law = stats.binom(trials.numpy(), probs.numpy())
    np.testing.assert_allclose(predicted.log_prob(y).detach(), law.logpmf(y), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(predicted.mean.detach(), law.mean(), rtol=1e-5)
    assert nll(predicted, y).item() == pytest.approx(-law.logpmf(y).mean(), rel=1e-4)
    assert 0 < crps(predicted, y).item() < 3
    lower, upper = predicted.interval(0.9)
    assert torch.all((lower >= 0) & (upper <= trials))
    other = posterior.predict({"input": x, "trials": trials + 5})
    np.testing.assert_allclose(other.mean.detach(), (trials + 5) * probs, rtol=1e-5)
    members = inference.Ensemble(of=inference.MLE(num_epochs=2, batch_size=16), num_members=3)
    assert members.fit(model, (inputs, y), seed=0).predict(inputs).batch_shape == (60,)


def test_grouped_rows_weigh_as_much_as_their_trials_one_by_one():
    x, trials, y = grouped()
    model = Model(nn.Linear(2, 1), Binomial(), offset=1)
    log_likelihood = model.log_likelihood({}, {}, ((x, trials), y)).sum()
    logits = model.net(x).squeeze(-1)
    single = (y * nn.functional.logsigmoid(logits) + (trials - y) * nn.functional.logsigmoid(-logits)).sum()
    ways = torch.lgamma(trials + 1) - torch.lgamma(y + 1) - torch.lgamma(trials - y + 1)
    torch.testing.assert_close(log_likelihood, single + ways.sum())
    information = model.call({}, {}, (x, trials), "fisher")
    torch.testing.assert_close(information[:, 0, 0], trials * logits.sigmoid() * (1 - logits.sigmoid()))
    assert torch.all(information[:, 1:] == 0)


def test_several_proportions_may_have_different_numbers_of_trials():
    trials = torch.tensor([[3.0, 5.0], [0.0, 2.0]])
    likelihood = Binomial(2)
    outputs = likelihood.with_offset(torch.zeros(2, 2), trials)
    assert likelihood(outputs).event_shape == (2,)
    torch.testing.assert_close(likelihood(outputs).mean, trials / 2)
    scores = likelihood.sample_scores(outputs, 50, seed=0)
    assert torch.all(scores[..., 2:] == 0)
    same = likelihood.with_offset(torch.zeros(2, 2), torch.tensor([4.0, 6.0]))
    torch.testing.assert_close(same[:, 2:], torch.tensor([[4.0, 4.0], [6.0, 6.0]]))


def test_targets_above_the_number_of_trials_are_refused():
    x, trials, y = grouped()
    fixed = Binomial(num_trials=4)
    with pytest.raises(SupportError, match=r"target 5 in row 1 .* whole numbers from 0 to 4"):
        fixed.match_targets(torch.tensor([1.0, 5.0]), torch.zeros(2, 1))
    with pytest.raises(SupportError, match=r"target 1\.5"):
        Binomial().match_targets(torch.tensor([1.5, 50.0]), torch.zeros(2, 2))
    wrong = y.clone()
    wrong[7] = trials[7] + 1
    model = Model(nn.Linear(2, 1), Binomial(), offset=1)
    density = model.log_likelihood({}, {}, ((x, trials), wrong))
    assert density[7] == -INF
    assert density.isfinite().sum() == 59
    with pytest.raises(SupportError, match=r"in row 7 .* its number of trials"):
        inference.MLE(num_epochs=1).fit(model, ((x, trials), wrong), seed=0)
    with pytest.raises(SupportError, match=r"in row 7 .* its number of trials"):
        waist.log_prob(model((x, trials)), wrong)


def test_missing_numbers_of_trials_are_explained():
    x, _, y = grouped()
    with pytest.raises(ShapeError, match=r"Model\(..., offset=key or position\)"):
        inference.MLE(num_epochs=1).fit(Model(nn.Linear(2, 1), Binomial()), (x, y), seed=0)
    with pytest.raises(ShapeError, match="the offset must have shape"):
        Model(nn.Linear(2, 1), Binomial(), offset=1)((x, torch.ones(60, 3)))
    with pytest.raises(ValueError, match="`num_trials` must be a whole number"):
        Binomial(num_trials=2.5)


@pytest.mark.parametrize("logit", [-INF, INF])
def test_a_certain_outcome_has_log_probability_zero_and_others_minus_infinity(logit, dtype):
    likelihood = Binomial(num_trials=3)
    parameters = likelihood.parameters_of(torch.full((4, 1), logit, dtype=dtype))
    density = likelihood.log_prob(parameters, torch.arange(4, dtype=dtype))
    certain = 3 if logit > 0 else 0
    assert density[certain] == 0
    assert torch.isneginf(density).sum() == 3


# -- zero inflation ------------------------------------------------------------------------------------------------


def test_a_zero_inflated_count_without_inflation_is_the_count(dtype):
    counts = torch.tensor([0.0, 1.0, 5.0], dtype=dtype)
    outputs = torch.tensor([[0.3, -200.0]] * 3, dtype=dtype)
    likelihood, plain = ZeroInflated(Poisson()), Poisson()
    own = likelihood.log_prob(likelihood.parameters_of(outputs), counts)
    torch.testing.assert_close(own, plain.log_prob(plain.parameters_of(outputs[:, :1]), counts))
    torch.testing.assert_close(likelihood.fisher(outputs)[:, :1, :1], plain.fisher(outputs[:, :1]))


def test_learned_parameters_of_the_count_travel_under_the_likelihood():
    model = Model(nn.Linear(2, 2), ZeroInflated(NegativeBinomial()))
    assert "likelihood.of.raw_dispersion" in dict(model.core.named_parameters())
    method = inference.Ensemble(of=inference.MLE(num_epochs=2), num_members=3)
    posterior = method.fit(model, (torch.randn(20, 2), torch.randint(0, 4, (20,))), seed=0)
    assert posterior.sample(3)["likelihood.of.raw_dispersion"].shape == (3,)


def test_numbers_of_trials_reach_the_count_inside():
    likelihood = ZeroInflated(Binomial())
    assert likelihood.num_outputs == 3
    model = Model(nn.Linear(2, 2), likelihood, offset=1)
    x, trials, _ = grouped()
    predicted = model((x, trials))
    torch.testing.assert_close(predicted.base.total_count, trials)
    torch.testing.assert_close(predicted.zero_logits, model.net(x)[:, 1])


def test_only_counts_can_be_zero_inflated():
    with pytest.raises(NotSupportedError, match="`of` must be a likelihood of counts; got Gaussian"):
        ZeroInflated(Gaussian())
    with pytest.raises(NotSupportedError, match="got Ordinal"):
        ZeroInflated(Ordinal(3))


# -- ordered classes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_classes", [2, 3, 7])
def test_cutpoints_begin_where_all_classes_are_equally_probable(num_classes, dtype):
    likelihood = Ordinal(num_classes).to(dtype)
    probs = waist.class_log_probs(likelihood(torch.zeros(1, 1, dtype=dtype))).exp()
    torch.testing.assert_close(probs, torch.full_like(probs, 1 / num_classes), rtol=1e-5, atol=0)
    with torch.no_grad():
        likelihood.first_cutpoint.fill_(0.5)
        likelihood.raw_gaps.fill_(-1e4)
    assert torch.all(likelihood.cutpoints().diff() > 0)
    assert likelihood.log_prob(likelihood.parameters_of(torch.zeros(1, 1, dtype=dtype)), torch.ones(1)).isfinite().all()
    likelihood.reset_parameters()
    torch.testing.assert_close(likelihood.cutpoints(), Ordinal(num_classes).to(dtype).cutpoints())


def test_cutpoints_are_learned_and_scored():
    """The cutpoints of simulated ratings come back within 5 of their standard errors."""
    truth = np.array([-1.0, 0.5, 1.0])
    noise = np.random.RandomState(3).logistic(size=5000)
    x = torch.randn(5000, 1, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    latent = 0.8 * x[:, 0].numpy() + noise
    y = torch.as_tensor((latent[:, None] > truth).sum(-1))
    model = Model(nn.Linear(1, 1, bias=False).double(), Ordinal(4), priors.Flat())
    posterior = inference.MLE(num_epochs=500, batch_size=None, learning_rate=0.05).fit(model, (x, y), seed=0)
    found = posterior.model.likelihood.cutpoints().detach().numpy()
    level = 1 / (1 + np.exp(-(truth - 0.8 * x.numpy())))
    # each cutpoint alone is a logistic regression on y <= k: the joint estimate is no worse
    error = 1 / np.sqrt((level * (1 - level)).sum(0))
    assert np.all(np.abs(found - truth) < 5 * error)
    predicted = posterior.predict(x)
    assert predicted.probs.shape == (5000, 4)
    chance = torch.bincount(y).double() / 5000
    flat = waist.class_log_probs(torch.distributions.Categorical(probs=chance.expand(5000, -1))).exp()
    base = ranked_probability_score(torch.distributions.Categorical(probs=flat), y)
    assert ranked_probability_score(predicted, y) < base
    lower, upper = predicted.interval(0.8)
    assert torch.all(lower <= upper)


def test_draws_of_cutpoints_pass_through_vmap():
    likelihood = Ordinal(4)
    draws = {"first_cutpoint": torch.randn(5), "raw_gaps": torch.randn(5, 2)}
    probs = vmap(lambda p: torch.func.functional_call(likelihood, p, (torch.zeros(3, 1),)).probs)(draws)
    assert probs.shape == (5, 3, 4)
    torch.testing.assert_close(probs.sum(-1), torch.ones(5, 3))


def test_a_single_ordered_class_is_refused():
    with pytest.raises(ValueError, match="`num_classes` must be 2 or more; got 1"):
        Ordinal(1)


# -- all together --------------------------------------------------------------------------------------------------

EVERY = HUGE | {"zero_inflated": lambda: ZeroInflated(Poisson()), "binomial_rows": lambda: Binomial()}


@pytest.mark.parametrize("name", HUGE)
@given(value=st.floats(-1e6, 1e6) | st.integers(-3, 60).map(float), outputs=st.lists(st.floats(-60, 60), min_size=3))
def test_log_prob_is_never_nan_and_finite_inside_the_support_only(name, value, outputs):
    likelihood = HUGE[name]().double()
    given_outputs = torch.tensor([outputs[: likelihood.num_outputs]], dtype=torch.float64)
    density = float(
        likelihood.log_prob(
            likelihood.parameters_of(given_outputs), torch.tensor([value], dtype=torch.float64)
        ).detach()
    )
    possible = value >= 0 and value == int(value) and (value < 8 or name.endswith(("negative_binomial", "predicted")))
    assert density <= 0
    assert (density > -INF) == possible


@pytest.mark.parametrize("name", EVERY)
def test_a_fitted_model_is_saved_and_loaded_with_its_options(name, tmp_path):
    likelihood = EVERY[name]()
    own = name == "binomial_rows"
    model = Model(nn.Linear(2, 1 if own else likelihood.num_outputs), likelihood, offset=1 if own else None)
    x, trials, y = grouped()
    inputs = (x, trials) if own else x
    posterior = inference.MAP(num_epochs=1).fit(model, (inputs, y.clamp(max=7)), seed=0)
    save(posterior, tmp_path / "posterior")
    again = load(tmp_path / "posterior", net=nn.Linear(2, model.net.out_features))
    assert type(again.model.likelihood) is type(likelihood)
    expected = posterior.predict(inputs).log_prob(y.clamp(max=7))
    assert torch.equal(again.predict(inputs).log_prob(y.clamp(max=7)), expected)


def test_the_public_names():
    for name in ("Binomial", "NegativeBinomial", "Ordinal", "ZeroInflated"):
        assert name in likelihoods.__all__
