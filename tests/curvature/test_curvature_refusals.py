"""What has no curvature is refused by name, and the user's module stays as it was."""

import copy

import pytest
import torch
from curvature_networks import BY_ROW, NETWORKS, ROWS, all_names, make, source_of
from torch import nn

from credibly import Model, likelihoods
from credibly.core.errors import NotFiniteError, NotSupportedError
from credibly.core.linalg.dense import Dense as DenseMatrix
from credibly.curvature import (
    GGN,
    Dense,
    Diagonal,
    Kronecker,
    LowRank,
    bytes_needed,
    curvature,
    jacobians,
    output_covariance,
)
from credibly.curvature.memory import MAX_BYTES

LABELS = torch.arange(ROWS) % 3


def state(module):
    """Everything that a fit may not touch."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return (
        {
            name: (tensor.clone(), tensor._version, tensor.grad, tensor.requires_grad)
            for name, tensor in tensors.items()
        },
        [part.training for part in module.modules()],
        [len(part._forward_hooks) + len(part._forward_pre_hooks) for part in module.modules()],
    )


def assert_untouched(module, before):
    (tensors, *rest), (now, *rest_now) = before, state(module)
    assert rest == rest_now
    for name, (value, version, grad, flag) in tensors.items():
        assert torch.equal(now[name][0], value), name
        assert now[name][1:] == (version, grad, flag), name


@pytest.mark.parametrize("name", NETWORKS)
def test_the_module_stays_as_it_was(name):
    model, x = make(name, likelihoods.Categorical(3))
    model.net.train()
    names, source = all_names(model), source_of(model, (x, LABELS))
    before = state(model)
    precision = curvature(model, source, names, Kronecker(diagonal_for_others=True), GGN())
    output_covariance(model, x, names, precision)
    assert_untouched(model, before)


class Fragile(nn.Module):
    """Fails on the way."""

    def __init__(self, calls):
        super().__init__()
        self.first, self.norm, self.last, self.calls = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 3), calls

    def forward(self, x):
        """(rows, 3) to (rows, 3)."""
        self.calls -= 1
        h = self.norm(self.first(x))
        if self.calls == 0:
            raise KeyError("the network's own")
        return self.last(h)


@pytest.mark.parametrize("calls", [1, 2, 3, 4])
def test_also_after_an_exception(calls):
    net = Fragile(10**6)
    model = Model(net, likelihoods.Categorical(3))
    source = source_of(model, (torch.randn(ROWS, 3), LABELS))
    before = state(net)
    for run in (
        lambda: curvature(model, source, all_names(model), Diagonal(), GGN()),
        lambda: jacobians(model, source.data.inputs, all_names(model)),
    ):
        net.calls = calls
        with pytest.raises(KeyError, match="the network's own"):
            run()
        assert_untouched(net, before)


@pytest.mark.parametrize("name", BY_ROW)
def test_weights_without_factors_are_refused_by_name(name):
    model, x = make(name, likelihoods.Categorical(3))
    source = source_of(model, (x, LABELS))
    with pytest.raises(NotSupportedError, match=r"`net\..*diagonal_for_others=True"):
        curvature(model, source, all_names(model), Kronecker(), GGN())


def test_a_weight_that_layers_of_different_kinds_share_is_refused():
    model, x = make("tied_table", likelihoods.Categorical(3))
    with pytest.raises(NotSupportedError, match=r"`net.embed.weight`: layers of different kinds share it"):
        curvature(model, source_of(model, (x, LABELS)), all_names(model), Kronecker(), GGN())


@pytest.mark.parametrize(
    ("layer", "what"),
    [
        (lambda: nn.BatchNorm1d(3, track_running_stats=False), "no running statistics"),
        (lambda: nn.Embedding(3, 3, max_norm=1.0), "max_norm"),
        (lambda: nn.Embedding(3, 3, scale_grad_by_freq=True), "scale_grad_by_freq"),
    ],
)
def test_layers_that_break_the_contract_are_refused(layer, what):
    own = layer()
    net = nn.Sequential(own, nn.Flatten(), nn.Linear(3, 3))
    x = torch.randint(0, 3, (ROWS, 1)) if isinstance(own, nn.Embedding) else torch.randn(ROWS, 3)
    model = Model(net, likelihoods.Categorical(3))
    source = source_of(model, (x, LABELS))
    with pytest.raises(NotSupportedError, match=what):
        curvature(model, source, all_names(model), Diagonal(), GGN())


class Centred(nn.Module):
    """Every row sees the mean of all."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, x):
        """(rows, 3) to (rows, 3)."""
        h = self.first(x)
        return self.last((h - h.mean(0)).tanh())


def test_rows_that_depend_on_each_other_are_refused():
    model = Model(Centred(), likelihoods.Categorical(3))
    source = source_of(model, (torch.randn(ROWS, 3), LABELS))
    with pytest.raises(NotSupportedError, match="rows depend on each other"):
        curvature(model, source, all_names(model), Diagonal(), GGN())


