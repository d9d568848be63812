"""Importing the library changes nothing for the code around it, and loads nothing that it does not need."""

import json
import subprocess
import sys
from typing import Any

import pytest
import torch

from global_state import unchanged_global_state

STATE = """
import hashlib, json, random, sys, warnings
import numpy, torch

def digest(value):
    return hashlib.sha256(repr(value).encode()).hexdigest()

def state():
    kind, keys, *rest = numpy.random.get_state()
    return {
        "argument validation": torch.distributions.Distribution._validate_args,
        "default dtype": str(torch.get_default_dtype()),
        "default device": str(torch.get_default_device()),
        "gradients enabled": torch.is_grad_enabled(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "number of threads": torch.get_num_threads(),
        "warning filters": [repr(entry) for entry in warnings.filters],
        "torch's random state": digest(torch.get_rng_state().tolist()),
        "numpy's random state": digest((kind, keys.tolist(), rest)),
        "numpy's error handling": numpy.geterr(),
        "python's random state": digest(random.getstate()),
    }
"""

ON_IMPORT = """
before = state()
import credibly
print(json.dumps({"before": before, "after": state(), "modules": sorted(sys.modules)}))
"""

ON_FIRST_USE = """
import matplotlib
import matplotlib.pyplot
before = state(), dict(matplotlib.rcParams)
import credibly
missing = [name for name in credibly.__all__ if not hasattr(credibly, name) or name not in dir(credibly)]
styled = [key for key, value in matplotlib.rcParams.items() if before[1][key] != value]
changed = [key for key, value in state().items() if key != "warning filters" and before[0][key] != value]
print(json.dumps({"missing": missing, "styled": styled, "changed": changed}))
"""

FENCED = ["pyro", "jax", "jaxlib", "numpyro", "arviz", "xarray", "pandas", "matplotlib", "seaborn", "sklearn"]
SLOW = ["scipy.stats", "scipy.optimize"]


def run(code: str) -> Any:
    """What the code prints as JSON, in an interpreter of its own."""
    done = subprocess.run([sys.executable, "-c", STATE + code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def imported() -> Any:
    return run(ON_IMPORT)


def test_import_changes_no_global_state(imported: Any) -> None:
    assert imported["after"] == imported["before"]


def test_import_loads_no_fenced_package(imported: Any) -> None:
    assert "credibly" in imported["modules"]
    assert sorted(set(FENCED + SLOW) & set(imported["modules"])) == []


def test_public_names_load_on_first_use() -> None:
    assert run(ON_FIRST_USE) == {"missing": [], "styled": [], "changed": []}


CHANGES = {
    "argument validation": lambda: torch.distributions.Distribution.set_default_validate_args(False),
    "default dtype": lambda: torch.set_default_dtype(torch.float64),
    "gradients enabled": lambda: torch.set_grad_enabled(False),
    "number of threads": lambda: torch.set_num_threads(2),
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_guard_over_every_test_catches(name: str) -> None:
    """The guard names the switch that was turned, and turns it back."""
    with pytest.raises(AssertionError, match=name), unchanged_global_state():
        CHANGES[name]()
    with unchanged_global_state():
        pass


def test_precisions_and_device_are_given(dtype: torch.dtype, device: torch.device) -> None:
    assert torch.ones(1, dtype=dtype, device=device).is_floating_point()
