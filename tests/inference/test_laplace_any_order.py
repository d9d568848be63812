"""Laplace's method gives one answer for one set of rows, whichever comes first, also where the first few look special.

What holds for the rows that are looked at before the pass need not hold for others: a last ReLU that lets them through,
rows that change places by their length. Everything is held against Jacobians by autograd, row by row.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import credibly
from credibly import Model, likelihoods, priors
from credibly.core.errors import ConvergenceWarning, NotSupportedError
from credibly.inference import Dense, Diagonal, Kronecker, Laplace, LastLayer, LowRank, Named

PRIOR = 0.7


def exact_covariance(model, inputs, names):
    """By the Jacobian of every row alone, and the likelihood's Fisher matrix."""
    weights = [model.core.get_parameter(name) for name in names]
    total = torch.eye(sum(weight.numel() for weight in weights), dtype=torch.float64) / PRIOR**2
    rows = [tuple(part[k : k + 1] for part in inputs) if isinstance(inputs, tuple) else inputs[k : k + 1]
            for k in range(len(inputs[0] if isinstance(inputs, tuple) else inputs))]  # fmt: skip
    for row in rows:
        outputs = model.core(row, "outputs")[0]
        grads = [torch.autograd.grad(o, weights, retain_graph=True, materialize_grads=True) for o in outputs]
        jacobian = torch.stack([torch.cat([g.flatten() for g in grad]) for grad in grads])
        total += jacobian.T @ model.likelihood.fisher(outputs.detach().unsqueeze(0))[0] @ jacobian
    return torch.linalg.inv(total)


def bounded(end):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1), end).double()


class Clamped(nn.Module):
    def forward(self, x):
        return x.clamp(-0.1, 0.1)


ENDS = {
    "relu": (lambda: nn.ReLU(), likelihoods.Gaussian(scale=0.3)),
    "in place": (lambda: nn.ReLU(inplace=True), likelihoods.Gaussian(scale=0.3)),
    "clamp": (Clamped, likelihoods.Poisson()),
    "nothing": (nn.Identity, likelihoods.Gaussian(scale=0.3)),
    "flatten": (nn.Flatten, likelihoods.Gaussian(scale=0.3)),
}


@pytest.mark.parametrize("name", list(ENDS))
@pytest.mark.parametrize("subset", [LastLayer(), Named(["net.2.weight"])], ids=["last", "named"])
def test_what_follows_the_last_layer_counts_also_where_it_lets_the_first_rows_through(name, subset):
    end, likelihood = ENDS[name]
    net = bounded(end())
    model = Model(net, likelihood, priors.Normal(PRIOR))
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = torch.poisson(torch.ones(40)).double()
    before = net[:3](x)[:, 0].detach()
    orders = {"open": before.argsort(descending=True), "shut": before.argsort(), "small": before.abs().argsort()}
    method = Laplace(structure=Dense(), subset=subset)
    for order in orders.values():
        found = method.fit(model, (x[order], y[order]), start="current", seed=0)
        exact = exact_covariance(model, x, found.names)
        torch.testing.assert_close(found.covariance.dense(), exact, rtol=1e-9, atol=1e-12)
        assert found.of.log_likelihood == pytest.approx(model.log_likelihood({}, {}, (x, y)).sum().item(), rel=1e-9)


class TiedByFunction(nn.Module):
    """A language model in small: words are read and scored by one table."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(6, 6), nn.Linear(6, 5, bias=False)

    def forward(self, words):
        return self.head(self.body(F.embedding(words, self.head.weight).sum(1)).tanh())


@pytest.mark.parametrize("frozen", [False, True])
def test_a_last_layer_that_what_it_reads_depends_on_is_no_head(frozen):
    torch.manual_seed(0)
    net = TiedByFunction().double()
    net.body.requires_grad_(not frozen)
    words, y = torch.randint(0, 5, (60, 4)), torch.randint(0, 5, (60,))
    model = Model(net, likelihoods.Categorical(5), priors.Normal(PRIOR))
    method = Laplace(structure=Dense()) if frozen else Laplace(structure=Dense(), subset=LastLayer())
    found = method.fit(model, (words, y), start="current", seed=0)
    assert found.names == ("net.head.weight",)
    exact = exact_covariance(model, words, found.names)
    torch.testing.assert_close(found.covariance.dense(), exact, rtol=1e-9, atol=1e-12)


class SortedByLength(nn.Module):
    """Rows are computed in the order of their lengths, as packed sequences are, and put back."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 1)

    def forward(self, x, lengths):
        order = lengths.argsort(descending=True, stable=True)
        return self.last(self.first(x[order]).tanh()[order.argsort()] * lengths[:, None])


