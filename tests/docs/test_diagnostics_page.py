"""The page on diagnostics runs as it stands there, and what it says of its numbers is so."""

import warnings

import arviz
import matplotlib.pyplot as plt
import numpy as np
import pytest
import scipy.stats
import torch
from code_blocks import run_page
from torch import nn

from credibly import Model, inference, likelihoods, metrics
from credibly.diagnostics import to_arviz


def test_the_page_runs_and_leaves_each_row_out() -> None:
    plt.switch_backend("agg")
    names = run_page("docs/diagnostics.md")
    plt.close("all")
    loo, exported, y = names["loo"], names["exported"], names["y"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some k may be large
        assert float(loo.elpd) == pytest.approx(float(arviz.loo(exported).elpd_loo), rel=1e-6)
    assert int((loo.k > loo.threshold).sum()) < 20
    # by the definition, row by row; the draws of the prediction are those of the export
    weights = names["smoothed"].log_weights.exp().numpy()
    law = scipy.stats.poisson(names["predicted"].components.rate.double().numpy())
    np.testing.assert_allclose(law.logpmf(y), names["log_likelihood"], rtol=1e-4, atol=1e-4)
    below, at = ((weights * law.cdf(values)).sum(0) for values in (y - 1, y))
    pits = names["pits"].numpy()
    assert bool(((below - 1e-4 <= pits) & (pits <= at + 1e-4)).all())
    # of a model near the truth: a p value below 1e-4 comes by chance once in ten thousand seeds
    assert scipy.stats.kstest(pits, "uniform").pvalue > 1e-4
    assert exported.observed_data["targets"].dtype == np.int64


def test_what_few_draws_allow() -> None:
    x, y = torch.randn(30, 2), torch.randn(30)
    model = Model(nn.Linear(2, 1), likelihoods.Gaussian())
    point = to_arviz(inference.MLE(num_epochs=2).fit(model, (x, y), seed=0), (x, y))
    assert bool(metrics.psis_loo(point.log_likelihood["targets"].values[0]).k.isinf().all())
    with pytest.raises(IndexError):
        arviz.loo(point)
    members = inference.Ensemble(of=inference.MLE(num_epochs=2), num_members=5).fit(model, (x, y), seed=0)
    table = to_arviz(members, (x, y)).log_likelihood["targets"].values[0]
    assert bool(metrics.psis_loo(table).k.isinf().all())
    many = metrics.psis_loo(torch.randn(25, 30))
    assert bool(many.k.isfinite().all())