class Overwriting(nn.Module):
    """Changes what a layer has read."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        """(rows, 3) to (rows, 3)."""
        x = x + 1
        h = self.first(x)
        x += 1
        return self.last(h + x)


def test_inputs_that_are_written_over_are_refused():
    model = Model(Overwriting(), likelihoods.Categorical(3))
    source = source_of(model, (torch.randn(ROWS, 3), LABELS))
    with pytest.raises(NotSupportedError, match="changed in place"):
        curvature(model, source, ["net.first.weight"], Diagonal(), GGN())


class Wavering(nn.Module):
    """Calls a layer as often as the values say."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        """(rows, 3) to (rows, 3)."""
        return self.last(self.first(self.first(x)) if x.max() > 10 else self.first(x))


def test_layers_called_as_the_values_say_are_refused():
    model = Model(Wavering(), likelihoods.Categorical(3))
    x = torch.randn(ROWS, 3)
    x[-1] = 11.0
    with pytest.raises(NotSupportedError, match="must not depend on the inputs"):
        curvature(model, source_of(model, (x, LABELS)), all_names(model), Diagonal(), GGN())


def test_a_training_head_has_no_curvature():
    model = Model(nn.Linear(3, 3), likelihoods.QuantileHead([0.1, 0.5, 0.9]))
    source = source_of(model, (torch.randn(ROWS, 3), torch.randn(ROWS)))
    with pytest.raises(NotSupportedError, match="QuantileHead is a training head without a density"):
        curvature(model, source, all_names(model), Diagonal(), GGN())


@pytest.mark.parametrize("names", [[], ["net.0.weight", "net.0.weight"], ["net.9.weight"], ["likelihood.log_scale"]])
def test_names_that_are_no_random_weights_are_refused(names):
    model, x = make("perceptron", likelihoods.Categorical(3))
    with pytest.raises(ValueError, match="`names`"):
        curvature(model, source_of(model, (x, LABELS)), names, Diagonal(), GGN())


def test_outputs_that_are_not_finite_are_refused():
    model, x = make("perceptron", likelihoods.Categorical(3))
    source = source_of(model, (x, LABELS))
    with torch.no_grad():
        model.net[0].weight[0, 0] = torch.inf
        model.net[2].weight[:, 0] = torch.nan
    with pytest.raises(NotFiniteError, match="outputs"):
        curvature(model, source, all_names(model), Diagonal(), GGN())


FIGURES = {
    "diagonal": (Diagonal(), 38),
    "dense": (Dense(), 38**2),
    "low_rank": (LowRank(3), 4 * 38),
    "kronecker": (Kronecker(), (15 + 25 + 9) + (5 + 25) + (15 + 9 + 25) + (3 + 9)),
}


@pytest.mark.parametrize("structure", FIGURES)
def test_the_memory_is_known_before(structure):
    model, x = make("perceptron", likelihoods.Categorical(3))
    names, (wanted, numbers) = all_names(model), FIGURES[structure]
    assert bytes_needed(model, names, wanted) == 8 * numbers
    source = source_of(model, (x, LABELS))
    with pytest.raises(NotSupportedError, match=r"38 weights takes .*max_bytes=100.*Diagonal\(\)"):
        curvature(model, source, names, wanted, GGN(), max_bytes=100)
    assert curvature(model, source, names, wanted, GGN(), max_bytes=8 * numbers).size == 38


def held(matrix):
    """All numbers in a structure."""
    found = []
    matrix.map(lambda tensor: found.append(tensor.numel()) or tensor)
    return sum(found)


@pytest.mark.parametrize("structure", [Diagonal(), Dense(), LowRank(2), Kronecker(diagonal_for_others=True)])
@pytest.mark.parametrize("name", sorted(NETWORKS.keys() - {"tied_table", "functional", "graph"}))
def test_the_figure_is_what_the_result_holds(name, structure):
    """Of the networks left out only a pass tells that some layers have no rule after all: their figure is larger."""
    model, x = make(name, likelihoods.Categorical(3))
    names = all_names(model)
    found = curvature(model, source_of(model, (x, LABELS)), names, structure, GGN())
    assert bytes_needed(model, names, structure) == 8 * held(found)


def test_a_dense_matrix_of_many_weights_is_refused_at_once():
    model = Model(nn.Sequential(nn.Linear(300, 300), nn.Linear(300, 3)), likelihoods.Categorical(3))
    source = source_of(model, (torch.randn(ROWS, 300), LABELS))
    assert bytes_needed(model, all_names(model), Dense()) > MAX_BYTES
    with pytest.raises(NotSupportedError, match=r"Dense\(\) of 91,203 weights takes 31 GiB"):
        curvature(model, source, all_names(model), Dense(), GGN())


def test_options_are_checked():
    with pytest.raises(ValueError, match="num_scores"):
        GGN(num_scores=0)
    with pytest.raises(ValueError, match="rank"):
        LowRank(0)


def test_no_direction_reaches_a_weight_that_is_not_used():
    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.idle = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x):
            self.idle(x)
            return self.used(x)

    model = Model(Unused(), likelihoods.Categorical(3))
    source = source_of(model, (torch.randn(ROWS, 3), LABELS))
    found = curvature(model, source, all_names(model), Diagonal(), GGN()).values
    assert (found[:12] > 0).all()
    assert (found[12:] == 0).all()
    identity = DenseMatrix(torch.eye(12))
    only_idle = ["net.idle.weight", "net.idle.bias"]
    assert (output_covariance(model, source.data.inputs, only_idle, identity) == 0).all()


def test_a_copy_of_the_model_gives_the_same():
    model, x = make("conv1d", likelihoods.Categorical(3))
    names = all_names(model)
    one = curvature(model, source_of(model, (x, LABELS)), names, Diagonal(), GGN()).values
    other = copy.deepcopy(model)
    assert torch.equal(curvature(other, source_of(other, (x, LABELS)), names, Diagonal(), GGN()).values, one)
