"""The rules of the layers, read from the syntax tree: nothing is imported to be checked.

Each rule is a function from the modules of a package to a list of sentences, one for each place where the
rule is broken. An import under `if TYPE_CHECKING` counts like any other, except in a package's `__init__`,
where it tells type checkers about the names that are loaded on first use.
"""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

__all__ = ["RULES", "Import", "Module", "Package", "read_package"]

LAYERS = {
    "core": 0,
    "distributions": 1,
    "nets": 1,
    "likelihoods": 2,
    "priors": 2,
    "metrics": 2,
    "standardization": 2,
    "model": 3,
    "training": 4,
    "curvature": 4,
    "posteriors": 5,
    "flows": 5,
    "bridges": 5,
    "inference": 6,
    "generative": 6,
    "simulation": 7,
    "calibration": 8,
    "conformal": 8,
    "decision": 8,
    "diagnostics": 8,
    "plots": 9,
    "interop": 9,
    "serialization": 9,
    "reports": 10,
    "cli": 11,
}
"""A part may import parts of lower layers and itself."""

BELOW_THE_WAIST = {part: {"core", "distributions", "metrics"} for part in ("calibration", "conformal", "decision")}
"""Parts that may import only these, however low the others lie."""

FENCES = {
    "pyro": ("bridges.pyro", "inference.pyro_guide"),
    "jax": ("bridges.numpyro",),
    "jaxlib": ("bridges.numpyro",),
    "numpyro": ("bridges.numpyro",),
    "arviz": ("diagnostics",),
    "xarray": ("diagnostics",),
    "matplotlib": ("plots", "reports"),
    "mpl_toolkits": ("plots", "reports"),
    "seaborn": ("plots", "reports"),
    "pandas": ("interop", "cli"),
    "sklearn": ("interop",),
}
"""The modules or packages inside which a heavy or optional dependency may be imported."""

DYNAMIC_IMPORTS = ("serialization",)
"""`load` resolves names from the library's own public list; no other module may import by a computed name."""


@dataclass(frozen=True)
class Import:
    """One imported name: `from a.b import c` is the target `a.b.c`, of the source `a.b`."""

    source: str
    target: str
    line: int
    nested: bool  # inside a function or class
    typing_only: bool


@dataclass(frozen=True)
class Module:
    """A parsed file. A face is the `__init__` of a package."""

    name: str
    is_face: bool
    tree: ast.Module
    imports: tuple[Import, ...]


@dataclass(frozen=True)
class Package:
    """All modules of a package by dotted name."""

    name: str
    modules: dict[str, Module]

    def part(self, module: str) -> str:
        """The entry of the layer table that a module belongs to; the package's own face has none."""
        return module.removeprefix(self.name).removeprefix(".").partition(".")[0]

    def is_ours(self, target: str) -> bool:
        return target == self.name or target.startswith(f"{self.name}.")

    def resolve(self, imported: Import) -> str:
        """The module that an import reads: the target if that is a module, else where the name comes from."""
        return imported.target if imported.target in self.modules else imported.source

    def edges(self) -> Iterator[tuple[Module, Import, str]]:
        """Every import of one of our modules by another, with what it resolves to."""
        for module, imported in self.imports():
            if self.is_ours(imported.source):
                yield module, imported, self.resolve(imported)

    def imports(self) -> Iterator[tuple[Module, Import]]:
        for module in self.modules.values():
            for imported in module.imports:
                if not (module.is_face and imported.typing_only):
                    yield module, imported


def read_package(root: Path) -> Package:
    """Parse every file of the package in this folder."""
    modules = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root.parent).with_suffix("").parts
        is_face = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_face else parts)
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
        modules[name] = Module(name, is_face, tree, tuple(_imports(tree, name if is_face else name.rpartition(".")[0])))
    return Package(root.name, modules)


def _imports(node: ast.AST, package: str, nested: bool = False, typing_only: bool = False) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            for source, target in _names(child, package):
                yield Import(source, target, child.lineno, nested, typing_only)
        elif isinstance(child, ast.If) and _is_type_checking(child.test):
            yield from _imports(ast.Module(child.body, []), package, nested, True)
            yield from _imports(ast.Module(child.orelse, []), package, nested, typing_only)
        else:
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            yield from _imports(child, package, nested or inside, typing_only)