@pytest.mark.parametrize("structure", [Dense(), Diagonal()], ids=["dense", "diagonal"])
def test_rows_that_change_places_are_seen_though_the_first_ones_do_not(structure):
    torch.manual_seed(0)
    net = SortedByLength().double()
    model = Model(net, likelihoods.Gaussian(scale=0.3), priors.Normal(PRIOR))
    x, lengths = torch.randn(40, 3).double(), torch.randint(1, 6, (40,)).double()
    lengths[:3] = lengths[0]
    found = Laplace(structure=structure).fit(model, ((x, lengths), torch.randn(40)), start="current", seed=0)
    exact = exact_covariance(model, (x, lengths), found.names)
    expected = exact if isinstance(structure, Dense) else (1 / torch.linalg.inv(exact).diagonal()).diag()
    torch.testing.assert_close(found.covariance.dense(), expected, rtol=1e-9, atol=1e-12)
    alone = torch.cat([found.output_covariance((x[k : k + 1], lengths[k : k + 1])) for k in range(40)])
    torch.testing.assert_close(found.output_covariance((x, lengths)), alone, rtol=1e-9, atol=1e-12)


def test_draws_of_low_rank_spread_as_its_variances_say(dtype):
    torch.manual_seed(0)
    x = torch.randn(5000, 4, dtype=dtype)
    model = Model(nn.Linear(4, 1).to(dtype), likelihoods.Gaussian(scale=1e-3), priors.Normal(10.0))
    found = Laplace(structure=LowRank(5)).fit(model, (x, x.sum(1)), start="current", seed=0)
    exact = torch.linalg.inv(x.double().T @ x.double() / 1e-6 + torch.eye(4) / 100)
    torch.testing.assert_close(found.variances["net.weight"].double()[0], exact.diagonal(), rtol=1e-2, atol=0)
    spread = found.sample(20_000, seed=1)["net.weight"].double().var(0)[0]
    torch.testing.assert_close(spread, exact.diagonal(), rtol=0.05, atol=0)


def test_a_prior_too_weak_for_low_rank_is_told():
    torch.manual_seed(0)
    x = torch.randn(5000, 4)
    model = Model(nn.Linear(4, 1), likelihoods.Gaussian(scale=1e-4), priors.Normal(100.0))
    with pytest.warns(ConvergenceWarning, match="rounding has a share"):
        Laplace(structure=LowRank(5)).fit(model, (x, x.sum(1)), start="current", seed=0)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_a_layer_without_second_gradients_is_named_where_draws_are_linear():
    torch.manual_seed(0)
    net = nn.Sequential(nn.EmbeddingBag(5, 3), nn.Linear(3, 1))
    words, y = torch.randint(0, 5, (20, 4)), torch.poisson(torch.ones(20))
    model = Model(net, likelihoods.Poisson())
    found = Laplace(structure=Diagonal()).fit(model, (words, y), start="current", seed=0)
    with pytest.raises(NotSupportedError, match=r"embedding_bag.*Laplace\(linearized=False\)"):
        found.predict(words, seed=0)
    plain = Laplace(structure=Diagonal(), linearized=False).fit(model, (words, y), start="current", seed=0)
    assert plain.predict(words, seed=0).mean.isfinite().all()


