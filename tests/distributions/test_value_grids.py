"""Grids of values: (k, 1) asks every row for k values, as levels do; (n,) and (n, 1) never become (n, n)."""

import pytest
import torch
from torch.distributions import Categorical, Distribution, Independent, Normal

from credibly.core.errors import ShapeError
from credibly.distributions.functions import cdf
from credibly.distributions.mixture import MixturePredictive
from credibly.distributions.survival import survival

LOC = torch.tensor([0.0, 1.0, 2.0])
ROWS = {
    "rows": Normal(LOC, 1.0),
    "vectors": Independent(Normal(torch.stack([LOC, -LOC], -1), 1.0), 1),
    "mixture": MixturePredictive(Normal(torch.stack([LOC, -LOC]), 1.0)),
}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("operation", [cdf, survival])
def test_a_grid_for_all_rows(name: str, operation: type[cdf]) -> None:
    d: Distribution = ROWS[name]
    shape = d.batch_shape[-1:] + d.event_shape
    points = torch.linspace(-1, 1, 5)
    found = operation(d, points.reshape(-1, *[1] * len(shape)))
    assert found.shape == (5, *shape)
    torch.testing.assert_close(found, torch.stack([operation(d, float(p)) for p in points]))


def test_one_value_a_row_stays_one_value_a_row() -> None:
    assert cdf(ROWS["rows"], LOC.unsqueeze(-1)).shape == (3,)
    one_output = Independent(Normal(LOC.unsqueeze(-1), 1.0), 1)
    assert cdf(one_output, LOC).shape == (3, 1)
    with pytest.raises(ShapeError, match=r"a grid of k values has shape \(k, 1\), the same for all rows, or \(k, 3\)"):
        cdf(ROWS["rows"], torch.zeros(5))
    assert cdf(Categorical(logits=torch.zeros(3, 2)), torch.zeros(4, 1)).shape == (4, 3)
