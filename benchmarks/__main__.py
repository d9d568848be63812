"""Run a benchmark, or all: one JSON line per measurement, exit status 1 when a promise is missed.

`uci`, which is no matter of speed, measures what its file of results lacks, and is not among `all`.
"""

import argparse
import sys
from collections.abc import Callable, Iterable
from itertools import chain

from benchmarks import (
    aps,
    crps,
    cv_plus,
    ece,
    ece_bootstrap,
    ensemble,
    ensemble_cnn,
    fit_overhead,
    import_time,
    interval,
    laplace_fit,
    laplace_memory,
    laplace_predict,
    mc_dropout,
    mean_field_step,
    posterior_predict,
    pvalues,
    temperature,
)
from benchmarks.harness import Benchmark, Fact, run
from benchmarks.uci.run import run as run_uci

Parts = Callable[[], Iterable[Benchmark | Fact]]

BENCHMARKS: dict[str, tuple[Parts, ...]] = {
    "ensemble": (ensemble.parts, ensemble_cnn.parts),
    "ensemble_cnn": (ensemble_cnn.parts,),
    "mc_dropout": (mc_dropout.parts,),
    "fit_overhead": (fit_overhead.parts,),
    "mean_field_step": (mean_field_step.parts,),
    "ece": (ece.parts,),
    "ece_bootstrap": (ece_bootstrap.parts,),
    "crps": (crps.parts,),
    "interval": (interval.parts,),
    "laplace_fit": (laplace_fit.parts,),
    "posterior_predict": (posterior_predict.parts,),
    "laplace_predict": (laplace_predict.parts,),
    "laplace_memory": (laplace_memory.parts,),
    "aps": (aps.parts,),
    "cv_plus": (cv_plus.parts,),
    "pvalues": (pvalues.parts,),
    "temperature": (temperature.parts,),
    "import": (import_time.parts,),
}


def chosen(name: str) -> Iterable[Parts]:
    """What to run under a name; `all` runs each part once."""
    names = BENCHMARKS if name == "all" else [name]
    return dict.fromkeys(chain.from_iterable(BENCHMARKS[each] for each in names))


def main() -> int:
    """Read the name from the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", choices=[*BENCHMARKS, "all", "uci"])
    name = parser.parse_args().name
    return run_uci() if name == "uci" else run(chain.from_iterable(parts() for parts in chosen(name)))


if __name__ == "__main__":
    sys.exit(main())