def _names(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Import):
        yield from ((alias.name, alias.name) for alias in node.names)
        return
    base = node.module or ""
    if node.level:
        above = package.split(".")[: len(package.split(".")) - node.level + 1]
        base = ".".join([*above, base] if base else above)
    yield from ((base, f"{base}.{alias.name}") for alias in node.names)


def _is_type_checking(test: ast.expr) -> bool:
    return ast.unparse(test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


def every_part_has_a_layer(package: Package) -> list[str]:
    """A new package or top-level module says where it belongs before anything imports it."""
    parts = {package.part(name) for name in package.modules} - {""}
    return [f"{package.name}.{part} has no layer" for part in sorted(parts - LAYERS.keys())]


def no_upward_import(package: Package) -> list[str]:
    """A part imports lower layers and itself: neither higher layers nor its neighbours in the same layer."""
    return [
        f"{module.name}:{imported.line} imports {target}, which is not in a lower layer"
        for module, imported, target in package.edges()
        if not _may_import(package.part(module.name), package.part(target))
    ]


def _may_import(part: str, other: str) -> bool:
    return part in {"", other} or LAYERS.get(other, 99) < LAYERS.get(part, -1)


def waist_is_respected(package: Package) -> list[str]:
    """What consumes distributions knows nothing of networks, posteriors or where they came from."""
    return [
        f"{module.name}:{imported.line} imports {target} across the waist"
        for module, imported, target in package.edges()
        if (part := package.part(module.name)) in BELOW_THE_WAIST
        and package.part(target) not in BELOW_THE_WAIST[part] | {part}
    ]


def no_cycle(package: Package) -> list[str]:
    """Modules can be put in an order in which each imports only earlier ones."""
    graph: dict[str, set[str]] = {name: set() for name in package.modules}
    for module, _, target in package.edges():
        graph[module.name].add(target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [f"import cycle: {' -> '.join(reversed(error.args[1]))}"]
    return []


def imports_exist(package: Package) -> list[str]:
    """Every import of our own code, also of a name that only type checkers read, leads to a module."""
    return [
        f"{module.name}:{imported.line} imports {imported.source}, which does not exist"
        for module in package.modules.values()
        for imported in module.imports
        if package.is_ours(imported.source) and imported.source not in package.modules
    ]


def no_face_imported(package: Package) -> list[str]:
    """Names come from the module that defines them. Only a face may read the faces of its own subpackages."""
    return [
        f"{module.name}:{imported.line} imports the face of {target}"
        for module, imported, target in package.edges()
        if target in package.modules
        and package.modules[target].is_face
        and not (module.is_face and target.rpartition(".")[0] == module.name)
    ]


def faces_only_export(package: Package) -> list[str]:
    """A face defines nothing but the two hooks that load subpackages on first use."""
    allowed = {"__getattr__", "__dir__"}
    return [
        f"{module.name}:{node.lineno} defines {node.name} in a package's face"
        for module in package.modules.values()
        if module.is_face
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name not in allowed
    ]


def no_hidden_import(package: Package) -> list[str]:
    """Imports stand at the top of a module, where they can be seen."""
    return [
        f"{module.name}:{imported.line} imports {imported.target} inside a function or class"
        for module in package.modules.values()
        for imported in module.imports
        if imported.nested
    ] + [
        f"{module.name}:{node.lineno} imports by a computed name"
        for module in package.modules.values()
        if not module.is_face and package.part(module.name) not in DYNAMIC_IMPORTS
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in {"import_module", "__import__"}
    ]


def fences_hold(package: Package) -> list[str]:
    """Heavy and optional dependencies stay where they are at home, so that nobody else pays for them."""
    return [
        f"{module.name}:{imported.line} imports {imported.source} outside {', '.join(FENCES[outside])}"
        for module, imported in package.imports()
        if (outside := imported.source.partition(".")[0]) in FENCES
        and not any(_is_within(module.name, f"{package.name}.{home}") for home in FENCES[outside])
    ]


def _is_within(name: str, home: str) -> bool:
    return name == home or name.startswith(f"{home}.")


RULES: dict[str, Callable[[Package], list[str]]] = {
    rule.__name__: rule
    for rule in (
        every_part_has_a_layer,
        no_upward_import,
        waist_is_respected,
        no_cycle,
        imports_exist,
        no_face_imported,
        faces_only_export,
        no_hidden_import,
        fences_hold,
    )
}
