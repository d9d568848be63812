"""Members of a mixture weigh alike, whatever they are made of and however few draws are asked for."""

import math

import pytest
import torch
from torch import nn

from credibly import Model, inference, likelihoods, posteriors

X = torch.zeros(4, 1)


def point(level):
    """A network that says the same everywhere."""
    net = nn.Linear(1, 1)
    with torch.no_grad():
        net.weight.zero_()
        net.bias.fill_(level)
    model = Model(net, likelihoods.Gaussian(scale=1.0))
    return inference.MLE(num_epochs=1, learning_rate=1e-9).fit(model, (X, torch.zeros(4)), seed=0)


def several(*levels):
    points = [point(level) for level in levels]
    return posteriors.DrawPosterior.of_points(points, points[0].info)


def mixture(*members):
    return posteriors.MixturePosterior(members, members[0].info)


def test_a_mixture_in_a_mixture_keeps_the_weights_of_its_members():
    inner = mixture(several(0.0, 0.0, 0.0), point(8.0))
    predicted = mixture(inner, point(0.0)).predict(X)
    torch.testing.assert_close(predicted.mean, torch.full((4,), 2.0))
    torch.testing.assert_close(predicted.variance, torch.full((4,), 1 + 0.25 * 64 - 4.0))


def test_a_point_beside_a_gaussian_may_be_nested():
    model = Model(nn.Linear(1, 1), likelihoods.Gaussian(scale=1.0))
    spread = inference.Laplace(linearized=False).fit(model, (X, torch.zeros(4)), start="current", seed=0)
    inner = mixture(spread, point(8.0))
    nested = mixture(inner, point(0.0)).predict(X, seed=0)
    assert nested.mean[0] == pytest.approx(inner.predict(X, num_draws=50, seed=0).mean[0] / 2, abs=0.5)
    assert math.isfinite(nested.log_prob(torch.zeros(4)).sum())


@pytest.mark.parametrize("num_draws", [None, 3, 4, 5, 6, 7])
def test_no_member_is_left_out_while_there_is_a_draw_for_each(num_draws):
    mixed = mixture(several(0.0, 0.0, 0.0), point(9.0), several(0.0, 0.0, 0.0))
    predicted = mixed.predict(X, num_draws=num_draws)
    torch.testing.assert_close(predicted.mean, torch.full((4,), 3.0))
    assert mixed.outputs(X, num_draws=num_draws).shape[0] == (num_draws or 7)
