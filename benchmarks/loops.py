"""Training loops as a careful user of plain torch writes them: the peers of every training benchmark."""

from collections.abc import Callable
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

__all__ = ["Loss", "categorical_loss", "gaussian_loss", "initialised", "train_by_index", "train_by_loader"]

Loss = Callable[[Tensor, Tensor], Tensor]
MakeOptimizer = Callable[[list[Tensor]], torch.optim.Optimizer]

LOG_SQRT_2PI = 0.9189385332046727


def gaussian_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean negative log density of Normal(outputs, 1), constants included."""
    return (0.5 * (outputs - targets).square() + LOG_SQRT_2PI).mean()


def categorical_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean negative log probability of the classes."""
    return F.cross_entropy(outputs, targets)


def initialised(net: nn.Module) -> nn.Module:
    """A copy of the network with new weights: a member of an ensemble before its training."""
    member = deepcopy(net)
    for module in member.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    return member


def train_by_index(
    net: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    loss: Loss,
    make_optimizer: MakeOptimizer,
    num_epochs: int,
    batch_size: int,
) -> nn.Module:
    """In-memory training: shuffle the row numbers, index the tensors by batch."""
    optimizer = make_optimizer(list(net.parameters()))
    net.train()
    for _ in range(num_epochs):
        for rows in torch.randperm(len(x)).split(batch_size):
            optimizer.zero_grad()
            loss(net(x[rows]), y[rows]).backward()
            optimizer.step()
    return net.eval()


def train_by_loader(
    net: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    loss: Loss,
    make_optimizer: MakeOptimizer,
    num_epochs: int,
    batch_size: int,
) -> nn.Module:
    """The same loop over a DataLoader, as most tutorials have it."""
    loader = DataLoader(TensorDataset(x, y), batch_size=batch_size, shuffle=True)
    optimizer = make_optimizer(list(net.parameters()))
    net.train()
    for _ in range(num_epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss(net(inputs), targets).backward()
            optimizer.step()
    return net.eval()
