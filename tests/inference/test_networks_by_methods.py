"""Every method on every common kind of network, unchanged: it works, or says by name why not.

Each begins at weights that were trained before, so that all may come soon to where they would end. "Works" is a better
log score on rows held out than both the prior predictive and the best constant prediction.
"""

import copy
import dataclasses
from functools import cache

import pytest
import torch
from pyro.infer.autoguide import AutoNormal
from small_networks import CASES
from torch.distributions import Categorical, Normal
from torch.utils.data import DataLoader, Dataset

from cases import METHODS
from credibly import inference, metrics
from credibly.core.errors import NotSupportedError
from credibly.posteriors import prior_predictive

pytestmark = pytest.mark.filterwarnings("ignore:.*performance drop because we have not yet implemented:UserWarning")

NUM_DRAWS = 100
# draws of weights leave the region where the quadratic holds, which the linearised predictive does not
# (Improving predictions of Bayesian neural nets via local linearization, Immer, Korzepa, Bauer 2021)
_LINEARIZED = {"linearized": True}
OTHER_OPTIONS = {
    ("laplace_dense", "cnn"): _LINEARIZED,
    ("laplace_dense", "resnet"): _LINEARIZED,
    ("laplace_dense", "transformer"): _LINEARIZED,
    # a covariance of all pairs of 500 weights begins wide, and two epochs are 24 steps
    ("pyro_guide", "resnet"): {"guide": AutoNormal},
    # steps of 0.1 undo what was trained, and two epochs do not bring it back
    ("ivon", "transformer"): {"learning_rate": 0.01},
}
"""By method and network: what is changed in a recipe that runs, but is known to need more here."""

REFUSED: dict[str, dict[str, str]] = {}
"""By method and network: what the NotSupportedError says."""

READ_FEW_ROWS = {"mc_dropout_of_current"}
"""Methods that neither train nor read more than the first rows, and so never meet a bad one."""


@cache
def case(network):
    return CASES[network]()


@cache
def trained(network):
    """Kept on purpose: no method may change it either."""
    method = inference.MAP(num_epochs=50, batch_size=16, learning_rate=0.02)
    return method.fit(case(network).model(), case(network).train(), seed=0)


@cache
def baselines(network):
    """The log scores of the best constant prediction, and of the prior predictive."""
    own = case(network)
    (_, y), (x, held_out) = own.train(), own.test()
    if y.is_floating_point():
        constant = Normal(y.mean(), y.std()).log_prob(held_out).mean()
    else:
        constant = Categorical(probs=torch.bincount(y) / len(y)).log_prob(held_out).mean()
    prior = prior_predictive(own.model(), x, num_draws=NUM_DRAWS, seed=0)
    return float(constant), float(metrics.log_score(prior, held_out))


def snapshot(model):
    """Everything that belongs to the user."""
    tensors = {name: value.clone() for name, value in model.state_dict().items()}
    flags = [part.training for part in model.modules()]
    needs = {name: (p.requires_grad, p.grad is None, id(p)) for name, p in model.named_parameters()}
    return tensors, flags, needs, sorted(vars(model.net)), [len(part._forward_hooks) for part in model.modules()]


def assert_untouched(model, before):
    after = snapshot(model)
    for name, value in before[0].items():
        assert torch.equal(value, after[0][name]), name
    assert after[1:] == before[1:]


class BadRow(Dataset):
    """Rows that come one by one, until one cannot be read."""

    def __init__(self, inputs, targets, good):
        self.inputs, self.targets, self.good = inputs, targets, good

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, row):
        self.good -= 1
        if self.good < 0:
            raise OSError("the row cannot be read")
        if isinstance(self.inputs, dict):
            return {name: value[row] for name, value in self.inputs.items()}, self.targets[row]
        return self.inputs[row], self.targets[row]


def with_callback(method, callback):
    """The recipe, and those inside it, with a callback; None where nothing takes one."""
    own = {"callbacks": [callback]} if hasattr(method, "callbacks") else {}
    for name in ("of", "train"):
        inner = getattr(method, name, None)
        changed = None if inner is None else with_callback(inner, callback)
        own |= {} if changed is None else {name: changed}
    return dataclasses.replace(method, **own) if own else None


@pytest.mark.parametrize("network", CASES)
def test_the_networks_have_something_to_learn(network):
    x, y = case(network).test()
    score = float(metrics.log_score(trained(network).predict(x), y))
    assert score > max(baselines(network)) + 0.2


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("network", CASES)
def test_a_method_works_on_a_network_or_says_why_not(network, method):
    own, start = case(network), trained(network)
    model = own.model()
    before, before_start = snapshot(model), snapshot(start.model)
    refusal = REFUSED.get(method, {}).get(network)
    if refusal is not None:
        with pytest.raises(NotSupportedError, match=refusal):
            METHODS[method]().fit(model, own.train(), start=start, seed=0)
    else:
        recipe = dataclasses.replace(METHODS[method](), **OTHER_OPTIONS.get((method, network), {}))
        posterior = recipe.fit(model, own.train(), start=start, seed=0)
        x, y = own.test()
        num_draws = NUM_DRAWS if posterior.num_stored is None else None
        assert float(metrics.log_score(posterior.predict(x, num_draws=num_draws, seed=1), y)) > max(baselines(network))
    assert_untouched(model, before)
    assert_untouched(start.model, before_start)


WORKING = [(network, method) for network in CASES for method in METHODS if network not in REFUSED.get(method, {})]


@pytest.mark.parametrize(("network", "method"), WORKING)
def test_a_row_that_cannot_be_read_leaves_the_model_alone(network, method):
    """It comes in the third batch of 8, or in the first pass of a method that makes only one."""
    own = case(network)
    model = own.model()
    before = snapshot(model)
    data = DataLoader(BadRow(*own.train(), good=20), batch_size=8, shuffle=True)
    if method in READ_FEW_ROWS:
        METHODS[method]().fit(model, data, start=trained(network), seed=0)
    else:
        with pytest.raises(OSError, match="the row cannot be read"):
            METHODS[method]().fit(model, data, start=trained(network), seed=0)
    assert_untouched(model, before)


TRAINING = [name for name, make in METHODS.items() if with_callback(make(), lambda _: None) is not None]


@pytest.mark.parametrize("method", TRAINING)
def test_a_callback_that_raises_leaves_the_model_alone(method):
    """On the network with BatchNorm, whose statistics training moves."""

    def interrupt(epoch):
        raise KeyboardInterrupt

    recipe = with_callback(METHODS[method](), interrupt)
    model = case("resnet").model()
    before = snapshot(model)
    with pytest.raises(KeyboardInterrupt):
        recipe.fit(model, case("resnet").train(), start=copy.deepcopy(trained("resnet")), seed=0)
    assert_untouched(model, before)
