"""Blocks of pages that begin in the middle run, given what their text says is there."""

import torch
from code_blocks import python_blocks
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from credibly import Model, inference, likelihoods, metrics
from credibly.distributions import from_logits


def run(page, number, **given):
    """The names that a block leaves."""
    names = {"__name__": "page"} | given
    exec(compile(python_blocks(page)[number], f"{page}, block {number}", "exec"), names)
    return names


def classified(seed=0, rows=120):
    """A fitted classifier, rows and classes."""
    torch.manual_seed(seed)
    x = torch.randn(rows, 2)
    y = torch.distributions.Categorical(logits=x @ torch.tensor([[2.0, 0.0, -2.0], [0.0, 1.0, 0.0]])).sample()
    model = Model(nn.Linear(2, 3), likelihoods.Categorical(3))
    return inference.MLE(num_epochs=30, learning_rate=0.1).fit(model, (x, y), seed=0), x, y


def test_recipes_and_streams_of_the_page_on_metrics():
    posterior, x, y = classified()
    predicted = posterior.predict(x)
    other = metrics.ECE(num_bins=15, norm="l1").stream()
    other.update(predicted, y)
    names = run(
        "docs/metrics.md",
        0,
        predicted=predicted,
        targets=y,
        posterior=posterior,
        loader=DataLoader(TensorDataset(x, y), batch_size=50),
        other_stream=other,
    )
    value = names["metric"](predicted, y)
    torch.testing.assert_close(names["stream"].compute(), value)
    torch.testing.assert_close(names["stream"].merge(other).compute(), value, msg="the same rows twice")
    assert names["estimate"].lower <= names["estimate"].value <= names["estimate"].upper
    assert names["estimate"].value == value


def test_missing_elements_of_the_page_on_metrics():
    torch.manual_seed(0)
    x, y, mask = torch.randn(50, 2), torch.randn(50, 4), torch.rand(50, 4) > 0.3
    model = Model(nn.Linear(2, 4), likelihoods.Gaussian(4))
    posterior = inference.MLE(num_epochs=5).fit(model, (x, y), seed=0)
    names = run("docs/metrics.md", 1, posterior=posterior, x=x, targets=y, mask=mask, metrics=metrics)
    flat, seen = names["observed"](posterior.predict(x), y, mask)
    assert seen.shape == (int(mask.sum()),)
    assert flat.batch_shape == seen.shape


def test_blocks_of_the_page_on_recalibration():
    posterior, x, y = classified()
    names = run("docs/recalibration.md", 0, posterior=posterior, x_tune=x, y_tune=y, x_test=x[:7])
    assert names["recalibrate"].report.converged
    assert names["predicted"].batch_shape == (7,)

    torch.manual_seed(0)
    fresh = from_logits(torch.randn(6, 3))
    given = {"calibration": names["calibration"], "predicted": posterior.predict(x), "targets": y, "fresh": fresh}
    again = run("docs/recalibration.md", 1, **given)
    doubt = again["recalibrate"](fresh).mutual_information()
    assert doubt.shape == (6,)
    assert (doubt > 0).all()