class Tokens(nn.Module):
    """The entries that are there, of all rows in one axis."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(2, 4), nn.Linear(4, 1)

    def forward(self, x, mask):
        hidden = x.new_zeros(*x.shape[:2], 4)
        hidden[mask] = self.first(x[mask]).tanh()
        return self.last(hidden.sum(1))


def rows_of_tokens(lengths):
    x = torch.randn(len(lengths), 6, 2, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    return x, torch.arange(6) < lengths.unsqueeze(1)


def lengths_unlike_the_spread_ones(total_divides):
    """Eight spread rows of 64 have four tokens; so have nearly all others."""
    lengths = torch.full((64,), 4)
    lengths[torch.tensor([3, 4, 30, 31, 50, 52])] = torch.tensor([2, 6, 3, 5, 6, 2 if total_divides else 3])
    return lengths


@pytest.mark.parametrize("total_divides", [True, False])
@pytest.mark.parametrize("structure", [Dense(), Diagonal()], ids=["dense", "diagonal"])
def test_tokens_of_rows_that_were_not_looked_at_are_told_apart(structure, total_divides):
    torch.manual_seed(0)
    inputs = rows_of_tokens(lengths_unlike_the_spread_ones(total_divides))
    model = Model(Tokens().double(), likelihoods.Gaussian(scale=0.3), priors.Normal(PRIOR))
    found = Laplace(structure=structure).fit(model, (inputs, torch.randn(64)), start="current", seed=0)
    exact = exact_covariance(model, inputs, found.names)
    expected = exact if isinstance(structure, Dense) else (1 / torch.linalg.inv(exact).diagonal()).diag()
    torch.testing.assert_close(found.covariance.dense(), expected, rtol=1e-9, atol=1e-12)
    alone = torch.cat([found.output_covariance(tuple(part[k : k + 1] for part in inputs)) for k in range(64)])
    torch.testing.assert_close(found.output_covariance(inputs), alone, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("structure", [Dense(), Kronecker()], ids=["dense", "kronecker"])
def test_rows_that_change_places_where_nobody_looked_are_seen_in_the_pass(structure):
    torch.manual_seed(0)
    model = Model(SortedByLength().double(), likelihoods.Gaussian(scale=0.3), priors.Normal(PRIOR))
    x, lengths = torch.randn(64, 3).double(), torch.full((64,), 7.0).double()
    lengths[torch.tensor([3, 20, 40, 50])] = 2
    data = ((x, lengths), torch.randn(64))
    if isinstance(structure, Kronecker):
        with pytest.raises(NotSupportedError, match="rows change places between layers here"):
            Laplace(structure=structure).fit(model, data, start="current", seed=0)
        return
    found = Laplace(structure=structure).fit(model, data, start="current", seed=0)
    exact = exact_covariance(model, (x, lengths), found.names)
    torch.testing.assert_close(found.covariance.dense(), exact, rtol=1e-9, atol=1e-12)
    alone = torch.cat([found.output_covariance((x[k : k + 1], lengths[k : k + 1])) for k in range(64)])
    torch.testing.assert_close(found.output_covariance((x, lengths)), alone, rtol=1e-9, atol=1e-12)


class ByTask(nn.Module):
    """A head for each task; a batch is of one task."""

    def __init__(self):
        super().__init__()
        self.body, self.heads = nn.Linear(3, 4), nn.ModuleList([nn.Linear(4, 1) for _ in range(2)])

    def forward(self, x, task):
        return self.heads[int(task[0])](self.body(x).tanh())


def test_other_layers_in_later_batches_are_refused():
    torch.manual_seed(0)
    x, task = torch.randn(40, 3), torch.arange(40) // 20
    batches = [{"inputs": (x[k : k + 10], task[k : k + 10]), "targets": x[k : k + 10, 0]} for k in range(0, 40, 10)]
    loader = torch.utils.data.DataLoader(batches, batch_size=None)
    model = Model(ByTask(), likelihoods.Gaussian(scale=0.3))
    with pytest.raises(NotSupportedError, match="which layers are called must not depend on the inputs"):
        Laplace(structure=Diagonal()).fit(model, credibly.Data(loader, num_data=40), start="current", seed=0)
