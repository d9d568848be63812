"""Averages of weights against the weights that training visited; gradients accumulated over batches."""

import functools
import math

import pytest
import torch
from torch import nn

import cases
from credibly import Data, Model, Standardize, inference, likelihoods, priors
from credibly.training import EMA, SWA, EarlyStopping, linear
from credibly.training.averaging import Course, Snapshots


def data(rows=26, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 3, generator=generator, dtype=torch.float64)
    y = x[:, 0] + 0.3 * torch.randn(rows, generator=generator, dtype=torch.float64)
    return x.to(cases.DEVICE, dtype), y.to(cases.DEVICE, dtype)


def model(*layers, dtype=torch.float64):
    net = nn.Sequential(nn.Linear(3, 6), *layers, nn.Tanh(), nn.Linear(6, 1))
    return Model(net.to(cases.DEVICE, dtype), likelihoods.Gaussian(scale=0.5))


class Recorded(torch.optim.SGD):
    """SGD that keeps the weights after every step."""

    def __init__(self, params, lr, *, seen):
        super().__init__(params, lr=lr, momentum=0.5)
        self.seen = seen

    def step(self, closure=None):
        super().step(closure)
        self.seen.append([p.detach().double().clone() for p in self.param_groups[0]["params"]])


def trained(average, *, ours=None, num_epochs=8, dtype=torch.float64, **options):
    """The weights after every step, and the posterior."""
    seen = []
    method = inference.MAP(
        num_epochs=num_epochs,
        batch_size=8,
        learning_rate=0.05,
        optimizer=functools.partial(Recorded, seen=seen),
        average=average,
        **options,
    )
    ours = model(dtype=dtype) if ours is None else ours
    posterior = method.fit(ours, data(dtype=dtype), validation=data(9, dtype, seed=1), seed=3)
    return seen, posterior


def mean_of(states, weights=None):
    weights = torch.full((len(states),), 1 / len(states)).double() if weights is None else weights
    return [sum(w * p for w, p in zip(weights.tolist(), parts, strict=True)) for parts in zip(*states, strict=True)]


def assert_weights(posterior, expected):
    own = [p.detach().double() for p in posterior.model.net.parameters()]
    exact = posterior.model.net[0].weight.dtype == torch.float64
    for ours, theirs in zip(own, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12 if exact else 1e-5, atol=1e-13 if exact else 1e-6)


def test_swa_is_the_mean_of_the_last_epochs_ends(dtype):
    seen, posterior = trained(SWA(start=0.5), dtype=dtype)
    assert len(seen) == 8 * 4
    assert_weights(posterior, mean_of(seen[19::4]))
    assert posterior.info.history.num_averaged == 4


def test_swa_every_so_many_steps_is_the_mean_of_those():
    seen, posterior = trained(SWA(start=0.25, every=3))
    assert_weights(posterior, mean_of(seen[10::3]))
    assert posterior.info.history.num_averaged == 8


def test_ema_is_its_formula_with_weights_that_add_up_to_1(dtype):
    seen, posterior = trained(EMA(decay=0.9), dtype=dtype)
    weights = 0.1 * 0.9 ** torch.arange(31, -1, -1).double() / (1 - 0.9**32)
    assert float(weights.sum()) == pytest.approx(1)
    assert_weights(posterior, mean_of(seen, weights))
    assert posterior.info.history.num_averaged == 32


def test_ema_in_half_precision_does_not_stand_still():
    half = model(dtype=torch.bfloat16)
    x, y = data(dtype=torch.bfloat16)
    method = inference.MLE(num_epochs=30, learning_rate=0.05, average=EMA(decay=0.999))
    posterior = method.fit(half, (x, y), seed=0)
    before, after = half.net[0].weight, posterior.model.net[0].weight
    assert after.dtype == torch.bfloat16
    assert float((after - before).detach().abs().max()) > 0.01


