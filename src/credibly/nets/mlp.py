"""A plain network of fully connected layers, for examples and tests."""

from collections.abc import Sequence

from torch import nn

__all__ = ["mlp"]


def mlp(
    num_inputs: int,
    num_outputs: int,
    *,
    hidden: Sequence[int] = (64, 64),
    dropout: float = 0.0,
    activation: type[nn.Module] = nn.ReLU,
) -> nn.Sequential:
    """Linear layers with an activation, and dropout after each where asked for: (rows, inputs) to (rows, outputs)."""
    layers: list[nn.Module] = []
    width = num_inputs
    for size in hidden:
        layers += [nn.Linear(width, size), activation()]
        layers += [nn.Dropout(dropout)] if dropout > 0 else []
        width = size
    return nn.Sequential(*layers, nn.Linear(width, num_outputs))
