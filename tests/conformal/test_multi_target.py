"""Boxes and ellipsoids for several targets."""

import math

import pytest
import torch
from torch.distributions import Categorical, Independent, MultivariateNormal, Normal

import credibly
from credibly.conformal.cqr import CQR
from credibly.conformal.multi_target import BonferroniBox, Box, Boxes, Ellipsoid, Ellipsoids, TargetScore
from credibly.conformal.residual import AbsoluteResidual, StandardizedResidual
from credibly.core.errors import NotSupportedError, ShapeError
from credibly.distributions.covariance import covariance
from credibly.distributions.empirical import Empirical
from credibly.distributions.mixture import MixturePredictive

F64 = {"dtype": torch.float64}
COVARIANCE = torch.tensor([[4.0, 1.0, 0.0], [1.0, 1.0, 0.2], [0.0, 0.2, 0.5]], **F64)
SCORES = {
    "box": Box(),
    "box_of_residuals": Box(AbsoluteResidual()),
    "box_of_quantiles": Box(CQR()),
    "box_given": Box(StandardizedResidual((1.0, 2.0, 0.5))),
    "ellipsoid": Ellipsoid(),
    "ellipsoid_given": Ellipsoid(((1.0, 0.0, 0.0), (0.0, 2.0, 0.3), (0.0, 0.3, 1.0))),
}


