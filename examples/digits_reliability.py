"""
An overconfident network, mended
================================

A network that is trained until it makes no error on its training rows says "99.9 %" far too often. Here four ways of
training the same small network on scikit-learn's handwritten digits are compared, their probabilities are recalibrated
by temperature scaling, and prediction sets are built whose coverage is guaranteed whatever the network does.

Run as a script, it writes its pictures to ``demo/``, or to the folder named as its first argument.
"""

# %%
# Data
# ----
# 1797 images of 8 x 8 pixels, split once: 900 to train on, 250 to calibrate on, 647 to judge by. Nothing below was
# chosen by looking at the last part.

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits

from credibly import Model, calibration, conformal, distributions, inference, likelihoods, metrics, nets, plots

pictures = Path(sys.argv[1] if len(sys.argv) > 1 else "demo")
pictures.mkdir(parents=True, exist_ok=True)
torch.set_num_threads(
    1
)  # the network is so small that sharing its products between cores would cost more than it saves

images, labels = load_digits(return_X_y=True)
order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
x = torch.as_tensor(images, dtype=torch.float32)[order] / 16
y = torch.as_tensor(labels)[order]
train = x[:900], y[:900]
x_calibration, y_calibration = x[900:1150], y[900:1150]
x_test, y_test = x[1150:], y[1150:]

# %%
# Four posteriors of one network
# ------------------------------
# Maximum likelihood trains until the training loss is all but zero. MAP adds the standard Normal prior that a `Model`
# has unless it is told otherwise. MC dropout keeps the masks of training on and predicts with 100 of them. The ensemble
# trains five members by maximum likelihood, all at once, and predicts with their mixture.

torch.manual_seed(0)
likelihood = likelihoods.Categorical(num_classes=10)
plain = Model(nets.mlp(64, 10, hidden=(128, 128)), likelihood)
dropped = Model(nets.mlp(64, 10, hidden=(128, 128), dropout=0.2), likelihood)

training = {"num_epochs": 150, "batch_size": 64, "learning_rate": 3e-3}
recipes = {
    "MLE": (plain, inference.MLE(**training)),
    "MAP": (plain, inference.MAP(**training)),
    "MC dropout": (dropped, inference.MCDropout(train=inference.MLE(**training))),
    "ensemble of 5": (plain, inference.Ensemble(of=inference.MLE(**training), num_members=5)),
}
watched = x_calibration, y_calibration
posteriors = {name: recipe.fit(model, train, validation=watched, seed=1) for name, (model, recipe) in recipes.items()}

# %%
# The training rows are learned by heart, while the held-out rows are predicted worse and worse: not because more of
# them are classified wrongly, but because the network grows ever surer of those it has wrong. (These rows are only
# watched; no training stopped because of them.)

figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained", sharey=True)
for name, ax in zip(("MLE", "MAP"), axes, strict=True):
    plots.training_history(posteriors[name].info.history, ax, title=name)
axes[0].set_ylim(0, 0.8)
axes[1].set_ylabel("")
figure.savefig(pictures / "training.png", dpi=150)

# %%
# Before and after temperature scaling
# ------------------------------------
# One number per method, fitted on the calibration rows: class probabilities are raised to the power 1/T and normalised.
# The most probable class, and with it the accuracy, stays what it was. In brackets stands the ECE that
# perfectly calibrated forecasts with the same probabilities would show on so few rows, by chance alone.

held_out = {name: posterior.predict(x_calibration, seed=2) for name, posterior in posteriors.items()}
before = {name: posterior.predict(x_test, seed=2) for name, posterior in posteriors.items()}
scalings = {name: calibration.TemperatureScaling().fit(held_out[name], y_calibration) for name in posteriors}
after = {name: scalings[name](before[name]) for name in posteriors}


def ece_by_chance(predicted, num_repeats=100):
    """The mean ECE of targets that are drawn from the forecasts themselves."""
    torch.manual_seed(4)
    return torch.stack([metrics.ece(predicted, predicted.sample()) for _ in range(num_repeats)]).mean()


print(f"{len(y_test)} test rows{'as trained':>30}{'temperature scaled':>35}")
columns = ["accuracy", "NLL", "ECE", "(chance)", "T", "NLL", "ECE", "(chance)"]
print(f"{'method':<15}" + "".join(f"{column:>9}" for column in columns))
for name in posteriors:
    row = [
        metrics.accuracy(before[name], y_test),
        metrics.nll(before[name], y_test),
        metrics.ece(before[name], y_test),
        ece_by_chance(before[name]),
        scalings[name].temperature,
        metrics.nll(after[name], y_test),
        metrics.ece(after[name], y_test),
        ece_by_chance(after[name]),
    ]
    print(f"{name:<15}" + "".join(f"{score:>9.4f}" for score in row))

