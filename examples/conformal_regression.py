"""
Whose intervals keep the promise?
=================================

A conformal interval of 90 % holds 90 % of new targets, whatever the model. What differs is how wide it is, and for whom
it holds: a promise that is kept on average may be broken for the rich, or for the sick. Three data sets show what there
is to choose: the shape of the intervals, the rows that calibration costs, and the groups that get a promise of their
own.

Run as a script, it writes its pictures to ``demo/``, or to the folder named as its first argument.
"""

# %%
# The shape of an interval
# ------------------------
# What 235 Belgian households spent on food, by income (Engel, 1857; in statsmodels). The spread grows with income.
# Three linear models are calibrated in four ways: a Gaussian whose deviation depends on income, the quantiles at 5 and
# 95 %, and a log-normal distribution, linear in the logarithm of income.

import math
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_diabetes
from statsmodels.datasets import engel, randhie
from torch import Tensor, nn
from torch.distributions import Normal

from credibly import Model, Standardize, conformal, inference, likelihoods, metrics, nets
from credibly.distributions import select
from credibly.posteriors import Posterior

pictures = Path(sys.argv[1] if len(sys.argv) > 1 else "demo")
pictures.mkdir(parents=True, exist_ok=True)
torch.set_num_threads(1)  # so small a network is slower on two cores than on one

households = torch.as_tensor(engel.load_pandas().data.to_numpy(), dtype=torch.float32)
income, food = households[:, :1], households[:, 1]
MODELS: dict[str, tuple[likelihoods.Likelihood, Standardize]] = {
    "Gaussian": (likelihoods.HeteroscedasticGaussian(), Standardize()),
    "quantiles": (likelihoods.QuantileHead([0.05, 0.95]), Standardize()),
    "log-normal": (likelihoods.LogNormal(), Standardize(center=False)),
}
SHAPES: dict[str, tuple[conformal.Score[Any], str]] = {
    "residual": (conformal.AbsoluteResidual(), "Gaussian"),
    "residual / deviation": (conformal.StandardizedResidual(), "Gaussian"),
    "quantile regression": (conformal.CQR(), "quantiles"),
    "distributional": (conformal.PITScore(), "log-normal"),
}


def feature(name: str, amount: Tensor) -> Tensor:
    """What a model sees of the income."""
    return amount.log() if name == "log-normal" else amount


def fit(name: str, rows: Tensor) -> Posterior:
    """One of the models, on some of the households."""
    torch.manual_seed(0)
    likelihood, targets = MODELS[name]
    model = Model(nn.Linear(1, likelihood.num_outputs), likelihood, inputs=Standardize(), targets=targets)
    recipe = inference.MLE(num_epochs=200, batch_size=None, learning_rate=0.05)
    return recipe.fit(model, (feature(name, income[rows]), food[rows]), seed=0)


# %%
# Each of 20 random splits has 76 households to train on, 79 to calibrate on and 80 to judge by. Whatever the model,
# the number of judged households that are held follows one Beta-binomial law over the splits, with a mean of 90 %. The
# range in which it lies for 95 % of all splits, or a few more, is known before anything is computed.

thirds = torch.bucketize(income.squeeze(-1), income.quantile(torch.tensor([1 / 3, 2 / 3])))
low, high = metrics.coverage_interval(79, 80, 0.9, 0.95)
found: dict[str, list[Tensor]] = {name: [] for name in SHAPES}
calibrated: dict[str, conformal.ConformalPredictor[conformal.Intervals]] = {}
for split in range(20):
    order = torch.randperm(len(food), generator=torch.Generator().manual_seed(split))
    train, held_out, test = order[:76], order[76:155], order[155:]
    fitted = {name: fit(name, train) for name in MODELS}
    for name, (score, of) in SHAPES.items():
        before, after = (fitted[of].predict(feature(of, income[rows])) for rows in (held_out, test))
        calibrated[name] = score.calibrate(before, food[held_out])
        region = calibrated[name].predict(after, 0.9)
        held, width = region.contains(food[test]).double(), region.width
        by_third = [values[thirds[test] == third].mean() for values in (held, width) for third in range(3)]
        found[name].append(torch.stack([held.mean(), width.mean(), *by_third]))

print(f"{'90 % intervals, means of 20 splits':<57}coverage by income      width by income")
print(f"{'':<22}coverage  in {low:.3f} to {high:.3f}   width     low middle   high     low middle   high")
for name, rows in found.items():
    table = torch.stack(rows)
    inside = int(((table[:, 0] > low - 1e-6) & (table[:, 0] < high + 1e-6)).sum())
    covered, wide, *parts = table.mean(0).tolist()
    print(
        f"{name:<22}{covered:>8.3f}{f'{inside} of 20':>19}{wide:>8.0f} "
        + "".join(f"{value:>7.2f}" for value in parts[:3])
        + " "
        + "".join(f"{value:>7.0f}" for value in parts[3:])
    )

# %%
# One width for all holds the poorest third nearly always and the richest too seldom, and is the widest on average.
# The other three follow the spread. The last split, with the households it was judged by, on logarithmic axes:

