"""The data and networks of the benchmarks: real rows from scikit-learn, and rows made to a given size."""

import torch
from sklearn.datasets import load_diabetes, load_digits
from torch import Tensor, nn

__all__ = ["diabetes", "digits", "perceptron"]

NUM_TRAIN = 353


def diabetes() -> tuple[Tensor, Tensor]:
    """The first 353 rows in a fixed shuffled order, standardised: shapes (353, 10) and (353, 1)."""
    x, y = (torch.as_tensor(part, dtype=torch.float32) for part in load_diabetes(return_X_y=True))
    rows = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:NUM_TRAIN]
    x, y = x[rows], y[rows].unsqueeze(1)
    return (x - x.mean(0)) / x.std(0), (y - y.mean(0)) / y.std(0)


def digits() -> tuple[Tensor, Tensor]:
    """Images and class indices: shapes (1797, 1, 8, 8) and (1797,)."""
    x, y = load_digits(return_X_y=True)
    return torch.as_tensor(x, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16, torch.as_tensor(y)


def perceptron(dropout: float = 0.0) -> nn.Sequential:
    """A 10-64-64-1 network with ReLU, and dropout after each hidden layer if asked for."""
    layers: list[nn.Module] = []
    for width_in, width_out in ((10, 64), (64, 64)):
        layers += [nn.Linear(width_in, width_out), nn.ReLU()]
        layers += [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(*layers, nn.Linear(64, 1))
