"""Loaders: the global random state stays, nothing of a stream is lost, every step is counted."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import cases
from credibly import Data, Model, Standardize, inference, likelihoods
from credibly.training import cosine, linear


def net():
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 1)).to(cases.DEVICE)


def data(rows=20):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 3, generator=generator)
    return x.to(cases.DEVICE), 10 + 4 * x[:, 0].to(cases.DEVICE)


def loader(*, shuffle=True, batch_size=6):
    return DataLoader(TensorDataset(*data()), batch_size=batch_size, shuffle=shuffle)


class Once(IterableDataset):
    """A stream that can be read once; it counts what was taken."""

    def __init__(self, rows=20, *, noisy=False):
        self.rows = iter(zip(*data(rows), strict=True))
        self.taken = 0

    def __iter__(self):
        for row in self.rows:
            self.taken += 1
            yield row


class NoisyRows(torch.utils.data.Dataset):
    """Rows with augmentation noise from the global generator."""

    def __len__(self):
        return 20

    def __getitem__(self, index):
        x, y = data()
        return x[index] + 0.1 * torch.randn(3), y[index]


@pytest.mark.parametrize("name", cases.METHODS)
def test_the_global_state_stays_as_found(name):
    model = Model(net(), likelihoods.Gaussian(), inputs=Standardize(), targets=Standardize())
    before = torch.get_rng_state()
    posterior = cases.METHODS[name]().fit(model, loader(), validation=loader(), start="current", seed=0)
    assert torch.equal(torch.get_rng_state(), before)
    posterior.predict(loader(), seed=1)
    list(posterior.predict_batches(loader(), seed=1))
    assert torch.equal(torch.get_rng_state(), before)


def test_equal_seeds_give_equal_shuffles_and_augmentations():
    model = Model(net(), likelihoods.Gaussian())

    def trained(global_seed):
        torch.manual_seed(global_seed)
        noisy = DataLoader(NoisyRows(), batch_size=6, shuffle=True)
        return inference.MAP(num_epochs=2).fit(model, noisy, seed=3).sample(1)

    one, other = trained(1), trained(2)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_epochs_are_shuffled_apart():
    seen = []

    class Spy(nn.Linear):
        def forward(self, x):
            if self.training:
                seen.append(x.detach().clone())
            return super().forward(x)

    inference.MAP(num_epochs=2).fit(Model(Spy(3, 1), likelihoods.Gaussian()), loader(batch_size=20), seed=0)
    *_, first, second = seen
    assert not torch.equal(first, second)
    assert torch.equal(first.sort(0).values, second.sort(0).values)


@pytest.mark.parametrize("method", ["mle", "map", "mc_dropout"])
def test_a_stream_that_can_be_read_once_loses_no_batch(method):
    stream = Once()
    seen = []

    class Spy(nn.Linear):
        def forward(self, x):
            if self.training and torch.is_grad_enabled():
                seen.append(len(x))
            return super().forward(x)

    model = Model(nn.Sequential(Spy(3, 8), nn.Dropout(0.2), nn.Linear(8, 1)), likelihoods.Gaussian())
    recipe = cases.METHODS[method]()
    if method == "mc_dropout":
        with pytest.raises(ValueError, match="no batch"):
            # two readers, the check of the dropout and the training: a stream of one pass cannot serve both
            recipe.fit(model, Data(DataLoader(stream, batch_size=6), num_data=20), seed=0)
        return
    with pytest.raises(ValueError, match="no batch"):
        recipe.fit(model, Data(DataLoader(stream, batch_size=6), num_data=20), seed=0)  # the second epoch finds none
    assert seen == [6, 6, 6, 2]
    assert stream.taken == 20


def test_a_schedule_ends_with_the_last_step_whatever_the_data_are():
    x, y = data(40)

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(zip(x, y, strict=True))

    for given in (
        (x, y),
        Data(x, y, num_data=400),
        DataLoader(TensorDataset(x, y), batch_size=8),
        Data(DataLoader(Stream(), batch_size=8), num_data=40),
    ):
        method = inference.MLE(num_epochs=4, batch_size=8, learning_rate=0.1, schedule=linear)
        history = method.fit(Model(net(), likelihoods.Gaussian()), given, seed=0).info.history
        assert history.learning_rate == pytest.approx([0.075, 0.05, 0.025, 0.0])
    assert cosine is not linear


def test_num_data_scales_the_likelihood():
    x, y = data()
    method = inference.MAP(num_epochs=1, batch_size=None)
    model = Model(net().eval(), likelihoods.Gaussian(scale=1.0))
    params = {name: p.detach() for name, p in model.core.named_parameters()}
    quiet = Model(nn.Sequential(*[part for part in model.net if not isinstance(part, nn.Dropout)]), model.likelihood)
    loss = method.fit(quiet, Data(x, y, num_data=200), seed=0).info.history.loss[0]
    rows = model.log_likelihood(params, {}, (x, y)).sum()
    assert loss == pytest.approx(-float(10 * rows + model.log_prior(params)) / 200, rel=1e-5)