figure, axes = plt.subplots(1, 4, figsize=(13, 3.9), sharex=True, sharey=True, layout="constrained")
place, amount, line = income[test].squeeze(-1), food[test], torch.logspace(2.55, 3.72, 200)
for ax, (name, (_, of)) in zip(axes, SHAPES.items(), strict=True):
    after, along = (fitted[of].predict(feature(of, at.unsqueeze(-1))) for at in (place, line))
    region, band = (calibrated[name].predict(each, 0.9) for each in (after, along))
    ax.fill_between(line, band.lower, band.upper, color="tab:blue", alpha=0.2, linewidth=0, label="interval")
    held = region.contains(amount)
    for chosen, color, label in (held, "tab:blue", "held"), (~held, "tab:red", "missed"):
        ax.plot(place[chosen], amount[chosen], "o", color=color, markersize=3.5, label=label)
    words = f"{int(held.sum())} of {len(held)} held, mean width {region.width.mean():.0f}"
    ax.set_title(f"{name}\n{words}", fontsize="medium")
    ax.set(xscale="log", yscale="log", xlabel="income (francs a year)", xlim=(355, 5248), ylim=(100, 4000))
    ax.set_xticks([500, 1000, 2000, 5000], ["500", "1000", "2000", "5000"])
    ax.set_yticks([100, 200, 500, 1000, 2000], ["100", "200", "500", "1000", "2000"])
    ax.minorticks_off()
    ax.spines[["top", "right"]].set_visible(False)
axes[0].set_ylabel("spent on food (francs a year)")
axes[0].legend(frameon=False, fontsize="small", loc="upper left")
figure.savefig(pictures / "conformal_bands.png", dpi=150)

# %%
# The rows that calibration costs
# -------------------------------
# Split conformal prediction trains on one half of the rows and calibrates on the other. CV+ and the jackknife+ use
# each row for both, by models that leave some rows out; after a bootstrap these are the members of an ensemble. They
# pay with the proof, which is of 80 % only (of 71 to 75 % for CV+ here). Forecasts may come from anywhere: here from
# ridge regressions of the progression of diabetes in 442 patients, in closed form.

data = load_diabetes()
columns = torch.cat([torch.ones(442, 1), torch.as_tensor(data.data * math.sqrt(442))], 1).double()
progression = torch.as_tensor(data.target).double()


def ridge(counts: Tensor, rows: Tensor) -> Tensor:
    """What each model says of all patients, (models, 442), if it counts the rows so many times, (models, rows)."""
    x, y = columns[rows], progression[rows]
    gram = torch.einsum("mr,ri,rj->mij", counts.double(), x, x) + torch.eye(11)
    weights: Tensor = torch.linalg.solve(gram, (counts * y) @ x)
    return weights @ columns.T


