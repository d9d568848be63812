"""Data in every accepted form, as batches that are all alike."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, WeightedRandomSampler, random_split

from credibly.core.data import ArraySource, Data, LoaderSource, as_source, read_batch
from credibly.core.errors import NotFiniteError, ShapeError
from credibly.core.inputs import call_net, leaves, map_inputs, num_rows, split_inputs, take_rows

CPU = torch.device("cpu")
X = torch.arange(14.0).reshape(7, 2)
Y = torch.arange(7.0) / 2


def source_of(data, dtype=torch.float32, **options):
    return as_source(data, dtype, CPU, **options)


def read(batch, dtype=torch.float32, **options):
    return read_batch(batch, dtype, CPU, **options)


class Rows(Dataset):
    """A data set of rows in any form."""

    def __init__(self, make, num=7):
        self.make, self.num = make, num

    def __len__(self):
        return self.num

    def __getitem__(self, index):
        if index >= self.num:
            raise IndexError(index)
        return self.make(index)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(X, Y, strict=True))


# -- in memory -----------------------------------------------------------------------------------------------------

IN_MEMORY = {
    "tensors": lambda: (X, Y),
    "list": lambda: [X, Y],
    "double": lambda: (X.double().numpy(), Y.double().numpy()),
    "fortran": lambda: (np.asfortranarray(X.double().numpy()), Y.double().numpy()),
    "integers": lambda: (X.int().numpy(), Y.double().numpy()),
    "pandas": lambda: (pd.DataFrame(X.double().numpy(), columns=["a", "b"]), pd.Series(Y.double().numpy())),
    "shuffled_index": lambda: (
        pd.DataFrame(X.double().numpy(), index=[6, 5, 4, 3, 2, 1, 0]),
        pd.Series(Y.double().numpy(), index=list("gfedcba")),
    ),
    "nested_lists": lambda: (X.tolist(), Y.tolist()),
    "mapping": lambda: {"inputs": X, "targets": Y},
    "data": lambda: Data(X, Y),
    "tensor_dataset": lambda: TensorDataset(X, Y),
    "data_of_tensor_dataset": lambda: Data(TensorDataset(X, Y)),
}


@pytest.mark.parametrize("name", IN_MEMORY)
def test_data_in_memory_is_one_thing_in_every_form(name, dtype):
    data = IN_MEMORY[name]()
    source = source_of(data, dtype)
    assert isinstance(source, ArraySource)
    assert source.num_data == 7
    batches = list(source.batches(3))
    assert [batch.num_rows for batch in batches] == [3, 3, 1]
    torch.testing.assert_close(torch.cat([batch.inputs for batch in batches]).float(), X)
    torch.testing.assert_close(torch.cat([batch.targets for batch in batches]).float(), Y)
    if name in {"double", "fortran", "integers", "pandas", "shuffled_index", "nested_lists"}:
        assert batches[0].inputs.dtype == dtype
        assert batches[0].targets.dtype == dtype
    else:  # tensors are never converted
        assert batches[0].inputs.dtype == torch.float32


def test_integer_targets_stay_integers():
    assert read((X, np.arange(7))).targets.dtype == torch.int64
    assert read((X, pd.Series([True] * 7))).targets.dtype == torch.bool


def test_arrays_are_copied_and_tensors_are_left_unchanged():
    x, y = X.double().numpy().copy(), Y.clone()
    batch = read((x, y), torch.float64)
    batch.inputs.add_(1)
    assert np.array_equal(x, X.double().numpy())
    assert batch.targets.data_ptr() == y.data_ptr()


@pytest.mark.parametrize(
    "inputs",
    [(X, X[:, :1]), {"a": X, "b": X[:, :1]}, (X.numpy(), pd.DataFrame(X[:, :1].numpy()))],
)
def test_several_inputs_keep_their_structure(inputs):
    source = source_of(Data(inputs, Y))
    batch = next(source.batches(4))
    parts = leaves(batch.inputs)
    assert isinstance(batch.inputs, dict if isinstance(inputs, dict) else tuple)
    assert torch.equal(parts[0], X[:4])
    assert torch.equal(parts[1], X[:4, :1])


def test_an_order_indexes_rows_and_members():
    source = source_of(Data((X, X + 1), Y, weights=torch.arange(7.0), mask=torch.arange(7) > 2))
    order = torch.tensor([6, 0, 3])
    first, last = source.batches(2, order)
    assert torch.equal(first.inputs[1], X[[6, 0]] + 1)
    assert last.weights.tolist() == [3.0]
    assert first.mask.tolist() == [True, False]
    members = torch.stack([torch.arange(7), torch.arange(7).flip(0)])
    batch = next(source.batches(3, members))
    assert batch.inputs[0].shape == (2, 3, 2)
    assert torch.equal(batch.targets, Y[members[:, :3]])
    assert next(source.batches(None)).num_rows == 7


def test_a_mapped_source_keeps_its_number_of_rows():
    mapped = source_of(Data(X, Y, num_data=100)).map(lambda batch: batch.map_inputs(lambda x: 2 * x))
    assert mapped.num_data == 100
    assert torch.equal(next(mapped.batches(None)).inputs, 2 * X)
    loader = source_of(DataLoader(TensorDataset(X, Y), batch_size=3))
    mapped = loader.map(lambda batch: batch.map_inputs(lambda x: 2 * x)).map(lambda batch: batch.take(slice(0, 1)))
    assert [batch.inputs.tolist() for batch in mapped.batches(None)] == [(2 * X[[row]]).tolist() for row in (0, 3, 6)]
    assert mapped.num_data == 7


# -- datasets and loaders ------------------------------------------------------------------------------------------

ROWS = {
    "pair": lambda i: (X[i], Y[i]),
    "list": lambda i: [X[i], Y[i]],
    "mapping": lambda i: {"inputs": X[i], "targets": Y[i]},
    "numpy": lambda i: (X[i].numpy(), float(Y[i])),
    "nested": lambda i: ((X[i], X[i, :1]), Y[i]),
    "named": lambda i: ({"a": X[i], "b": X[i, :1]}, Y[i]),
    "nested_mapping": lambda i: {"inputs": (X[i], X[i, :1]), "targets": Y[i], "weights": torch.tensor(2.0)},
}


@pytest.mark.parametrize("name", ROWS)
def test_a_loader_gives_batches_of_every_form(name):
    source = source_of(DataLoader(Rows(ROWS[name]), batch_size=3))
    assert isinstance(source, LoaderSource)
    assert source.num_data == 7
    batches = list(source.batches(None))
    columns = [torch.cat(parts) for parts in zip(*(leaves(batch.inputs) for batch in batches), strict=True)]
    assert torch.equal(columns[0], X)
    if len(columns) == 2:
        assert torch.equal(columns[1], X[:, :1])
    assert torch.equal(torch.cat([batch.targets for batch in batches]).float(), Y)
    if name == "nested_mapping":
        assert batches[0].weights.tolist() == [2.0] * 3


def test_a_dataset_is_read_through_a_shuffling_loader_of_the_batch_size_asked_for():
    source = source_of(Rows(ROWS["pair"]), batch_size=4)
    torch.manual_seed(0)
    batches = [list(source.batches(None)) for _ in range(3)]
    assert [batch.num_rows for batch in batches[0]] == [4, 3]
    orders = {tuple(torch.cat([batch.targets for batch in epoch]).tolist()) for epoch in batches}
    assert len(orders) > 1
    assert all(sorted(order) == Y.tolist() for order in orders)
    subset, _ = random_split(TensorDataset(X, Y), [5, 2])
    assert source_of(subset).num_data == 5


def test_the_number_of_rows_is_the_samplers():
    data = TensorDataset(X, Y)
    assert source_of(DataLoader(data, batch_size=2, drop_last=True)).num_data == 7
    assert source_of(DataLoader(data, sampler=WeightedRandomSampler(torch.ones(7), 7))).num_data == 7
    assert source_of(Data(DataLoader(data), num_data=70)).num_data == 70
    assert source_of(Data(TensorDataset(X, Y), num_data=70)).num_data == 70
    assert source_of(Data(Rows(ROWS["pair"]), num_data=70)).num_data == 70


@pytest.mark.parametrize(
    "make",
    [
        lambda: DataLoader(Stream(), batch_size=3),
        Stream,
        lambda: DataLoader(Rows(lambda i: (X[2 * i : 2 * i + 2], Y[2 * i : 2 * i + 2]), num=3), batch_size=None),
    ],
)
def test_a_stream_and_a_loader_of_whole_batches_need_the_number_of_rows(make):
    with pytest.raises(ValueError, match="num_data="):
        source_of(make())
    source = source_of(Data(make(), num_data=6))
    assert source.num_data == 6
    assert next(source.batches(None)).num_rows >= 2


def test_weights_beside_a_tensor_dataset_count_and_beside_a_loader_are_refused():
    assert next(source_of(Data(TensorDataset(X, Y), weights=Y)).batches(2)).weights.tolist() == [0, 0.5]
    with pytest.raises(ValueError, match="brings its own targets, weights and mask"):
        source_of(Data(DataLoader(TensorDataset(X, Y)), weights=Y))


def test_several_tensors_of_a_dataset_are_inputs_and_targets():
    batch = next(source_of(TensorDataset(X, X[:, :1], Y)).batches(None))
    assert isinstance(batch.inputs, tuple)
    assert len(batch.inputs) == 2
    with pytest.raises(ValueError, match="targets are needed"):
        source_of(TensorDataset(X))


# -- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        ((X[:0], Y[:0]), ShapeError, "`inputs` has no rows"),
        ((X, Y[:6]), ShapeError, "`targets` has 6 rows, `inputs` has 7"),
        ((X, torch.tensor(1.0)), ShapeError, "`targets` has 0 rows, `inputs` has 7"),
        (((X, X[:3]), Y), ShapeError, r"must share axis 0, the rows; got shapes \[\(7, 2\), \(3, 2\)\]"),
        (((), Y), ShapeError, "at least one tensor"),
        ((torch.tensor(1.0), Y), ShapeError, "must share axis 0"),
        ((X, X, Y), TypeError, r"got 3 parts.*\(\(x1, x2\), targets\)"),
        ([[[1.0], [2.0, 3.0]], [1.0, 2.0]], ShapeError, "differ in length"),
        (({"a": X}, None), ValueError, "targets are needed"),
        (X, ValueError, "targets are needed"),
        ((X,), ValueError, "targets are needed"),
        ({"x": X, "y": Y}, ValueError, r"must have the key 'inputs'.*\['x', 'y'\]"),
        ({"inputs": X, "target": Y}, ValueError, "may have 'targets'"),
        ((X, np.array(["a"] * 7)), TypeError, "expected numbers"),
        (Data(X, Y, weights=Y[:6]), ShapeError, r"`weights` must have shape \(7,\).*got \(6,\)"),
        (Data(X, Y, weights=-Y), ValueError, "`weights` must be 0 or above; the smallest is -3"),
        (Data(X, Y, mask=torch.ones(7, 2)), ShapeError, r"`mask` must have shape \(7,\)"),
    ],
)
def test_what_does_not_fit_is_refused(batch, error, message):
    with pytest.raises(error, match=message):
        read(batch)


@pytest.mark.parametrize(
    ("name", "bad"),
    [(name, bad) for name in ("inputs", "weights") for bad in (float("nan"), float("inf"))]
    + [("targets", float("nan"))],
)
def test_what_is_not_finite_is_refused_by_name(name, bad):
    parts = {"inputs": X.clone(), "targets": Y.clone(), "weights": torch.ones(7)}
    parts[name].view(-1)[3] = bad
    with pytest.raises(NotFiniteError, match=f"`{name}` must be finite; 1 of"):
        read(Data(**parts))


def test_infinite_targets_may_be_bounds_and_are_left_to_the_likelihood():
    assert torch.equal(read((X, torch.full((7,), float("inf")))).targets, torch.full((7,), float("inf")))


@pytest.mark.parametrize("num_data", [0, -3])
def test_the_number_of_rows_must_be_positive(num_data):
    with pytest.raises(ValueError, match="`num_data` must be 1 or more"):
        source_of(Data(X, Y, num_data=num_data))


def test_masked_targets_may_be_missing_and_inputs_may_come_alone():
    batch = read(Data(X, torch.full((7,), torch.nan), mask=np.zeros(7)))
    assert batch.mask.tolist() == [False] * 7
    alone = read(X, need_targets=False)
    assert alone.targets is None
    assert alone.take(slice(0, 2)).num_rows == 2


# -- inputs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inputs", [X, (X, X + 1), {"a": X, "b": X + 1}])
def test_inputs_are_mapped_split_and_given_to_the_network(inputs):
    assert num_rows(inputs) == 7
    doubled = map_inputs(lambda x: 2 * x, inputs)
    assert all(torch.equal(b, 2 * a) for a, b in zip(leaves(inputs), leaves(doubled), strict=True))
    for start, part in zip((0, 3, 6), split_inputs(inputs, 3), strict=True):
        assert type(part) is type(inputs)
        expected = take_rows(inputs, torch.arange(start, min(start + 3, 7)))
        assert all(torch.equal(a, b) for a, b in zip(leaves(expected), leaves(part), strict=True))
    given = call_net(lambda *args, **kwargs: (args, kwargs), inputs)
    if isinstance(inputs, dict):
        assert given == ((), inputs)
    elif isinstance(inputs, tuple):
        assert given == (inputs, {})
    else:
        assert given == ((X,), {})
