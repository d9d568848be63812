"""J S J' of the outputs, for S in every structure, against Jacobians by autograd."""

import pytest
import torch
from curvature_networks import NETWORKS, ROWS, all_names, dense_jacobians, make, source_of

import cases
from credibly import Model, Standardize, likelihoods
from credibly.core.errors import ShapeError
from credibly.core.linalg.blocks import Blocks
from credibly.core.linalg.dense import Dense as DenseMatrix
from credibly.core.linalg.inverse import Inverse, inverse
from credibly.curvature import (
    GGN,
    Dense,
    Diagonal,
    Kronecker,
    LowRank,
    curvature,
    jacobians,
    output_covariance,
    passes,
    uses,
)

CLOSE = {"rtol": 1e-8, "atol": 1e-8}
LABELS = torch.arange(ROWS) % 3
STRUCTURES = {
    "diagonal": Diagonal(),
    "kronecker": Kronecker(diagonal_for_others=True),
    "low_rank": LowRank(3),
    "dense": Dense(),
}


def posterior_covariances(name, structure):
    """A model, inputs, names, Jacobians and, in the structure, a precision and its inverse."""
    model, x = make(name, likelihoods.Categorical(3))
    names = all_names(model)
    source = source_of(model, (x, LABELS))
    precision = curvature(model, source, names, STRUCTURES[structure], GGN())
    precision = precision.plus_diagonal(torch.full((precision.size,), 0.5, dtype=torch.float64))
    return model, x, names, dense_jacobians(model, x, names), precision


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("name", NETWORKS)
def test_covariances_equal_those_by_jacobians(name, structure):
    model, x, names, dense, precision = posterior_covariances(name, structure)
    for matrix in (inverse(precision), precision):
        expected = torch.einsum("rci,ij,sdj->rcsd", dense, matrix.dense(), dense)
        found = output_covariance(model, x, names, matrix)
        each = torch.einsum("rcrd->rcd", expected)
        torch.testing.assert_close(found, each, **CLOSE)
        assert not found.requires_grad
        torch.testing.assert_close(output_covariance(model, x, names, matrix, joint=True), expected, **CLOSE)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("name", ["conv2d", "transposed1d", "embedding", "tied_calls", "attention"])
def test_chunks_change_nothing(name, structure, monkeypatch):
    model, x, names, dense, precision = posterior_covariances(name, structure)
    monkeypatch.setattr(passes, "_NUMBERS", 1)
    monkeypatch.setattr(passes, "_PER_WEIGHT", 0)
    monkeypatch.setattr(uses, "CHUNK_NUMBERS", 1)
    expected = dense @ precision.solve(dense).mT
    torch.testing.assert_close(output_covariance(model, x, names, inverse(precision)), expected, **CLOSE)


@pytest.mark.parametrize("name", NETWORKS)
def test_jacobians_equal_those_by_autograd(name):
    model, x = make(name, likelihoods.Categorical(3))
    names = all_names(model)[::-1]
    torch.testing.assert_close(jacobians(model, x, names), dense_jacobians(model, x, names), **CLOSE)


def test_blocks_of_any_structure():
    model, x, names, dense, _ = posterior_covariances("conv2d", "diagonal")
    parts = []
    for name in names:
        size = dict(model.core.named_parameters())[name].numel()
        root = torch.randn(size, size, dtype=torch.float64)
        parts.append(DenseMatrix(root @ root.T + torch.eye(size, dtype=torch.float64)))
    for matrix in (Blocks(tuple(parts)), Inverse(Blocks(tuple(parts)))):
        torch.testing.assert_close(output_covariance(model, x, names, matrix), dense @ matrix.matmul(dense).mT, **CLOSE)


@pytest.mark.parametrize("name", ["categorical_elements", "poisson_elements", "gaussian_elements"])
def test_outputs_of_elements_are_flattened(name):
    likelihood = cases.LIKELIHOODS[name]()
    model = Model(cases.linear(3, likelihood).double(), likelihood)
    x, names = torch.randn(5, 3, dtype=torch.float64), all_names(model)
    matrix = diagonal_over(model, names)
    dense = dense_jacobians(model, x, names)
    torch.testing.assert_close(output_covariance(model, x, names, matrix), dense @ matrix.matmul(dense).mT, **CLOSE)


def diagonal_over(model, names):
    size = sum(dict(model.core.named_parameters())[name].numel() for name in names)
    return DenseMatrix(torch.rand(size, dtype=torch.float64).add(0.1).diag())


def test_inputs_are_in_the_users_units():
    torch.manual_seed(1)
    net, x = torch.nn.Linear(3, 1).double(), 5 + 3 * torch.randn(6, 3, dtype=torch.float64)
    recipe = Model(net, likelihoods.Gaussian(), inputs=Standardize(), targets=Standardize())
    source = source_of(Model(net, likelihoods.Gaussian()), (x, x.sum(1)))
    model = recipe.fitted(source)
    names = ["net.weight", "net.bias"]
    standard = (x - x.mean(0)) / x.std(0, correction=0)
    expected = torch.cat([standard, torch.ones(6, 1, dtype=torch.float64)], 1).unsqueeze(1)
    torch.testing.assert_close(jacobians(model, x, names), expected, rtol=1e-6, atol=1e-6)
    found = output_covariance(model, x, names, DenseMatrix(torch.eye(4, dtype=torch.float64)))
    torch.testing.assert_close(found, expected @ expected.mT, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("structure", ["diagonal", "kronecker", "dense"])
@pytest.mark.parametrize("name", ["perceptron", "steps", "weight_norm"])
def test_inputs_that_require_gradients_get_them(name, structure):
    model, x, names, _, precision = posterior_covariances(name, structure)
    x = x[:2].requires_grad_()
    assert torch.autograd.gradcheck(lambda v: output_covariance(model, v, names, inverse(precision)), x)
    with torch.no_grad():
        assert not output_covariance(model, x, names, inverse(precision)).requires_grad


def test_a_covariance_of_another_size_is_refused():
    model, x, names, _, precision = posterior_covariances("perceptron", "diagonal")
    with pytest.raises(ShapeError, match=r"over the 20 weights.*38"):
        output_covariance(model, x, names[:2], precision)


def test_both_precisions(dtype, device):
    model, x = make("conv2d", likelihoods.Categorical(3))
    model, x = model.to(device=device, dtype=dtype), x.to(device=device, dtype=dtype)
    names = all_names(model)
    source = source_of(model, (x, LABELS.to(device)))
    precision = curvature(model, source, names, Kronecker(), GGN())
    precision = precision.plus_diagonal(torch.ones(precision.size, dtype=dtype, device=device))
    rows = jacobians(model, x, names)
    assert rows.dtype == dtype
    found = output_covariance(model, x, names, inverse(precision))
    torch.testing.assert_close(found, rows @ precision.solve(rows).mT, rtol=1e-4, atol=1e-4)
    wide = output_covariance(model, x, names, inverse(precision).map(torch.Tensor.double))
    assert wide.dtype == torch.float64  # the covariance says how precisely
