"""A network at many weights: the same numbers however draws and rows are cut, and no more memory than a chunk's."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

from credibly.posteriors import evaluation
from credibly.posteriors.evaluation import Evaluator, joined


class Rows(nn.Module):
    """Notes how many rows each call reads."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 7), nn.Linear(7, 2)
        self.seen = []

    def forward(self, x):
        self.seen.append(len(x))
        return self.last(torch.tanh(self.first(x)))


def evaluator(net, x):
    return Evaluator(lambda params, buffers, rows: functional_call(net, {**params, **buffers}, (rows,)), net, x)


def weights(net, num_draws):
    return {name: torch.randn(num_draws, *p.shape, dtype=p.dtype) for name, p in net.named_parameters()}


@pytest.mark.parametrize("loop_rows", [1, 10**9])
@pytest.mark.parametrize("numbers", [1, 7 * 50, 2**30])
def test_chunks_of_draws_and_rows_change_nothing(monkeypatch, loop_rows, numbers):
    net = Rows().double()
    x, draws = torch.randn(150, 3, dtype=torch.float64), weights(net, 6)
    expected = torch.stack([functional_call(net, {n: v[k] for n, v in draws.items()}, (x,)) for k in range(6)])
    monkeypatch.setattr(evaluation, "_LOOP_ROWS", loop_rows)
    for name in ("_CHUNK_NUMBERS", "_LOOP_NUMBERS"):
        monkeypatch.setattr(evaluation, name, numbers)
    with torch.no_grad():
        torch.testing.assert_close(evaluator(net, x)(draws, {}, num_draws=6), expected)
    torch.testing.assert_close(evaluator(net, x)(draws, {}, num_draws=6), expected)


def test_rows_are_cut_by_the_size_of_what_they_make_and_never_below_a_few_dozen(monkeypatch):
    net = Rows()
    x, draws = torch.randn(1000, 3), weights(net, 2)
    monkeypatch.setattr(evaluation, "_LOOP_ROWS", 1)
    for numbers, most in ((2**30, 1000), (7 * 500, 500), (1, 63)):
        monkeypatch.setattr(evaluation, "_LOOP_NUMBERS", numbers)
        net.seen.clear()
        with torch.no_grad():
            evaluator(net, x)(draws, {}, num_draws=2)
        assert max(net.seen) == most
        assert sum(net.seen) - 5 == 2 * 1000, "two and three rows show the size, then each draw reads each row once"


def test_what_does_not_grow_with_the_rows_is_not_a_reason_to_cut_them():
    """A network over a graph evaluates all nodes at every call, whatever rows are asked for."""
    table, net = torch.randn(50_000, 4), nn.Linear(4, 1)
    seen = []

    def call(params, buffers, rows):
        seen.append(len(rows))
        return functional_call(net, params, (table,))[rows]

    with torch.no_grad():
        Evaluator(call, net, torch.arange(3000))(weights(net, 2), {}, num_draws=2)
    assert seen == [2, 3, 3000, 3000]


def test_parts_are_joined_in_order_with_and_without_a_graph():
    parts = [torch.arange(6.0).reshape(3, 2), torch.ones(1, 2)]
    with torch.no_grad():
        assert torch.equal(joined(iter(parts), 4), torch.cat(parts))
        named = joined(({"a": part, "b": part[:, 0]} for part in parts), 4)
    assert torch.equal(named["b"], torch.cat(parts)[:, 0])
    leaf = parts[0].clone().requires_grad_()
    joined(iter([leaf, parts[1]]), 4).sum().backward()
    assert torch.equal(leaf.grad, torch.ones(3, 2))


class LooksAtItsValues(nn.Module):
    """A network that torch cannot map over draws, and that fails by itself at huge weights."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 3)

    def forward(self, x):
        outputs = self.layer(x)
        if outputs.abs().max().item() > 1e6:
            raise RuntimeError("outputs of an unbelievable size")
        return outputs


def test_what_cannot_be_mapped_is_looped_over_and_its_own_errors_come_through():
    torch.manual_seed(0)
    net, x = LooksAtItsValues(), torch.randn(5, 2)
    draws = weights(net, 4)
    found = evaluator(net, x)(draws, {}, num_draws=4)
    expected = torch.einsum("dki,ri->drk", draws["layer.weight"], x) + draws["layer.bias"].unsqueeze(1)
    torch.testing.assert_close(found, expected)
    with pytest.raises(RuntimeError, match="unbelievable"):
        evaluator(net, x)({name: 1e9 * value for name, value in draws.items()}, {}, num_draws=4)
