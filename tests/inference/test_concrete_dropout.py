"""The objective by hand and by enumeration, its gradients by differences, and rates that follow the data."""

import copy
import itertools
import math

import pytest
import torch
from torch import nn

import cases
import credibly
from credibly import Model, inference, likelihoods, priors
from credibly.core.dropout_rates import learned_rates
from credibly.core.errors import NotSupportedError
from credibly.core.params import training_mode
from credibly.inference.problem import prepare
from credibly.priors.gaussian import GaussianPrior
from credibly.training.concrete import Concrete, entropy, expected_log_prior, record, relaxed_mask
from credibly.training.objective import LogJoint

WIDE = torch.float64


def two_layers():
    net = nn.Sequential(nn.Dropout(0.3), nn.Linear(3, 2), nn.Tanh(), nn.Dropout(0.2), nn.Linear(2, 1))
    return Model(net.to(WIDE), likelihoods.Gaussian(scale=0.5), priors.Normal(0.7))


def data(rows=8):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 3, generator=generator, dtype=WIDE)
    return x, x[:, 0] - x[:, 1] + 0.5 * torch.randn(rows, generator=generator, dtype=WIDE)


def in_training(model, rows=8, num_data=40):
    x, y = data(rows)
    problem = prepare(model, credibly.Data(x, y, num_data=num_data))
    own = training_mode(problem.model)
    inputs = problem.source.first().inputs
    objective = LogJoint.of(own, num_data, with_prior=False, loss=None, class_weights=None)
    plan = record(own.core, inputs)
    rates = {name: own.net.get_submodule(name).p for name in plan.names}
    trainee = Concrete(own, objective, plan, rates, example=inputs, relaxation=0.1, seed=3, autocast=None)
    return trainee, next(problem.source.batches(None))


def test_the_regulariser_is_the_papers_by_hand():
    trainee, _ = in_training(two_layers())
    net, s = trainee.core.net, 0.7
    total = torch.zeros((), dtype=WIDE)
    for p, layer, units in ((0.3, net[1], 3), (0.2, net[4], 2)):
        m = layer.weight / (1 - p)
        total += -(1 - p) * m.square().sum() / (2 * s**2) - layer.bias.square().sum() / (2 * s**2)
        total += units * (-p * math.log(p) - (1 - p) * math.log(1 - p))
    total -= (3 * 2 + 2 + 2 + 1) * math.log(s * math.sqrt(2 * math.pi))
    torch.testing.assert_close(trainee.regularizer(), total, rtol=1e-12, atol=1e-12)


def test_the_objective_is_the_evidence_lower_bound_per_row_by_hand():
    trainee, batch = in_training(two_layers())
    net = trainee.core.net
    sites = trainee._sites.sites(batch.inputs)
    numbers = trainee._stream.uniform(sum(site.size for site in sites), 5, 6)[0].to(WIDE)
    first, second = numbers.split([8 * 3, 8 * 2])

    def mask(p, u):
        noise = (u / (1 - u)).log()
        return (1 - torch.sigmoid((math.log(p / (1 - p)) + noise) / 0.1)) / (1 - p)

    hidden = net[1](batch.inputs * mask(0.3, first).reshape(8, 3)).tanh()
    mean = net[4](hidden * mask(0.2, second).reshape(8, 2)).squeeze(-1)
    rows = torch.distributions.Normal(mean, 0.5).log_prob(batch.targets)
    expected = rows.mean() + trainee.regularizer() / 40
    torch.testing.assert_close(trainee.objectives(batch, 5), expected, rtol=1e-10, atol=1e-10)


def test_gradients_in_weights_and_rates_are_those_of_finite_differences():
    trainee, batch = in_training(two_layers())
    trainee.objectives(batch, 2).backward()
    for leaf in trainee.leaves:
        flat, gradient = leaf.detach().view(-1), leaf.grad.reshape(-1)
        for index in range(len(flat)):
            kept, values = float(flat[index]), []
            for step in (1e-6, -1e-6):
                flat[index] = kept + step
                values.append(trainee.objectives(batch, 2).detach())
            flat[index] = kept
            torch.testing.assert_close((values[0] - values[1]) / 2e-6, gradient[index], rtol=1e-5, atol=1e-7)
    assert (trainee.logits.grad.abs() > 1e-4).all()


