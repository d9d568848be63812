"""Every method on networks over structured inputs and targets, unchanged: it learns, predicts and keeps rows apart."""

import copy

import pytest
import torch
from structured_networks import TASKS

from cases import METHODS
from credibly import Data, Model, inference, metrics
from credibly.core.inputs import take_rows
from credibly.distributions.rows import select

pytestmark = pytest.mark.filterwarnings("ignore:.*performance drop because we have not yet implemented:UserWarning")


def build(name):
    task = TASKS[name]()
    torch.manual_seed(0)
    return task, Model(task.net(), task.likelihood(), **task.options)


def targets_of(data: Data):
    """The targets, with a possible value where none came."""
    return torch.nan_to_num(data.targets)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", TASKS)
def test_every_method_predicts_rows_and_leaves_the_model_alone(name, method):
    task, model = build(name)
    before = copy.deepcopy(model.state_dict())
    start = "current" if method == "mc_dropout_of_current" else None
    posterior = METHODS[method]().fit(model, task.data, start=start, seed=0)
    after = model.state_dict()
    assert all(torch.equal(value, after[key]) for key, value in before.items())
    predicted = posterior.predict(task.data.inputs, num_draws=4 if "dropout" in method else None, seed=1)
    rows = len(task.data.targets)
    assert predicted.batch_shape == (rows,)
    assert predicted.event_shape == task.data.targets.shape[1:]
    whole = metrics.log_score(predicted, targets_of(task.data))
    assert whole.isfinite()
    some = torch.tensor([5, 1, 7])
    alone = posterior.predict(take_rows(task.data.inputs, some), num_draws=4 if "dropout" in method else None, seed=1)
    expected = select(predicted, some).log_prob(targets_of(task.data)[some])
    torch.testing.assert_close(alone.log_prob(targets_of(task.data)[some]), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", TASKS)
def test_training_learns_from_what_is_present(name):
    """The mean log likelihood of what the rows show rises well above that of the untrained network."""
    task, model = build(name)
    method = inference.MAP(num_epochs=60, batch_size=20, learning_rate=0.02)
    posterior = method.fit(model, task.data, seed=0)
    start = model.log_likelihood({}, {}, task.data).mean()
    end = posterior.model.log_likelihood({}, {}, task.data).mean()
    assert end > 0.6 * start if start < 0 else end > start + 1


def test_padding_does_not_reach_the_prediction():
    task, model = build("transformer")
    posterior = inference.MAP(num_epochs=1).fit(model, task.data, seed=0)
    other = dict(task.data.inputs)
    other["tokens"] = other["tokens"].masked_fill(other["padding"], 5)
    torch.testing.assert_close(posterior.outputs(other), posterior.outputs(task.data.inputs))


def test_a_wrong_part_of_what_the_network_returns_is_named():
    task = TASKS["recurrent"]()
    with pytest.raises(TypeError, match=r"returned Reading.*output="):
        inference.MAP(num_epochs=1).fit(Model(task.net(), task.likelihood()), task.data)
