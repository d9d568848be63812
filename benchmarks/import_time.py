"""`import credibly` against `import torch`, each in a fresh interpreter."""

import json
import subprocess
import sys
from collections.abc import Iterator

from benchmarks.harness import Benchmark, Fact

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
    yield Fact(name="import, modules", promise=f"none of {', '.join(HEAVY)} is loaded", holds=_loads_nothing_heavy)


def _python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def _loads_nothing_heavy() -> bool:
    loaded = json.loads(_python("import credibly, json, sys; print(json.dumps(list(sys.modules)))"))
    return not set(HEAVY) & set(loaded)
