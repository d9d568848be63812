"""Vector, matrix and Dirichlet maps: optimality by autograd, an independent solver, and the true map recovered."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch.distributions import Bernoulli, Categorical

from credibly.calibration import (
    BetaCalibration,
    DirichletCalibration,
    MatrixScaling,
    PlattScaling,
    TemperatureScaling,
    VectorScaling,
)
from credibly.calibration.events import finite_log_probs
from credibly.core.errors import ConvergenceWarning
from credibly.distributions import class_log_probs, from_probs


def data(rows=400, classes=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(rows, classes, generator=generator, dtype=torch.float64)
    true = logits * torch.linspace(0.3, 0.8, classes) + torch.linspace(-0.5, 0.5, classes)
    return Categorical(logits=logits), torch.multinomial(true.softmax(-1), 1, generator=generator).squeeze(1)


def features_of(recipe, predicted):
    log_probs = class_log_probs(predicted)
    return log_probs if isinstance(recipe, DirichletCalibration) else log_probs - log_probs.mean(-1, keepdim=True)


def objective(recipe, features, targets, weight, intercept):
    if isinstance(recipe, VectorScaling):
        logits, penalty = features * weight + intercept, 0.0
    else:
        size = len(weight)
        off = (weight - torch.diag(torch.diagonal(weight))).square().sum()
        penalty = recipe.off_diagonal / (size * (size - 1)) * off + recipe.intercept / size * intercept.square().sum()
        logits = features @ weight.t() + intercept
    return torch.nn.functional.cross_entropy(logits, targets) + penalty


@pytest.mark.parametrize("recipe", [VectorScaling(), MatrixScaling(), DirichletCalibration(off_diagonal=0.1)])
@pytest.mark.parametrize("classes", [2, 3, 12])
def test_the_gradient_vanishes_where_the_search_ends(recipe, classes):
    predicted, targets = data(classes=classes)
    fitted = recipe.fit(predicted, targets)
    parameters = [fitted.weight.clone().requires_grad_(), fitted.intercept.clone().requires_grad_()]
    value = objective(recipe, features_of(recipe, predicted), targets, *parameters)
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(value, parameters)])
    assert gradient.norm().item() <= recipe.tolerance + 1e-14
    assert fitted.report.gradient_norm == pytest.approx(gradient.norm().item(), abs=1e-13)
    assert fitted.report.num_iterations <= 20


@pytest.mark.parametrize("recipe", [VectorScaling(), MatrixScaling(), DirichletCalibration()])
def test_an_independent_solver_finds_the_same_minimum(recipe):
    predicted, targets = data()
    fitted = recipe.fit(predicted, targets)
    features = features_of(recipe, predicted)
    shape = (3,) if isinstance(recipe, VectorScaling) else (3, 3)

    def loss(flat):
        theta = torch.tensor(flat, requires_grad=True)
        size = theta.numel() - 3
        value = objective(recipe, features, targets, theta[:size].reshape(shape), theta[size:])
        (gradient,) = torch.autograd.grad(value, theta)
        return value.item(), gradient.numpy()

    start = np.zeros(int(np.prod(shape)) + 3)
    found = minimize(loss, start, jac=True, method="BFGS", options={"gtol": 1e-9})
    ours = objective(recipe, features, targets, fitted.weight, fitted.intercept).item()
    assert ours == pytest.approx(found.fun, abs=1e-12)


def test_the_true_map_is_recovered_within_its_error():
    # 4 parameters (2 weights up to rounding by the third), standard errors near 0.02 at 50,000 rows; 6 of them
    generator = torch.Generator().manual_seed(3)
    logits = 2 * torch.randn(50_000, 3, generator=generator, dtype=torch.float64)
    predicted = Categorical(logits=logits)
    centred = features_of(VectorScaling(), predicted)
    weight, intercept = torch.tensor([0.4, 0.6, 0.8]).double(), torch.tensor([0.5, 0.0, -0.5]).double()
    targets = torch.multinomial((centred * weight + intercept).softmax(-1), 1, generator=generator).squeeze(1)
    fitted = VectorScaling().fit(predicted, targets)
    torch.testing.assert_close(fitted.weight, weight, rtol=0, atol=0.12)
    torch.testing.assert_close(fitted.intercept - fitted.intercept.mean(), intercept, rtol=0, atol=0.12)


def test_families_that_hold_one_another_score_in_that_order():
    predicted, targets = data(2000)
    free = {"off_diagonal": 0.0, "intercept": 0.0}
    recipes = [TemperatureScaling(), VectorScaling(), MatrixScaling(**free)]
    scores = [recipe.fit(predicted, targets).report.nll_after for recipe in recipes]
    assert scores[0] > scores[1] > scores[2]
    heavy = MatrixScaling(off_diagonal=1e6, intercept=1e6).fit(predicted, targets)
    assert (heavy.weight - torch.diag(torch.diagonal(heavy.weight))).abs().max() < 1e-5
    assert heavy.intercept.abs().max() < 1e-5


def test_a_binary_outcome_has_two_classes():
    odds = 2 * torch.randn(500, dtype=torch.float64)
    targets = Bernoulli(logits=0.5 * odds + 0.2).sample()
    predicted = Bernoulli(logits=odds)
    fitted = VectorScaling().fit(predicted, targets)
    plain = PlattScaling().fit(predicted, targets)  # the same family, with smoothed targets
    ours, theirs = fitted(predicted).logits, plain(predicted).logits
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0.05)
    assert fitted.weight.shape == (2,)


def test_a_search_cut_short_says_so():
    predicted, targets = data()
    for recipe in (VectorScaling(max_iterations=1), DirichletCalibration(max_iterations=1)):
        with pytest.warns(ConvergenceWarning, match="gradient norm"):
            fitted = recipe.fit(predicted, targets)
        assert not fitted.report.converged
        assert fitted.report.nll_after < fitted.report.nll_before
    with pytest.raises(ValueError, match="off_diagonal"):
        MatrixScaling(off_diagonal=-1.0)
    with pytest.raises(ValueError, match="tolerance"):
        VectorScaling(tolerance=0.0)


def hostile(case, classes, rows=60):
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randint(classes, (rows,), generator=generator)
    probs = torch.eye(classes, dtype=torch.float64)[chosen]
    targets = {
        "all_wrong": (chosen + 1) % classes,
        "three_wrong": torch.where(torch.arange(rows) < 3, (chosen + 1) % classes, chosen),
        "at_random": torch.randint(classes, (rows,), generator=generator),
        "one_class": torch.zeros(rows, dtype=torch.long),
        "half_certain": torch.randint(classes, (rows,), generator=generator),
    }[case]
    if case == "half_certain":
        probs[::2] = torch.rand(rows // 2, classes, generator=generator, dtype=torch.float64).softmax(-1)
    return from_probs(probs), targets


@pytest.mark.parametrize("recipe", [VectorScaling(), MatrixScaling(), DirichletCalibration()], ids=repr)
@pytest.mark.parametrize("case", ["all_wrong", "three_wrong", "at_random", "one_class", "half_certain"])
@pytest.mark.parametrize("classes", [2, 3, 5])
def test_certain_forecasts_that_are_wrong_end_at_the_minimum_too(recipe, case, classes):
    """Where the identity gives probabilities of 0 and 1 alone, it has no curvature to begin with."""
    predicted, targets = hostile(case, classes)
    fitted = recipe.fit(predicted, targets)
    features = finite_log_probs(predicted)
    if not isinstance(recipe, DirichletCalibration):
        features = features - features.mean(-1, keepdim=True)
    shape = (classes,) if isinstance(recipe, VectorScaling) else (classes, classes)
    size = features.abs().max()  # for the independent solver the features are of size 1

    def loss(flat):
        theta = torch.tensor(flat, requires_grad=True)
        weight, intercept = theta[:-classes].reshape(shape) / size, theta[-classes:]
        value = objective(recipe, features, targets, weight, intercept)
        (gradient,) = torch.autograd.grad(value, theta)
        return value.item(), gradient.numpy()

    found = minimize(
        loss, np.zeros(int(np.prod(shape)) + classes), jac=True, method="BFGS", options={"gtol": 1e-9, "maxiter": 2000}
    )
    assert fitted.report.converged
    ours = objective(recipe, features, targets, fitted.weight, fitted.intercept).item()
    assert ours <= found.fun + 1e-6
    if case == "all_wrong" and not isinstance(recipe, VectorScaling):  # a permutation of the classes is all there is
        assert fitted.report.nll_after < 1e-5


@pytest.mark.parametrize("recipe", [PlattScaling(), BetaCalibration()], ids=repr)
@pytest.mark.parametrize("case", ["all_wrong", "three_wrong", "at_random", "one_class", "half_certain"])
def test_certain_events_that_are_wrong_have_the_best_curve(recipe, case):
    predicted, targets = hostile(case, 2)
    event = Bernoulli(probs=class_log_probs(predicted)[:, 1].exp())
    fitted = recipe.fit(event, targets)
    assert fitted.report.converged
    log_probs = finite_log_probs(event)
    outcomes = targets.double()
    if isinstance(recipe, PlattScaling):
        hits = outcomes.sum()
        outcomes = torch.where(outcomes > 0, (hits + 1) / (hits + 2), 1 / (len(outcomes) - hits + 2))
        features = (log_probs[:, 1:] - log_probs[:, :1]) / 708
        bounds, ours = [(None, None)] * 2, torch.stack([fitted.slope[0] * 708, fitted.intercept[0]])
    else:
        features = torch.stack([log_probs[:, 1], -log_probs[:, 0]], -1) / 708
        bounds = [(0, None), (0, None), (None, None)]
        ours = torch.stack([fitted.a[0] * 708, fitted.b[0] * 708, fitted.c[0]])

    def loss(flat):
        theta = torch.tensor(flat, requires_grad=True)
        odds = features @ theta[:-1] + theta[-1]
        value = torch.nn.functional.binary_cross_entropy_with_logits(odds, outcomes)
        (gradient,) = torch.autograd.grad(value, theta)
        return value.item(), gradient.numpy()

    found = minimize(loss, np.zeros(len(bounds)), jac=True, method="L-BFGS-B", bounds=bounds)
    assert loss(ours.numpy())[0] <= found.fun + 1e-6
