"""The curvature of every kind of layer against the dense J' F J by autograd, row by row."""

import pytest
import torch
from curvature_networks import (
    BY_ROW,
    BY_RULE,
    NETWORKS,
    ROWS,
    all_names,
    dense_curvature,
    dense_jacobians,
    make,
    outputs_of,
    source_of,
)
from torch import nn

import cases
from credibly import Data, Model, Standardize, likelihoods
from credibly.core.data import as_source
from credibly.core.errors import NotSupportedError
from credibly.core.linalg.low_rank import LowRankPlusDiagonal
from credibly.curvature import GGN, Dense, Diagonal, EmpiricalFisher, Kronecker, LowRank, curvature, passes, uses
from credibly.curvature import structures as structures_module
from credibly.curvature.plan import make_plan
from credibly.likelihoods.per_element import PerElement

CLOSE = {"rtol": 1e-8, "atol": 1e-8}
LABELS = torch.arange(ROWS) % 3


def problem(name):
    """A model for three classes, its inputs, names, source, Jacobians and dense curvature."""
    model, x = make(name, likelihoods.Categorical(3))
    names = all_names(model)
    jacobians = dense_jacobians(model, x, names)
    dense = dense_curvature(jacobians, model.likelihood.fisher(outputs_of(model, x)))
    return model, x, names, source_of(model, (x, LABELS)), dense


@pytest.mark.parametrize("name", NETWORKS)
def test_diagonal_and_dense_are_exact(name):
    model, _, names, source, dense = problem(name)
    torch.testing.assert_close(curvature(model, source, names, Diagonal(), GGN()).values, dense.diagonal(), **CLOSE)
    torch.testing.assert_close(curvature(model, source, names, Dense(), GGN()).matrix, dense, **CLOSE)


@pytest.mark.parametrize("name", BY_RULE)
def test_every_weight_of_a_known_layer_has_a_rule(name):
    model, x, names, *_ = problem(name)
    with torch.no_grad():
        assert make_plan(model.core, x, names).others == {}


@pytest.mark.parametrize("name", BY_ROW)
def test_weights_of_unknown_layers_are_found_out(name):
    model, x, names, *_ = problem(name)
    with torch.no_grad():
        assert make_plan(model.core, x, names).others


@pytest.mark.parametrize("name", NETWORKS)
def test_chunks_of_rows_and_directions_change_nothing(name, monkeypatch):
    model, _, names, source, dense = problem(name)
    monkeypatch.setattr(passes, "_NUMBERS", 1)
    monkeypatch.setattr(passes, "_PER_WEIGHT", 0)
    monkeypatch.setattr(uses, "CHUNK_NUMBERS", 1)
    small = curvature(model, source, names, Kronecker(diagonal_for_others=True), GGN()).dense()
    torch.testing.assert_close(curvature(model, source, names, Dense(), GGN()).matrix, dense, **CLOSE)
    torch.testing.assert_close(curvature(model, source, names, Diagonal(), GGN()).values, dense.diagonal(), **CLOSE)
    monkeypatch.undo()
    whole = curvature(model, source, names, Kronecker(diagonal_for_others=True), GGN()).dense()
    torch.testing.assert_close(small, whole, **CLOSE)


def whole_fisher(likelihood, outputs):
    """Fisher matrices over all outputs of a row, (rows, P, P), from those of elements."""
    fisher = likelihood.fisher(outputs)
    if not isinstance(likelihood, PerElement):
        return fisher
    rows, size = len(fisher), fisher.shape[-1]
    order = torch.arange(outputs[0].numel()).reshape(1, *outputs.shape[1:])
    table = (order.unsqueeze(-1) if likelihood.axis is None else order.movedim(likelihood.axis, -1)).reshape(-1, size)
    full = outputs.new_zeros(rows, order.numel(), order.numel())
    for element, block in zip(table, fisher.reshape(rows, len(table), size, size).unbind(1), strict=True):
        full[:, element[:, None], element[None, :]] = block
    return full


