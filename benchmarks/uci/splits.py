"""The 20 splits of Hernandez-Lobato and Adams (2015), which papers on small tables share.

They come from numpy's legacy generator under seed 1: 20 permutations in a row, of which the first nine tenths of the
rows are for training. The last fifth of those, in the order of the permutation, serves to choose hyper-parameters.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

__all__ = ["NUM_SPLITS", "Rows", "Split", "split_indices", "splits"]

NUM_SPLITS = 20

Rows = tuple[Tensor, Tensor]
"""Inputs (rows, features) and targets (rows,), float32, in their own units."""


@dataclass(frozen=True)
class Split:
    """One split.

    Attributes:
        train: nine tenths of the rows.
        inner_train: the first 80 % of those.
        validation: the rest of those.
        test: one tenth.
    """

    train: Rows
    inner_train: Rows
    validation: Rows
    test: Rows


def split_indices(num_rows: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """The rows for training and for testing of each split."""
    generator = np.random.RandomState(1)  # the splits are defined by this very generator
    orders = [generator.choice(range(num_rows), num_rows, replace=False) for _ in range(NUM_SPLITS)]
    num_train = round(num_rows * 0.9)
    return [(order[:num_train], order[num_train:]) for order in orders]


def splits(rows: Rows) -> list[Split]:
    """All splits of a table."""
    return [_split(rows, *indices) for indices in split_indices(len(rows[1]))]


def _split(rows: Rows, train: np.ndarray, test: np.ndarray) -> Split:
    num_inner = int(0.8 * len(train))

    def take(index: np.ndarray) -> Rows:
        chosen = torch.as_tensor(index)
        return rows[0][chosen], rows[1][chosen]

    return Split(take(train), take(train[:num_inner]), take(train[num_inner:]), take(test))
