"""The pages on Gaussian posteriors run as they stand there, and what they say of their numbers is so."""

import re

import torch
from code_blocks import ROOT, run_page

from credibly import inference, posteriors, training

FACES = {"inference": inference, "posteriors": posteriors, "training": training}


def test_the_page_on_laplace() -> None:
    names = run_page("docs/laplace.md")
    on_the_data, in_the_gap, beyond = names["predicted"].stddev.tolist()
    assert on_the_data < 0.5 * in_the_gap < beyond
    assert names["tuned"].evidence() > names["posterior"].evidence()
    together = names["together"][:, 0, :, 0]
    torch.testing.assert_close(together.diagonal(), names["latent"][:, 0, 0], rtol=1e-3, atol=1e-6)
    assert names["today"].info.method == "Laplace"


def test_the_page_on_variational_methods() -> None:
    names = run_page("docs/variational.md")
    x, y = names["x"], names["y"]
    for fitted in ("posterior", "around", "last", "newton", "followed", "mixture", "rates", "linear"):
        probs = names[fitted].predict(x, seed=0).probs
        assert (probs.argmax(-1) == y).double().mean() > 0.9, fitted
    assert 0 < names["rates"].info.dropout_rates["2"] < 0.5
    assert names["posterior"].info.reason == ""


def test_every_name_exists() -> None:
    for page in ("laplace", "variational", "methods"):
        text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
        names = set(re.findall(r"(?<![\w./])(inference|posteriors|training)\.([A-Za-z]\w*)", text))
        assert not [f"{face}.{name}" for face, name in names if name not in FACES[face].__all__]