@pytest.mark.parametrize("name", cases.PRIORS)
def test_the_expected_log_prior_is_that_of_all_masks(name):
    prior = cases.PRIORS[name]()
    params = {"net.1.weight": torch.randn(2, 3, dtype=WIDE), "net.1.bias": torch.randn(2, dtype=WIDE)}
    keep = torch.tensor(0.7, dtype=WIDE)
    expected = torch.zeros((), dtype=WIDE)
    for mask in itertools.product([0.0, 1.0], repeat=3):
        kept = torch.tensor(mask, dtype=WIDE)
        chance = (kept * keep + (1 - kept) * (1 - keep)).prod()
        expected += chance * prior.log_prob({**params, "net.1.weight": params["net.1.weight"] / keep * kept})
    found = expected_log_prior(prior, params, {"net.1.weight": keep})
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_the_entropy_is_bernoullis():
    logits = torch.tensor([-30.0, -2.0, 0.0, 0.5, 30.0], dtype=WIDE)
    odds = torch.exp(-logits.abs())
    expected = odds.log1p() + logits.abs() * odds / (1 + odds)
    usual = torch.distributions.Bernoulli(logits=logits).entropy()
    torch.testing.assert_close(entropy(logits), usual, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(entropy(logits), expected, rtol=1e-12, atol=0)


def test_relaxed_masks_end_in_exact_ones_that_drop_with_the_rate():
    uniforms = torch.rand(10_000, dtype=WIDE)
    mask = relaxed_mask(torch.tensor(0.3 / 0.7, dtype=WIDE).log(), uniforms, 1e-6)
    torch.testing.assert_close(mask, (uniforms < 0.7).to(WIDE) / 0.7, rtol=1e-9, atol=1e-9)
    edges = relaxed_mask(torch.zeros(()), torch.tensor([0.0, 1.0]), 0.1)
    assert edges.isfinite().all()


class Shared(nn.Module):
    """Channels dropped before a flattened layer, one layer used twice, a rate used twice, and a functional dropout."""

    def __init__(self):
        super().__init__()
        self.conv, self.drop = nn.Conv1d(1, 4, 2), nn.Dropout1d(0.2)
        self.wide, self.again, self.last = nn.Linear(8, 5), nn.Linear(5, 5), nn.Linear(5, 1)
        self.plain, self.frozen = nn.Dropout(0.4), nn.Linear(5, 5).requires_grad_(requires_grad=False)

    def forward(self, x):
        x = self.wide(self.drop(self.conv(x.unsqueeze(1))).flatten(1))
        x = self.again(self.plain(x).relu())
        x = self.frozen(self.again(self.plain(x)))
        return self.last(nn.functional.dropout(x, 0.1, self.training))


def test_the_plan_says_which_weights_read_what():
    model = Model(Shared(), likelihoods.Gaussian())
    plan = record(training_mode(copy.deepcopy(model)).core, torch.randn(5, 3))
    assert plan.places == ("drop", "plain", "plain", None)
    assert plan.units[:3] == (4, 5, 5)
    assert plan.readers == {"net.wide.weight": ("drop",), "net.again.weight": ("plain",)}
    assert plan.names == ("drop", "plain")


READERS = {
    "recurrent": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.2), Cells()),
        {"net.2.cells.weight_ih_l0": ("1",)},
        (4,),
    ),
    "convolution": (
        lambda: nn.Sequential(
            nn.Unflatten(1, (1, 3)), nn.Conv1d(1, 6, 1), nn.Dropout(0.2), nn.ReLU(), nn.Conv1d(6, 2, 1)
        ),
        {"net.4.weight": ("2",)},
        (6,),
    ),
    "two in a row": (
        lambda: nn.Sequential(nn.Dropout(0.2), nn.Dropout(0.3), nn.Linear(3, 1)),
        {"net.2.weight": ("0", "1")},
        (3, 3),
    ),
    "last": (lambda: nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.3)), {}, (2,)),
}


