"""Our numbers beside other libraries', for docs/coming_from.md. No promise of speed.

Run `python -m benchmarks.peer_differences`, or with the names of libraries behind it. What a peer and we give on the
same data stands side by side; libraries that are not installed are named and left out. torchmetrics, MAPIE and crepes
come with `benchmarks/requirements.txt`. netcal (with tensorboard), relplot (with deprecation), uncertainty-toolbox and
TorchCP (with torch-geometric, torchsort and transformers, for it imports all of its parts at once) can be added.
"""

import argparse
import logging
import warnings
from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

from benchmarks.peers.rows import Row

PEERS: dict[str, tuple[str, ...]] = {
    "torchmetrics": ("torchmetrics_rows",),
    "mapie": ("mapie_classes", "mapie_numbers"),
    "torchcp": ("torchcp_rows",),
    "crepes": ("crepes_rows",),
    "netcal": ("netcal_rows",),
    "relplot": ("relplot_rows",),
    "uncertainty-toolbox": ("uncertainty_toolbox_rows",),
}


def compare(peer: str) -> None:
    """Print every line of a peer, or that it is not there."""
    try:
        print(f"\n## {peer} {version(peer)}")
        modules = [import_module(f"benchmarks.peers.{name}") for name in PEERS[peer]]
    except (PackageNotFoundError, ImportError) as error:
        print(f"\n{peer}: skipped, not installed or incomplete ({type(error).__name__}: {error})")
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some of the libraries set filters when they are imported
        for module in modules:
            _print(module.rows())


def _print(rows: Iterable[Row]) -> None:
    for row in rows:
        if row.ours is None:
            print(f"{row.what}: {row.theirs}", flush=True)
        else:
            print(f"{row.what}\n    theirs  {row.theirs}\n    ours    {row.ours}", flush=True)


def main() -> None:
    """Read the names of the peers and compare."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peer_differences", description=__doc__)
    parser.add_argument("peers", nargs="*", metavar="peer", help=f"one or more of {', '.join(PEERS)}; all by default")
    peers = parser.parse_args().peers or list(PEERS)
    unknown = [peer for peer in peers if peer not in PEERS]
    if unknown:
        parser.error(f"{', '.join(unknown)}: not among {', '.join(PEERS)}")
    logging.disable(logging.INFO)
    for peer in peers:
        compare(peer)


if __name__ == "__main__":
    main()
