"""The pages on likelihoods: one for each, listed in the table, and the examples run."""

import re

import pytest
import torch
from code_blocks import ROOT, python_blocks, run_page

from credibly import likelihoods

FOLDER = ROOT / "docs" / "likelihoods"
PAGES = sorted(path.stem for path in FOLDER.glob("*.md") if path.stem != "index")
TITLES = {(FOLDER / f"{page}.md").read_text(encoding="utf-8").split("\n", 1)[0].removeprefix("# ") for page in PAGES}


def test_every_likelihood_has_a_page_and_every_page_is_listed():
    assert set(likelihoods.__all__) - {"Likelihood"} <= TITLES
    index = (FOLDER / "index.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"\{doc\}`(\w+)`", index)) == PAGES
    assert sorted(re.findall(r"^(\w+)$", index, re.MULTILINE)) == PAGES  # the tree of contents


@pytest.mark.parametrize("page", PAGES)
def test_the_example_is_short_and_runs(page):
    name = f"docs/likelihoods/{page}.md"
    (code,) = python_blocks(name)
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    torch.manual_seed(0)
    run_page(name)