class Cells(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells, self.last = nn.GRU(4, 3, batch_first=True), nn.Linear(3, 1)

    def forward(self, x):
        return self.last(self.cells(x.unsqueeze(1))[0][:, -1])


@pytest.mark.parametrize("name", READERS)
def test_layers_of_every_kind_read_what_is_dropped_before_them(name):
    make, readers, units = READERS[name]
    core = training_mode(Model(make(), likelihoods.Gaussian())).core
    plan = record(core, torch.randn(5, 3))
    assert (plan.readers, plan.units) == (readers, units)


def wide_net(rate=0.1):
    return nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Dropout(rate), nn.Linear(32, 1))


def sine(rows):
    generator = torch.Generator().manual_seed(1)
    x = 6 * torch.rand(rows, 1, generator=generator) - 3
    return x, x[:, 0].sin() + 0.3 * torch.randn(rows, generator=generator)


@pytest.mark.parametrize("rate", [0.05, 0.4])
def test_the_rate_falls_with_more_data_wherever_it_begins(rate):
    found = []
    for rows in (15, 1500):
        model = Model(wide_net(rate), likelihoods.Gaussian(scale=0.3), priors.Normal(1.0))
        method = inference.ConcreteDropout(num_epochs=18_000 // max(rows, 60), batch_size=60, learning_rate=0.05)
        posterior = method.fit(model, sine(rows), seed=0)
        found.append(posterior.info.dropout_rates["2"])
        assert posterior.model.net[2].p == found[-1]
        assert model.net[2].p == rate
    assert found[1] < 0.5 * found[0]


def test_the_posterior_drops_at_the_learned_rate():
    net = nn.Sequential(nn.Dropout(0.3), nn.Linear(3, 1)).to(WIDE)
    posterior = inference.ConcreteDropout(num_epochs=20, learning_rate=0.05).fit(
        Model(net, likelihoods.Gaussian(scale=0.5)), data(30), seed=0
    )
    x, p = data(4)[0], posterior.info.dropout_rates["0"]
    assert abs(p - 0.3) > 0.02
    terms = (x * posterior.model.net[1].weight).detach()
    variance = terms.square().sum(1) * p / (1 - p)
    outputs = posterior.outputs(x, num_draws=20_000, seed=0).squeeze(-1)
    fourth = (outputs - outputs.mean(0)).pow(4).mean(0)
    # five standard errors: each of the 4 comparisons fails once in 1.7 million seeds
    assert ((outputs.var(0) - variance).abs() < 5 * ((fourth - variance**2) / 20_000).sqrt()).all()


def test_a_network_without_dropout_gets_it_before_its_linear_layers():
    net = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.2), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)).to(
        WIDE
    )
    model = Model(net, likelihoods.Gaussian(scale=0.5))
    with pytest.raises(NotSupportedError, match="before_linear=True"):
        inference.ConcreteDropout().fit(Model(nn.Linear(3, 1).to(WIDE), likelihoods.Gaussian()), data())
    posterior = inference.ConcreteDropout(before_linear=True, num_epochs=3).fit(model, data(), seed=0)
    rates = posterior.info.dropout_rates
    assert set(rates) == {"0", "1", "5"}, "what a dropout layer feeds gets no second one"
    assert learned_rates(posterior.to_model().net) == rates
    assert learned_rates(net) == {}
    outputs = posterior.outputs(data()[0], num_draws=50, seed=0)
    assert (outputs.std(0) > 0).all()
    plain = copy.deepcopy(net)
    plain.load_state_dict(posterior.model.net.state_dict())
    torch.testing.assert_close(posterior.model.call({}, {}, data()[0]), plain.eval()(data()[0]))
    again = inference.ConcreteDropout(before_linear=True, num_epochs=1).fit(posterior.to_model(), data(), seed=0)
    assert set(again.info.dropout_rates) == set(rates)


