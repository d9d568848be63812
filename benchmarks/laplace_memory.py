"""Memory of a Kronecker posterior over the 11 million weights of a residual network, after 2000 images of 32 x 32."""

import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.harness import Fact, bytes_of_program
from credibly import Model, inference, likelihoods

NUM_IMAGES, NUM_CLASSES = 2000, 10
MOST_GIBIBYTES = 6


class Block(nn.Module):
    """Two convolutions with BatchNorm around a shortcut."""

    def __init__(self, width_in: int, width_out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width_in, width_out, 3, stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(width_out)
        self.second = nn.Conv2d(width_out, width_out, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(width_out)
        same = stride == 1 and width_in == width_out
        projection = nn.Sequential(nn.Conv2d(width_in, width_out, 1, stride, bias=False), nn.BatchNorm2d(width_out))
        self.shortcut = nn.Identity() if same else projection

    def forward(self, x: Tensor) -> Tensor:
        """The sum of both ways."""
        hidden = F.relu(self.first_norm(self.first(x)))
        return F.relu(self.second_norm(self.second(hidden)) + self.shortcut(x))


def resnet18() -> nn.Sequential:
    """The residual network of 18 layers for small images: 11.2 million weights."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    widths = (64, 64, 128, 256, 512)
    for stage, (width_in, width_out) in enumerate(pairwise(widths)):
        layers += [Block(width_in, width_out, 1 if stage == 0 else 2), Block(width_out, width_out, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, NUM_CLASSES))


def parts() -> Iterator[Fact]:
    """The peak of a process of its own, above what it held before."""
    yield Fact(
        name=f"laplace_memory: 11 million weights, {NUM_IMAGES} images",
        promise=f"< {MOST_GIBIBYTES} GiB above the start",
        holds=lambda: _gibibytes() < MOST_GIBIBYTES,
    )


def _gibibytes() -> float:
    command = [sys.executable, "-c", "from benchmarks.laplace_memory import main; main()"]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    """Print by how much the peak of memory rises, in GiB."""
    torch.manual_seed(0)
    model = Model(resnet18(), likelihoods.Categorical(num_classes=NUM_CLASSES))
    x, y = torch.randn(NUM_IMAGES, 3, 32, 32), torch.randint(NUM_CLASSES, (NUM_IMAGES,))
    before = bytes_of_program("VmRSS")
    posterior = inference.Laplace().fit(model, (x, y), start="current", seed=0)
    assert posterior.covariance.size > 11e6
    sys.stdout.write(f"{(bytes_of_program('VmHWM') - before) / 2**30}\n")


if __name__ == "__main__":
    main()
