"""Every dropout is found, one mask is one function, and BatchNorm never moves."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from credibly import Model, inference, likelihoods
from credibly.core.errors import NotSupportedError
from credibly.posteriors import dropout


def dense(*layers):
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), *layers, nn.Linear(8, 1))


class Functional(nn.Module):
    """Dropout written out in `forward`, tied to the training flag, behind a BatchNorm."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8)
        self.last = nn.Linear(8, 1)

    def forward(self, x):
        return self.last(F.dropout(self.norm(self.first(x)), 0.5, training=self.training))


class Torchy(Functional):
    def forward(self, x):
        return self.last(torch.dropout(self.norm(self.first(x)), 0.5, self.training))


class Conv(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.conv = nn.Conv1d(2, 4, 2)
        self.norm = nn.BatchNorm1d(4)
        self.dropout = dropout
        self.last = nn.Linear(8, 1)

    def forward(self, x):
        return self.last(self.dropout(self.norm(self.conv(x.reshape(-1, 2, 3)))).flatten(1))


class Attention(nn.Module):
    def __init__(self, *, batch_first=True, need_weights=False):
        super().__init__()
        self.batch_first = batch_first
        self.need_weights = need_weights
        self.attention = nn.MultiheadAttention(2, 2, dropout=0.5, batch_first=batch_first)
        self.last = nn.Linear(6, 1)

    def forward(self, x):
        x = x.reshape(-1, 3, 2)
        if not self.batch_first:
            x = x.transpose(0, 1)
        x = self.attention(x, x, x, need_weights=self.need_weights)[0]
        return self.last((x if self.batch_first else x.transpose(0, 1)).flatten(1))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(2, 2, 8, dropout=0.3, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.last = nn.Linear(6, 1)

    def forward(self, x):
        return self.last(self.encoder(x.reshape(-1, 3, 2)).flatten(1))


class BetweenRecurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.LSTM(2, 4, batch_first=True)
        self.dropout = nn.Dropout(0.4)
        self.last = nn.Linear(4, 1)

    def forward(self, x):
        return self.last(self.dropout(self.first(x.reshape(-1, 3, 2))[0])[:, -1])


REACHED = {
    "dropout": lambda: dense(nn.Dropout(0.5)),
    "alpha": lambda: dense(nn.AlphaDropout(0.5)),
    "feature_alpha": lambda: Conv(nn.FeatureAlphaDropout(0.5)),
    "channels": lambda: Conv(nn.Dropout1d(0.5)),
    "functional": Functional,
    "torch": Torchy,
    "attention": Attention,
    "attention_weights": lambda: Attention(need_weights=True),
    "attention_sequence_first": lambda: Attention(batch_first=False),
    "transformer": Transformer,
    "recurrent": BetweenRecurrent,
    "always": lambda: dense(nn.Dropout(1.0)),
}


def fitted(net, rows=8):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 6, generator=generator)
    return inference.MCDropout().fit(Model(net, likelihoods.Gaussian(scale=1.0)), (x, x[:, 0]), start="current"), x


@pytest.mark.parametrize("name", REACHED)
def test_every_dropout_is_sampled_and_batchnorm_never_moves(name):
    net = REACHED[name]()
    posterior, x = fitted(net)
    before = {key: value.clone() for key, value in posterior.model.state_dict().items()}
    outputs = posterior.outputs(x, num_draws=50, seed=0)
    assert outputs.shape == (50, 8, 1)
    assert (outputs.std(0) > 0).all() or name == "always"
    for key, value in posterior.model.state_dict().items():
        assert torch.equal(value, before[key]), key


@pytest.mark.parametrize("name", REACHED)
def test_a_row_does_not_depend_on_its_batch_mates(name):
    posterior, x = fitted(REACHED[name]())
    whole = posterior.outputs(x, num_draws=20, seed=0)
    for rows in ([0], [3, 0], [7]):
        part = posterior.outputs(x[rows], num_draws=20, seed=0)
        torch.testing.assert_close(part, whole[:, rows], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", REACHED)
def test_masks_do_not_depend_on_the_number_of_draws(name):
    posterior, x = fitted(REACHED[name]())
    many = posterior.outputs(x, num_draws=30, seed=3)
    torch.testing.assert_close(posterior.outputs(x, num_draws=4, seed=3), many[:4], rtol=1e-4, atol=1e-5)
    assert not torch.equal(posterior.outputs(x, num_draws=4, seed=4), many[:4]) or name == "always"


def test_a_linear_network_has_the_exact_moments_of_bernoulli_masks():
    net = nn.Sequential(nn.Dropout(0.3), nn.Linear(6, 1)).double()
    x = torch.randn(4, 6, dtype=torch.float64)
    model = Model(net, likelihoods.Gaussian(scale=0.5))
    posterior = inference.MCDropout().fit(model, (x, x[:, 0]), start="current")
    draws = 40_000
    outputs = posterior.outputs(x, num_draws=draws, seed=0).squeeze(-1)
    terms = (x * net[1].weight).detach()
    mean = terms.sum(1) + net[1].bias.detach()
    variance = terms.square().sum(1) * 0.3 / 0.7
    # five standard errors: each of the 8 comparisons fails once in 1.7 million seeds
    assert ((outputs.mean(0) - mean).abs() < 5 * (variance / draws).sqrt()).all()
    fourth = (outputs - outputs.mean(0)).pow(4).mean(0)
    assert ((outputs.var(0) - variance).abs() < 5 * ((fourth - variance**2) / draws).sqrt()).all()
    predicted = posterior.predict(x, num_draws=100, seed=0)
    torch.testing.assert_close(predicted.aleatoric_variance, torch.full((4,), 0.25, dtype=torch.float64))


def test_attention_draws_average_to_what_training_mode_averages_to():
    net = Attention()
    posterior, x = fitted(net)
    ours = posterior.outputs(x, num_draws=4000, seed=0).squeeze(-1)
    net.train()
    with torch.no_grad():
        theirs = torch.stack([net(x) for _ in range(4000)]).squeeze(-1)
    error = (ours.var(0) / 4000 + theirs.var(0) / 4000).sqrt()
    assert ((ours.mean(0) - theirs.mean(0)).abs() < 5 * error).all()
    ratio = ours.var(0) / theirs.var(0)
    assert ((ratio.log()).abs() < 0.25).all()


class OnlyWhileTraining(Functional):
    def forward(self, x):
        x = self.norm(self.first(x))
        if self.training:
            x = F.dropout(x, 0.5)
        return self.last(x)


class GatedAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(6, 1)

    def forward(self, x):
        q = x.reshape(-1, 1, 3, 2)
        p = 0.5 if self.training else 0.0
        return self.last(F.scaled_dot_product_attention(q, q, q, dropout_p=p).flatten(1))


class Stacked(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells = nn.LSTM(2, 4, num_layers=2, dropout=0.5, batch_first=True)
        self.last = nn.Linear(4, 1)

    def forward(self, x):
        return self.last(self.cells(x.reshape(-1, 3, 2))[0][:, -1])


@pytest.mark.parametrize(
    ("net", "match"),
    [
        (lambda: dense(), "no dropout"),
        (lambda: dense(nn.Dropout(0.0)), "no dropout"),
        (OnlyWhileTraining, "OnlyWhileTraining.*training flag"),
        (lambda: nn.Sequential(nn.Dropout(0.1), GatedAttention()), "`1`.*training flag"),
        (Stacked, "cells.*LSTM"),
    ],
)
def test_what_cannot_be_reached_is_refused_by_name(net, match):
    with pytest.raises(NotSupportedError, match=match):
        fitted(net())


def test_it_says_that_it_does_not_train_by_itself():
    x = torch.randn(4, 6)
    with pytest.raises(ValueError, match="does not train by itself"):
        inference.MCDropout().fit(Model(Functional(), likelihoods.Gaussian()), (x, x[:, 0]))


def test_it_trains_by_the_recipe_it_is_given():
    x = torch.randn(30, 6)
    model = Model(Functional(), likelihoods.Gaussian())
    map_posterior = inference.MAP(num_epochs=3).fit(model, (x, x[:, 0]), seed=1)
    own = inference.MCDropout(train=inference.MAP(num_epochs=3)).fit(model, (x, x[:, 0]), seed=1)
    after = inference.MCDropout().fit(model, (x, x[:, 0]), start=map_posterior, seed=1)
    assert torch.equal(own.outputs(x, seed=0), after.outputs(x, seed=0))
    assert own.info.history.loss == map_posterior.info.history.loss
    assert math.isfinite(own.info.history.loss[-1])


@pytest.mark.parametrize("name", [*REACHED, "last", "residual", "twice"])
def test_draws_made_one_by_one_are_those_made_together(name, monkeypatch):
    odd = {
        "last": lambda: nn.Sequential(nn.Linear(6, 1), nn.Dropout(0.5)),
        "residual": Residual,
        "twice": Twice,
    }
    posterior, x = fitted((REACHED | odd)[name]())
    mapped = posterior.outputs(x, num_draws=12, seed=0)
    monkeypatch.setattr(dropout, "_CHUNK_NUMBERS", 1)
    alone = posterior.outputs(x, num_draws=12, seed=0)
    torch.testing.assert_close(alone, mapped, rtol=1e-4, atol=1e-5)
    parameters = posterior.parameters(x, num_draws=12, seed=0)
    torch.testing.assert_close(parameters["loc"], alone.squeeze(-1), rtol=1e-5, atol=1e-6)
    wanted = x.clone().requires_grad_()
    posterior.outputs(wanted, num_draws=3, seed=0).sum().backward()
    assert wanted.grad.isfinite().all()


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.dropout, self.last = nn.Linear(6, 6), nn.Dropout(0.5), nn.Linear(6, 1)

    def forward(self, x):
        once = self.dropout(self.first(x))
        again = self.dropout(once + x)
        return self.last(once * again + once)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared = nn.Dropout(0.5)
        self.last = nn.Linear(6, 1)

    def forward(self, x):
        return self.last(self.shared(x)) + self.last(self.shared(2 * x)) + self.shared(x)[:, :1]


class LooksAtItsValues(nn.Module):
    """A network that torch cannot map over draws."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.3), nn.Linear(8, 3))

    def forward(self, x):
        outputs = self.layers(x)
        return outputs if outputs.abs().max().item() < 1e6 else 0 * outputs


def test_what_cannot_be_mapped_is_looped_over():
    torch.manual_seed(0)
    net, x = LooksAtItsValues(), torch.randn(20, 2)
    looks = inference.MCDropout(train=inference.MLE(num_epochs=1)).fit(
        Model(net, likelihoods.Categorical(3)), (x, torch.arange(20) % 3), seed=0
    )
    plain = inference.MCDropout(train=inference.MLE(num_epochs=1)).fit(
        Model(net.layers, likelihoods.Categorical(3)), (x, torch.arange(20) % 3), seed=0
    )
    torch.testing.assert_close(looks.outputs(x, num_draws=7, seed=0), plain.outputs(x, num_draws=7, seed=0))
