"""From a bootstrapped ensemble of networks to intervals: what it keeps is all that the jackknife+ asks for."""

import pytest
import torch
from scipy import stats

import credibly
from credibly import Model, Standardize, conformal, inference, likelihoods, nets

ROWS, MEMBERS = 120, 12


def noisy_lines(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 2, generator=generator)
    return x, x @ torch.tensor([1.0, -0.5]) + torch.randn(rows, generator=generator)


@pytest.fixture(scope="module")
def fitted():
    model = Model(nets.mlp(2, 1, hidden=(4,)), likelihoods.Gaussian(), inputs=Standardize(), targets=Standardize())
    method = inference.MLE(num_epochs=30, learning_rate=1e-2)
    ensemble = inference.Ensemble(of=method, num_members=MEMBERS, bootstrap=True)
    return ensemble.fit(model, noisy_lines(ROWS, 0), seed=0)


def test_the_ensemble_keeps_how_often_each_member_saw_each_row(fitted):
    bags = fitted.info.in_bag
    assert bags.shape == (MEMBERS, ROWS)
    assert not bags.is_floating_point()
    assert bags.sum(-1).tolist() == [ROWS] * MEMBERS
    # (1 - 1/n)^n of the rows are left out, in expectation; about independent indicators: 5 standard errors, 6e-7
    left_out = (1 - 1 / ROWS) ** ROWS
    seen = (bags == 0).double().mean().item()
    assert abs(seen - left_out) < 5 * (left_out * (1 - left_out) / bags.numel()) ** 0.5
    assert len({tuple(row) for row in bags.tolist()}) == MEMBERS


def test_members_did_not_see_the_rows_that_are_said_to_be_left_out():
    """Other targets in the rows that a member left out change nothing of it, and other targets elsewhere do."""
    model = Model(nets.mlp(2, 1, hidden=(4,)), likelihoods.Gaussian())
    ensemble = inference.Ensemble(of=inference.MLE(num_epochs=2), num_members=2, bootstrap=True)
    x, y = noisy_lines(40, 0)
    first = ensemble.fit(model, (x, y), seed=3)
    left_out = first.info.in_bag[0] == 0
    second = ensemble.fit(model, (x, torch.where(left_out, y + 100, y)), seed=3)
    assert torch.equal(first.info.in_bag, second.info.in_bag)
    for name, value in first.draws.items():
        torch.testing.assert_close(second.draws[name][0], value[0])
    assert any(not torch.allclose(second.draws[name][1], value[1]) for name, value in first.draws.items())


def test_intervals_from_the_posterior_alone(fitted, tmp_path):
    (x, y), (fresh, targets) = noisy_lines(ROWS, 0), noisy_lines(2000, 1)
    recipe = conformal.JackknifePlusAfterBootstrap()
    predictor = recipe.calibrate(fitted.predict(x), y, fitted.info.in_bag)
    intervals = predictor.predict(fitted.predict(fresh), 0.8)
    by_hand = recipe.calibrate(fitted.predict(x).components.mean, y, fitted.info.in_bag == 0).scores
    assert not torch.equal(by_hand, predictor.scores)
    points = fitted.predict(x).components.mean.double()
    unseen = fitted.info.in_bag == 0
    own = (points * unseen).sum(0) / unseen.sum(0)
    expected = torch.where(unseen.any(0), (y - own).abs(), torch.inf)
    torch.testing.assert_close(predictor.scores, expected)
    # 0.8 is not promised, 0.6 is; of 120 rows and 2000 new ones the coverage seen strays by the Beta-binomial law of
    # split conformal prediction, roughly: 5 standard deviations of it around 0.8
    spread = stats.betabinom(2000, 97, 24).std() / 2000
    assert abs(intervals.empirical_coverage(targets).item() - 0.8) < 5 * spread
    credibly.save(fitted, tmp_path / "ensemble")
    loaded = credibly.load(tmp_path / "ensemble", net=nets.mlp(2, 1, hidden=(4,)))
    assert torch.equal(loaded.info.in_bag, fitted.info.in_bag)
    again = recipe.calibrate(loaded.predict(x), y, loaded.info.in_bag).predict(loaded.predict(fresh), 0.8)
    assert torch.equal(again.lower, intervals.lower)


def test_members_that_are_more_than_points_come_one_by_one():
    model = Model(torch.nn.Sequential(torch.nn.Dropout(0.1), torch.nn.Linear(2, 1)), likelihoods.Gaussian())
    method = inference.MCDropout(train=inference.MLE(num_epochs=2))
    posterior = inference.Ensemble(of=method, num_members=3, bootstrap=True).fit(model, noisy_lines(40, 0), seed=0)
    x, y = noisy_lines(40, 0)
    each = [member.predict(x, seed=0) for member in posterior.members]
    predictor = conformal.JackknifePlusAfterBootstrap().calibrate(each, y, posterior.info.in_bag)
    assert predictor.unseen.shape == (40, 3)
    assert predictor.predict(each, 0.5).lower.shape == (40,)


def test_ensembles_without_samples_keep_none():
    model = Model(nets.mlp(2, 1, hidden=(4,)), likelihoods.Gaussian())
    plain = inference.Ensemble(of=inference.MLE(num_epochs=1), num_members=2).fit(model, noisy_lines(20, 0), seed=0)
    assert plain.info.in_bag is None
