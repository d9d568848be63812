"""The observed elements of rows against the same elements of the whole, and against a loop."""

import math

import pytest
import torch
from distribution_cases import ALL, ROWS, numbers, targets
from torch.distributions import (
    Bernoulli,
    Categorical,
    Dirichlet,
    Independent,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    Poisson,
)

from credibly import likelihoods, metrics
from credibly.core.errors import NotSupportedError, ShapeError
from credibly.distributions.class_rows import class_log_prob_blocks
from credibly.distributions.classes import class_log_probs
from credibly.distributions.crps import crps
from credibly.distributions.cumulative import cdf, icdf
from credibly.distributions.density import log_prob, safe_log_prob
from credibly.distributions.kinds import kind
from credibly.distributions.marginal import MarginalPredictive
from credibly.distributions.mixture import MixturePredictive
from credibly.distributions.moments import mean, variance
from credibly.distributions.observed import observed
from credibly.distributions.rows import select

SEVERAL = ("independent_normal", "independent_poisson", "mixture_outputs", "gaussian_outputs", "view_outputs")
DRAWS, STEPS = 3, 5


def holes(d, seed=1):
    """A mask over all elements, neither whole nor empty, with a row of which nothing is known."""
    shape = d.batch_shape[-1:] + d.event_shape
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.6
    mask[0], mask[1] = False, True
    return mask


@pytest.mark.parametrize("name", [*SEVERAL, "empirical_weighted"])
def test_elements_are_those_of_the_whole(name, dtype):
    d = ALL[name](dtype)
    y, mask = targets(d), holes(d)
    hidden = torch.where(mask, y, torch.nan)
    flat, of_flat = observed(d, hidden.numpy(), mask.numpy())
    assert flat.batch_shape == (int(mask.sum()),)
    assert flat.event_shape == ()
    assert torch.equal(of_flat, y[mask])
    close = {"rtol": 1e-5 if dtype == torch.float32 else 1e-12, "atol": 1e-6 if dtype == torch.float32 else 1e-12}
    torch.testing.assert_close(crps(flat, of_flat), crps(d, y)[mask], **close)
    torch.testing.assert_close(mean(flat), mean(d)[mask], **close)
    torch.testing.assert_close(variance(flat), variance(d)[mask], **close)
    torch.testing.assert_close(cdf(flat, of_flat), cdf(d, y)[mask], **close)
    torch.testing.assert_close(icdf(flat, 0.3), icdf(d, 0.3)[mask], **close)
    assert float(metrics.coverage(flat, of_flat, 0.8)) == pytest.approx(
        float(metrics.contained(d, y, 0.8)[mask].double().mean())
    )


def test_a_mixture_keeps_its_draws_and_weights():
    d = MixturePredictive(
        Independent(Normal(numbers(DRAWS, ROWS, STEPS, dtype=torch.float64), 0.5), 1), torch.tensor([0.0, 1.0, -1.0])
    )
    y, mask = targets(d), holes(d)
    flat, of_flat = observed(d, y, mask)
    assert flat.num_draws == DRAWS
    assert torch.equal(flat.log_weights, d.log_weights)
    expected = []
    for row, step in mask.nonzero().tolist():
        each = Normal(d.components.base_dist.loc[:, row, step], 0.5).log_prob(y[row, step])
        expected.append(torch.logsumexp(d.log_weights + each, 0))
    torch.testing.assert_close(log_prob(flat, of_flat), torch.stack(expected))
    torch.testing.assert_close(flat.epistemic_variance, d.epistemic_variance[mask])


PER_ELEMENT = {
    "gaussian": likelihoods.HeteroscedasticGaussian,
    "classes": lambda: likelihoods.Categorical(3),
    "ordinal": lambda: likelihoods.Ordinal(4),
    "event": likelihoods.Bernoulli,
    "counts": lambda: likelihoods.ZeroInflated(likelihoods.NegativeBinomial()),
    "mixture": lambda: likelihoods.MixtureDensity(2),
    "student": likelihoods.StudentT,
}