@pytest.mark.parametrize("average", [SWA(start=0.5), EMA(decay=0.8)])
def test_averaging_changes_nothing_of_the_course_of_training(average):
    norm = model(nn.BatchNorm1d(6), nn.Dropout(0.2))
    plain, _ = trained(None, ours=norm)
    followed, posterior = trained(average, ours=norm)
    for ours, theirs in zip(followed, plain, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert len(posterior.info.history.loss) == 8


@pytest.mark.parametrize("batch_size", [None, 8])
def test_statistics_are_those_of_the_training_rows_at_the_average(batch_size):
    ours = model(nn.BatchNorm1d(6))
    x, y = data()
    shared = {"num_epochs": 6, "batch_size": batch_size, "learning_rate": 0.05}
    method = inference.MAP(**shared, average=SWA(start=0.5))
    fitted = method.fit(ours, (x, y), seed=0).model.net
    norm, momentum = fitted[1], ours.net[1].momentum
    features = fitted[0](x).detach()
    torch.testing.assert_close(norm.running_mean, features.mean(0))
    if batch_size is None:
        torch.testing.assert_close(norm.running_var, features.var(0))
    assert norm.momentum == momentum
    plain = inference.MAP(**shared).fit(ours, (x, y), seed=0).model.net
    assert not torch.allclose(plain[1].running_mean, plain[0](x).detach().mean(0))


def test_frozen_statistics_stay():
    ours = model(nn.BatchNorm1d(6))
    ours.net[1].requires_grad_(requires_grad=False)
    ours.net[1].running_mean.fill_(0.3)
    posterior = inference.MAP(num_epochs=4, average=EMA()).fit(ours, data(), seed=0)
    assert torch.equal(posterior.model.net[1].running_mean, ours.net[1].running_mean)


@pytest.mark.parametrize("average", [SWA(start=0.25), SWA(start=0.3, every=2), EMA(decay=0.9)])
@pytest.mark.parametrize("stopping", [None, EarlyStopping(patience=2)])
def test_stacked_members_are_averaged_like_each_alone(average, stopping):
    ours = model(nn.BatchNorm1d(6), nn.Dropout(0.2))
    results = []
    for stacked in (True, False):
        method = inference.MAP(
            num_epochs=8, batch_size=8, learning_rate=0.05, average=average, early_stopping=stopping, stacked=stacked
        )
        recipe = inference.Ensemble(of=method, num_members=3, bootstrap=True)
        results.append(recipe.fit(ours, data(), validation=data(9, seed=1), seed=2))
        assert results[-1].info.stacked is stacked, results[-1].info.reason
    together, alone = results
    for name, value in {**alone.draws, **alone.buffers}.items():
        torch.testing.assert_close({**together.draws, **together.buffers}[name], value, rtol=1e-9, atol=1e-9)
    for one, other in zip(together.info.histories, alone.info.histories, strict=True):
        assert one.num_averaged == other.num_averaged
        assert one.best_epoch == other.best_epoch
        assert one.validation_log_prob == pytest.approx(other.validation_log_prob)


@pytest.mark.parametrize("layers", [(), (nn.BatchNorm1d(6),)])
def test_the_average_is_what_is_scored(layers):
    posterior = trained(EMA(decay=0.8), ours=model(*layers))[1]
    x, y = data(9, seed=1)
    last = posterior.info.history.validation_log_prob[-1]
    assert float(posterior.predict(x).log_prob(y).mean()) == pytest.approx(last, rel=1e-9)


def test_early_stopping_waits_for_an_average_and_ends_in_the_best_one():
    scores = []

    def spoil(epoch):
        scores.append(epoch.validation_log_prob)

    method = inference.MLE(
        num_epochs=40,
        batch_size=4,
        learning_rate=0.05,
        optimizer=torch.optim.Adam,
        average=SWA(start=0.5),
        early_stopping=EarlyStopping(patience=2),
        callbacks=[spoil],
    )
    x, y = data(8)
    held_out = data(30, seed=1)
    wide = Model(nn.Sequential(nn.Linear(3, 60), nn.Tanh(), nn.Linear(60, 1)).double(), likelihoods.Gaussian())
    posterior = method.fit(wide, (x, y), validation=held_out, seed=0)
    history = posterior.info.history
    early = scores[:20]
    assert early.index(max(early)) < 17, "the case must have scores that fall for longer than the patience"
    assert len(history.loss) > 20
    assert history.best_epoch >= 20
    assert history.validation_log_prob[history.best_epoch] == max(scores[20:])
    assert history.num_averaged == history.best_epoch - 19
    score = float(posterior.predict(held_out[0]).log_prob(held_out[1]).mean())
    assert score == pytest.approx(max(scores[20:]), rel=1e-9)


def test_a_run_that_a_callback_ends_before_the_average_keeps_its_weights():
    seen, posterior = trained(SWA(start=0.75), callbacks=[lambda epoch: epoch.number == 2])
    assert_weights(posterior, seen[-1])
    assert posterior.info.history.num_averaged == 0


def test_the_users_model_survives_an_exception_while_the_average_is_in_place():
    ours = model(nn.BatchNorm1d(6))
    before = {name: value.clone() for name, value in ours.state_dict().items()}
    seen = []

    def stop(epoch):
        seen.append([p.detach().clone() for p in epoch.model.net.parameters()])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(EMA(), ours=ours, callbacks=[stop])
    assert all(torch.equal(value, before[name]) for name, value in ours.state_dict().items())


def test_snapshots_are_counted_before_they_are_taken():
    for every in (None, 1, 3, 7):
        for start in (0.0, 0.3, 0.75, 0.99):
            course = Course(num_epochs=10, num_steps=40)
            snapshots = Snapshots(torch.tensor(start).double().item(), every)
            taken = sum(snapshots.due_after_step(step, course) for step in range(1, 41))
            taken += sum(snapshots.due_after_epoch(epoch, course) for epoch in range(1, 11))
            assert snapshots.count(course) == taken


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: SWA(start=1.0), ValueError, "start"),
        (lambda: SWA(every=0), ValueError, "every"),
        (lambda: EMA(decay=1.0), ValueError, "decay"),
        (lambda: inference.MAP(average="swa"), TypeError, "average"),
        (lambda: inference.MAP(average=SWA), TypeError, "average"),
        (lambda: inference.MAP(accumulate=0), ValueError, "accumulate"),
        (lambda: trained(SWA(start=0.9, every=30)), ValueError, "snapshots"),
    ],
)
def test_senseless_averages_are_refused(make, error, match):
    with pytest.raises(error, match=match):
        make()