def test_a_start_brings_its_rates_and_a_file_keeps_them(tmp_path):
    method = inference.ConcreteDropout(before_linear=True, num_epochs=8, learning_rate=0.1)
    posterior = method.fit(two_layers(), data(), seed=0)
    rates = posterior.info.dropout_rates
    after = inference.MCDropout().fit(two_layers(), data(), start=posterior)
    assert learned_rates(after.model.net) == rates
    more = inference.ConcreteDropout(num_epochs=1, learning_rate=1e-9).fit(two_layers(), data(), start=posterior)
    assert more.info.dropout_rates == pytest.approx(rates, abs=1e-6)
    credibly.save(posterior, tmp_path / "file")
    loaded = credibly.load(tmp_path / "file", net=two_layers().net)
    assert learned_rates(loaded.model.net) == rates
    assert loaded.info.dropout_rates == rates


def test_members_of_an_ensemble_keep_their_own_rates_in_a_file(tmp_path):
    method = inference.Ensemble(of=inference.ConcreteDropout(num_epochs=5, learning_rate=0.3), num_members=2)
    posterior = method.fit(two_layers(), data(), seed=0)
    credibly.save(posterior, tmp_path / "file")
    loaded = credibly.load(tmp_path / "file", net=two_layers().net)
    rates = [learned_rates(member.model.net) for member in posterior.members]
    assert rates[0] != rates[1]
    assert [learned_rates(member.model.net) for member in loaded.members] == rates
    x = data()[0]
    assert torch.equal(loaded.predict(x, num_draws=6, seed=1).mean, posterior.predict(x, num_draws=6, seed=1).mean)


def test_early_stopping_goes_back_to_the_best_rates():
    early = credibly.training.EarlyStopping(patience=2)
    method = inference.ConcreteDropout(num_epochs=40, learning_rate=0.3, early_stopping=early)
    model = two_layers()
    posterior = method.fit(model, data(20), validation=data(30), seed=0)
    history = posterior.info.history
    assert history.stopped_early
    again = inference.ConcreteDropout(num_epochs=history.best_epoch + 1, learning_rate=0.3)
    assert again.fit(model, data(20), seed=0).info.dropout_rates == posterior.info.dropout_rates


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: inference.ConcreteDropout(initial_rate=1.0), ValueError, "initial_rate"),
        (lambda: inference.ConcreteDropout(relaxation=0.0), ValueError, "relaxation"),
        (lambda: inference.ConcreteDropout(loss=credibly.training.FocalLoss()), NotSupportedError, "loss"),
        (lambda: joint_prior(), NotSupportedError, "GaussianPrior"),
        (lambda: quantiles(), NotSupportedError, "QuantileHead"),
        (lambda: stacked_recurrent(), NotSupportedError, "LSTM"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(make, error, match):
    with pytest.raises(error, match=match):
        make()


def joint_prior():
    model = two_layers()
    model.prior = GaussianPrior({n: p.detach() for n, p in model.core.named_parameters()}, torch.ones(11, dtype=WIDE))
    inference.ConcreteDropout(num_epochs=1).fit(model, data())


def quantiles():
    net = nn.Sequential(nn.Dropout(0.3), nn.Linear(3, 2)).to(WIDE)
    inference.ConcreteDropout(num_epochs=1).fit(Model(net, likelihoods.QuantileHead([0.1, 0.9])), data())


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.2)
        self.cells, self.last = nn.LSTM(3, 4, num_layers=2, dropout=0.5, batch_first=True), nn.Linear(4, 1)

    def forward(self, x):
        return self.last(self.cells(self.drop(x).unsqueeze(1))[0][:, -1])


def stacked_recurrent():
    inference.ConcreteDropout(num_epochs=1).fit(Model(Deep().to(WIDE), likelihoods.Gaussian()), data())
