"""Losses, early stopping, clipping, schedules, callbacks: each against what it says."""

import functools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from credibly import Model, inference, likelihoods, priors
from credibly.core.errors import NotSupportedError, ShapeError
from credibly.training import EarlyStopping, FocalLoss, LabelSmoothing, constant, cosine, linear


def class_data(rows=60, classes=3):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 4, generator=generator)
    return x, (x[:, :classes] + 0.5 * torch.randn(rows, classes, generator=generator)).argmax(1)


def number_data(rows=60, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 4, generator=generator)
    return x, x[:, 0] + 0.1 * torch.randn(rows, generator=generator)


def parameters(classes=3):
    logits = torch.randn(7, classes, dtype=torch.float64)
    return likelihoods.Categorical(classes), {"logits": logits}, torch.arange(7) % classes


def test_label_smoothing_is_torchs():
    likelihood, given, targets = parameters()
    ours = LabelSmoothing(0.2)(likelihood, given, targets)
    theirs = F.cross_entropy(given["logits"], targets, label_smoothing=0.2, reduction="none")
    torch.testing.assert_close(ours, theirs)


def test_focal_loss_is_its_formula_and_has_gradients_where_a_row_is_certain():
    likelihood, given, targets = parameters()
    p = given["logits"].softmax(-1).gather(1, targets.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(FocalLoss(1.5)(likelihood, given, targets), -((1 - p) ** 1.5) * p.log())
    torch.testing.assert_close(FocalLoss(0.0)(likelihood, given, targets), -p.log())
    sure = torch.tensor([[200.0, 0.0, 0.0], [-200.0, 0.0, 0.0]], requires_grad=True)
    FocalLoss(0.5)(likelihood, {"logits": sure}, torch.tensor([0, 0])).sum().backward()
    assert sure.grad.isfinite().all()


@pytest.mark.parametrize("loss", [FocalLoss(2.0), LabelSmoothing(0.1)])
def test_losses_of_two_classes_agree_between_bernoulli_and_categorical(loss):
    logit, targets = torch.randn(9, dtype=torch.float64), torch.arange(9) % 2
    two = torch.stack([torch.zeros_like(logit), logit], 1)
    a = loss(likelihoods.Bernoulli(), {"logits": logit}, targets.double())
    torch.testing.assert_close(a, loss(likelihoods.Categorical(2), {"logits": two}, targets))


@pytest.mark.parametrize("loss", [FocalLoss(), LabelSmoothing()])
def test_class_losses_refuse_other_likelihoods(loss):
    model = Model(nn.Linear(4, 1), likelihoods.Gaussian())
    with pytest.raises(NotSupportedError, match="Gaussian"):
        inference.MLE(num_epochs=1, loss=loss).fit(model, number_data())


def test_class_weights_multiply_the_rows():
    x, y = class_data()
    weights = torch.tensor([1.0, 5.0, 0.5])
    model = Model(nn.Linear(4, 3), likelihoods.Categorical(3))
    method = inference.MLE(num_epochs=1, batch_size=None, class_weights=weights)
    loss = method.fit(model, (x, y), seed=0).info.history.loss[0]
    expected = (F.cross_entropy(model.net(x), y, reduction="none") * weights[y]).mean().detach()
    assert loss == pytest.approx(float(expected), rel=1e-5)
    with pytest.raises(ShapeError, match=r"\(3,\)"):
        inference.MLE(class_weights=[1.0, 2.0]).fit(model, (x, y))
    with pytest.raises(NotSupportedError, match="class_weights"):
        inference.MLE(class_weights=[1.0, 2.0]).fit(Model(nn.Linear(4, 3), likelihoods.Gaussian(3)), (x, x[:, :3]))


def test_the_loss_is_minus_the_log_joint_per_row():
    x, y = class_data()
    model = Model(nn.Linear(4, 3), likelihoods.Categorical(3), priors.Normal(0.3))
    params = dict(model.core.named_parameters())
    loss = inference.MAP(num_epochs=1, batch_size=None).fit(model, (x, y), seed=0).info.history.loss[0]
    assert loss == pytest.approx(-float(model.log_joint(params, {}, (x, y), 60).detach()) / 60, rel=1e-5)


def test_early_stopping_returns_the_best_weights():
    x, y = number_data(12)
    held_out = number_data(50, seed=1)
    net = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1))
    model = Model(net, likelihoods.Gaussian(), priors.Flat())
    method = inference.MLE(num_epochs=400, learning_rate=0.02, early_stopping=EarlyStopping(patience=4))
    posterior = method.fit(model, (x, y), validation=held_out, seed=0)
    history = posterior.info.history
    assert history.stopped_early
    assert len(history.loss) == history.best_epoch + 5
    best = max(history.validation_log_prob)
    assert history.validation_log_prob[history.best_epoch] == best
    assert float(posterior.predict(held_out[0]).log_prob(held_out[1]).mean()) == pytest.approx(best, abs=1e-5)
    with pytest.raises(ValueError, match="validation"):
        method.fit(model, (x, y), seed=0)


def test_without_early_stopping_the_last_weights_are_final():
    posterior = inference.MLE(num_epochs=5).fit(
        Model(nn.Linear(4, 1), likelihoods.Gaussian()), number_data(), validation=number_data(20, seed=2), seed=0
    )
    x, y = number_data(20, seed=2)
    last = posterior.info.history.validation_log_prob[-1]
    assert float(posterior.predict(x).log_prob(y).mean()) == pytest.approx(last, abs=1e-5)


