"""Mean field: its known optimum, its objective term by term, and the estimators against each other."""

import copy
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from conjugate import well_conditioned
from torch import nn
from torch.distributions import Normal, kl_divergence

from credibly import Data, Model, inference, likelihoods, priors
from credibly.core.data import as_source
from credibly.core.errors import NotFiniteError, NotSupportedError
from credibly.core.inputs import num_rows
from credibly.inference import Ensemble, Flipout, LocalReparameterization, MeanField, WeightDraw
from credibly.inference.problem import prepare
from credibly.training import EarlyStopping, FocalLoss, linear
from credibly.training.objective import LogJoint
from credibly.training.variational import NoisyLayers, Variational
from credibly.training.variational_approximations import Independent
from credibly.training.variational_layers import flipped_linear, local_linear
from credibly.training.variational_priors import FlatWeights, prior_term
from credibly.training.variational_signs import flip_signs, sign_bits
from credibly.training.variational_uses import find_uses

ESTIMATORS = {"local": LocalReparameterization(), "flipout": Flipout(), "weight_draw": WeightDraw()}


def trainee(model, rows, estimator, *, scale=0.3, num_data=None, temperature=1.0, seed=0, names=None):
    """What `MeanField.fit` trains, before its first step."""
    own = copy.deepcopy(model)
    params = {n: p.detach() for n, p in own.core.named_parameters() if n.startswith("net.")}
    params = {name: value for name, value in params.items() if names is None or name in names}
    layout = FlatWeights(params)
    plan = estimator.plan(find_uses(own.core, rows.inputs, params))
    q = Independent(layout.flat(params), scale)
    noise = NoisyLayers(q, prior_term(own.prior, params, layout), layout, temperature, plan=plan)
    objective = LogJoint.of(own, num_data or rows.num_rows, with_prior=False, loss=None, class_weights=None)
    return Variational(own, noise, objective, None, None, seed)


def step(ours, index=0, rows=1):
    return ours.noise.step(ours._steps.generator(index), ours._points, rows)


def outputs_of(ours, inputs, index):
    drawn = step(ours, index, num_rows(inputs))
    with torch.no_grad(), drawn.context:
        return torch.func.functional_call(ours.core, drawn.params, (inputs, "outputs"))


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_estimator_reaches_the_known_optimum(name):
    """The posterior's means and the inverse diagonal of its precision.

    The 16 outputs are independent repetitions: each weight's average error must lie within 5 of its standard errors
    (failure rate below 1 % for t with 15 degrees of freedom and 8 averages), and no error may be large.
    """
    exact = well_conditioned(16)
    method = MeanField(estimator=ESTIMATORS[name], num_epochs=800, batch_size=None, learning_rate=0.05, schedule=linear)
    model = exact.model()
    nn.init.zeros_(model.net.weight)
    nn.init.zeros_(model.net.bias)
    posterior = method.fit(model, exact.data, seed=0)
    means = torch.cat([posterior.mean["net.weight"], posterior.mean["net.bias"].unsqueeze(1)], 1)
    variances = torch.cat([posterior.variances["net.weight"], posterior.variances["net.bias"].unsqueeze(1)], 1)
    expected = torch.stack([exact.mean(d) for d in range(16)])
    precisions = torch.stack([exact.precision(d).diagonal() for d in range(16)])
    for errors in ((means - expected) * precisions.sqrt(), (variances * precisions).log()):
        assert (errors.mean(0).abs() < 5 * errors.std(0) / 4).all()
        assert errors.square().mean().sqrt() < 0.2
    marginal = torch.linalg.inv(exact.precision(0)).diagonal()
    assert (variances[0] < 0.7 * marginal).any(), "correlated weights: mean field is narrower than the marginals"


PRIORS = {
    "normal": lambda params: priors.Normal(0.7),
    "fan_in": lambda params: priors.Normal(1.2, fan_in_scaled=True),
    "by_name": lambda params: priors.ByName({"*.bias": priors.Normal(3.0), "*": priors.Normal(0.2)}),
    "independent": lambda params: priors.GaussianPrior(
        {n: p + 0.1 for n, p in params.items()},
        torch.linspace(0.5, 2, sum(p.numel() for p in params.values())).double(),
    ),
}


