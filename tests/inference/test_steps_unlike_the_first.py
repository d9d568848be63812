"""Noise that was planned on a few rows, in steps whose rows use the network otherwise; and starts, loaders and mixtures
that bring more than weights."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, SubsetRandomSampler, TensorDataset, WeightedRandomSampler

from credibly import Data, Model, Standardize, inference, likelihoods, load, posteriors, priors, save
from credibly.core.errors import NotSupportedError
from credibly.inference import (
    MAP,
    SWAG,
    Flipout,
    FullGaussian,
    Laplace,
    LocalReparameterization,
    LowRankGaussian,
    MeanField,
    PyroGuide,
)
from credibly.training import cosine


class Repeating(nn.Module):
    """One weight, used as often as the longest row is long."""

    def __init__(self):
        super().__init__()
        self.cell = nn.Linear(1, 1, bias=False)

    def forward(self, x, lengths):
        steps = range(int(lengths.max()))
        return sum(self.cell(x[:, t : t + 1]) * (t < lengths)[:, None] for t in steps)


class Folded(nn.Module):
    """Positions and rows in one axis."""

    def __init__(self):
        super().__init__()
        self.cell = nn.Linear(1, 1, bias=False)

    def forward(self, x, lengths):
        wide = x[:, : int(lengths.max())]
        given = self.cell(wide.reshape(-1, 1)).reshape(wide.shape)
        return (given * (torch.arange(wide.shape[1]) < lengths[:, None])).sum(1, keepdim=True)


class Widening(nn.Module):
    """An axis of positions where rows are longer than one."""

    def __init__(self):
        super().__init__()
        self.cell = nn.Linear(1, 1, bias=False)

    def forward(self, x, lengths):
        longest = int(lengths.max())
        if longest == 1:
            return self.cell(x[:, :1])
        given = self.cell(x[:, :longest, None]).squeeze(-1)
        return (given * (torch.arange(longest) < lengths[:, None])).sum(1, keepdim=True)


@pytest.mark.parametrize("net", [Repeating, Folded, Widening])
@pytest.mark.parametrize("estimator", [LocalReparameterization(), Flipout()], ids=["local", "flipout"])
def test_a_layer_that_acts_otherwise_in_later_batches_is_drawn_from_then_on(net, estimator):
    """The first batch has rows of length 1, the others of length 8; the posterior is known."""
    torch.manual_seed(0)
    lengths = torch.tensor([1] * 16 + [8] * 48)
    x, y = torch.ones(64, 8), 0.5 * lengths + torch.randn(64)
    batches = [{"inputs": (x[k : k + 16], lengths[k : k + 16]), "targets": y[k : k + 16]} for k in range(0, 64, 16)]
    loader = DataLoader(batches, batch_size=None)
    method = MeanField(num_epochs=600, learning_rate=0.02, schedule=cosine, estimator=estimator)
    model = Model(net(), likelihoods.Gaussian(scale=1.0))
    fitted = method.fit(model, Data(loader, num_data=64), seed=0)
    exact = (1 + lengths.float().square().sum()).rsqrt()
    torch.testing.assert_close(fitted.variances["net.cell.weight"].sqrt().squeeze(), exact, rtol=0.1, atol=0)
    assert "WeightDraw for `net.cell.weight`: its layer" in fitted.info.reason
    assert "later rows" in fitted.info.reason


class Routed(nn.Module):
    """Two experts, each of which sees some of the rows."""

    def __init__(self):
        super().__init__()
        self.left, self.right, self.last = nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(4, 1)

    def forward(self, x):
        chosen = x[:, 0] > 0
        hidden = x.new_zeros(len(x), 4)
        hidden[chosen] = self.left(x[chosen])
        hidden[~chosen] = self.right(x[~chosen])
        return self.last(hidden.tanh())


@pytest.mark.parametrize("estimator", [LocalReparameterization(), Flipout()], ids=["local", "flipout"])
@pytest.mark.parametrize("first", ["left", "right", "both"])
def test_rows_may_go_to_different_layers(estimator, first):
    torch.manual_seed(0)
    x = torch.randn(64, 3)
    key = {"left": -x[:, 0], "right": x[:, 0], "both": torch.zeros(64)}[first]
    x = x[key.argsort(stable=True)]
    loader = DataLoader(TensorDataset(x, x[:, 1]), batch_size=16)
    fitted = MeanField(num_epochs=60, learning_rate=0.02, estimator=estimator).fit(
        Model(Routed(), likelihoods.Gaussian(scale=0.3)), loader, seed=0
    )
    assert (fitted.predict(x, seed=0).mean - x[:, 1]).square().mean().sqrt() < 0.5


# -- what a start brings -----------------------------------------------------------------------------------------------


def partly_frozen(seed):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 1))
    net[0].requires_grad_(False)
    return net


@pytest.mark.parametrize("name", ["MCDropout", "Laplace", "MeanField", "SWAG"])
def test_a_start_brings_the_frozen_weights_that_the_others_were_trained_beside(name, tmp_path):
    x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    y = x[:, 0].sin()
    trained = MAP(num_epochs=100, learning_rate=1e-2).fit(
        Model(partly_frozen(1), likelihoods.Gaussian()), (x, y), seed=0
    )
    save(trained, tmp_path / "trained.safetensors")
    fresh = partly_frozen(2)
    start = load(tmp_path / "trained.safetensors", net=fresh)
    own = {key: value.clone() for key, value in fresh.state_dict().items()}
    methods = {
        "MCDropout": inference.MCDropout(),
        "Laplace": Laplace(structure=inference.Dense()),
        "MeanField": MeanField(num_epochs=1, initial_scale=0.01),
        "SWAG": SWAG(num_epochs=3, learning_rate=1e-3),
    }
    found = methods[name].fit(Model(fresh, likelihoods.Gaussian()), (x, y), start=start, seed=0)
    expected = methods[name].fit(start.to_model(), (x, y), start=start, seed=0)
    assert torch.equal(found.model.net[0].weight, trained.model.net[0].weight)
    assert torch.equal(found.predict(x, seed=0).mean, expected.predict(x, seed=0).mean)
    assert all(torch.equal(value, own[key]) for key, value in fresh.state_dict().items())


# -- how many training rows there are ----------------------------------------------------------------------------------


def sampled(sampler, rows=200):
    dataset = TensorDataset(torch.randn(rows, 1), torch.randn(rows))
    return DataLoader(dataset, batch_size=20, sampler=sampler(dataset))


SAMPLERS = {
    "short passes": (lambda d: RandomSampler(d, replacement=True, num_samples=20), 200),
    "long passes": (lambda d: RandomSampler(d, replacement=True, num_samples=2000), 200),
    "plain": (RandomSampler, 200),
    "subset": (lambda d: SubsetRandomSampler(range(50)), 50),
}


@pytest.mark.parametrize("name", list(SAMPLERS))
def test_the_rows_of_a_loader_are_those_it_can_give_not_those_of_a_pass(name):
    sampler, expected = SAMPLERS[name]
    model = Model(nn.Linear(1, 1), likelihoods.Gaussian(scale=1.0))
    problem = inference.problem.prepare(model, sampled(sampler))
    assert problem.source.num_data == expected


def test_a_loader_that_weighs_its_rows_must_tell_how_many_there_are():
    model = Model(nn.Linear(1, 1), likelihoods.Gaussian(scale=1.0))
    loader = sampled(lambda d: WeightedRandomSampler(torch.ones(len(d)), 20))
    with pytest.raises(ValueError, match=r"pass Data\(loader, num_data=\.\.\.\)"):
        MAP(num_epochs=1).fit(model, loader, seed=0)
    MAP(num_epochs=1).fit(model, Data(loader, num_data=200), seed=0)


# -- mixtures ----------------------------------------------------------------------------------------------------------


def test_members_of_a_mixture_must_mean_the_same_by_their_parameters():
    torch.manual_seed(0)
    x = torch.randn(100, 1)
    y = 100 + 10 * x[:, 0]

    def fit(rows, likelihood, **options):
        net = nn.Linear(1, likelihood.num_outputs)
        return MAP(num_epochs=2).fit(Model(net, likelihood, **options), (x[rows], y[rows]), seed=0)

    scaled = {"inputs": Standardize(), "targets": Standardize()}
    low, high = (fit(rows, likelihoods.Gaussian(), **scaled) for rows in (x[:, 0] < 0, x[:, 0] >= 0))
    plain = fit(slice(None), likelihoods.Gaussian())
    both = [fit(slice(None), kind()) for kind in (likelihoods.HeteroscedasticGaussian, likelihoods.Laplace)]
    for one, other, message in (
        (low, high, "share the standardisation of `inputs`"),
        (low, plain, "share the standardisation of `inputs`"),
        (*both, "one kind of likelihood; got HeteroscedasticGaussian and Laplace"),
    ):
        with pytest.raises(ValueError, match=message):
            posteriors.MixturePosterior([one, other], one.info)
        with pytest.raises(ValueError, match=message):
            posteriors.DrawPosterior.of_points([one, other], one.info)
    with pytest.raises(TypeError, match="members must be posteriors; got Model"):
        posteriors.MixturePosterior([plain.model], plain.info)
    assert len(posteriors.MixturePosterior([low, low], low.info).members) == 2


def test_a_point_and_a_gaussian_weigh_alike_in_a_mixture():
    torch.manual_seed(0)
    x = torch.randn(50, 1)
    model = Model(nn.Linear(1, 1), likelihoods.Gaussian(scale=0.1))
    point = MAP(num_epochs=1).fit(model, (x, x[:, 0]), seed=0)
    spread = MeanField(num_epochs=1, initial_scale=1e-3).fit(model, (x, x[:, 0] + 5), seed=0)
    mixture = posteriors.MixturePosterior([point, spread], point.info)
    alone = [each.predict(x, seed=0).mean for each in (point, spread)]
    torch.testing.assert_close(mixture.predict(x, seed=0).mean, sum(alone) / 2, rtol=1e-3, atol=1e-3)


# -- precision, priors, callbacks --------------------------------------------------------------------------------------

HALF = {
    "MeanField": MeanField(num_epochs=1),
    "LowRankGaussian": LowRankGaussian(2, num_epochs=1),
    "FullGaussian": FullGaussian(num_epochs=1),
    "PyroGuide": PyroGuide(num_epochs=1),
    "SWAG": SWAG(num_epochs=3, learning_rate=1e-3),
}


@pytest.mark.parametrize("name", list(HALF))
@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_variances_are_kept_in_enough_precision_or_refused(name, half):
    x, y = torch.randn(40, 3).to(half), torch.randn(40).to(half)
    model = Model(nn.Linear(3, 1).to(half), likelihoods.Gaussian())
    start = "current" if name == "SWAG" else None
    if half == torch.bfloat16 and name in {"MeanField", "SWAG"}:
        assert HALF[name].fit(model, (x, y), start=start, seed=0).variances["net.weight"].min() > 0
        return
    with pytest.raises(NotSupportedError, match=f"{name} needs all weights in float32"):
        HALF[name].fit(model, (x, y), start=start, seed=0)


@pytest.mark.parametrize(
    "method", [MAP(num_epochs=1), MeanField(num_epochs=1), Laplace()], ids=["map", "mean", "laplace"]
)
def test_a_prior_over_some_weights_says_which_it_leaves_out(method):
    torch.manual_seed(0)
    prior = priors.GaussianPrior({"net.weight": torch.zeros(1, 3)}, torch.ones(3))
    model = Model(nn.Linear(3, 1), likelihoods.Gaussian(), prior)
    with pytest.raises(ValueError, match=r"no density over \['net.bias'\]; it covers \['net.weight'\]"):
        method.fit(model, (torch.randn(9, 3), torch.randn(9)), start="current", seed=0)


def test_callbacks_are_checked_before_training():
    with pytest.raises(TypeError, match=r"`callbacks` must be a list of callables; got \[3\]"):
        MeanField(callbacks=[3])


# -- dropout -----------------------------------------------------------------------------------------------------------


class Trimmed(nn.Module):
    """Positions up to the longest row of a batch."""

    def __init__(self):
        super().__init__()
        self.first, self.last, self.drop = nn.Linear(2, 6), nn.Linear(6, 1), nn.Dropout(0.5)

    def forward(self, x, lengths):
        longest = int(lengths.max())
        there = (torch.arange(longest) < lengths.unsqueeze(1)).unsqueeze(-1)
        self.hidden = self.drop(self.first(x[:, :longest]).relu() + 1)
        return self.last((self.hidden * there).sum(1) / lengths.unsqueeze(1))


def trimmed_rows(rows=40):
    generator = torch.Generator().manual_seed(3)
    lengths = torch.randint(1, 7, (rows,), generator=generator)
    lengths[:8] = 1
    return torch.randn(rows, 6, 2, generator=generator), lengths


TRAINED = {
    "MAP": MAP(num_epochs=2, batch_size=8),
    "SWAG": SWAG(num_epochs=3, batch_size=8, learning_rate=1e-3),
    "IVON": inference.IVON(num_epochs=2, batch_size=8),
    "MeanField": MeanField(num_epochs=2, batch_size=8),
    "LowRankGaussian": LowRankGaussian(2, num_epochs=2, batch_size=8),
}


@pytest.mark.parametrize("name", list(TRAINED))
def test_networks_whose_dropouts_depend_on_the_lengths_of_rows_train(name):
    torch.manual_seed(0)
    model = Model(Trimmed(), likelihoods.Gaussian(scale=1.0))
    x, lengths = trimmed_rows()
    start = "current" if name == "SWAG" else None
    one, same = (TRAINED[name].fit(model, ((x, lengths), x[:, 0, 0]), start=start, seed=0) for _ in range(2))
    predicted = one.predict((x, lengths), seed=0).mean
    assert torch.equal(predicted, same.predict((x, lengths), seed=0).mean)


def test_positions_of_later_batches_have_masks_of_their_own():
    torch.manual_seed(0)
    net = Trimmed()
    nn.init.zeros_(net.first.weight)
    nn.init.zeros_(net.first.bias)
    model = Model(net, likelihoods.Gaussian(scale=1.0))
    x, lengths = trimmed_rows()
    seen = []

    def look(module, args, output):
        if module.training:
            seen.append(module.hidden.detach() > 0)

    net.register_forward_hook(look)
    MAP(num_epochs=20, batch_size=8, learning_rate=1e-9).fit(model, ((x, lengths), x[:, 0, 0]), seed=0)
    long = [kept for kept in seen if kept.shape[1] > 1 and not kept.all()]  # the first looks drop nothing
    equal = torch.cat([(kept[:, :1] == kept[:, 1:]).flatten() for kept in long]).double().mean()
    assert 0.45 < equal < 0.55


@pytest.mark.parametrize("order", ["short first", "long first"])
def test_masks_for_all_rows_are_not_drawn_where_rows_have_other_places(order):
    torch.manual_seed(0)
    x, lengths = trimmed_rows()
    index = lengths.argsort(descending=order == "long first")
    inputs = x[index], lengths[index]
    model = Model(Trimmed(), likelihoods.Gaussian(scale=1.0))
    fitted = inference.MCDropout().fit(model, (inputs, x[:, 0, 0]), start="current", seed=0)
    if order == "short first":
        with pytest.raises(NotSupportedError, match="depends on the values of the inputs"):
            fitted.outputs(inputs, num_draws=5, seed=0)
    else:
        spread = fitted.outputs(inputs, num_draws=4000, seed=0).std(0)
        net = fitted.model.net
        net.drop.train()
        with torch.no_grad():
            expected = torch.stack([net(*inputs) for _ in range(4000)]).std(0)
        torch.testing.assert_close(spread, expected, rtol=0.1, atol=0.01)


class TimeMajor(nn.Module):
    """Positions first, and both in one axis where dropout acts."""

    def __init__(self):
        super().__init__()
        self.first, self.last, self.drop = nn.Linear(2, 6), nn.Linear(6, 1), nn.Dropout(0.5)

    def forward(self, x):
        by_time = x.transpose(0, 1)
        hidden = self.drop(self.first(by_time.reshape(-1, 2)).relu() + 1)
        return self.last(hidden).reshape(by_time.shape[:2]).mean(0).unsqueeze(-1)


class RowMajor(TimeMajor):
    """Rows first: their positions are neighbours."""

    def forward(self, x):
        hidden = self.drop(self.first(x.reshape(-1, 2)).relu() + 1)
        return self.last(hidden).reshape(x.shape[:2]).mean(1).unsqueeze(-1)


def test_one_mask_for_all_rows_needs_the_entries_of_a_row_side_by_side():
    torch.manual_seed(0)
    x, y = torch.randn(12, 4, 2), torch.randn(12)
    fitted = inference.MCDropout().fit(Model(RowMajor(), likelihoods.Gaussian(scale=1.0)), (x, y), start="current")
    together, alone = (fitted.outputs(rows, num_draws=50, seed=0) for rows in (x, x[:3]))
    torch.testing.assert_close(together[:, :3], alone)
    method = inference.MCDropout()
    with pytest.raises(NotSupportedError, match="entries of a row are not neighbours"):
        method.fit(Model(TimeMajor(), likelihoods.Gaussian(scale=1.0)), (x, y), start="current").outputs(x)


def test_members_of_networks_that_look_at_their_inputs_train_one_by_one():
    torch.manual_seed(0)
    x, lengths = trimmed_rows()
    fitted = inference.Ensemble(of=MAP(num_epochs=1), num_members=2).fit(
        Model(Trimmed(), likelihoods.Gaussian(scale=1.0)), ((x, lengths), x[:, 0, 0]), seed=0
    )
    assert not fitted.info.stacked
    assert "cannot be mapped over members" in fitted.info.reason


# -- networks that keep or change what they should not -----------------------------------------------------------------


class Merged(nn.Module):
    """Keeps the product of two weights while it is not trained."""

    def __init__(self):
        super().__init__()
        self.layer, self.scale, self.kept = nn.Linear(3, 1), nn.Parameter(torch.ones(1)), None

    def forward(self, x):
        if self.kept is None or self.training:
            self.kept = self.layer.weight * self.scale
        return x @ self.kept.T + self.layer.bias


class Writing(nn.Module):
    """Changes its inputs."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x):
        x -= 1
        return self.layer(x)


