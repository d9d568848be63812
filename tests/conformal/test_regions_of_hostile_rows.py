"""Rows whose prediction is not finite, or a point: regions and scores say so alike, or refuse alike."""

import math

import pytest
import torch
from torch.distributions import Normal, Poisson

from cases import SCORES
from credibly.conformal.distributional import PITScore
from credibly.conformal.hdr import HighestDensity
from credibly.conformal.residual import AbsoluteResidual
from credibly.core.errors import NotFiniteError, NotSupportedError
from credibly.distributions.empirical import Empirical
from credibly.distributions.quantiles import QuantileForecast

F64 = {"dtype": torch.float64}
OF_NUMBERS = [
    "absolute_residual", "standardized_residual", "cqr", "cqr_scaled", "cqr_lower", "cqr_upper", "pit_score",
    "pit_score_randomized", "highest_density",
]  # fmt: skip


@pytest.mark.parametrize("others", [0, 2])
@pytest.mark.parametrize("name", OF_NUMBERS)
def test_the_region_of_a_row_of_nan_is_refused(name, others):
    """An empty or a listed region would be an answer, and there is none."""
    predicted = Normal(torch.tensor([math.nan] + [0.0] * others, **F64), 1.0, validate_args=False)
    with pytest.raises(NotFiniteError, match="NaN"):
        SCORES[name]().region(predicted, -0.2 if name.startswith("pit") else 1.0)


@pytest.mark.parametrize("limit", [1.0, math.inf, -math.inf])
@pytest.mark.parametrize(("loc", "scale"), [(math.inf, 1.0), (0.0, 0.0)])
def test_highest_density_without_a_single_ordinary_row(loc, scale, limit):
    """A prediction at infinity, and one without spread: +infinity holds everything, -infinity nothing."""
    predicted = Normal(torch.tensor([loc], **F64), torch.tensor([scale], **F64), validate_args=False)
    try:
        region = HighestDensity().region(predicted, limit)
    except (NotFiniteError, NotSupportedError):
        return
    if math.isinf(limit):
        assert region.empty.tolist() == [limit < 0]


def test_the_score_of_a_prediction_without_spread_is_no_nan():
    """Sigma 0 at its own point: a refusal by name, or a point mass, whose density there is infinite."""
    predicted = Normal(torch.zeros(1, **F64), torch.zeros(1, **F64), validate_args=False)
    try:
        score = HighestDensity().score(predicted, torch.zeros(1))
    except NotFiniteError:
        return
    assert score.tolist() == [-math.inf]


@pytest.mark.parametrize("u", [0.0, 1.0])
def test_the_listed_ends_of_counts_agree_with_the_score_at_the_ends_of_u(u):
    rates, uniforms = torch.tensor([0.3, 2.0, 7.5], **F64), torch.full((3,), u, **F64)
    predicted, score = Poisson(rates), PITScore(randomized=True)
    for count in range(5):
        targets = torch.full((3,), float(count), **F64)
        region = score.region(predicted, score.score(predicted, targets, uniforms), uniforms)
        assert bool(region.contains(targets).all())
        assert bool(((region.lower <= targets) & (targets <= region.upper)).all()), count


def test_pits_of_quantiles_alone_are_refused_by_name():
    """Three quantiles say nothing beyond the outer ones: the score needs a distribution function, and says so."""
    predicted = QuantileForecast(torch.tensor([0.1, 0.5, 0.9], **F64), torch.tensor([[0.0, 1.0, 2.0]], **F64))
    with pytest.raises(NotSupportedError, match="PITScore"):
        PITScore().region(predicted, -0.2)


def test_residuals_of_draws_do_not_depend_on_their_layout():
    """A mean over draws of one row is that of the row among others, and of strided ones, to the last bit."""
    generator = torch.Generator().manual_seed(0)
    table = torch.randint(0, 3, (64, 5), generator=generator).double()  # a row of draws a target
    targets = torch.zeros(64, **F64)
    whole = AbsoluteResidual().score(Empirical(table.T.contiguous()), targets)
    assert torch.equal(AbsoluteResidual().score(Empirical(table.T), targets), whole)
    for rows in (1, 2, 3, 4, 5, 8, 16, 28, 33):
        part = AbsoluteResidual().score(Empirical(table[:rows].T.contiguous()), targets[:rows])
        assert torch.equal(part, whole[:rows]), rows