@pytest.mark.parametrize("name", PER_ELEMENT)
@pytest.mark.parametrize("axes", [1, 2])
def test_draws_of_every_likelihood_per_element(name, axes):
    of = PER_ELEMENT[name]().double()
    model = likelihoods.PerElement(of, num_axes=axes)
    shape = (ROWS, STEPS) if axes == 1 else (ROWS, STEPS, 2)
    outputs = numbers(DRAWS, *shape, of.num_outputs, dtype=torch.float64)
    whole = model.distribution(model.parameters_of(outputs))
    y = targets(select(MixturePredictive(whole), slice(None)))
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(2)) < 0.5
    flat, of_flat = observed(MixturePredictive(whole), y, mask)
    each = safe_log_prob(of.distribution(of.parameters_of(outputs)), y)
    torch.testing.assert_close(log_prob(flat, of_flat), torch.logsumexp(each - math.log(DRAWS), 0)[mask])
    assert kind(flat) == kind(whole)
    if kind(whole) == "class":
        probs = class_log_probs(MixturePredictive(whole))
        torch.testing.assert_close(class_log_probs(flat), probs[mask])
        assert sum(len(rows) for _, rows in class_log_prob_blocks(flat)) == int(mask.sum())


def test_a_mask_over_the_first_axes_leaves_vectors():
    pairs = MultivariateNormal(numbers(ROWS, STEPS, 2, dtype=torch.float64), torch.eye(2, dtype=torch.float64))
    y = targets(Independent(pairs, 1))
    mask = holes(Independent(pairs, 1))[..., 0]
    flat, of_flat = observed(Independent(pairs, 1), y, mask)
    assert flat.event_shape == (2,)
    torch.testing.assert_close(log_prob(flat, of_flat), pairs.log_prob(y)[mask])
    nested = Independent(Independent(Normal(y, 1.0), 1), 1)
    joined = Independent(Normal(y, 1.0), 2)
    for d in (nested, joined, MarginalPredictive(joined)):
        vectors, of_vectors = observed(d, y, mask)
        assert vectors.event_shape == (2,)
        assert of_vectors.shape == (int(mask.sum()), 2)
        numbers_, of_numbers = observed(d, y, mask.unsqueeze(-1).expand_as(y))
        torch.testing.assert_close(log_prob(numbers_, of_numbers).view(-1, 2).sum(-1), log_prob(vectors, of_vectors))
    rows, of_rows = observed(joined, y, mask.any(1))
    torch.testing.assert_close(of_rows, y[mask.any(1)])
    assert rows.event_shape == (STEPS, 2)


def test_any_metric_takes_the_pair_and_nothing_observed_is_refused_there():
    labels = Independent(Bernoulli(logits=numbers(ROWS, STEPS, dtype=torch.float64)), 1)
    mask = holes(labels)
    y = torch.where(mask, (numbers(ROWS, STEPS, dtype=torch.float64) > 0).double(), torch.nan)
    stream = metrics.Brier().stream()
    for row in range(ROWS):  # rows without anything add nothing
        stream.update(*observed(select(labels, [row]), y[row : row + 1], mask[row : row + 1]))
    probs = labels.base_dist.probs
    torch.testing.assert_close(stream.compute(), (probs - y)[mask].square().mean())
    with pytest.raises(ShapeError, match="at least one row"):
        metrics.brier(*observed(labels, y, torch.zeros_like(mask)))


def test_what_is_joint_is_refused_by_name():
    mask = torch.ones(2, 3, dtype=torch.bool)
    joint = [
        MultivariateNormal(torch.zeros(2, 3), torch.eye(3)),
        Dirichlet(torch.ones(2, 3)),
        MixtureSameFamily(Categorical(torch.ones(2, 4)), Independent(Normal(torch.zeros(2, 4, 3), 1.0), 1)),
    ]
    for d in joint:
        for whole in (d, MixturePredictive(d.expand((2, 2))), MarginalPredictive(d)):
            with pytest.raises(NotSupportedError, match=f"{type(d).__name__}.* depend on each other"):
                observed(whole, torch.full((2, 3), 1 / 3), mask)


def test_shapes_are_checked():
    d = Independent(Poisson(torch.ones(2, 3)), 1)
    y, mask = torch.ones(2, 3), torch.ones(2, 3, dtype=torch.bool)
    with pytest.raises(ShapeError, match=r"`mask` must be booleans of shape \(2, 3\).*torch.float32"):
        observed(d, y, mask.float())
    with pytest.raises(ShapeError, match=r"`mask` must .*of shape \(3, 2\)"):
        observed(d, y, mask.T)
    with pytest.raises(ShapeError, match=r"`targets` must have shape \(2, 3\); got \(2,\)"):
        observed(d, y[:, 0], mask)
    with pytest.raises(TypeError, match="a torch Distribution is needed"):
        observed(y, y, mask)
