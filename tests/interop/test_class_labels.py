"""Labels of any kind and their indices."""

import copy
import math
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from torch.distributions import Categorical

from credibly.conformal.lac import LAC
from credibly.core.errors import ShapeError, SupportError
from credibly.interop.labels import ClassLabels

SOURCES = {
    "strings": ["cat", "ant", "bee", "ant"],
    "numpy_strings": np.array(["cat", "ant", "bee", "ant"]),
    "tensor": torch.tensor([30, 10, 20, 10]),
    "numpy": np.array([30, 10, 20, 10]),
    "series": pd.Series(["cat", "ant", "bee", "ant"], index=[5, 6, 7, 8]),
    "categorical": pd.Series(["cat", "ant", "bee", "ant"], dtype="category"),
    "column": np.array([["cat"], ["ant"], ["bee"], ["ant"]]),
    "floats": [3.5, 1.5, 2.5, 1.5],
    "booleans_and_more": [True, -1, 0, -1],
}


@pytest.mark.parametrize("name", SOURCES)
def test_round_trip(name):
    targets = SOURCES[name]
    labels = ClassLabels.from_targets(targets)
    indices = labels.encode(targets)
    assert indices.dtype == torch.int64
    assert indices.tolist() == [2, 0, 1, 0]
    assert labels.decode(indices).tolist() == np.asarray(targets).reshape(4).tolist()
    assert labels.decode(indices.reshape(2, 2)).shape == (2, 2)


def test_labels_that_cannot_be_compared_keep_their_order():
    labels = ClassLabels.from_targets(["b", 3, ("x", 1), "b"])
    assert list(labels) == ["b", 3, ("x", 1)]
    assert labels.encode([("x", 1), "b"]).tolist() == [2, 0]
    assert labels.decode([2, 0]).tolist() == [("x", 1), "b"]


def test_the_given_order_is_kept_and_unseen_labels_have_a_column():
    labels = ClassLabels(["low", "medium", "high"])
    assert labels.encode(["high", "low"]).tolist() == [2, 0]
    assert len(labels) == 3
    predicted = Categorical(logits=torch.randn(20, 3))
    sets = LAC().calibrate(predicted, labels.encode(["low", "high"] * 10)).predict(predicted, 0.9)
    assert sets.members.shape == (20, 3)
    assert set(labels.decode(sets.labels[0]).tolist()) <= {"low", "medium", "high"}


def test_unknown_labels_are_named():
    labels = ClassLabels([10, 20, 30])
    with pytest.raises(SupportError, match="40, 50"):
        labels.encode([10, 40, 50, 40])
    with pytest.raises(SupportError, match="0 to 2"):
        labels.decode([0, 3])
    with pytest.raises(SupportError, match="0 to 2"):
        labels.decode([-1])


def test_refusals():
    with pytest.raises(ValueError, match="at least one"):
        ClassLabels([])
    with pytest.raises(ValueError, match="more than once"):
        ClassLabels([1, 2, 1.0])
    with pytest.raises(ValueError, match="missing"):
        ClassLabels.from_targets(["a", None])
    with pytest.raises(ValueError, match="missing"):
        ClassLabels.from_targets([1.0, math.nan])
    with pytest.raises(ShapeError, match=r"\(2, 2\)"):
        ClassLabels.from_targets(np.eye(2))


def test_values():
    labels = ClassLabels(["a", "b"])
    assert labels == copy.deepcopy(labels) == pickle.loads(pickle.dumps(labels)) == ClassLabels(labels.labels)
    assert labels != ClassLabels(["b", "a"])
    assert repr(labels) == "ClassLabels(['a', 'b'])"