def test_clipping_bounds_the_step():
    model = Model(nn.Linear(4, 1), likelihoods.Gaussian(scale=0.01))
    method = inference.MLE(num_epochs=1, batch_size=None, optimizer=torch.optim.SGD, learning_rate=1.0, clip_norm=0.125)
    posterior = method.fit(model, number_data(), seed=0)
    after = torch.cat([p.detach().flatten() for p in posterior.model.net.parameters()])
    before = torch.cat([p.detach().flatten() for p in model.net.parameters()])
    assert float((after - before).norm()) == pytest.approx(0.125, rel=1e-4)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (constant, [1.0] * 4),
        (functools.partial(constant, warmup=0.5), [0.625, 1.0, 1.0, 1.0]),
        (linear, [0.75, 0.5, 0.25, 0.0]),
        (cosine, [0.5 * (1 + math.cos(math.pi * k / 4)) for k in (1, 2, 3, 4)]),
    ],
)
def test_schedules_end_where_they_say(schedule, expected):
    method = inference.MLE(num_epochs=4, batch_size=15, learning_rate=0.1, schedule=schedule)
    history = method.fit(Model(nn.Linear(4, 1), likelihoods.Gaussian()), number_data(), seed=0).info.history
    assert history.learning_rate == pytest.approx([0.1 * share for share in expected], abs=1e-12)


def test_a_plateau_schedule_follows_the_validation_score():
    def plateau(optimizer, num_steps):
        return ReduceLROnPlateau(optimizer, patience=0, factor=0.5, threshold=1e9, threshold_mode="abs")

    method = inference.MLE(num_epochs=4, schedule=plateau)
    model = Model(nn.Linear(4, 1), likelihoods.Gaussian())
    history = method.fit(model, number_data(), validation=number_data(9, seed=3), seed=0).info.history
    assert history.learning_rate == pytest.approx([1e-3, 1e-3, 5e-4, 2.5e-4])
    posterior = inference.Ensemble(of=method, num_members=2).fit(model, number_data(), seed=0)
    assert "schedule" in posterior.info.reason


def test_callbacks_see_every_epoch_and_can_stop():
    seen = []

    def callback(epoch):
        seen.append((epoch.number, epoch.loss, epoch.validation_log_prob))
        assert epoch.model.net.weight.isfinite().all()
        return epoch.number == 2

    method = inference.MLE(num_epochs=10, callbacks=[callback])
    history = method.fit(Model(nn.Linear(4, 1), likelihoods.Gaussian()), number_data(), seed=0).info.history
    assert [number for number, _, _ in seen] == [0, 1, 2]
    assert [loss for _, loss, _ in seen] == pytest.approx(history.loss)


def test_bfloat16_autocast_trains_and_returns_full_precision():
    model = Model(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3)), likelihoods.Categorical(3))
    x, y = class_data()
    method = inference.MLE(num_epochs=30, learning_rate=0.02)
    full = method.fit(model, (x, y), seed=0)
    low = inference.MLE(num_epochs=30, learning_rate=0.02, autocast=torch.bfloat16).fit(model, (x, y), seed=0)
    assert low.outputs(x).dtype == torch.float32
    assert not torch.equal(low.outputs(x), full.outputs(x)), "autocast must have had an effect"
    assert low.info.history.loss[-1] == pytest.approx(full.info.history.loss[-1], abs=0.05)
    stack = inference.Ensemble(of=inference.MLE(num_epochs=2, autocast=torch.bfloat16), num_members=2).fit(
        model, (x, y), seed=0
    )
    assert stack.info.stacked, stack.info.reason


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"num_epochs": 0}, "num_epochs"),
        ({"batch_size": 0}, "batch_size"),
        ({"learning_rate": -1.0}, "learning_rate"),
        ({"clip_norm": 0.0}, "clip_norm"),
    ],
)
def test_senseless_options_are_refused(options, match):
    with pytest.raises(ValueError, match=match):
        inference.MAP(**options)


@pytest.mark.parametrize(
    ("x", "y", "match"),
    [
        (torch.zeros(0, 4), torch.zeros(0), "no rows"),
        (torch.zeros(5, 4), torch.zeros(4), "rows"),
        (torch.full((5, 4), math.nan), torch.zeros(5), "inputs.*finite"),
        (torch.zeros(5, 4), torch.full((5,), math.nan), "targets.*finite"),
    ],
)
def test_bad_data_is_refused_before_training(x, y, match):
    with pytest.raises(ValueError, match=match):
        inference.MLE(num_epochs=1).fit(Model(nn.Linear(4, 1), likelihoods.Gaussian()), (x, y))


def test_class_targets_that_do_not_exist_are_refused():
    x, _ = class_data(5)
    for bad in ([0, 1, 2, 3, 0], [0, 1, -1, 0, 0], [0.5, 0, 0, 0, 0]):
        with pytest.raises(ValueError, match="Categorical"):
            inference.MLE(num_epochs=1).fit(Model(nn.Linear(4, 3), likelihoods.Categorical(3)), (x, torch.tensor(bad)))


def test_bernoulli_targets_of_another_range_are_refused_at_the_start():
    """B26: intensities up to 300 against a Bernoulli."""
    x, _ = class_data(5)
    with pytest.raises(ValueError, match="Bernoulli"):
        inference.MLE().fit(Model(nn.Linear(4, 1), likelihoods.Bernoulli()), (x, torch.tensor([0.0, 300, 1, 20, 5])))
