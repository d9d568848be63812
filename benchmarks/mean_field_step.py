"""A training step of mean field on a 64-256-256-10 classifier, over the plain step with the same optimiser."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from itertools import pairwise

import pyro
import pyro.distributions as dist
import torch
from bayesian_torch.layers import LinearFlipout
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from pyro.nn import PyroModule, PyroSample
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.harness import Benchmark, Peer
from benchmarks.loops import categorical_loss, train_by_index
from credibly import Model, inference, likelihoods
from credibly.inference import Estimator, Flipout, LocalReparameterization

NUM_STEPS, LEARNING_RATE, INITIAL_SCALE = 100, 1e-3, 0.03
RAW_SCALE = torch.tensor(INITIAL_SCALE).expm1().log().item()  # softplus of it is the scale

Loss = Callable[[Tensor, Tensor], Tensor]
adam = partial(torch.optim.Adam, lr=LEARNING_RATE, fused=True)


def classifier() -> nn.Sequential:
    """64-256-256-10."""
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))


class BayesianTorch(nn.Module):
    """The same network of bayesian-torch's flipout layers, which return their divergences beside their outputs."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (64, 256, 256, 10)
        self.layers = nn.ModuleList(LinearFlipout(a, b, posterior_rho_init=RAW_SCALE) for a, b in pairwise(sizes))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and the sum of divergences."""
        total = torch.zeros(())
        for index, layer in enumerate(self.layers):
            x, divergence = layer(F.relu(x) if index else x)
            total = total + divergence
        return x, total


class PyroClassifier(PyroModule):  # type: ignore[misc]
    """The same network with standard Normal priors on all weights."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (64, 256, 256, 10)
        for index, (a, b) in enumerate(pairwise(sizes)):
            layer = PyroModule[nn.Linear](a, b)
            layer.weight = PyroSample(dist.Normal(0.0, 1.0).expand([b, a]).to_event(2))
            layer.bias = PyroSample(dist.Normal(0.0, 1.0).expand([b]).to_event(1))
            setattr(self, f"layer{index}", layer)

    def forward(self, x: Tensor, y: Tensor, num_data: int) -> None:
        """The model of a batch."""
        logits = self.layer2(F.relu(self.layer1(F.relu(self.layer0(x)))))
        with pyro.plate("rows", num_data, subsample_size=len(x)):
            pyro.sample("y", dist.Categorical(logits=logits), obs=y)


def parts() -> Iterator[Benchmark]:
    """Both estimators on batches of 512, the default one on batches of 64; times per step."""
    yield _benchmark(512, LocalReparameterization(), at_most=2.9, peers=())
    flipout = Peer(label="bayesian-torch Flipout", run=partial(_bayesian_torch, 512), at_least=1.5)
    yield _benchmark(512, Flipout(), at_most=2.6, peers=(flipout,))
    auto_normal = Peer(label="Pyro AutoNormal", run=partial(_pyro, 64), at_least=3)
    yield _benchmark(64, LocalReparameterization(), at_most=None, peers=(auto_normal,))


def _data(batch_size: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batch_size * NUM_STEPS // 4, 64, generator=generator)
    return x, x[:, :10].argmax(1)


def _benchmark(batch_size: int, estimator: Estimator, *, at_most: float | None, peers: tuple[Peer, ...]) -> Benchmark:
    torch.manual_seed(0)
    x, y = _data(batch_size)
    net = classifier()
    model = Model(net, likelihoods.Categorical(10))
    recipe = inference.MeanField(
        estimator=estimator,
        num_epochs=4,
        batch_size=batch_size,
        learning_rate=LEARNING_RATE,
        initial_scale=INITIAL_SCALE,
    )

    def ours() -> Tensor:
        return recipe.fit(model, (x, y), seed=0).model.net(x)

    def plain() -> Tensor:
        options = {"loss": categorical_loss, "make_optimizer": adam, "num_epochs": 4, "batch_size": batch_size}
        return train_by_index(deepcopy(net), x, y, **options)(x)

    def check(outputs: Tensor, others: dict[str, Tensor]) -> None:
        """All ways learn something in as many steps: the means classify above chance."""
        for label, logits in {"ours": outputs, **others}.items():
            accuracy = (logits.argmax(1) == y).double().mean()
            assert accuracy > 0.13, f"{label} did not learn: accuracy {accuracy}"

    return Benchmark(
        name=f"mean_field_step, {type(estimator).__name__}, batch {batch_size}",
        ours=ours,
        peers=peers,
        floor=plain,
        at_most=at_most,
        check=check,
        rounds=11,
        warmups=2,
        units=NUM_STEPS,
    )


def _steps(loss: Loss, parameters: list[Tensor], batch_size: int) -> None:
    """As many steps over the same batches, with the same optimiser."""
    x, y = _data(batch_size)
    optimizer = adam(parameters)
    for _ in range(4):
        for rows in torch.randperm(len(x)).split(batch_size):
            optimizer.zero_grad()
            loss(x[rows], y[rows]).backward()
            optimizer.step()


def _bayesian_torch(batch_size: int) -> Tensor:
    torch.manual_seed(0)
    x, _ = _data(batch_size)
    net = BayesianTorch()

    def loss(inputs: Tensor, targets: Tensor) -> Tensor:
        logits, divergence = net(inputs)
        return F.cross_entropy(logits, targets) + divergence / len(x)

    _steps(loss, list(net.parameters()), batch_size)
    with torch.no_grad():
        return net(x)[0]


def _pyro(batch_size: int) -> Tensor:
    torch.manual_seed(0)
    pyro.clear_param_store()
    x, y = _data(batch_size)
    net = PyroClassifier()
    start = dict(classifier().named_parameters())
    guide = AutoNormal(
        net,
        init_scale=INITIAL_SCALE,
        init_loc_fn=lambda site: start[f"{2 * int(site['name'][5])}.{site['name'].partition('.')[2]}"].detach(),
    )
    elbo = Trace_ELBO()

    def loss(inputs: Tensor, targets: Tensor) -> Tensor:
        return elbo.differentiable_loss(net, guide, inputs, targets, len(x)) / len(x)

    loss(x[:batch_size], y[:batch_size])  # the guide makes its parameters on its first call
    _steps(loss, list(guide.parameters()), batch_size)
    found = guide.median()
    with torch.no_grad():
        for index in range(3):
            x = F.linear(F.relu(x) if index else x, found[f"layer{index}.weight"], found[f"layer{index}.bias"])
    return x
