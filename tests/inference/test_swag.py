"""SWAG against the moments of the weights that its tail visited."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

import cases
import credibly
from credibly import Model, Standardize, inference, likelihoods, priors
from credibly.core.errors import NotFiniteError, NotSupportedError
from credibly.core.linalg import Diagonal
from credibly.inference.swag import _Moments
from credibly.posteriors import GaussianPosterior, Info, MixturePosterior
from credibly.training import EMA, EarlyStopping, FocalLoss
from credibly.training.averaging import Course


def data(rows=30, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 3, generator=generator, dtype=torch.float64)
    y = 5 + 2 * x[:, 0] + torch.randn(rows, generator=generator, dtype=torch.float64)
    return x.to(cases.DEVICE, dtype), y.to(cases.DEVICE, dtype)


def model(*layers, dtype=torch.float64):
    net = nn.Sequential(nn.Linear(3, 4), *layers, nn.Tanh(), nn.Linear(4, 1)).to(cases.DEVICE, dtype)
    return Model(net, likelihoods.Gaussian(), inputs=Standardize(), targets=Standardize())


def flat(core):
    """The weights under `net.` as one vector."""
    return torch.cat([p.detach().double().flatten() for name, p in core.named_parameters() if name.startswith("net.")])


def quantiles():
    return Model(nn.Linear(3, 2).double(), likelihoods.QuantileHead([0.1, 0.9]))


def frozen():
    return Model(nn.Linear(3, 1).double().requires_grad_(requires_grad=False), likelihoods.Gaussian())


def visited(rank, num_epochs, *, dtype=torch.float64):
    """The weights at the ends of the epochs of a tail, (epochs, weights), and the posterior."""
    seen = []
    method = inference.SWAG(
        rank=rank,
        num_epochs=num_epochs,
        batch_size=8,
        learning_rate=0.05,
        callbacks=[lambda epoch: seen.append(flat(epoch.model.core).cpu().numpy())],
    )
    posterior = method.fit(model(dtype=dtype), data(dtype=dtype), start="current", seed=1)
    return np.stack(seen), posterior


@pytest.mark.parametrize(("rank", "num_epochs"), [(5, 12), (5, 5), (20, 7), (2, 2)])
def test_moments_are_those_of_the_visited_weights(rank, num_epochs, dtype):
    w, posterior = visited(rank, num_epochs, dtype=dtype)
    mean, variance = w.mean(0), w.var(0)
    running = np.cumsum(w, 0) / np.arange(1, num_epochs + 1)[:, None]
    deviations = (w - running)[-rank:].T
    columns = min(rank, num_epochs)
    assert deviations.shape[1] == columns
    expected = np.diag(variance) / 2 + deviations @ deviations.T / (2 * (columns - 1))
    tolerance = {"rtol": 1e-10, "atol": 1e-14} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-8}
    own = posterior.covariance.dense().double().cpu().numpy()
    np.testing.assert_allclose(own, expected, **tolerance)
    np.testing.assert_allclose(flat(posterior.model.core).cpu().numpy(), mean, rtol=1e-6)
    assert posterior.covariance.like.dtype == dtype
    assert posterior.info.history.num_averaged == num_epochs


def test_without_deviations_the_variances_are_whole():
    w, posterior = visited(0, 9)
    assert isinstance(posterior.covariance, Diagonal)
    np.testing.assert_allclose(posterior.covariance.diagonal().cpu().numpy(), w.var(0), rtol=1e-10)


def test_snapshots_every_so_many_steps():
    method = inference.SWAG(num_epochs=3, batch_size=8, every=2, rank=4)  # 4 batches an epoch
    posterior = method.fit(model(), data(), start="current", seed=0)
    assert posterior.info.history.num_averaged == 6
    with pytest.raises(ValueError, match="at least 2 snapshots"):
        inference.SWAG(num_epochs=3, batch_size=8, every=7).fit(model(), data(), start="current")


def following(states, rank):
    """A posterior over two weights that took these values, (snapshots, 2)."""
    net = nn.Linear(2, 1, bias=False).double()
    running = _Moments(rank, None).follow([net.weight], Course(len(states), len(states)))
    for number, state in enumerate(states, 1):
        with torch.no_grad():
            net.weight.copy_(torch.tensor([state]))
        running.after_epoch(number)
    running.put()
    covariance = running.covariance([0], None, 1e-30)
    ours = Model(net, likelihoods.Gaussian(scale=1.0))
    return GaussianPosterior(ours, Info("SWAG", 0), names=["net.weight"], covariance=covariance)


def test_noise_is_multiplied_by_the_standard_deviation_not_by_the_variance():
    states = [(2.0, -0.2), (-2.0, 0.2), (2.0, 0.2), (-2.0, -0.2)]
    draws = following(states, 0).sample(100_000, seed=0)["net.weight"].squeeze(1)
    # five standard errors of a deviation, sd / sqrt(2 n): each fails once in 1.7 million seeds
    error = 5 / (2 * 100_000) ** 0.5
    assert float(draws[:, 0].std()) == pytest.approx(2.0, rel=error)
    assert float(draws[:, 1].std()) == pytest.approx(0.2, rel=error)


def test_draws_have_the_covariance_of_the_formula():
    _, posterior = visited(4, 8)
    num = 20_000
    draws = posterior.sample(num, seed=0)
    table = torch.cat([draws[name].reshape(num, -1) for name in posterior.names], 1)
    exact = posterior.covariance.dense()
    ours = torch.cov(table.T)
    # the variance of a sample covariance of Gaussians is (S_ii S_jj + S_ij^2) / n; six of them in 441 entries
    spread = ((exact.diagonal().outer(exact.diagonal()) + exact.square()) / num).sqrt()
    assert ((ours - exact).abs() < 6 * spread).all()
    assert ((table.mean(0) - flat(posterior.model.core)).abs() < 6 * (exact.diagonal() / num).sqrt()).all()


def test_moments_hold_where_the_spread_is_far_below_the_weights():
    generator = torch.Generator().manual_seed(0)
    noise = 1e-4 * torch.randn(200, 2, generator=generator, dtype=torch.float64)
    net = nn.Linear(2, 1, bias=False)
    running = _Moments(3, None).follow([net.weight], Course(200, 200))
    stored = []
    for number, state in enumerate(1000 + noise, 1):
        with torch.no_grad():
            net.weight.copy_(state)
        stored.append(net.weight.detach().double().clone().squeeze(0))
        running.after_epoch(number)
    variances = 2 * running.covariance([0], None, 1e-30).values
    torch.testing.assert_close(variances, torch.stack(stored).var(0, correction=0), rtol=1e-6, atol=0)


def test_a_weight_that_never_moves_has_a_variance_above_0():
    posterior = following([(1.0, 0.0), (2.0, 0.0), (4.0, 0.0)], 2)
    assert float(posterior.covariance.diagonal()[1]) > 0
    assert posterior.covariance.logdet().isfinite()
    assert posterior.sample(3, seed=0)["net.weight"].isfinite().all()


def test_the_tail_goes_on_from_what_was_trained():
    first = inference.MAP(num_epochs=4, batch_size=8)
    trained = first.fit(model(), data(), seed=3)
    posterior = inference.SWAG(train=first, num_epochs=3, batch_size=8).fit(model(), data(), seed=3)
    assert posterior.info.method == "SWAG"
    assert len(posterior.info.history.loss) == 7
    still = inference.SWAG(train=first, num_epochs=3, batch_size=8, learning_rate=1e-14)
    torch.manual_seed(0)
    ours = model()
    near = still.fit(ours, data(), seed=3)
    alike = first.fit(ours, data(), seed=3)
    torch.testing.assert_close(flat(near.model.core), flat(alike.model.core))
    assert near.info.history.loss[:4] == alike.info.history.loss
    again = inference.SWAG(num_epochs=3, batch_size=8).fit(ours, data(), start=trained, seed=3)
    assert again.model.inputs.same_as(trained.model.inputs)


def test_learned_noise_is_averaged_and_the_same_in_every_draw():
    _, posterior = visited(3, 4)
    assert all(name.startswith("net.") for name in posterior.names)
    scales = posterior.parameters(data()[0], num_draws=5, seed=0)["scale"]
    assert (scales == scales.flatten()[0]).all()


def test_the_means_statistics_are_gathered_anew():
    posterior = inference.SWAG(num_epochs=4, batch_size=8, learning_rate=0.05).fit(
        model(nn.BatchNorm1d(4)), data(), start="current", seed=0
    )
    net, x = posterior.model.net, posterior.model.standardize_inputs(data()[0])
    torch.testing.assert_close(net[1].running_mean, net[0](x).detach().mean(0))


def test_several_members_are_multi_swag_and_equal_each_alone():
    results = []
    for stacked in (True, False):
        train = inference.MAP(num_epochs=3, batch_size=8, stacked=stacked)
        of = inference.SWAG(train=train, num_epochs=4, batch_size=8, rank=3, learning_rate=0.02, stacked=stacked)
        recipe = inference.Ensemble(of=of, num_members=3, bootstrap=True)
        results.append(recipe.fit(model(nn.BatchNorm1d(4), nn.Dropout(0.1)), data(), seed=0))
    together, alone = results
    assert isinstance(together, MixturePosterior)
    assert together.info.stacked
    assert not alone.info.stacked
    assert len(together.info.histories) == 3
    for one, other in zip(together.members, alone.members, strict=True):
        torch.testing.assert_close(flat(one.model.core), flat(other.model.core), rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(one.covariance.dense(), other.covariance.dense(), rtol=1e-6, atol=1e-12)
        torch.testing.assert_close(one.model.net[1].running_var, other.model.net[1].running_var)
    assert not torch.equal(together.members[0].covariance.dense(), together.members[1].covariance.dense())


def test_a_file_holds_the_covariance(tmp_path):
    _, posterior = visited(4, 6)
    credibly.save(posterior, tmp_path / "file")
    loaded = credibly.load(tmp_path / "file", net=model().net, device=cases.DEVICE)
    assert torch.equal(loaded.covariance.dense(), posterior.covariance.dense())
    assert torch.equal(loaded.sample(3, seed=0)["net.0.weight"], posterior.sample(3, seed=0)["net.0.weight"])
    assert loaded.info.history.num_averaged == 6


def test_yesterdays_posterior_is_a_prior():
    _, posterior = visited(4, 6)
    again = inference.MAP(num_epochs=1).fit(posterior.to_model(prior=posterior.as_prior()), data(), seed=0)
    assert again.predict(data()[0]).mean.isfinite().all()


def test_a_tail_that_fails_keeps_its_best_weights_and_leaves_the_model():
    ours = model()
    before = {name: value.clone() for name, value in ours.state_dict().items()}
    with pytest.raises(NotFiniteError) as caught:
        inference.SWAG(learning_rate=1e30).fit(ours, data(), start="current", seed=0)
    assert caught.value.posterior.predict(data()[0]).mean.isfinite().all()
    several = inference.Ensemble(of=inference.SWAG(train=inference.MAP(num_epochs=1), learning_rate=1e30))
    with pytest.raises(NotFiniteError) as caught:
        several.fit(ours, data(), seed=0)
    assert caught.value.posterior.predict(data()[0]).mean.isfinite().all()
    assert all(torch.equal(value, before[name]) for name, value in ours.state_dict().items())


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: inference.SWAG(rank=1), ValueError, "rank"),
        (lambda: inference.SWAG(every=0), ValueError, "every"),
        (lambda: inference.SWAG(min_variance=0.0), ValueError, "min_variance"),
        (lambda: inference.SWAG(early_stopping=EarlyStopping()), NotSupportedError, "early_stopping"),
        (lambda: inference.SWAG(average=EMA()), NotSupportedError, "average"),
        (lambda: inference.SWAG(loss=FocalLoss()), NotSupportedError, "loss"),
        (lambda: inference.SWAG(train=inference.MAP), TypeError, "train"),
        (lambda: inference.SWAG(train=inference.Ensemble()), NotSupportedError, "turn it round"),
        (lambda: inference.SWAG().fit(model(), data()), ValueError, "start="),
        (lambda: inference.SWAG(num_epochs=1).fit(model(), data(), start="current"), ValueError, "snapshots"),
        (lambda: inference.Ensemble(of=inference.SWAG()).fit(model(), data()), ValueError, "does not train"),
        (lambda: inference.SWAG().fit(quantiles(), data(), start="current"), NotSupportedError, "QuantileHead"),
        (lambda: inference.SWAG().fit(frozen(), data(), start="current"), ValueError, "requires a gradient"),
    ],
)
def test_senseless_options_are_refused(make, error, match):
    with pytest.raises(error, match=match):
        make()


def test_options_can_be_replaced():
    method = dataclasses.replace(inference.SWAG(rank=3), rank=4)
    assert method.rank == 4


def test_the_prior_holds_the_tail():
    tight = model()
    tight.prior = priors.Normal(0.05)
    method = inference.SWAG(num_epochs=60, batch_size=None, learning_rate=0.05)
    held = method.fit(tight, data(), start="current", seed=0)
    tight.prior = priors.Flat()
    free = method.fit(tight, data(), start="current", seed=0)
    assert flat(held.model.core).norm() < 0.7 * flat(free.model.core).norm()
