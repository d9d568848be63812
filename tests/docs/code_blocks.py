"""The python blocks of a Markdown page, as files that can be run."""

import re
from pathlib import Path

__all__ = ["ROOT", "python_blocks", "run_page", "write_modules"]

ROOT = Path(__file__).parents[2]

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAME = re.compile(r"# (\w+\.py)\n")


def python_blocks(page: str) -> list[str]:
    """The code of every block, in order."""
    return BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))


def run_page(page: str) -> dict[str, object]:
    """Run all blocks one after another, as a reader would who types them in; gives the names they left."""
    names: dict[str, object] = {"__name__": "page"}
    for number, code in enumerate(python_blocks(page)):
        exec(compile(code, f"{page}, block {number}", "exec"), names)
    return names


def write_modules(page: str, folder: Path) -> list[str]:
    """Write every block to the file that its first line names; gives the names."""
    names = []
    for code in python_blocks(page):
        name = NAME.match(code)
        assert name, f"a block of {page} does not begin with the name of its file: {code[:40]!r}"
        (folder / name[1]).write_text(code, encoding="utf-8")
        names.append(name[1])
    return names
