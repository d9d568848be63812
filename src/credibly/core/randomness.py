"""Named, independent streams of random numbers that do not depend on chunk sizes.

A stream is a function of (seed, name). Its k-th draw comes, whole, from a generator seeded by the stream's
hash plus k, so that draw k is the same numbers whether it is made alone or with a thousand others, and
whatever was drawn before. On the CPU `manual_seed` keeps only the low 32 bits of a seed; adding the index to
one hash, rather than hashing every index, makes sure that no two draws of a stream collide.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor

__all__ = ["Stream", "base_seed", "derived_seed", "iterate", "seeded"]

T = TypeVar("T")


def base_seed(seed: int | None) -> int:
    """The seed itself, or, for None, one number from torch's global generator."""
    if seed is None:
        return int(torch.randint(0, 2**62, (), dtype=torch.int64))
    if isinstance(seed, bool) or not hasattr(seed, "__index__"):  # numpy has integers of its own
        raise TypeError(f"`seed` must be an integer or None; got {seed!r}")
    return int(seed)


def derived_seed(seed: int, name: str, index: int = 0) -> int:
    """A 62-bit seed for a part of the work, independent of the seeds of all other parts."""
    digest = hashlib.blake2b(f"{seed}/{name}/{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 2


class Stream:
    """A source of numbered, independent draws.

    Args:
        seed: the base seed.
        name: what the numbers are for: "init", "order", "weights", "masks", "calibrate", "predict", ...
        device: where the numbers are made; equal seeds give equal numbers on one device type and dtype.
    """

    def __init__(self, seed: int, name: str, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self._hash = derived_seed(seed, name)
        self._generator = torch.Generator(self.device)

    def generator(self, index: int = 0) -> torch.Generator:
        """The generator of draw `index`, at its start. It is re-used: finish one draw before the next."""
        bits = 32 if self.device.type == "cpu" else 62
        return self._generator.manual_seed((self._hash + index) % (1 << bits))

    def uniform(self, size: int, first: int, last: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Draws `first` to `last - 1`, each `size` numbers uniform on [0, 1): shape (last - first, size)."""
        return self._fill(torch.rand, torch.empty(last - first, size, dtype=dtype, device=self.device), first)

    def normal(self, size: int, first: int, last: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Draws `first` to `last - 1`, each `size` standard normal numbers: shape (last - first, size)."""
        return self.normal_(torch.empty(last - first, size, dtype=dtype, device=self.device), first)

    def normal_(self, table: Tensor, first: int) -> Tensor:
        """Write draws `first` and following, of standard normal numbers, into the rows of a table."""
        return self._fill(torch.randn, table, first)

    def _fill(self, draw: Callable[..., Tensor], table: Tensor, first: int) -> Tensor:
        for index, row in enumerate(table.unbind(), first):
            draw(row.shape, generator=self.generator(index), out=row)
        return table


@contextmanager
def seeded(seed: int, name: str, index: int = 0, *, device: torch.device | str) -> Iterator[None]:
    """Run code that uses the global generator of a device under a seed, and leave the global state as found."""
    device = torch.device(device)
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        key = derived_seed(seed, name, index)
        torch.default_generator.manual_seed(key)  # torch.manual_seed would touch every device
        for cuda in devices:
            with torch.cuda.device(cuda):
                torch.cuda.manual_seed(key)
        yield


def iterate(items: Iterable[T], seed: int, name: str, index: int = 0) -> Iterator[T]:
    """Iterate with random numbers of its own: a loader's shuffling and its transforms are seeded.

    Between the items the global state is the caller's, as found.
    """
    with seeded(seed, name, index, device="cpu"):
        iterator = iter(items)
        state = torch.get_rng_state()
    while True:
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(state)
            try:
                item = next(iterator)
            except StopIteration:
                return
            state = torch.get_rng_state()
        yield item
