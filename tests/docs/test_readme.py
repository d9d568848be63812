"""The code of the README and of the first pages runs as it stands there, and does what the text says."""

import re
from pathlib import Path

import pytest
import torch
from code_blocks import ROOT, python_blocks, run_page

from credibly.metrics import coverage_interval, nll
from credibly.posteriors import DrawPosterior

PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]


def test_quick_start_is_short_runs_and_helps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = python_blocks("README.md")
    statements = [line for line in code.splitlines() if line.strip() and not line.startswith("#")]
    assert len(statements) <= 25
    names = run_page("README.md")
    predicted, recalibrate, sets = names["predicted"], names["recalibrate"], names["sets"]
    y_test = names["y"][3]
    assert isinstance(names["posterior"], DrawPosterior)
    assert (tmp_path / "digits.safetensors").exists()
    assert recalibrate.temperature > 1
    assert nll(recalibrate(predicted), y_test) < nll(predicted, y_test)
    # fails by chance for one seed in a thousand
    low, high = coverage_interval(300, 897, 0.95, confidence=0.999)
    assert low <= sets.empirical_coverage(y_test) <= high


def test_getting_started_runs() -> None:
    names = run_page("docs/getting_started.md")
    predicted = names["predicted"]
    total = predicted.aleatoric_variance + predicted.epistemic_variance
    torch.testing.assert_close(total, predicted.variance)
    # the noise is largest at the ends, and the intervals say so; the two slopes differ by far more than their error
    edge = torch.as_tensor(abs(names["x_test"][:, 0]) > 2)
    assert predicted.stddev[edge].mean() > 1.3 * predicted.stddev[~edge].mean()
    low, high = coverage_interval(100, 100, 0.9, confidence=0.999)  # fails by chance for one seed in a thousand
    assert low <= names["intervals"].empirical_coverage(names["y_test"]) <= high


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", text):
        assert ((ROOT / page).parent / target).exists(), f"{page} links to {target}, which does not exist"
    for target in re.findall(r"\{doc\}`(?:[^`<]*<)?([\w/]+)>?`", text):
        generated = target.startswith("gallery/")
        assert generated or (ROOT / "docs" / f"{target}.md").exists(), (
            f"{page} refers to {target}, which does not exist"
        )
