"""Kronecker factors against their definition, and against the dense curvature where they are exact."""

import pytest
import torch
import torch.nn.functional as F
from curvature_networks import ROWS, all_names, dense_curvature, dense_jacobians, make, outputs_of, source_of
from torch import nn

from credibly import Data, Model, likelihoods
from credibly.core.linalg.blocks import Blocks
from credibly.core.linalg.diagonal import Diagonal as DiagonalMatrix
from credibly.curvature import GGN, Dense, EmpiricalFisher, Kronecker, curvature

CLOSE = {"rtol": 1e-8, "atol": 1e-8}
LABELS = torch.arange(ROWS) % 3


def directions(model, outputs):
    """Columns of a root of the Fisher matrices, (C, rows, C); any root gives the same factors."""
    values, vectors = torch.linalg.eigh(model.likelihood.fisher(outputs.detach()))
    return (vectors * values.clamp(min=0).sqrt().unsqueeze(-2)).movedim(-1, 0)


def gradients(outputs, hidden, columns):
    """(C, *hidden.shape), one backward pass after another."""
    return torch.stack([torch.autograd.grad(outputs, hidden, column, retain_graph=True)[0] for column in columns])


def by_name(model, source, **options):
    names = all_names(model)
    blocks = curvature(model, source, names, Kronecker(**options), GGN())
    return {name.removeprefix("net."): block.dense() for name, block in zip(names, blocks.blocks, strict=True)}


def second_moment(vectors):
    """Of the vectors on the last axis, summed."""
    flat = vectors.flatten(0, -2)
    return flat.T @ flat


def test_a_perceptron_has_the_factors_of_the_definition():
    model, x = make("perceptron", likelihoods.Categorical(3))
    first, _, last = model.net
    before = first(x)
    outputs = last(before.tanh())
    columns = directions(model, outputs)
    found = by_name(model, source_of(model, (x, LABELS)))
    b, a = second_moment(gradients(outputs, before, columns)), x.T @ x / ROWS
    torch.testing.assert_close(found["0.weight"], torch.kron(b, a), **CLOSE)
    torch.testing.assert_close(found["0.bias"], b, **CLOSE)
    b, hidden = second_moment(columns), before.tanh().detach()
    torch.testing.assert_close(found["2.weight"], torch.kron(b, hidden.T @ hidden / ROWS), **CLOSE)
    torch.testing.assert_close(found["2.bias"], b, **CLOSE)


def test_steps_of_a_sequence_are_rows_of_their_own():
    model, x = make("steps", likelihoods.Categorical(3))
    before = model.net[0](x)
    outputs = model.net[1:](before)
    s = gradients(outputs, before, directions(model, outputs))
    found = by_name(model, source_of(model, (x, LABELS)))
    expected = torch.kron(second_moment(s), second_moment(x) / (ROWS * 5))
    torch.testing.assert_close(found["0.weight"], expected, **CLOSE)
    torch.testing.assert_close(found["0.bias"], second_moment(s.sum(2)), **CLOSE)  # exact, over whole rows


def test_two_calls_of_a_layer_are_rows_of_their_own():
    model, x = make("tied_calls", likelihoods.Categorical(3))
    one = model.net.inner(x)
    two = model.net.inner(one.tanh())
    outputs = model.net.last(two.tanh())
    columns = directions(model, outputs)
    s = torch.cat([gradients(outputs, h, columns) for h in (one, two)], 1)
    a = torch.cat([x, one.tanh().detach()])
    found = by_name(model, source_of(model, (x, LABELS)))
    torch.testing.assert_close(found["inner.weight"], torch.kron(second_moment(s), a.T @ a / (2 * ROWS)), **CLOSE)


def test_groups_of_a_convolution_are_blocks():
    model, x = make("conv2d", likelihoods.Categorical(3))
    convolution = model.net[0]
    before = convolution(x)
    outputs = model.net[1:](before)
    s = gradients(outputs, before, directions(model, outputs)).flatten(3).movedim(2, -1)  # (C, rows, T, channels)
    blocks = []
    for group in range(2):
        unfolded = F.unfold(x[:, group : group + 1], (3, 2), (1, 2), (1, 0), (1, 2)).mT
        a = second_moment(unfolded) / unfolded.shape[:2].numel()
        blocks.append(torch.kron(second_moment(s[..., 2 * group : 2 * group + 2]), a))
    found = by_name(model, source_of(model, (x, LABELS)))
    torch.testing.assert_close(found["0.weight"], torch.block_diag(*blocks), **CLOSE)


