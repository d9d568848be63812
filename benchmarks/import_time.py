"""`import credibly` against `import torch`, each in a fresh interpreter."""

import json
import subprocess
import sys
from collections.abc import Iterator

from benchmarks.harness import Benchmark, Fact

PARTS = "Model, calibration, conformal, distributions, inference, likelihoods, load, metrics, priors"
HEAVY = ("pyro", "jax", "numpyro", "arviz", "pandas", "matplotlib", "seaborn")


def parts() -> Iterator[Benchmark | Fact]:
    """The time of an import, and what it must not load."""
    yield Benchmark(
        name="import",
        ours=lambda: _python("import credibly"),
        floor=lambda: _python("import torch"),
        at_most=1.1,
        rounds=9,
        warmups=2,
    )
    # parts load on first use: what a program that fits a model and calibrates it waits for
    yield Benchmark(
        name="import, with all parts",
        ours=lambda: _python(f"from credibly import {PARTS}"),
        floor=lambda: _python("import torch"),
        rounds=9,
        warmups=2,
    )
    yield Fact(name="import, modules", promise=f"none of {', '.join(HEAVY)} is loaded", holds=_loads_nothing_heavy)


def _python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def _loads_nothing_heavy() -> bool:
    loaded = json.loads(
        _python(f"from credibly import {PARTS}\nimport json, sys\nprint(json.dumps(list(sys.modules)))")
    )
    return not set(HEAVY) & set(loaded)
