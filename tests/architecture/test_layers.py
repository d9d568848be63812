"""The library keeps the rules of its layers, and the rules catch what they are meant to catch."""

from pathlib import Path

import pytest
from import_rules import RULES, Package, read_package

LIBRARY = Path(__file__).parents[2] / "src" / "credibly"


@pytest.fixture(scope="module")
def library() -> Package:
    return read_package(LIBRARY)


@pytest.mark.parametrize("rule", RULES)
def test_library_keeps(library: Package, rule: str) -> None:
    assert RULES[rule](library) == []


def test_library_was_read(library: Package) -> None:
    """An empty reading would keep every rule."""
    targets = {imported.target for _, imported, _ in library.edges()}
    assert "credibly.core.errors" in library.modules
    assert "credibly.core.errors.NotFiniteError" in targets


def plant(folder: Path, files: dict[str, str]) -> Package:
    """A small package of the same name, with a face in every folder."""
    root = folder / "credibly"
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        for parent in path.parents:
            if parent.is_relative_to(root):
                (parent / "__init__.py").touch()
    return read_package(root)


HONEST = {
    "__init__.py": (
        "from typing import TYPE_CHECKING\n"
        "from credibly import core\n"
        "from credibly.model import Model\n"
        "if TYPE_CHECKING:\n"
        "    from credibly import plots\n"
        "    import matplotlib\n"
        "def __getattr__(name): ...\n"
    ),
    "core/errors.py": "import torch\nclass ShapeError(ValueError): ...\n",
    "core/checks.py": "from .errors import ShapeError\n",
    "model.py": "from credibly.core.checks import ShapeError\nfrom credibly.core import errors\n",
    "metrics/__init__.py": "from credibly.metrics.brier import brier\n",
    "metrics/brier.py": "import credibly.core.errors\n",
    "calibration/temperature.py": "from credibly.metrics.brier import brier\n",
    "plots/reliability.py": "import matplotlib.pyplot as plt\nfrom credibly.metrics.brier import brier\n",
    "bridges/pyro.py": "import pyro\nfrom credibly.model import Model\n",
    "inference/pyro_guide.py": "from pyro import infer\nfrom credibly.bridges.pyro import to_pyro\n",
    "serialization.py": "import importlib\ndef load(n):\n    return importlib.import_module(n)\n",
}


@pytest.mark.parametrize("rule", RULES)
def test_honest_package_passes(tmp_path: Path, rule: str) -> None:
    assert RULES[rule](plant(tmp_path, HONEST)) == []