def forecast(rows=80, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    loc = torch.randn(rows, 3, generator=generator, dtype=dtype)
    predicted = MultivariateNormal(loc, COVARIANCE.to(dtype))
    noise = torch.randn(rows, 3, generator=generator, dtype=dtype) @ torch.linalg.cholesky(COVARIANCE).to(dtype).T
    return predicted, loc + 1.5 * noise


@pytest.mark.parametrize("name", SCORES)
def test_score_and_region_invert_each_other(name, dtype):
    score = SCORES[name]
    predicted, targets = forecast(dtype=dtype)
    scores = score.score(predicted, targets)
    assert scores.dtype == torch.float64
    below = torch.nextafter(scores, torch.full_like(scores, -math.inf))
    for q in (scores, below, scores.flip(0), torch.full_like(scores, math.inf), torch.full_like(scores, -math.inf)):
        region = score.region(predicted, q)
        assert torch.equal(region.contains(targets), scores <= q)
        assert not bool(region.volume.isnan().any())


def test_mahalanobis_distance_and_volume():
    predicted, targets = forecast()
    away = targets - predicted.loc
    expected = (away * torch.linalg.solve(COVARIANCE, away.T).T).sum(-1).sqrt()
    assert torch.allclose(Ellipsoid().score(predicted, targets), expected, rtol=1e-10)
    volume = Ellipsoid().region(predicted, 2.0).volume
    assert volume[0].item() == pytest.approx(4 / 3 * math.pi * 8 * math.sqrt(torch.linalg.det(COVARIANCE).item()))
    assert Ellipsoid().region(predicted, 0.0).volume[0].item() == 0.0
    assert Ellipsoid().region(predicted, math.inf).volume[0].item() == math.inf
    assert Ellipsoid().region(predicted, -1.0).empty[0]


def test_boxes():
    lower = torch.tensor([[0.0, 0.0], [0.0, 2.0], [-math.inf, 0.0], [-math.inf, 1.0]], **F64)
    upper = torch.tensor([[1.0, 2.0], [1.0, 1.0], [math.inf, 3.0], [math.inf, 1.0]], **F64)
    region = Boxes.between(lower, upper)
    assert region.volume.tolist() == [2.0, 0.0, math.inf, 0.0]
    assert region.empty.tolist() == [False, True, False, False]
    assert region.contains([[1.0, 2.0], [0.5, 1.5], [1e9, 0.0], [0.0, 1.5]]).tolist() == [True, False, True, False]
    with pytest.raises(ShapeError, match=r"\(4, 2\)"):
        region.contains(torch.zeros(4))
    with pytest.raises(ShapeError, match=r"\(1, 2\)"):
        Ellipsoids(torch.zeros(1, 2, **F64), torch.eye(2, **F64).unsqueeze(0), torch.ones(1)).contains(torch.zeros(2))


def test_the_box_is_the_largest_of_the_scores_of_each_target():
    predicted, targets = forecast()
    each = [TargetScore(CQR(), j).score(predicted, targets) for j in range(3)]
    assert torch.equal(Box(CQR()).score(predicted, targets), torch.stack(each).amax(0))
    region = Box().region(predicted, 2.0)
    assert torch.allclose(region.width, 4 * COVARIANCE.diagonal().sqrt().expand(80, 3))


def test_bonferroni_gives_each_target_its_share():
    predicted, targets = forecast(rows=80)
    fitted = BonferroniBox(AbsoluteResidual()).calibrate(predicted, targets)
    region = fitted.predict(predicted, 0.91)
    k = 79  # ceil(81 * 0.97)
    for j in range(3):
        q = (targets - predicted.loc)[:, j].abs().sort().values[k - 1]
        assert torch.allclose(region.upper[:, j], predicted.loc[:, j] + q)
    assert bool(fitted.predict(predicted, 0).empty.all())
    assert fitted.predict(predicted, 0.99).volume.tolist() == [math.inf] * 80  # rank 81 of 80
    groups = torch.arange(80) % 2
    own = BonferroniBox().calibrate(predicted, targets, groups=groups).predict(predicted, 0.7, groups=groups)
    assert len(torch.unique((own.width[:, 0]).round(decimals=9))) == 2


def test_files(tmp_path):
    predicted, targets = forecast()
    fitted = BonferroniBox().calibrate(predicted, targets)
    credibly.save(fitted, tmp_path / "boxes")
    again = credibly.load(tmp_path / "boxes").predict(predicted, 0.8)
    assert torch.equal(again.upper, fitted.predict(predicted, 0.8).upper)


def test_covariances():
    generator = torch.Generator().manual_seed(0)
    loc = torch.randn(4, 6, 3, generator=generator, **F64)
    mixture = MixturePredictive(MultivariateNormal(loc, COVARIANCE))
    away = loc - loc.mean(0)
    expected = COVARIANCE + torch.einsum("kri,krj->rij", away, away) / 4
    assert torch.allclose(covariance(mixture), expected)
    assert torch.allclose(covariance(Empirical(loc)), expected - COVARIANCE)
    independent = Independent(Normal(loc[0], loc[1].exp()), 1)
    assert torch.allclose(covariance(independent), torch.diag_embed(loc[1].exp() ** 2))
    assert bool(Ellipsoid().score(mixture, loc[0]).isfinite().all())


@pytest.mark.parametrize("name", SCORES)
def test_rows_batches_and_inputs(name):
    score = SCORES[name]
    predicted, targets = forecast()
    kept = predicted.loc.clone(), targets.clone()
    scores = score.score(predicted, targets)
    order = torch.randperm(80)
    shuffled = score.score(MultivariateNormal(predicted.loc[order], COVARIANCE), targets[order])
    assert torch.allclose(shuffled, scores[order], rtol=1e-12)
    parts = [
        score.score(MultivariateNormal(loc, COVARIANCE), y)
        for loc, y in zip(predicted.loc.split(9), targets.split(9), strict=True)
    ]
    assert torch.allclose(torch.cat(parts), scores, rtol=1e-12)
    assert torch.equal(predicted.loc, kept[0])
    assert torch.equal(targets, kept[1])


def test_refusals_by_name():
    with pytest.raises(NotSupportedError, match="vector"):
        Box().score(Normal(torch.zeros(2), 1.0), torch.zeros(2))
    with pytest.raises(NotSupportedError, match="vector"):
        Ellipsoid().score(Categorical(logits=torch.zeros(2, 2)), [0, 1])
    with pytest.raises(NotSupportedError, match="vector"):
        BonferroniBox().calibrate(Normal(torch.zeros(2), 1.0), torch.zeros(2))
    predicted, targets = forecast()
    with pytest.raises(ValueError, match="positive definite"):
        Ellipsoid(((1.0, 2.0, 0.0), (2.0, 1.0, 0.0), (0.0, 0.0, 1.0))).score(predicted, targets)
    with pytest.raises(ShapeError, match="covariance"):
        Ellipsoid(((1.0,),)).score(predicted, targets)
    with pytest.raises(NotSupportedError, match="covariance"):
        covariance(Normal(torch.zeros(2), 1.0))