def test_a_transposed_convolution_is_a_product_at_each_position_of_its_inputs():
    model, x = make("transposed2d", likelihoods.Categorical(3))
    before = model.net[0](x)
    outputs = model.net[1:](before)
    s = gradients(outputs, before, directions(model, outputs))
    under_kernel = F.unfold(s.flatten(0, 1), (3, 2), 1, (1, 0), (2, 3)).mT
    a = second_moment(x.flatten(2).mT) / (ROWS * 6)
    found = by_name(model, source_of(model, (x, LABELS)))
    torch.testing.assert_close(found["0.weight"], torch.kron(a, second_moment(under_kernel)), **CLOSE)


def test_an_embedding_counts_its_entries():
    model, x = make("embedding", likelihoods.Categorical(3))
    before = model.net[0](x)
    outputs = model.net[1:](before)
    s = gradients(outputs, before, directions(model, outputs))
    counts = torch.bincount(x.flatten(), minlength=4).double() / x.numel()
    found = by_name(model, source_of(model, (x, LABELS)))
    torch.testing.assert_close(found["0.weight"], torch.kron(counts.diag(), second_moment(s)), **CLOSE)


@pytest.mark.parametrize("name", ["perceptron", "batch_norm"])
@pytest.mark.parametrize("kind", [GGN(), EmpiricalFisher()])
def test_of_one_row_it_is_the_blocks_of_the_dense_curvature(name, kind):
    model, x = make(name, likelihoods.Categorical(3))
    names = all_names(model)
    source = source_of(model, (x[:1], LABELS[:1]))
    dense = curvature(model, source, names, Dense(), kind).matrix
    parameters = dict(model.core.named_parameters())
    sizes = [parameters[name].numel() for name in names]
    blocks = curvature(model, source, names, Kronecker(), kind).blocks
    for index, block in zip(torch.arange(sum(sizes)).split(sizes), blocks, strict=True):
        torch.testing.assert_close(block.dense(), dense[index][:, index], **CLOSE)


def test_of_linear_regression_it_is_exact():
    torch.manual_seed(0)
    model = Model(nn.Linear(3, 1, bias=False).double(), likelihoods.Gaussian(scale=0.5))
    x = torch.randn(7, 3, dtype=torch.float64)
    weights = torch.rand(7, dtype=torch.float64)
    source = source_of(model, Data(x, x.sum(1), weights=weights))
    found = curvature(model, source, ["net.weight"], Kronecker(), GGN()).dense()
    torch.testing.assert_close(found, (x * weights[:, None]).T @ x / 0.25, **CLOSE)


def test_targets_of_another_shape_are_the_same_or_refused():
    """B14: (rows,) and (rows, 1) are one problem, whose curvature is x'x."""
    torch.manual_seed(0)
    model = Model(nn.Linear(5, 1, bias=False).double(), likelihoods.Gaussian(scale=1.0))
    x, y = torch.randn(10, 5, dtype=torch.float64), torch.randn(10, dtype=torch.float64)
    for targets in (y, y.unsqueeze(1)):
        for structure in (Dense(), Kronecker()):
            found = curvature(model, source_of(model, (x, targets)), ["net.weight"], structure, GGN()).dense()
            torch.testing.assert_close(found, x.T @ x, **CLOSE)


@pytest.mark.parametrize("name", ["attention", "recurrent", "functional", "graph", "weight_norm", "tied_table"])
def test_other_weights_have_their_exact_diagonal_if_that_is_asked_for(name):
    model, x = make(name, likelihoods.Categorical(3))
    names = all_names(model)
    dense = dense_curvature(dense_jacobians(model, x, names), model.likelihood.fisher(outputs_of(model, x)))
    found = curvature(model, source_of(model, (x, LABELS)), names, Kronecker(diagonal_for_others=True), GGN())
    assert isinstance(found, Blocks)
    exact = dense.diagonal().split(found.sizes)
    others = [(b, d) for b, d in zip(found.blocks, exact, strict=True) if isinstance(b, DiagonalMatrix)]
    assert others
    for block, diagonal in others:
        torch.testing.assert_close(block.values, diagonal, **CLOSE)