def linear_problem(name):
    likelihood = cases.LIKELIHOODS[name]().double()
    torch.manual_seed(3)
    model = Model(cases.linear(3, likelihood).double(), likelihood)
    x = torch.randn(5, 3, dtype=torch.float64)
    outputs = outputs_of(model, x)
    with torch.random.fork_rng():
        torch.manual_seed(4)
        targets = likelihood(outputs).sample() if not name.startswith("censored") else censored(likelihood, outputs)
    names = all_names(model)
    return model, Data(x, targets), names, dense_jacobians(model, x, names), outputs


def censored(likelihood, outputs):
    low = likelihood(outputs).mean
    return torch.stack([low, torch.full_like(low, torch.inf)], -1)


WITHOUT_FISHER = {"mixture_density_vector"}


@pytest.mark.parametrize("name", sorted(cases.LIKELIHOODS.keys() - WITHOUT_FISHER))
def test_fisher_of_every_likelihood(name):
    model, data, names, jacobians, outputs = linear_problem(name)
    expected = dense_curvature(jacobians, whole_fisher(model.likelihood, outputs))
    source = source_of(model, data)
    torch.testing.assert_close(curvature(model, source, names, Dense(), GGN()).matrix, expected, **CLOSE)
    diagonal = curvature(model, source, names, Diagonal(), GGN()).values
    torch.testing.assert_close(diagonal, expected.diagonal(), **CLOSE)


@pytest.mark.parametrize("name", WITHOUT_FISHER)
def test_a_likelihood_without_a_fisher_matrix_has_sampled_scores(name):
    model, data, names, *_ = linear_problem(name)
    source = source_of(model, data)
    with pytest.raises(NotSupportedError, match="sample_scores"):
        curvature(model, source, names, Diagonal(), GGN())
    assert (curvature(model, source, names, Diagonal(), GGN(num_scores=3)).values > 0).all()


@pytest.mark.parametrize("name", cases.LIKELIHOODS)
def test_empirical_fisher_of_every_likelihood(name):
    model, data, names, *_ = linear_problem(name)
    params = dict(model.core.named_parameters())
    rows = model.log_likelihood({}, {}, data)
    gradients = [torch.autograd.grad(row, [params[n] for n in names], retain_graph=True) for row in rows]
    scores = torch.stack([torch.cat([part.flatten() for part in parts]) for parts in gradients])
    found = curvature(model, source_of(model, data), names, Dense(), EmpiricalFisher()).matrix
    torch.testing.assert_close(found, scores.T @ scores, **CLOSE)


@pytest.mark.parametrize("name", ["categorical", "gaussian_vector", "poisson", "categorical_elements"])
def test_sampled_scores_average_to_the_fisher_matrix(name):
    """Failure rate: below 1e-4 for each, by 6 standard errors of 40 independent estimates in some 100 entries."""
    model, data, names, jacobians, outputs = linear_problem(name)
    exact = dense_curvature(jacobians, whole_fisher(model.likelihood, outputs)).diagonal()
    source = source_of(model, data)
    draws = torch.stack(
        [curvature(model, source, names, Diagonal(), GGN(num_scores=4), seed=seed).values for seed in range(40)]
    )
    error = (draws.mean(0) - exact).abs()
    assert (error <= 6 * draws.std(0) / 40**0.5 + 1e-12).all()
    again = curvature(model, source, names, Diagonal(), GGN(num_scores=4), seed=3).values
    assert torch.equal(again, draws[3])
    assert not torch.equal(draws[3], draws[4])