def mlp(dtype=torch.float64):
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).to(dtype)


def few_rows(rows=5, dtype=torch.float64):
    generator = torch.Generator().manual_seed(4)
    return Data(
        torch.randn(rows, 2, generator=generator, dtype=dtype), torch.randn(rows, generator=generator, dtype=dtype)
    )


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("prior", PRIORS)
def test_the_divergence_and_its_gradient_are_those_of_torch(prior, name):
    net = mlp()
    params = {f"net.{n}": p.detach() for n, p in net.named_parameters()}
    model = Model(net, likelihoods.Gaussian(scale=1.0), PRIORS[prior](params))
    ours = trainee(model, few_rows(), ESTIMATORS[name])
    q = ours.noise.q
    with torch.no_grad():
        q.log_scale.add_(torch.linspace(-1, 1, len(q.log_scale)))
    value = step(ours).value
    scale = q.log_scale.exp()
    if isinstance(model.prior, priors.GaussianPrior):
        location, spread = model.prior.location, model.prior.precision.diagonal() ** -0.5
    else:
        found = model.prior.distributions(params)
        location = torch.cat([found[n].mean.flatten() for n in params])
        spread = torch.cat([found[n].stddev.flatten() for n in params])
    divergence = kl_divergence(Normal(q.mean, scale), Normal(location, spread)).sum()
    torch.testing.assert_close(value, -divergence, rtol=1e-10, atol=1e-10)
    for a, b in zip(
        torch.autograd.grad(value, [q.mean, q.log_scale]),
        torch.autograd.grad(-divergence, [q.mean, q.log_scale]),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


def test_weights_without_a_proper_prior_add_their_entropy():
    net = mlp()
    ours = trainee(
        Model(net, likelihoods.Gaussian(scale=1.0), priors.WeightsOnly(priors.Normal(2.0))), few_rows(), WeightDraw()
    )
    q = ours.noise.q
    with torch.no_grad():
        found = ours.noise.layout.named(q.mean)
        expected = torch.zeros((), dtype=torch.float64)
        for value in found.values():
            own = Normal(value, 0.3)
            if value.dim() > 1:
                expected = expected - kl_divergence(own, Normal(torch.zeros_like(value), 2.0)).sum()
            else:
                expected = expected + own.entropy().sum()
    torch.testing.assert_close(step(ours).value.detach(), expected)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_other_priors_count_by_a_draw_that_is_right_on_average(name):
    """Against torch's closed form for a double-exponential prior, within 5 standard errors."""
    ours = trainee(Model(mlp(), likelihoods.Gaussian(scale=1.0), priors.Laplace(0.4)), few_rows(), ESTIMATORS[name])
    with torch.no_grad():
        values = torch.stack([step(ours, index).value for index in range(800)])
        own = Normal(ours.noise.q.mean, 0.3)
        expected = -kl_divergence(own, torch.distributions.Laplace(torch.zeros_like(own.mean), 0.4)).sum()
    assert values.std() > 0
    assert abs(values.mean() - expected) < 5 * values.std() / math.sqrt(len(values))


def test_the_divergence_adds_over_all_weights_and_nested_modules():
    """B10: two layers of 2 and 100 weights, q = N(1, 1), prior N(0, 1): 102 / 2."""
    net = nn.Sequential(nn.Linear(2, 1, bias=False), nn.Sequential(nn.Linear(1, 100, bias=False))).double()
    with torch.no_grad():
        for weight in net.parameters():
            weight.fill_(1.0)
    model = Model(net, likelihoods.Gaussian(100, scale=1.0))
    rows = Data(torch.randn(4, 2).double(), torch.randn(4, 100).double())
    for estimator in ESTIMATORS.values():
        value = step(trainee(model, rows, estimator, scale=1.0)).value.detach()
        assert abs(float(value) + 51.0) < 1e-10


def test_every_batch_gives_the_bound_of_the_full_data():
    """B13: N = 23 in batches of 10, 10 and 3, log likelihood -1 per row, divergence 5: -28 from every batch."""
    net = nn.Linear(10, 1, bias=False).double()
    nn.init.ones_(net.weight)
    scale = math.exp(1 - 0.5 * math.log(2 * math.pi))  # the log density of a target at the mean is -1
    model = Model(net, likelihoods.Gaussian(scale=scale))
    x, y = torch.zeros(23, 10).double(), torch.zeros(23).double()
    for estimator in ESTIMATORS.values():
        ours = trainee(model, Data(x, y.unsqueeze(1)), estimator, scale=1.0, num_data=23)
        for index, batch in enumerate(as_source((x, y.unsqueeze(1)), torch.float64, torch.device("cpu")).batches(10)):
            assert abs(23 * float(ours.objectives(batch, index).detach()) + 28) < 1e-6
    method = MeanField(initial_scale=1.0, num_epochs=2, batch_size=10, learning_rate=1e-12)
    loss = method.fit(model, (x, y), validation=(x, y), seed=0).info.history.loss
    torch.testing.assert_close(torch.tensor(loss), torch.tensor([28 / 23, 28 / 23]), rtol=1e-6, atol=0)


class Sequences(nn.Module):
    """A layer over the positions of a row, and a convolution over them."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 2)
        self.conv = nn.Conv1d(2, 2, 2, groups=1)

    def forward(self, x):
        return self.conv(self.first(x).mT).flatten(1)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_moments_of_a_layers_outputs(name):
    """Mean and covariance over features and rows, of 1000 draws, within 5 standard errors (some 60 numbers)."""
    net = nn.Linear(3, 2).double()
    model = Model(net, likelihoods.Gaussian(2, scale=1.0))
    rows = Data(torch.tensor([[1.0, -2.0, 0.5], [0.3, 1.0, 1.0]]).double(), torch.zeros(2, 2).double())
    ours = trainee(model, rows, ESTIMATORS[name], scale=0.4)
    draws = torch.stack([outputs_of(ours, rows.inputs, index) for index in range(1000)]).flatten(1)
    mean = net(rows.inputs).detach().flatten()
    design = torch.cat([rows.inputs, torch.ones(2, 1).double()], 1)
    between = 0.16 * design @ design.T  # of one output, over rows
    if name != "weight_draw":
        between = between.diagonal().diag()
    covariance = torch.kron(between, torch.eye(2).double())
    assert_moments(draws, mean, covariance)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_moments_over_the_positions_of_a_row(name):
    """All estimators give the covariance over positions that one draw of the weights gives, to 5 standard errors."""
    net = nn.Sequential(nn.Linear(3, 2), nn.Flatten()).double()
    x = torch.tensor([[[1.0, -2.0, 0.5], [-1.0, 1.0, 1.0]], [[0.2, 0.1, 0.0], [0.0, 2.0, 1.0]]]).double()
    ours = trainee(
        Model(net, likelihoods.Gaussian(4, scale=1.0)), Data(x, torch.zeros(2, 4)), ESTIMATORS[name], scale=0.4
    )
    draws = torch.stack([outputs_of(ours, x, index) for index in range(1000)])[:, 0]
    design = torch.cat([x[0], torch.ones(2, 1).double()], 1)
    assert_moments(draws, net(x)[0].detach(), torch.kron(0.16 * design @ design.T, torch.eye(2).double()))


@pytest.mark.parametrize("make", [lambda: nn.Conv2d(2, 4, 2, groups=2, padding=1), lambda: nn.ConvTranspose2d(2, 3, 2)])
def test_moments_of_convolutions(make):
    """Flipout, and what local reparameterisation leaves to it, against the variances of one draw: 600 draws."""
    torch.manual_seed(5)
    net, x = nn.Sequential(make(), nn.Flatten()).double(), torch.randn(3, 2, 3, 3).double()
    width = net(x).shape[1]
    model = Model(net, likelihoods.Gaussian(width, scale=1.0))
    variances = copy.deepcopy(net)
    with torch.no_grad():
        for weight in variances.parameters():
            weight.fill_(0.09)
    for estimator in (LocalReparameterization(), Flipout()):
        ours = trainee(model, Data(x, torch.zeros(3, width)), estimator, scale=0.3)
        draws = torch.stack([outputs_of(ours, x, index) for index in range(600)])
        error = (draws.mean(0) - net(x)).abs() / (draws.std(0) / math.sqrt(600))
        assert error.max() < 5
        ratio = draws.var(0) / variances(x.square()).detach()
        assert (ratio - 1).abs().max() < 5 * math.sqrt(2 / 600)
        rows = torch.corrcoef(draws[:, :, 0].T) - torch.eye(3).double()
        assert rows.abs().max() < 5 / math.sqrt(600)


def assert_moments(draws, mean, covariance):
    """Draws (n, k) against the moments of a Gaussian."""
    num = len(draws)
    variances = covariance.diagonal()
    assert ((draws.mean(0) - mean).abs() < 5 * (variances / num).sqrt()).all()
    errors = torch.sqrt((variances[:, None] * variances + covariance.square()) / num)
    assert ((torch.cov(draws.T) - covariance).abs() < 5 * errors).all()


def test_gradients_agree_on_average():
    """Flipout and local reparameterisation against one draw of the weights: differences within 5 standard errors."""
    model = Model(mlp(), likelihoods.Gaussian(scale=0.5))
    rows = few_rows()
    rows = replace(rows, targets=rows.targets.unsqueeze(1))
    found = {}
    for name, estimator in ESTIMATORS.items():
        ours = trainee(model, rows, estimator, scale=0.4)
        gradients = []
        for index in range(300):
            value = ours.objectives(rows, index)
            gradients.append(torch.cat(torch.autograd.grad(value, ours.leaves)))
        found[name] = torch.stack(gradients)
    reference = found.pop("weight_draw")
    for gradients in found.values():
        errors = ((gradients.var(0) + reference.var(0)) / 300).sqrt()
        assert ((gradients.mean(0) - reference.mean(0)).abs() < 5 * errors).all()
        assert gradients.var(0).sum() < reference.var(0).sum(), "noise of its own in every row averages out"


class Everything(nn.Module):
    """Layers that act once on every row, and weights that do not."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.rnn = nn.GRU(4, 4, batch_first=True)
        self.norm = nn.LayerNorm(4)
        self.positions = nn.Linear(4, 4)
        self.tied = nn.Linear(4, 4, bias=False)
        self.read = nn.Linear(4, 3)

    def forward(self, tokens):
        h = self.positions(self.norm(self.rnn(self.embed(tokens))[0])).mean(1)
        return self.read(self.tied(self.tied(h).relu()))


def test_layers_that_an_estimator_cannot_treat_are_left_to_another_and_named():
    tokens = torch.arange(24).reshape(6, 4) % 7
    model = Model(Everything(), likelihoods.Categorical(3))
    posterior = MeanField(num_epochs=1).fit(model, (tokens, tokens[:, 0] % 3), seed=0)
    reason = posterior.info.reason
    flipped, *drawn = reason.split("; ")
    assert flipped == "Flipout for `net.positions.weight`, shared by the positions of a row"
    drawn = " ".join(drawn)
    for name in ("net.embed.weight", "net.rnn.weight_hh_l0", "net.norm.weight", "net.tied.weight"):
        assert f"`{name}`" in drawn
    assert "`net.tied.weight`: it is used in 2 places" in drawn
    assert "net.read" not in reason
    assert posterior.covariance.size == sum(p.numel() for p in model.net.parameters())
    plain = MeanField(estimator=WeightDraw(), num_epochs=1).fit(model, (tokens, tokens[:, 0] % 3), seed=0)
    assert plain.info.reason == ""


class Graph(nn.Module):
    """Rows are nodes by index: the layer sees all nodes, not one entry per row."""

    def __init__(self):
        super().__init__()
        self.register_buffer("features", torch.eye(5))
        self.layer = nn.Linear(5, 2)

    def forward(self, nodes):
        return self.layer(self.features).cumsum(0)[nodes]


def test_a_layer_that_does_not_see_one_entry_per_row_is_drawn():
    """Also where as many rows come as it sees entries."""
    model = Model(Graph(), likelihoods.Categorical(2))
    for rows in (2, 3, 5):
        posterior = MeanField(num_epochs=1).fit(model, (torch.arange(rows), torch.zeros(rows).long()), seed=0)
        assert "one entry per row" in posterior.info.reason


def test_a_start_is_kept_as_the_mean():
    x, y = few_rows(20, torch.float32).inputs, few_rows(20, torch.float32).targets
    model = Model(mlp(torch.float32), likelihoods.Gaussian())
    trained = inference.MAP(num_epochs=20, learning_rate=0.05).fit(model, (x, y), seed=0)
    method = MeanField(num_epochs=1, learning_rate=1e-30)
    for start, net in ((trained, trained.model.net), ("current", model.net), (None, model.net)):
        posterior = method.fit(model, (x, y), start=start, seed=0)
        for a, b in zip(posterior.model.net.parameters(), net.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-7)
    assert torch.allclose(posterior.variances["net.0.weight"], torch.tensor(0.03**2))


def test_weights_that_are_not_random_and_the_noise_are_trained_as_points():
    x, y = few_rows(40, torch.float32).inputs, few_rows(40, torch.float32).targets
    model = Model(mlp(torch.float32), likelihoods.Gaussian())
    method = MeanField(subset=inference.LastLayer(), num_epochs=20, learning_rate=0.05)
    posterior = method.fit(model, (x, 0.1 * y), seed=0)
    assert posterior.names == ("net.2.weight", "net.2.bias")
    assert set(posterior.fixed) == {"net.0.weight", "net.0.bias", "likelihood.log_scale"}
    assert not torch.equal(posterior.fixed["net.0.weight"], model.net[0].weight)
    assert posterior.fixed["likelihood.log_scale"] < -1
    assert posterior.info.reason == ""
    rows = few_rows()
    ours = trainee(Model(mlp(), likelihoods.Gaussian(scale=1.0)), rows, WeightDraw(), names=posterior.names)
    whole = trainee(Model(mlp(), likelihoods.Gaussian(scale=1.0)), rows, WeightDraw())
    first = dict(ours._points)
    spread = sum(
        -kl_divergence(Normal(value, 0.3), Normal(torch.zeros_like(value), 1.0)).sum() for value in first.values()
    )
    expected = step(whole).value - spread + priors.Normal().log_prob(first)
    torch.testing.assert_close(step(ours).value, expected)


def test_temperature_weighs_the_entropy_and_is_recorded():
    rows = few_rows()
    model = Model(mlp(), likelihoods.Gaussian(scale=1.0))
    for estimator in ESTIMATORS.values():
        values = [step(trainee(model, rows, estimator, temperature=t)).value for t in (1.0, 1.5)]
        entropy = Normal(torch.zeros(13).double(), 0.3).entropy().sum()
        torch.testing.assert_close(values[1] - values[0], 0.5 * entropy)
    posterior = MeanField(temperature=0.5, num_epochs=1).fit(model, (rows.inputs, rows.targets), seed=0)
    assert posterior.info.temperature == 0.5


def test_what_has_no_likelihood_or_is_no_option_is_refused():
    with pytest.raises(NotSupportedError, match=r"`loss=FocalLoss.*posterior"):
        MeanField(loss=FocalLoss())
    with pytest.raises(NotSupportedError, match="LargestVariance"):
        MeanField(subset=inference.LargestVariance(3))
    with pytest.raises(TypeError, match="estimator"):
        MeanField(estimator="flipout")
    with pytest.raises(ValueError, match="temperature"):
        MeanField(temperature=0.0)
    with pytest.raises(ValueError, match="initial_scale"):
        MeanField(initial_scale=-1.0)
    head = Model(nn.Linear(2, 3), likelihoods.QuantileHead([0.1, 0.5, 0.9]))
    with pytest.raises(NotSupportedError, match="QuantileHead is a training head without a density"):
        MeanField(num_epochs=1).fit(head, (torch.randn(5, 2), torch.randn(5)))


def test_targets_of_shape_n_and_n_by_1_train_alike():
    """B14 for variational methods."""
    x, y = few_rows(20, torch.float32).inputs, few_rows(20, torch.float32).targets
    model = Model(mlp(torch.float32), likelihoods.Gaussian())
    flat, column = (MeanField(num_epochs=2).fit(model, (x, t), seed=0) for t in (y, y.unsqueeze(1)))
    assert torch.equal(flat.covariance.values, column.covariance.values)


def test_frozen_weights_are_not_random():
    """B16 for variational methods: a frozen layer in any place."""
    for index in (0, 2):
        net = mlp(torch.float32)
        net[index].requires_grad_(requires_grad=False)
        model = Model(net, likelihoods.Gaussian(scale=1.0))
        rows = few_rows(8, torch.float32)
        posterior = MeanField(num_epochs=2).fit(model, (rows.inputs, rows.targets), seed=0)
        assert set(posterior.names) == {f"net.{2 - index}.weight", f"net.{2 - index}.bias"}
        assert torch.equal(posterior.fixed[f"net.{index}.weight"], net[index].weight)


def test_the_validation_score_is_that_of_a_mixture_of_draws_and_stops_early():
    rows = few_rows(30, torch.float32)
    model = Model(mlp(torch.float32), likelihoods.Gaussian(scale=1.0))
    data = (rows.inputs, rows.targets)
    still = MeanField(num_epochs=1, learning_rate=1e-30, initial_scale=1e-7).fit(model, data, validation=data, seed=0)
    expected = model.log_likelihood({}, {}, data).mean().item()
    assert abs(still.info.history.validation_log_prob[0] - expected) < 1e-4
    wide = MeanField(num_epochs=1, learning_rate=1e-30, initial_scale=1.0).fit(model, data, validation=data, seed=0)
    draws = wide.predict(rows.inputs, num_draws=400, seed=1)
    assert abs(wide.info.history.validation_log_prob[0] - draws.log_prob(rows.targets).mean().item()) < 0.5
    method = MeanField(num_epochs=50, learning_rate=0.5, early_stopping=EarlyStopping(3))
    posterior = method.fit(model, data, validation=data, seed=0)
    history = posterior.info.history
    assert history.stopped_early
    assert history.best_epoch == max(range(len(history.loss)), key=history.validation_log_prob.__getitem__)


def test_a_loss_that_is_not_finite_keeps_the_best_state():
    rows = few_rows(24, torch.float32)
    model = Model(mlp(torch.float32), likelihoods.Gaussian(scale=1.0))
    method = MeanField(num_epochs=50, batch_size=8, learning_rate=1e25, optimizer=torch.optim.SGD)
    with pytest.raises(NotFiniteError, match=r"epoch \d+") as caught:
        method.fit(model, (rows.inputs, rows.targets), seed=0)
    kept = caught.value.posterior
    assert kept.predict(rows.inputs, seed=0).mean.isfinite().all()
    assert kept.variances["net.0.weight"].isfinite().all()


def test_rows_of_zeros_have_finite_gradients():
    """The variance of a pre-activation may be 0, where a root has no slope."""
    net = nn.Linear(2, 1, bias=False)
    model = Model(net, likelihoods.Gaussian(scale=1.0))
    rows = Data(torch.zeros(3, 2), torch.ones(3, 1))
    for estimator in ESTIMATORS.values():
        ours = trainee(model, rows, estimator)
        gradients = torch.autograd.grad(ours.objectives(rows, 0), ours.leaves)
        assert all(each.isfinite().all() for each in gradients)


def test_layers_in_one_pass_equal_the_formulas(dtype):
    """Values and gradients of both layers against autograd through the plain formulas, with and without biases."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=dtype).requires_grad_()

    before, after = sign_bits(24, generator).view(6, 4), sign_bits(18, generator).view(6, 3)
    noise = normal(6, 3).detach()
    for with_bias in (True, False):
        x, m, d = normal(6, 4), normal(3, 4), normal(3, 4)
        b, f = (normal(3), normal(3)) if with_bias else (None, None)
        variance, of_bias = (None if each is None else each.detach().square().requires_grad_() for each in (d, f))
        pairs = [
            (
                local_linear(x, m, b, variance, of_bias, noise),
                F.linear(x, m, b) + F.linear(x.square(), variance, of_bias).sqrt() * noise,
                [x, m, variance] + [b, of_bias] * with_bias,
            )
        ]
        if dtype == torch.float32:
            turned = flip_signs(F.linear(flip_signs(x, before), d, f), after)
            result = flipped_linear(x, m, b, d, f, before, after)
            pairs.append((result, F.linear(x, m, b) + turned, [x, m, d] + [b, f] * with_bias))
        for ours, formula, tensors in pairs:
            torch.testing.assert_close(ours, formula)
            weights = torch.randn(6, 3, generator=generator, dtype=dtype)
            found, expected = (
                torch.autograd.grad((each * weights).sum(), tensors, retain_graph=True) for each in (ours, formula)
            )
            for one, other in zip(found, expected, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
            found, expected = (gradients_of_gradients(each, weights, x, tensors) for each in (ours, formula))
            for one, other in zip(found, expected, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def gradients_of_gradients(outputs, weights, inputs, tensors):
    """What a network with derivatives in its own outputs trains on."""
    (first,) = torch.autograd.grad((outputs * weights).sum(), inputs, create_graph=True)
    second = torch.autograd.grad(first.square().sum() + (outputs * weights).square().sum(), tensors)
    assert all(bool(each.abs().sum() > 0) for each in second)
    return second


class Slopes(nn.Module):
    """A network and its derivative by its input, as in physics-informed training."""

    def __init__(self, way):
        super().__init__()
        self.way = way
        self.layers = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x):
        if self.way == "func":
            value, pull_back = torch.func.vjp(self.layers, x)
            return torch.cat([value, pull_back(torch.ones_like(value))[0]], -1)
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            value = self.layers(x)
            (slope,) = torch.autograd.grad(value.sum(), x, create_graph=True)
        return torch.cat([value, slope], -1)


class Slope(nn.Module):
    """The derivative of a linear function: the sum of its weights, for every row."""

    def __init__(self, way):
        super().__init__()
        self.way = way
        self.line = nn.Linear(4, 1, bias=False)

    def forward(self, x):
        if self.way == "jvp":
            return torch.func.jvp(self.line, (x,), (torch.ones_like(x),))[1]
        if self.way == "vjp":
            value, pull_back = torch.func.vjp(self.line, x)
            return pull_back(torch.ones_like(value))[0].sum(1, keepdim=True)
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self.line(x).sum(), x, create_graph=True)
        return slope.sum(1, keepdim=True)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # torch's own, in its forward derivatives
@pytest.mark.parametrize("way", ["jvp", "vjp", "autograd"])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_weights_of_a_layer_that_is_differentiated_are_drawn(name, way):
    """A noise of its own for every pre-activation would have another derivative than the weights'."""
    torch.manual_seed(0)
    model = Model(Slope(way).double(), likelihoods.Gaussian(scale=1.0), priors.Normal(1.0))
    x, y = torch.randn(50, 4).double(), torch.full((50,), 2.0).double()
    recipe = MeanField(estimator=ESTIMATORS[name], num_epochs=800, batch_size=None, learning_rate=0.02, schedule=linear)
    posterior = recipe.fit(model, (x, y), seed=0)
    # the precision of a weight given the others: one of the prior, and one of each row
    torch.testing.assert_close(
        posterior.variances["net.line.weight"], torch.full((1, 4), 1 / 51).double(), rtol=0.25, atol=0
    )
    assert ("differentiates" in posterior.info.reason) == (name != "weight_draw")


@pytest.mark.parametrize("way", ["func", "autograd"])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_networks_that_differentiate_themselves_train(name, way):
    torch.manual_seed(0)
    x = torch.linspace(-1, 1, 64).unsqueeze(1)
    y = torch.cat([x.square(), 2 * x], -1)
    model = Model(Slopes(way), likelihoods.Gaussian(2, scale=0.1), prior=priors.Normal(1.0))
    recipe = MeanField(estimator=ESTIMATORS[name], num_epochs=300, learning_rate=1e-2, initial_scale=0.01)
    error = (recipe.fit(model, (x, y), seed=0).predict(x, num_draws=50, seed=0).mean - y).square().mean()
    assert error < 0.01


def test_signs_are_fair_independent_and_exact():
    """40,000 signs by row and column, within 5 standard errors; a flip keeps every other bit."""
    generator = torch.Generator().manual_seed(0)
    signs = torch.where(sign_bits(40_000, generator).view(400, 100) < 0, -1.0, 1.0)
    assert signs.mean(0).abs().max() < 5 / 20
    assert signs.mean(1).abs().max() < 5 / 10
    between = signs @ signs.T / 100 - torch.eye(400)
    assert between.abs().max() < 5.5 / 10, "80,000 pairs of rows"
    values = torch.randn(400, 100).requires_grad_()
    bits = sign_bits(40_000, generator).view(400, 100)
    assert torch.equal(flip_signs(values, bits), values * torch.where(bits < 0, -1, 1))
    assert torch.equal(flip_signs(flip_signs(values, bits), bits), values)
    assert torch.equal(flip_signs(values.double(), bits), flip_signs(values, bits).double())
    assert torch.equal(flip_signs(values.mT, bits.mT), flip_signs(values, bits).mT), "not contiguous"
    (grad,) = torch.autograd.grad(flip_signs(values, bits).sum(), values)
    assert torch.equal(grad, torch.where(bits < 0, -1.0, 1.0))


def test_scales_never_reach_0():
    for dtype in (torch.float32, torch.float64):
        q = Independent(torch.zeros(1, dtype=dtype), 0.1)
        assert abs(float(q.covariance().values) - 0.01) < 1e-6
        with torch.no_grad():
            q.log_scale.fill_(-1e4)
        assert float(q.covariance().values) > 0
        entropy = q.entropy()
        assert entropy.isfinite()
        assert torch.autograd.grad(entropy, q.log_scale)[0].isfinite()


def test_members_of_an_ensemble_train_one_by_one_and_say_so():
    rows = few_rows(16, torch.float32)
    model = Model(mlp(torch.float32), likelihoods.Gaussian(scale=1.0))
    mixture = Ensemble(of=MeanField(num_epochs=2), num_members=3).fit(model, (rows.inputs, rows.targets), seed=0)
    assert mixture.info.stacked is False
    assert mixture.info.reason == "variational members train one by one"
    assert len(mixture.info.histories) == 3
    means = [member.mean["net.0.weight"] for member in mixture.members]
    assert not torch.allclose(means[0], means[1])
    alone = MeanField(num_epochs=2).fit(model, (rows.inputs, rows.targets), seed=0)
    assert alone.info.stacked is None


def test_lower_precision_and_batch_norm_and_dropout_train():
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(64, 3)
    )
    x = torch.randn(20, 1, 4, 4)
    y = (x[:, 0, 0, 0] > 0).long()
    for estimator in ESTIMATORS.values():
        method = MeanField(estimator=estimator, num_epochs=15, learning_rate=0.02, autocast=torch.bfloat16)
        posterior = method.fit(Model(net, likelihoods.Categorical(3)), (x, y), seed=0)
        assert posterior.predict(x, seed=0).log_prob(y).mean() > math.log(1 / 3) + 0.2
        assert not torch.equal(posterior.model.net[1].running_mean, torch.zeros(4))
    assert torch.equal(net[1].running_mean, torch.zeros(4))


def test_a_loader_and_memory_agree_in_what_they_count():
    """N comes from the loader's data set; a stream's is given."""
    rows = few_rows(20, torch.float32)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(rows.inputs, rows.targets), batch_size=20)
    model = Model(mlp(torch.float32), likelihoods.Gaussian(scale=1.0))
    problem = prepare(model, Data(loader, num_data=1000))
    assert problem.source.num_data == 1000
    method = MeanField(num_epochs=1, batch_size=20, learning_rate=1e-30)
    few, many = (method.fit(model, Data(loader, num_data=n), seed=0).info.history.loss[0] for n in (20, 1000))
    divergence = -step(trainee(model, rows, LocalReparameterization(), scale=0.03)).value.item()
    assert abs((few - many) - divergence * (1 / 20 - 1 / 1000)) < 1e-3