# %%
# A temperature above 1 says that the method was overconfident, below 1 that it was timid. In the diagrams a point below
# the diagonal is a bin of forecasts that came true less often than they said, and one outside its grey bar is more than
# chance would do to calibrated forecasts.

figure, axes = plt.subplots(2, 4, figsize=(14, 9), layout="constrained")
for column, name in enumerate(posteriors):
    for row, (state, predicted) in enumerate({"as trained": before, "scaled": after}.items()):
        table = metrics.top_label_bins(predicted[name], y_test, num_bins=10)
        plots.reliability_diagram(table, axes[row, column], title=f"{name}, {state}", legend=row == 1)
figure.savefig(pictures / "reliability.png", dpi=150)

# %%
# Sets that hold the truth
# ------------------------
# Split conformal prediction turns any probabilities into sets. LAC gives the smallest sets on average, APS sets that
# adapt to how hard a row is. The coverage that one test part shows is random, but its law is known exactly, a
# Beta-binomial, whatever the network: the table gives the central interval that holds 98 % of it. Conformal prediction
# is given the ensemble's own probabilities, because the scaled ones have already seen the labels of the calibration
# rows.

chosen = "ensemble of 5"
scores = {"LAC": conformal.LAC(), "APS": conformal.APS()}
predictors = {name: score.calibrate(held_out[chosen], y_calibration, seed=3) for name, score in scores.items()}

print(f"{'sets':<6}{'asked for':>10}{'exact 98 % interval':>22}{'coverage':>10}{'mean size':>11}{'empty':>8}")
for name, predictor in predictors.items():
    for coverage in (0.9, 0.95, 0.99):
        sets = predictor.predict(before[chosen], coverage, seed=3)
        low, high = metrics.coverage_interval(len(y_calibration), len(y_test), coverage)
        shown = sets.empirical_coverage(y_test)
        size, empty = sets.size.double().mean(), (sets.size == 0).double().mean()
        print(f"{name:<6}{coverage:>10.2f}{f'{low:.3f} to {high:.3f}':>22}{shown:>10.3f}{size:>11.2f}{empty:>8.1%}")

# %%
# The network's first guess is right more often than 90 or 95 % of the time, so sets of exactly that coverage must leave
# some rows empty. Only sets of 99 % have to hold more than one class, and they do so where a person would hesitate too:

sets = predictors["APS"].predict(before[chosen], 0.99, seed=3)
guesses = before[chosen].probs.argmax(-1)
hardest = sets.size.argsort(descending=True, stable=True)[:12]
figure, axes = plt.subplots(2, 6, figsize=(10, 4.6), layout="constrained")
for ax, row in zip(axes.flat, hardest.tolist(), strict=True):
    ax.imshow(x_test[row].reshape(8, 8).numpy(), cmap="gray_r")
    ax.set_title("{" + ", ".join(map(str, sets.labels[row])) + "}", fontsize="medium")
    ax.set_xlabel(f"a {y_test[row]}, taken for a {guesses[row]}", fontsize="small")
    ax.set(xticks=[], yticks=[])
figure.suptitle("The largest 99 % sets")
figure.savefig(pictures / "largest_sets.png", dpi=150)

# %%
# Is the guarantee true?
# ----------------------
# The network stays as it is, and the rows it was not trained on are split into calibration and test parts anew, 100
# times. At most about 2 in 100 coverages should fall outside the exact interval of 98 %.

pool = distributions.concatenate([held_out[chosen], before[chosen]])
y_pool = torch.cat([y_calibration, y_test])

print(f"coverages outside the exact 98 % interval, of 100 splits into {len(y_calibration)} and {len(y_test)} rows")
outside = {(name, coverage): 0 for name in scores for coverage in (0.9, 0.95)}
for split in range(100):
    shuffled = torch.randperm(len(y_pool), generator=torch.Generator().manual_seed(split))
    first, second = shuffled[: len(y_calibration)], shuffled[len(y_calibration) :]
    for name, coverage in outside:
        predictor = scores[name].calibrate(distributions.select(pool, first), y_pool[first], seed=split)
        sets = predictor.predict(distributions.select(pool, second), coverage, seed=split)
        low, high = metrics.coverage_interval(len(first), len(second), coverage)
        outside[name, coverage] += not low <= sets.empirical_coverage(y_pool[second]) <= high
for (name, coverage), count in outside.items():
    print(f"{name:<6}{coverage:>10.2f}{count:>6}")
