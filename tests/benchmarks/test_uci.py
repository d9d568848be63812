"""The table of small regressions: its splits, its units, and runs that are taken up again."""

import numpy as np
import pytest
import torch
from benchmarks.uci.records import append, key_of, recorded
from benchmarks.uci.scores import scores
from benchmarks.uci.splits import split_indices, splits
from benchmarks.uci.table import table
from torch import nn

from credibly import Model, Standardize, inference, likelihoods


@pytest.mark.parametrize("num_rows", [506, 1030])
def test_the_splits_are_the_canonical_permutations(num_rows):
    ours = split_indices(num_rows)
    generator = np.random.RandomState(1)
    for train, test in ours:
        order = generator.choice(range(num_rows), num_rows, replace=False)
        assert np.array_equal(np.concatenate([train, test]), order)
        assert len(train) == round(0.9 * num_rows)
    assert len(ours) == 20


@pytest.mark.parametrize(("num_rows", "first", "last"), [(506, [431, 115, 470], [426, 161, 347])])
def test_the_splits_stay_what_they_are_in_every_version_of_numpy(num_rows, first, last):
    """The first test rows of the first and of the last split; numpy's legacy generator is frozen."""
    ours = split_indices(num_rows)
    assert ours[0][1][:3].tolist() == first
    assert ours[-1][1][:3].tolist() == last


def test_the_validation_rows_are_the_last_fifth_of_the_training_rows():
    x = torch.arange(506.0).unsqueeze(1)
    split = splits((x, x[:, 0]))[3]
    train, test = split_indices(506)[3]
    assert torch.equal(split.train[1], torch.as_tensor(train, dtype=torch.float32))
    assert torch.equal(torch.cat([split.inner_train[1], split.validation[1]]), split.train[1])
    assert torch.equal(split.test[1], torch.as_tensor(test, dtype=torch.float32))
    assert len(split.inner_train[1]) == int(0.8 * 455) == 364
    assert not set(test) & set(train)
    for inputs, targets in (split.train, split.inner_train, split.validation, split.test):
        assert torch.equal(inputs[:, 0], targets)


def test_scores_are_in_the_units_of_the_targets():
    """A constant network under standardised targets predicts Normal(mean, scale) in the units that came in."""
    x, y = torch.zeros(4, 2), torch.tensor([100.0, 300.0, 100.0, 300.0])
    net = nn.Linear(2, 1)
    with torch.no_grad():
        net.weight.zero_()
        net.bias.zero_()
    model = Model(net, likelihoods.Gaussian(scale=50.0), inputs=None, targets=Standardize())
    posterior = inference.MLE(num_epochs=1, learning_rate=1e-12).fit(model, (x, y), seed=0)
    got = scores(posterior.predict(x), y)
    assert got["rmse"] == pytest.approx(100, rel=1e-6)
    expected = torch.distributions.Normal(200.0, 50.0).log_prob(y).mean()
    assert got["log_prob"] == pytest.approx(float(expected), rel=1e-6)


def result(split, rmse):
    return {"dataset": "boston", "method": "swag", "split": split, "rmse": rmse, "log_prob": -rmse}


def test_a_run_that_was_broken_off_loses_only_its_last_line(tmp_path):
    path = tmp_path / "results.jsonl"
    assert recorded(path) == []
    append(path, result(0, 1.0))
    with path.open("a") as file:
        file.write('{"dataset": "boston", "met')
    append(path, result(1, 2.0))
    assert [key_of(line) for line in recorded(path)] == [("boston", "swag", 0), ("boston", "swag", 1)]


def test_the_table_gives_means_with_standard_errors_and_names_what_is_missing():
    lines = [result(split, 2.0 + split % 2) for split in range(20)]
    text = table(lines, ["boston", "concrete"], ["swag", "mean_field"])
    rows = {row.split("|")[1].strip(): [cell.strip() for cell in row.split("|")[2:-1]] for row in text.splitlines()}
    spread = np.std([2.0, 3.0] * 10, ddof=1) / 20**0.5
    assert rows["swag"] == [f"2.50 ± {spread:.2f}", f"-2.50 ± {spread:.2f}", *["0 of 20 splits"] * 2]
    assert rows["mean field"] == ["0 of 20 splits"] * 4
    assert len({len(cells) for cells in rows.values()}) == 1
