"""Side by side in one process: ours, what a user would pick instead, and a floor nobody can go below.

Ratios of times move far less between machines than times do, so promises are ratios and absolute times are
not claims. All runners of a benchmark take turns, forwards in one round and backwards in the next, so that a
slow minute of the machine hits all of them alike; the medians over the rounds are compared.

The allocator keeps freed memory instead of handing it back to the system. By default glibc does either, depending
on what lies at the top of its heap, and a pass over 10,000 rows takes up to twice as long where every activation
is paged in again: a coin toss between runners that would drown what is measured.
"""

import ctypes
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

__all__ = ["Benchmark", "Fact", "Peer", "bytes_of_program", "measure", "run"]

NUM_THREADS = 2
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's malloc.h

Runner = Callable[[], Any]


@dataclass(frozen=True, kw_only=True)
class Peer:
    """What a user would write or install instead.

    Args:
        label: what it is, as printed.
        run: does the same work as ours.
        at_least: the promised ratio of its time to ours; None measures and promises nothing.
    """

    label: str
    run: Runner
    at_least: float | None = None


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """One piece of work, done by us and by others.

    Args:
        name: the name of the measurement, as printed.
        ours: the library's way.
        peers: the other ways.
        floor: the work that no way can do without, and nothing else.
        at_most: the promised ratio of our time to the floor's; None measures and promises nothing.
        check: takes what ours returned and what each peer and the floor returned, by label, and raises if
            they did not do the same work. It runs once, on the results of the warm-up.
        rounds: how often each runner is timed.
        warmups: how often each runner runs before.
        units: how many units of work (epochs, say) one call does; times are per unit.
    """

    name: str
    ours: Runner
    peers: tuple[Peer, ...] = ()
    floor: Runner | None = None
    at_most: float | None = None
    check: Callable[[Any, dict[str, Any]], None] | None = None
    rounds: int = 7
    warmups: int = 1
    units: int = 1


@dataclass(frozen=True, kw_only=True)
class Fact:
    """A promise that is not a ratio of times."""

    name: str
    promise: str
    holds: Callable[[], bool]


def run(parts: Iterable[Benchmark | Fact]) -> int:
    """Print a JSON line for every measurement; 0 if all promises were held, else 1."""
    torch.set_num_threads(NUM_THREADS)
    _keep_freed_memory()
    all_held = True
    for part in parts:
        for line in _lines(part):
            print(json.dumps(line), flush=True)
            all_held &= line["held"] is not False
    if not all_held:
        print("a promise was missed", file=sys.stderr)
    return 0 if all_held else 1


def bytes_of_program(name: str) -> int:
    """Memory of this program: its peak, "VmHWM", or what it holds now, "VmRSS".

    getrusage would report the peak of the process that started it where that is larger.
    """
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def _keep_freed_memory() -> None:
    """For all runners alike; where the allocator is not glibc's, nothing."""
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_TRIM_THRESHOLD, 2**30)
        set_option(_MMAP_THRESHOLD, 2**25)


def _lines(part: Benchmark | Fact) -> Iterator[dict[str, Any]]:
    if isinstance(part, Fact):
        yield _line(part.name, promise=part.promise, held=part.holds())
        return
    seconds = measure(part)
    for peer in part.peers or (None,):
        yield _compare(part, peer, seconds)


def _compare(benchmark: Benchmark, peer: Peer | None, seconds: dict[str, float]) -> dict[str, Any]:
    ours_s, floor_s = seconds["ours"], seconds.get("floor")
    ratio = seconds[peer.label] / ours_s if peer else None
    floor_ratio = ours_s / floor_s if floor_s else None
    promises = []
    if peer and peer.at_least is not None:
        promises.append((f"ratio >= {peer.at_least}", ratio >= peer.at_least))
    if benchmark.at_most is not None:
        promises.append((f"floor_ratio <= {benchmark.at_most}", floor_ratio <= benchmark.at_most))
    return _line(
        benchmark.name,
        ours_s=ours_s,
        peer=peer.label if peer else None,
        peer_s=seconds[peer.label] if peer else None,
        ratio=ratio,
        floor_s=floor_s,
        floor_ratio=floor_ratio,
        promise=", ".join(text for text, _ in promises) or None,
        held=all(held for _, held in promises) if promises else None,
    )


def _line(
    name: str,
    *,
    ours_s: float | None = None,
    peer: str | None = None,
    peer_s: float | None = None,
    ratio: float | None = None,
    floor_s: float | None = None,
    floor_ratio: float | None = None,
    promise: str | None,
    held: bool | None,
) -> dict[str, Any]:
    return {
        "name": name,
        "ours_s": _rounded(ours_s),
        "peer": peer,
        "peer_s": _rounded(peer_s),
        "ratio": _rounded(ratio),
        "floor_s": _rounded(floor_s),
        "floor_ratio": _rounded(floor_ratio),
        "promise": promise,
        "held": held,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def measure(benchmark: Benchmark) -> dict[str, float]:
    """Median seconds per unit of work, by label: "ours", "floor" and the peers'."""
    runners = _runners(benchmark)
    warm = {label: [runner() for _ in range(benchmark.warmups)][-1] for label, runner in runners.items()}
    if benchmark.check is not None:
        benchmark.check(warm.pop("ours"), warm)
    del warm
    times: dict[str, list[float]] = {label: [] for label in runners}
    for turn in range(benchmark.rounds):
        for label in list(runners) if turn % 2 == 0 else list(reversed(runners)):
            times[label].append(_timed(runners[label]))
    return {label: statistics.median(taken) / benchmark.units for label, taken in times.items()}


def _runners(benchmark: Benchmark) -> dict[str, Runner]:
    runners = {"ours": benchmark.ours}
    if benchmark.floor is not None:
        runners["floor"] = benchmark.floor
    return runners | {peer.label: peer.run for peer in benchmark.peers}


def _timed(runner: Runner) -> float:
    """Seconds of one call. Garbage left by the runner before is collected on nobody's time."""
    gc.collect()
    start = time.perf_counter()
    runner()
    return time.perf_counter() - start
