"""The page for users of other libraries: what it says of our side is run, and the names it gives exist."""

import doctest
import re

from code_blocks import ROOT

from credibly import calibration, conformal, distributions, metrics, plots

PAGE = (ROOT / "docs" / "coming_from.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^( *)```pycon\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
FACES = {"calibration": calibration, "conformal": conformal, "distributions": distributions}
FACES |= {"metrics": metrics, "plots": plots}


def test_our_numbers_are_those_of_the_page() -> None:
    session = "\n".join(block for _, block in BLOCK.findall(PAGE))
    examples = doctest.DocTestParser().get_doctest(session, {}, "docs/coming_from.md", "docs/coming_from.md", 0)
    assert len(examples.examples) > 40
    report: list[str] = []
    result = doctest.DocTestRunner(verbose=False).run(examples, out=report.append)
    assert result.attempted == len(examples.examples)
    assert not result.failed, "".join(report)


def test_every_name_exists() -> None:
    names = set(re.findall(r"(?<![\w.])(calibration|conformal|distributions|metrics|plots)\.([A-Za-z]\w*)", PAGE))
    assert len(names) > 40
    assert not [f"{face}.{name}" for face, name in names if name not in FACES[face].__all__]


def test_the_versions_measured_are_those_of_the_benchmarks() -> None:
    pinned = dict(re.findall(r"^([\w-]+)==(.+)$", (ROOT / "benchmarks/requirements.txt").read_text(), re.MULTILINE))
    for peer, spelled in (("torchmetrics", "torchmetrics"), ("mapie", "MAPIE"), ("crepes", "crepes")):
        assert re.search(rf"\b{spelled}\s+{re.escape(pinned[peer])}", PAGE), f"{peer} {pinned[peer]}"
