"""Settings of the documentation: `make docs` runs every example and fails on any warning."""

import re
import warnings
from importlib.metadata import version as installed_version
from typing import Any

project = "credibly"
author = "The credibly authors"
project_copyright = "The credibly authors"
release = version = installed_version("credibly")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_gallery.gen_gallery",
]
templates_path = ["_templates"]
exclude_patterns = ["_build", "_templates", "gallery/**/*.ipynb", "gallery/**/*.py", "sg_execution_times.rst"]
default_role = "code"

# Prose is Markdown; the pages that sphinx-gallery and autosummary write are reStructuredText.
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

# The public face of a package is the `__all__` of its `__init__`; that is what the reference shows.
autosummary_generate = True
autosummary_ignore_module_all = False
autodoc_default_options = {"members": True, "imported-members": True, "show-inheritance": True}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "mixed"
toc_object_entries_show_parents = "hide"
python_maximum_signature_line_length = 90
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False

html_theme = "furo"
html_title = f"credibly {release}"
html_copy_source = False
html_show_sphinx = False

sphinx_gallery_conf = {
    "examples_dirs": ["../examples"],
    "gallery_dirs": ["gallery"],
    "filename_pattern": r"\.py$",
    "ignore_pattern": r"/_",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "image_scrapers": ("matplotlib",),
    "matplotlib_animations": False,
    "remove_config_comments": True,
    "reset_modules": ("matplotlib",),
    "show_memory": False,
    "show_signature": False,
    "within_subsection_order": "FileNameSortKey",
}

# The plain figure window does not exist in a build; scripts may still call `plt.show()`.
warnings.filterwarnings("ignore", message=".*non-interactive.*", category=UserWarning)


# Docstrings are plain text with code in backticks: `*batch`, |y - mean| and x_ are mathematics, not markup.
LITERAL = re.compile(r"(``.*?``|`[^`]*`)")
MARKUP = re.compile(r"[*|]|(?<=\w)_(?!\w)")


def escape_markup(*event: Any) -> None:
    """Escape in place what reStructuredText would read as emphasis, a substitution or a reference."""
    lines: list[str] = event[-1]
    literal_below: int | None = None  # the indent of a line that ended in `::`; what is indented more is code
    for number, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        if line.strip() and literal_below is not None and indent <= literal_below:
            literal_below = None
        if literal_below is None:
            lines[number] = escaped(line)
            literal_below = indent if line.rstrip().endswith("::") else None


def escaped(line: str) -> str:
    """The line with its code as it is, also where a word goes on right behind it, and its text without markup."""
    text, *rest = LITERAL.split(line)
    pieces = [MARKUP.sub(r"\\\g<0>", text)]
    for code, text in zip(rest[::2], rest[1::2], strict=True):
        pieces += [code, "\\ " if text[:1].isalnum() else "", MARKUP.sub(r"\\\g<0>", text)]
    return "".join(pieces)


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", escape_markup, priority=400)  # before napoleon, at 500
