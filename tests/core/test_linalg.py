"""Every structure of a positive definite matrix against the dense matrix it stands for."""

import math

import pytest
import torch
from torch import Tensor

from credibly.core.errors import NotFiniteError, NotSupportedError
from credibly.core.linalg.blocks import Blocks
from credibly.core.linalg.dense import Dense
from credibly.core.linalg.diagonal import Diagonal
from credibly.core.linalg.factored import Factored
from credibly.core.linalg.inverse import Inverse, inverse
from credibly.core.linalg.kronecker import Kronecker
from credibly.core.linalg.low_rank import LowRankPlusDiagonal
from credibly.core.linalg.selected import Selected


def positive(size, generator, dtype):
    root = torch.randn(size, size, generator=generator, dtype=dtype)
    return root @ root.T + torch.eye(size, dtype=dtype)


def structures(dtype, device):
    """Pairs of a structure and the matrix it means."""
    g = torch.Generator().manual_seed(0)
    values = torch.rand(6, generator=g, dtype=dtype) + 0.1
    factor = torch.randn(6, 2, generator=g, dtype=dtype)
    full, left, right = positive(6, g, dtype), positive(2, g, dtype), positive(3, g, dtype)
    thin = torch.cat([factor, factor], 1)  # two of its four directions are empty
    pairs = {
        "diagonal": (Diagonal(values), values.diag()),
        "dense": (Dense(full), full),
        "factored": (Factored(torch.linalg.cholesky(full)), full),
        "low_rank": (LowRankPlusDiagonal(values, factor), values.diag() + factor @ factor.T),
        "low_rank_deficient": (LowRankPlusDiagonal(values, thin), values.diag() + thin @ thin.T),
        "no_rank": (LowRankPlusDiagonal(values, factor[:, :0]), values.diag()),
        "kronecker": (Kronecker.of_factors(left, right), torch.kron(left, right)),
        "kronecker_diagonal_left": (Kronecker.of_factors(values[:2], right), torch.kron(values[:2].diag(), right)),
        "kronecker_column": (Kronecker.of_factors(full, values[:1]), full * values[0]),
        "blocks": (Blocks((Diagonal(values[:2]), Dense(right), Diagonal(values[5:]))),
                   torch.block_diag(values[:2].diag(), right, values[5:].diag())),
    }  # fmt: skip
    pairs["inverse"] = (Inverse(pairs["low_rank"][0]), torch.linalg.inv(pairs["low_rank"][1]))
    return {name: (given.map(lambda part: part.to(device)), dense.to(device)) for name, (given, dense) in pairs.items()}


NAMES = list(structures(torch.float64, torch.device("cpu")))


@pytest.fixture(params=NAMES)
def pair(request, dtype, device):
    return structures(dtype, device)[request.param]


@pytest.fixture
def close(dtype):
    tolerance = 1e-10 if dtype == torch.float64 else 2e-4

    def check(got, expected):
        assert got.dtype == dtype
        torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)

    return check


def test_products_and_solves(pair, close, dtype, device):
    given, dense = pair
    x = torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(1), dtype=dtype).to(device)
    before = x.clone()
    close(given.dense(), dense)
    close(given.matmul(x), x @ dense)
    close(given.solve(x), torch.linalg.solve(dense, x.mT).mT)
    close(given.solve(given.matmul(x[0, 0])), x[0, 0])
    assert torch.equal(x, before)


def test_roots(pair, close, dtype, device):
    given, dense = pair
    eye = torch.eye(6, dtype=dtype, device=device)
    root, inverse_root = given.root(eye), given.inverse_root(eye)  # rows are columns of the roots
    close(root.T @ root, dense)
    close(inverse_root.T @ inverse_root, torch.linalg.inv(dense))


def test_determinant_and_diagonals(pair, close):
    given, dense = pair
    assert given.size == 6
    close(given.logdet(), torch.linalg.slogdet(dense)[1])
    close(given.diagonal(), dense.diagonal())
    close(given.inverse_diagonal(), torch.linalg.inv(dense).diagonal())