PLANTED = {
    "a part without a layer": (
        "every_part_has_a_layer",
        {"utils/strings.py": ""},
        "credibly.utils has no layer",
    ),
    "upward": (
        "no_upward_import",
        {"core/checks.py": "from credibly.model import Model\n", "model.py": ""},
        "credibly.core.checks:1 imports credibly.model",
    ),
    "upward in a face": (
        "no_upward_import",
        {"core/__init__.py": "import credibly.model\n", "core/checks.py": "", "model.py": ""},
        "credibly.core:1 imports credibly.model",
    ),
    "upward for the type checker": (
        "no_upward_import",
        {
            "core/checks.py": (
                "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from credibly.model import Model\n"
            ),
            "model.py": "",
        },
        "credibly.core.checks:3 imports credibly.model",
    ),
    "upward by a relative import": (
        "no_upward_import",
        {"core/checks.py": "from ..model import Model\n", "model.py": ""},
        "credibly.core.checks:1 imports credibly.model",
    ),
    "sideways in one layer": (
        "no_upward_import",
        {"priors/normal.py": "from credibly.likelihoods.gaussian import G\n", "likelihoods/gaussian.py": ""},
        "credibly.priors.normal:1 imports credibly.likelihoods.gaussian",
    ),
    "across the waist": (
        "waist_is_respected",
        {"conformal/split.py": "from credibly.posteriors.base import Posterior\n", "posteriors/base.py": ""},
        "credibly.conformal.split:1 imports credibly.posteriors.base across the waist",
    ),
    "a low part that is not the waist's": (
        "waist_is_respected",
        {"calibration/t.py": "from credibly.likelihoods.gaussian import G\n", "likelihoods/gaussian.py": ""},
        "credibly.calibration.t:1 imports credibly.likelihoods.gaussian across the waist",
    ),
    "cycle of three": (
        "no_cycle",
        {
            "core/a.py": "from credibly.core.b import x\n",
            "core/b.py": "from credibly.core import c\n",
            "core/c.py": "import credibly.core.a\n",
        },
        "import cycle: ",
    ),
    "cycle through itself": (
        "no_cycle",
        {"core/a.py": "from credibly.core.a import x\n"},
        "credibly.core.a -> credibly.core.a",
    ),
    "face": (
        "no_face_imported",
        {"model.py": "from credibly.core import ShapeError\n", "core/errors.py": ""},
        "credibly.model:1 imports the face of credibly.core",
    ),
    "top face": (
        "no_face_imported",
        {"model.py": "import credibly\n"},
        "credibly.model:1 imports the face of credibly",
    ),
    "face of another package in a face": (
        "no_face_imported",
        {"metrics/__init__.py": "from credibly import core\n", "core/errors.py": ""},
        "credibly.metrics:1 imports the face of credibly.core",
    ),
    "module that does not exist": (
        "imports_exist",
        {"model.py": "from credibly.gone import x\n"},
        "credibly.model:1 imports credibly.gone, which does not exist",
    ),
    "code in a face": (
        "faces_only_export",
        {"core/__init__.py": "def helper(): ...\n"},
        "credibly.core:1 defines helper",
    ),
    "inside a function": (
        "no_hidden_import",
        {"model.py": "def f():\n    if True:\n        import scipy.stats\n"},
        "credibly.model:3 imports scipy.stats inside a function",
    ),
    "inside a method": (
        "no_hidden_import",
        {"model.py": "class A:\n    async def f(self):\n        from math import tau\n"},
        "credibly.model:3 imports math.tau inside a function",
    ),
    "by a computed name": (
        "no_hidden_import",
        {"model.py": "import importlib\nx = importlib.import_module('pyro')\n"},
        "credibly.model:2 imports by a computed name",
    ),
    "pyro in a recipe": (
        "fences_hold",
        {"inference/svi.py": "import pyro.infer as infer\n"},
        "credibly.inference.svi:1 imports pyro.infer outside bridges.pyro",
    ),
    "jax in the other bridge": (
        "fences_hold",
        {"bridges/pyro.py": "from jax import numpy\n"},
        "credibly.bridges.pyro:1 imports jax outside bridges.numpyro",
    ),
    "a name that only begins like a home": (
        "fences_hold",
        {"plots_old.py": "import seaborn\n"},
        "credibly.plots_old:1 imports seaborn outside plots, reports",
    ),
    **{
        f"{package} in metrics": (
            "fences_hold",
            {"metrics/table.py": f"try:\n    import {package}\nexcept ImportError:\n    pass\n"},
            f"credibly.metrics.table:2 imports {package} outside",
        )
        for package in (
            "pyro",
            "jax",
            "numpyro",
            "arviz",
            "xarray",
            "matplotlib",
            "seaborn",
            "pandas",
            "sklearn",
        )
    },
}


@pytest.mark.parametrize("planted", PLANTED)
def test_planted_violation_is_caught(tmp_path: Path, planted: str) -> None:
    rule, files, expected = PLANTED[planted]
    found = RULES[rule](plant(tmp_path, files))
    assert len(found) == 1
    assert expected in found[0]


def test_every_rule_has_a_planted_violation() -> None:
    assert {rule for rule, _, _ in PLANTED.values()} == RULES.keys()