@pytest.mark.parametrize("prior", [priors.Normal(0.3), priors.Flat()])
def test_accumulated_batches_are_one_batch(prior, dtype):
    """Batches of 4 rows three at a time are batches of 12; the last ones have 4 and 2 rows of 30."""
    x, y = data(30, dtype)
    weights = torch.linspace(0.5, 2, 30, dtype=dtype, device=cases.DEVICE)
    ours = model(dtype=dtype)
    ours.prior = prior
    options = {"num_epochs": 5, "learning_rate": 0.05, "clip_norm": 0.5, "schedule": linear}
    parts = inference.MAP(batch_size=4, accumulate=3, **options).fit(ours, Data(x, y, weights=weights), seed=0)
    whole = inference.MAP(batch_size=12, **options).fit(ours, Data(x, y, weights=weights), seed=0)
    assert_weights(parts, [p.detach().double() for p in whole.model.net.parameters()])
    assert parts.info.history.loss == pytest.approx(whole.info.history.loss)
    assert parts.info.history.learning_rate == pytest.approx(whole.info.history.learning_rate)


def test_stacked_members_accumulate_like_each_alone():
    results = []
    for stacked in (True, False):
        method = inference.MAP(num_epochs=3, batch_size=4, accumulate=3, stacked=stacked)
        ours = model(nn.Dropout(0.2))
        results.append(inference.Ensemble(of=method, num_members=2).fit(ours, data(), seed=0))
    torch.manual_seed(0)
    for name, value in results[0].draws.items():
        torch.testing.assert_close(results[1].draws[name], value, rtol=1e-9, atol=1e-9)


def test_a_loader_is_averaged_too():
    x, y = data()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=8, shuffle=True)
    ours = Model(model(nn.BatchNorm1d(6)).net, likelihoods.Gaussian(), inputs=Standardize())
    posterior = inference.MAP(num_epochs=4, average=SWA(start=0.5)).fit(ours, loader, seed=0)
    net = posterior.model.net
    features = net[0](posterior.model.standardize_inputs(x)).detach()
    torch.testing.assert_close(net[1].running_mean, features.mean(0))
    assert posterior.info.history.num_averaged == 2
    assert math.isfinite(posterior.info.history.loss[-1])