@pytest.mark.parametrize(
    "method", [MAP(num_epochs=1), MeanField(num_epochs=1), Laplace()], ids=lambda m: type(m).__name__
)
def test_what_is_kept_of_weights_and_inputs_that_change_are_refused(method):
    torch.manual_seed(0)
    x, y = torch.randn(20, 3), torch.randn(20)
    before = x.clone()
    with pytest.raises(NotSupportedError, match="keeps what it computed of its weights"):
        method.fit(Model(Merged(), likelihoods.Gaussian(scale=1.0)), (x, y), start="current", seed=0)
    with pytest.raises(NotSupportedError, match="writes to its inputs"):
        method.fit(Model(Writing(), likelihoods.Gaussian(scale=1.0)), (x, y), start="current", seed=0)
    assert torch.equal(x, before)


class TiedLater(nn.Module):
    """Uses a layer's weight a second time for some batches."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3, bias=False)

    def forward(self, x):
        hidden = self.layer(x)
        return (hidden @ self.layer.weight.T if x[0, 0] > 0 else hidden)[:, :1]


def test_a_weight_that_is_used_by_itself_in_later_batches_is_drawn_from_then_on():
    torch.manual_seed(0)
    x = torch.randn(64, 3)
    x = x[x[:, 0].argsort()]
    loader = DataLoader(TensorDataset(x, x[:, 1]), batch_size=16)
    fitted = MeanField(num_epochs=1).fit(Model(TiedLater(), likelihoods.Gaussian(scale=1.0)), loader, seed=0)
    assert "WeightDraw for `net.layer.weight`" in fitted.info.reason


class ByRow(nn.Module):
    """A last layer for each kind of row."""

    def __init__(self):
        super().__init__()
        self.body, self.heads = nn.Linear(3, 8), nn.ModuleList([nn.Linear(8, 1) for _ in range(2)])

    def forward(self, x):
        hidden, kind = self.body(x).tanh(), (x[:, 0] > 0).long()
        given = x.new_zeros(len(x), 1)
        for k, head in enumerate(self.heads):
            some = (kind == k).nonzero()[:, 0]
            if len(some):
                given = given.index_add(0, some, head(hidden[some]))
        return given


@pytest.mark.parametrize("method", [MeanField(subset=inference.LastLayer()), Laplace(subset=inference.LastLayer())])
def test_a_last_layer_that_depends_on_the_row_is_to_be_named(method):
    torch.manual_seed(0)
    x = torch.randn(40, 3)
    with pytest.raises(ValueError, match="which layer is called last depends on the rows"):
        method.fit(Model(ByRow(), likelihoods.Gaussian(scale=1.0)), (x, x[:, 0]), start="current", seed=0)
