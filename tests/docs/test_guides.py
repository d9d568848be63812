"""The pages on conformal prediction and on decisions run as they stand there, and what they say is so."""

import math
import re
import runpy
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
import torch
from code_blocks import ROOT, run_page

from credibly.metrics import coverage_interval

PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("**/*.md"))
EXAMPLES = {path.stem for path in (ROOT / "examples").glob("*.py")}


def within(coverage, num_calibration, num_test, level=0.9):
    """Whether the coverage is plausible; fails by chance for one seed in a thousand."""
    low, high = coverage_interval(num_calibration, num_test, level, confidence=0.999)
    return low <= float(coverage) <= high


def test_the_conformal_page_runs_and_holds_what_it_promises():
    names = run_page("docs/conformal.md")
    x, y, labels = names["x"], names["y"], names["labels"]
    held = names["intervals"].contains(y[1000:])
    right = x[1000:] > 3
    assert names["metrics"].coverage(names["predicted"], y[1000:], 0.9) < 0.7  # overconfident before
    assert within(held.double().mean(), 1000, 2000)
    # "a constant width holds far fewer" and "quantiles moved by a constant too few" of the noisy rows
    conformal, held_out, predicted = names["conformal"], names["held_out"], names["predicted"]
    of_right = {}
    for score in (conformal.AbsoluteResidual(), conformal.CQR(), conformal.StandardizedResidual()):
        found = score.calibrate(held_out, y[:1000]).predict(predicted, coverage=0.9)
        of_right[type(score).__name__] = float(found.contains(y[1000:])[right].double().mean())
    assert of_right["AbsoluteResidual"] < of_right["CQR"] < 0.87 < of_right["StandardizedResidual"]
    for group in (0, 1):
        mine, of_mine = names["group"][1000:] == group, int((names["group"][:1000] == group).sum())
        assert within(names["by_group"].contains(y[1000:])[mine].double().mean(), of_mine, int(mine.sum()))
    for label in range(6):
        mine, of_mine = labels[1500:] == label, int((labels[500:1500] == label).sum())
        assert within(names["sets_by_class"].contains(labels[1500:])[mine].double().mean(), of_mine, int(mine.sum()))


def test_the_other_promises_of_the_conformal_page():
    names = run_page("docs/conformal.md")
    assert 0.7 < names["plus"].guaranteed_coverage(0.9) < 0.8
    assert names["found"].empirical_coverage(names["y"][1000:]) > names["plus"].guaranteed_coverage(0.9)
    assert 100 < names["shifted"].effective_sample_size < 1000
    run, steps = names["run"], torch.tensor([0.02, 0.1], dtype=torch.float64)
    assert bool(((run.coverage[1:] - 0.9).abs() <= (0.9 + steps) / (800 * steps)).all())
    infinite = run.thresholds.isinf().double().mean(0)
    assert infinite[0] <= infinite[1] < infinite[2]  # a larger step is everything more often
    assert set(range(181, 200)) <= set(names["report"].indices.tolist())
    assert names["chosen"].controlled
    assert names["chosen"].parameter <= names["sure"].parameter  # a bound with probability asks for more than a mean
    # 1000 fresh rows: the mean of the losses is off by a standard error; four of them fail once in 30,000
    loss = names["left_out"][1000:, names["chosen"].index].double()
    assert loss.mean() < 0.1 + 4 * loss.std() / math.sqrt(len(loss))


def test_the_decision_page_runs_and_saves():
    names = run_page("docs/decision.md")
    saved = (names["usual"] - names["incurred"]).double()
    assert saved.mean() > 4 * saved.std() / math.sqrt(len(saved))
    # the probabilities are true, so the expected cost is the mean of what was paid, but for four standard errors
    off = (names["incurred"] - names["chosen"].expected_cost).double()
    assert abs(off.mean()) < 4 * off.std() / math.sqrt(len(off))
    assert bool((names["left"].expected_cost <= names["chosen"].expected_cost).all())
    assert bool((names["asked"].expected_cost <= names["chosen"].expected_cost).all())
    assert names["selective"].controlled
    assert names["wrong"][1000:][names["answered"]].mean() < 0.05
    orders = names["decision"].grid_act(names["demand"], names["cost"], acts=torch.arange(0.0, 201.0)).acts
    exact = names["decision"].newsvendor_act(names["demand"], underage=4.0, overage=1.0)
    assert orders[0] == 110 < exact[0]  # the second lorry does not pay
    assert abs(orders[1] - exact[1]) <= 1


@pytest.mark.parametrize("page", PAGES)
def test_references_to_the_gallery_name_an_example(page):
    named = re.findall(r"\{doc\}`(?:[^`<]*<)?/?gallery/(\w+)>?`", (ROOT / page).read_text(encoding="utf-8"))
    assert set(named) <= EXAMPLES | {"index"}


def test_what_the_sunspots_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(sys, "argv", ["online_coverage.py", str(tmp_path)])
    names = runpy.run_path(str(ROOT / "examples" / "online_coverage.py"))
    plt.close("all")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["online_coverage.png", "online_intervals.png"]
    assert "October 2013" in capsys.readouterr().out
    held, active, months = names["held"], names["active"], names["months"]
    online = [name for name in held if name != "split, once"]
    coverage = {name: hits.double().mean() for name, hits in held.items()}
    assert coverage["split, once"] < 0.8
    assert all(abs(coverage[name] - 0.9) < 0.01 for name in online)
    for name, bound in names["bounds"].items():
        gap = (held[name].double().cumsum(0) / months - 0.9).abs()
        assert bool((gap <= bound + 1e-9)[3:].all())
    # less when the sun is active and more when it is quiet, for every method and for the Gaussian itself
    for hits in (*held.values(), names["own"].contains(names["y"][names["follow"]])):
        assert hits[active].double().mean() < 0.9 < hits[~active].double().mean()