@pytest.mark.parametrize("structure", [Diagonal(), Kronecker(), Dense(), LowRank(4)])
@pytest.mark.parametrize("kind", [GGN(), EmpiricalFisher()])
@pytest.mark.parametrize("name", ["perceptron", "conv2d", "embedding"])
def test_a_weight_counts_rows(name, kind, structure):
    """A row of weight 2 is two rows, one of weight 0, or without a target, is none."""
    model, x, names, *_ = problem(name)
    index = torch.tensor([0, 1, 1, 3])
    repeated = curvature(model, source_of(model, (x[index], LABELS[index])), names, structure, kind).dense()
    weights = torch.tensor([1.0, 2.0, 0.0, 1.0])
    weighted = curvature(model, source_of(model, Data(x, LABELS, weights=weights)), names, structure, kind).dense()
    torch.testing.assert_close(weighted, repeated, **CLOSE)
    weights[2], mask = 1.0, torch.tensor([True, True, False, True])
    masked = Data(x, LABELS, weights=weights, mask=mask)
    torch.testing.assert_close(
        curvature(model, source_of(model, masked), names, structure, kind).dense(), repeated, **CLOSE
    )


def test_missing_elements_add_nothing():
    likelihood = likelihoods.PerElement(likelihoods.Categorical(3), axis=1)
    torch.manual_seed(5)
    model = Model(nn.Conv1d(2, 3, 2).double(), likelihood)
    x, targets = torch.randn(ROWS, 2, 5, dtype=torch.float64), torch.randint(0, 3, (ROWS, 4))
    mask = torch.rand(ROWS, 4) > 0.4
    mask[2] = False
    names = all_names(model)
    fisher = likelihood.fisher(outputs_of(model, x)) * mask[..., None, None]
    jacobians = dense_jacobians(model, x, names).unflatten(1, (3, 4)).transpose(1, 2)  # by element
    expected = torch.einsum("reci,recd,redj->ij", jacobians, fisher, jacobians)
    source = source_of(model, Data(x, targets, mask=mask))
    torch.testing.assert_close(curvature(model, source, names, Dense(), GGN()).matrix, expected, **CLOSE)
    torch.testing.assert_close(curvature(model, source, names, Diagonal(), GGN()).values, expected.diagonal(), **CLOSE)


@pytest.mark.parametrize("frozen", [0, 2, 4])
@pytest.mark.parametrize("structure", [Diagonal(), Kronecker(), Dense()])
def test_a_frozen_layer_has_no_part_and_moves_nothing(frozen, structure):
    torch.manual_seed(6)
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    model = Model(net, likelihoods.Categorical(3))
    source = source_of(model, (torch.randn(ROWS, 2, dtype=torch.float64), LABELS))
    names, sizes = all_names(model), [p.numel() for p in net.parameters()]
    whole = curvature(model, source, names, structure, GGN()).dense()
    net[frozen].requires_grad_(False)
    kept = all_names(model)
    part = curvature(model, source_of(model, (source.data.inputs, LABELS)), kept, structure, GGN()).dense()
    flags = torch.cat([torch.full((size,), name in kept) for name, size in zip(names, sizes, strict=True)])
    assert part.shape == (flags.sum(), flags.sum())
    torch.testing.assert_close(part, whole[flags][:, flags], **CLOSE)


@pytest.mark.parametrize("structure", [Diagonal(), Kronecker(), Dense()])
def test_names_say_the_order(structure):
    model, _, names, source, _ = problem("conv1d")
    parameters = dict(model.core.named_parameters())
    sizes = [parameters[name].numel() for name in names]
    index = torch.arange(sum(sizes)).split(sizes)
    backwards = torch.cat(list(reversed(index)))
    forwards = curvature(model, source, names, structure, GGN()).dense()
    reverse = curvature(model, source, names[::-1], structure, GGN()).dense()
    torch.testing.assert_close(reverse, forwards[backwards][:, backwards], **CLOSE)


class Heads(nn.Module):
    """Two results by name, of two inputs."""

    def __init__(self):
        super().__init__()
        self.body, self.one, self.two = nn.Linear(2, 3), nn.Linear(3, 1), nn.Linear(3, 1)

    def forward(self, x, z):
        h = (self.body(x) + z).tanh()
        return {"one": self.one(h), "two": self.two(h)}