def intervals(known: Tensor, test: Tensor, seed: int) -> dict[str, conformal.Intervals]:
    """Four ways from known patients to intervals for the others."""
    num, y = len(known), progression[known]
    rows, folds = torch.arange(num), torch.arange(num) % 10
    drawn = torch.randint(num, (30, num), generator=torch.Generator().manual_seed(seed))
    bags = torch.stack([sample.bincount(minlength=num) for sample in drawn])
    half = Normal(ridge((rows < num // 2).unsqueeze(0), known)[0], 1.0)  # only the mean counts
    tenths, singles, members = (
        ridge(used, known) for used in (folds != torch.arange(10).unsqueeze(-1), 1 - torch.eye(num), bags)
    )
    split = conformal.AbsoluteResidual().calibrate(select(half, known[num // 2 :]), y[num // 2 :])
    cv_plus = conformal.CVPlus().calibrate(tenths[folds, known], y, folds)
    jackknife = conformal.JackknifePlus().calibrate(singles[rows, known], y)
    bootstrap = conformal.JackknifePlusAfterBootstrap().calibrate(members[:, known], y, bags)
    return {
        "split": split.predict(select(half, test)),
        "CV+": cv_plus.predict(tenths[:, test]),
        "jackknife+": jackknife.predict(singles[:, test]),
        "jackknife+ after bootstrap": bootstrap.predict(members[:, test]),
    }


print("\n90 % intervals for other patients, means and deviations of 40 splits")
print(f"patients  {'':<27}{'coverage':>14}{'width':>18}")
for size in (38, 78, 158, 318):
    seen: dict[str, list[Tensor]] = {}
    for seed in range(40):
        order = torch.randperm(442, generator=torch.Generator().manual_seed(seed))
        known, test = order[:size], order[size:]
        for name, region in intervals(known, test, seed).items():
            held = region.contains(progression[test]).double().mean()
            seen.setdefault(name, []).append(torch.stack([held, region.width.mean()]))
    for name, rows in seen.items():
        table = torch.stack(rows)
        (covered, wide), (swing, spread) = table.mean(0).tolist(), table.std(0).tolist()
        print(f"{size:>8}  {name:<27}{covered:>7.3f} +- {swing:.3f}{wide:>11.0f} +- {spread:>3.0f}")

# %%
# With few patients the half that calibrates is missed in training; with many it hardly matters for the mean width. At
# any size the coverage of split intervals swings more from one split to another.
#
# A promise for each group
# ------------------------
# Visits to the doctor in a year, by insurance and health (the RAND experiment; in statsmodels). A negative binomial
# network is trained on 5000 person-years and calibrated on 5000, once for all and once within each state of health
# (Mondrian). A highest-density region holds the most probable counts. Years of one person lie on both sides of the
# split: the promise is for other years of the same people.

visited = torch.as_tensor(randhie.load_pandas().data.to_numpy(), dtype=torch.float32)
visited = visited[torch.randperm(len(visited), generator=torch.Generator().manual_seed(0))[:14_000]]
visits, covariates = visited[:, 0], visited[:, 1:]
HEALTH = ["excellent", "good", "fair", "poor"]
health = (covariates[:, 6:] @ torch.tensor([1.0, 2.0, 3.0])).long()
training, calibrating, judging = slice(5000), slice(5000, 10_000), slice(10_000, None)

torch.manual_seed(0)
likelihood = likelihoods.NegativeBinomial()
model = Model(nets.mlp(9, likelihood.num_outputs, hidden=(32, 32)), likelihood, inputs=Standardize())
recipe = inference.MAP(num_epochs=15, batch_size=128, learning_rate=3e-3)
posterior = recipe.fit(model, (covariates[training], visits[training]), seed=0)
before, after = posterior.predict(covariates[calibrating]), posterior.predict(covariates[judging])


def num_counts(region: conformal.Intervals | conformal.UnionOfIntervals) -> Tensor:
    """How many numbers of visits each region holds."""
    counts = region.upper.floor() - region.lower.ceil().clamp(min=0) + 1
    return counts.nan_to_num(0.0).reshape(len(counts), -1).sum(1)


# %%
# The worst slab lies between two parallel planes in the space of the covariates, where of all that hold a tenth of the
# rows coverage is least. It is searched on a quarter of the judged rows, and the others say what it is.

SCORES: dict[str, conformal.Score[Any]] = {
    "residual": conformal.AbsoluteResidual(),
    "distributional": conformal.PITScore(),
    "highest density": conformal.HighestDensity(),
}
standardized = Standardize().fit(covariates[training])(covariates[judging])
groups = {"for all": (None, None), "by health": (health[calibrating], health[judging])}
coverages: dict[tuple[str, str], metrics.GroupCoverage] = {}
low, high = metrics.coverage_interval(5000, len(visits[judging]), 0.9, 0.95)
print(f"\n90 % regions{'':<26}coverage   worst slab, 95 % interval   mean number of counts, by health")
print(f"{'':<32}{f'{low:.3f} to {high:.3f}':>14}{'':>29}{'all':>7}" + "".join(f"{state:>10}" for state in HEALTH))
for name, score in SCORES.items():
    for kind, (own, new) in groups.items():
        region = score.calibrate(before, visits[calibrating], groups=own).predict(after, 0.9, groups=new)
        held, counts = region.contains(visits[judging]), num_counts(region)
        slab = metrics.worst_slab_coverage(held, standardized, 0.9, seed=0)
        worst = f"{slab.observed:.2f} ({slab.lower:.2f} to {slab.upper:.2f})"
        coverages[name, kind] = metrics.group_coverage(held, health[judging], 0.9)
        by_health = "".join(f"{counts[health[judging] == group].mean():>10.1f}" for group in range(4))
        print(f"{name:<20}{kind:<12}{held.double().mean():>14.3f}{worst:>29}{counts.mean():>7.1f}{by_health}")

# %%
# Calibrated for all, people in poor health are held too seldom, by residuals most of all. Calibrated within their state
# of health they are held as promised, in regions about twice as large; those of the healthy change little. It is a
# promise for these groups and no others: in their worst slab residuals still fall short. Of the three scores the
# highest density needs the fewest counts. Grey is where 95 % of the observed coverages lie if the promise is kept:

sizes = [(int((health[calibrating] == g).sum()), int((health[judging] == g).sum())) for g in range(4)]
ranges = [metrics.coverage_interval(*size, 0.9, 0.95) for size in sizes]
figure, axes = plt.subplots(1, 3, figsize=(11, 3.6), sharex=True, sharey=True, layout="constrained")
for ax, name in zip(axes, SCORES, strict=True):
    ax.hlines(range(4), *zip(*ranges, strict=True), color="0.85", linewidth=18, label="95 % if the promise is kept")
    ax.axvline(0.9, color="0.25", linestyle="--", linewidth=0.9)
    for kind, color, shift in (("for all", "tab:orange", -0.12), ("by health", "tab:blue", 0.12)):
        places = torch.arange(4) + shift
        ax.plot(coverages[name, kind].observed, places, "o", color=color, label=f"calibrated {kind}")
    ax.set(title=name, xlabel="share of person-years held", ylim=(3.5, -0.5))
    ax.spines[["top", "right"]].set_visible(False)
axes[0].set_yticks(range(4), [f"{state} ({judged})" for state, (_, judged) in zip(HEALTH, sizes, strict=True)])
axes[0].set_ylabel("health (person-years)")
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
figure.savefig(pictures / "conformal_groups.png", dpi=150)