def test_sums_and_multiples(pair, close, dtype, device):
    given, dense = pair
    if isinstance(given, Inverse):
        close(given.times(2.5).dense(), 2.5 * dense)
        with pytest.raises(NotSupportedError, match="no structure"):
            given.plus_diagonal(given.diagonal())
        return
    if isinstance(given, Factored):
        close(given.times(2.5).dense(), 2.5 * dense)
        with pytest.raises(NotSupportedError, match="another factor"):
            given.plus_diagonal(given.diagonal())
        return
    same = torch.full((6,), 0.7, dtype=dtype, device=device)
    close(given.times(2.5).plus_diagonal(same).dense(), 2.5 * dense + same.diag())
    different = torch.linspace(0.1, 1, 6, dtype=dtype, device=device)
    if isinstance(given, Kronecker):
        with pytest.raises(NotSupportedError, match="one precision for all weights of a tensor"):
            given.plus_diagonal(different)
    else:
        close(given.plus_diagonal(different).dense(), dense + different.diag())


def test_the_inverse_of_the_inverse_is_the_matrix(pair):
    given, _ = pair
    assert inverse(inverse(given)) is given or isinstance(given, Inverse)


def test_every_part_is_mapped(pair):
    given, dense = pair
    torch.testing.assert_close(given.map(Tensor.double).dense(), dense.double(), rtol=1e-5, atol=1e-5)


def test_least_eigenvalues_that_rounding_makes_negative_count_as_zero(dtype):
    vector = torch.linspace(0.1, 1, 5, dtype=dtype)
    values = Kronecker.of_factors(torch.outer(vector, vector), torch.ones(2, 2, dtype=dtype)).values
    assert bool((values >= 0).all())


def test_a_matrix_that_is_not_positive_definite_is_refused():
    with pytest.raises(NotFiniteError, match="2 rows is not positive definite"):
        Dense(torch.tensor([[1.0, 2.0], [2.0, 1.0]])).logdet()


def test_a_matrix_over_chosen_entries_is_0_elsewhere(dtype, device, close):
    generator = torch.Generator().manual_seed(0)
    of, index = Dense(positive(3, generator, dtype).to(device)), torch.tensor([0, 2, 5], device=device)
    mask = torch.zeros(6, dtype=dtype, device=device)
    mask[index] = 1
    given = Selected(of, mask)
    place = torch.eye(6, dtype=dtype, device=device)[:, index]
    x = torch.randn(3, 4, 6, generator=generator, dtype=dtype).to(device)
    dense, inverse_of = place @ of.matrix @ place.T, place @ torch.linalg.inv(of.matrix) @ place.T
    assert given.size == 6
    assert torch.equal(given.index, index)
    close(given.dense(), dense)
    close(given.matmul(x), x @ dense)
    close(given.solve(x), x @ inverse_of)
    eye = torch.eye(6, dtype=dtype, device=device)
    close(given.root(eye).T @ given.root(eye), dense)
    close(given.inverse_root(eye).T @ given.inverse_root(eye), inverse_of)
    close(given.logdet(), torch.logdet(of.matrix))
    close(given.diagonal(), dense.diagonal())
    close(given.inverse_diagonal(), inverse_of.diagonal())
    close(given.times(2.5).dense(), 2.5 * dense)
    torch.testing.assert_close(given.map(Tensor.double).dense(), dense.double(), rtol=1e-5, atol=1e-5)
    with pytest.raises(NotSupportedError, match="no structure"):
        given.plus_diagonal(mask)


def test_what_many_data_determine_keeps_its_variance_in_single_precision():
    """Beside a prior of variance 1, variances of 1e-8 and less are differences of numbers that round to 1."""
    g = torch.Generator().manual_seed(3)
    exact = LowRankPlusDiagonal(torch.ones(5).double(), 1e4 * torch.randn(5, 5, generator=g, dtype=torch.float64))
    rounded = exact.map(torch.Tensor.float)
    x = torch.randn(7, 5, generator=g, dtype=torch.float64)
    truth = torch.linalg.inv(rounded.map(torch.Tensor.double).dense())
    assert truth.diagonal().max() < 1e-6
    found = rounded.inverse_diagonal()
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), truth.diagonal(), rtol=1e-5, atol=0)
    forms = (x.float() * rounded.solve(x.float())).sum(-1)
    torch.testing.assert_close(forms.double(), (x * (x @ truth)).sum(-1), rtol=1e-4, atol=0)


def test_a_factor_keeps_what_its_product_would_lose():
    """In the product, of entries near 1, the second pivot of 1e-10 is rounded away."""
    factor = torch.tensor([[1.0, 0.0], [1.0, 1e-5]])
    given = Factored(factor)
    assert torch.linalg.cholesky_ex(factor @ factor.T)[1] > 0
    torch.testing.assert_close(given.logdet(), torch.tensor(2 * math.log(1e-5)))
    torch.testing.assert_close(given.solve(torch.tensor([0.0, 1.0])), torch.tensor([-1e10, 1e10]))