def test_selected_outputs_standardised_inputs_and_offsets():
    torch.manual_seed(8)
    x = {"x": 3 + 2 * torch.randn(6, 2), "z": torch.randn(6, 3), "exposure": torch.rand(6)}
    x = {key: value.double() for key, value in x.items()}
    model = Model(
        Heads().double(),
        likelihoods.Poisson(),
        output="two",
        offset="exposure",
        inputs={"x": Standardize()},
    )
    own = model.fitted(as_source((x, torch.ones(6)), torch.float64, torch.device("cpu")))
    names = all_names(own)
    assert "net.one.weight" in names
    on_network_side = own.standardize_inputs(x)
    jacobians = dense_jacobians(own, on_network_side, names)
    expected = dense_curvature(jacobians, own.likelihood.fisher(outputs_of(own, on_network_side)))
    source = source_of(own, (x, torch.ones(6)))
    torch.testing.assert_close(curvature(own, source, names, Dense(), GGN()).matrix, expected, **CLOSE)
    torch.testing.assert_close(curvature(own, source, names, Diagonal(), GGN()).values, expected.diagonal(), **CLOSE)


def test_batches_of_a_loader_add_up():
    model, x, names, _, dense = problem("conv1d")
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, LABELS), batch_size=3)
    source = source_of(model, loader)
    torch.testing.assert_close(curvature(model, source, names, Dense(), GGN()).matrix, dense, **CLOSE)


def test_low_rank_is_the_leading_part():
    model, _, names, source, dense = problem("perceptron")
    values, vectors = torch.linalg.eigh(dense)
    for rank in (3, 100):
        found = curvature(model, source, names, LowRank(rank), GGN())
        assert isinstance(found, LowRankPlusDiagonal)
        leading = (vectors[:, -rank:] * values[-rank:]) @ vectors[:, -rank:].T
        torch.testing.assert_close(found.dense(), leading, **CLOSE)
        assert torch.equal(found.values, torch.zeros(38, dtype=torch.float64))


def test_a_streamed_low_rank_is_exact_for_few_rows_and_near_for_many(monkeypatch):
    monkeypatch.setattr(structures_module, "_SMALL", 0)
    model, _, names, source, dense = problem("perceptron")
    found = curvature(model, source, names, LowRank(8), GGN()).dense()  # of rank 4 rows * 2
    torch.testing.assert_close(found, dense, **CLOSE)
    monkeypatch.setattr(passes, "_NUMBERS", 1)
    monkeypatch.setattr(passes, "_PER_WEIGHT", 0)  # row by row, cut again and again
    torch.manual_seed(9)
    source = source_of(model, (torch.randn(60, 3, dtype=torch.float64), torch.arange(60) % 3))
    exact = curvature(model, source, names, Dense(), GGN()).matrix
    rest = torch.linalg.eigvalsh(exact)[:-6].sum()
    near = curvature(model, source, names, LowRank(6), GGN()).dense()
    gap = exact - near
    assert torch.linalg.eigvalsh(gap).min() > -1e-9  # gradients are left out, never invented
    assert gap.trace() < 1.5 * rest


def test_both_precisions(dtype, device):
    model, x = make("conv2d", likelihoods.Categorical(3))
    model, x = model.to(device=device, dtype=dtype), x.to(device=device, dtype=dtype)
    names = all_names(model)
    source = source_of(model, (x, LABELS.to(device)))
    exact = curvature(model, source, names, Dense(), GGN()).matrix
    found = curvature(model, source, names, Diagonal(), GGN()).values
    assert found.dtype == dtype
    torch.testing.assert_close(found, exact.diagonal(), rtol=1e-4, atol=1e-4)
    blocks = curvature(model, source, names, Kronecker(), GGN())
    assert all((part.values >= 0).all() for part in blocks.blocks[0].blocks)  # rounding made none negative
    assert blocks.like.dtype == dtype
