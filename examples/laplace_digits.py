"""
A trained network learns what it does not know
==============================================

A convolution network is trained on scikit-learn's handwritten digits as usual, BatchNorm and all. Asked about what is
no digit, it answers as surely as ever: far from the training rows the logits of a ReLU network grow without bound (Why
ReLU networks yield high-confidence predictions far away from the training data, Hein, Andriushchenko, Bitterwolf 2019).
Laplace's method puts a Gaussian around its weights *afterwards*, without training again: the same network becomes
uncertain there, and stays as accurate as it was. How uncertain is a matter of the prior.

Run as a script, it writes its picture to ``demo/``, or to the folder named as its first argument.
"""

# %%
# Data and a trained network
# --------------------------
# 1797 images of 8 x 8 pixels: 1000 to train on, 200 to choose the strength of the prior by, 597 to judge by. The
# network is trained by maximum a posteriori, with the Normal prior that every `Model` has.

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

from credibly import Model, inference, likelihoods, metrics

pictures = Path(sys.argv[1] if len(sys.argv) > 1 else "demo")
pictures.mkdir(parents=True, exist_ok=True)
torch.set_num_threads(1)  # so small a network is slower on two cores than on one

images, labels = load_digits(return_X_y=True)
order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
x = torch.as_tensor(images, dtype=torch.float32)[order].reshape(-1, 1, 8, 8) / 16
y = torch.as_tensor(labels)[order]
train, tune, test = (x[:1000], y[:1000]), (x[1000:1200], y[1000:1200]), (x[1200:], y[1200:])

torch.manual_seed(0)
net = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    nn.Conv2d(16, 32, 3, stride=2, padding=1),
    nn.BatchNorm2d(32),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(32 * 4 * 4, 10),
)
point = inference.MAP(num_epochs=20, learning_rate=3e-3).fit(
    Model(net, likelihoods.Categorical(num_classes=10)), train, seed=0
)

# %%
# A Gaussian around the weights
# -----------------------------
# One pass over the training rows gives the curvature of the log likelihood, as a Kronecker product for each of the
# network's tensors. Class probabilities come in closed form, without a single draw. What remains is how strong the
# prior is. On digits alone hardly any spread of the weights is best, the point estimate itself; the prior that the
# network was trained with leaves it unsure of digits too. So take as much spread as the digits allow: the weakest prior
# whose log score on 200 rows that trained nothing is within one standard error of the best. No test image has a say,
# and no input that is no digit.

grid = [10 ** (step / 2) for step in range(11)]
candidates = [inference.Laplace(prior_precision=precision).fit(point.model, train, start=point) for precision in grid]
scores = torch.stack([candidate.predict(tune[0]).log_prob(tune[1]) for candidate in candidates])
means = scores.mean(1)
best = int(means.argmax())
enough = means[best] - scores[best].std() / len(tune[1]) ** 0.5
chosen = int((means >= enough).nonzero()[0])
posteriors = {"MAP": point, "Laplace": candidates[chosen]}
others = {
    "Laplace, prior as trained": inference.Laplace().fit(point.model, train, start=point, seed=0),
    "Laplace, by evidence": inference.Laplace(tune=inference.Evidence()).fit(point.model, train, start=point, seed=0),
}
print(f"the prior's precision is {grid[chosen]:.0f}\n")
print(f"{'on 597 test images':>25} {'accuracy':>10} {'log score':>10} {'calibration error':>18}")
for name, posterior in {**posteriors, **others}.items():
    predicted = posterior.predict(test[0])
    accuracy, score = metrics.accuracy(predicted, test[1]), metrics.log_score(predicted, test[1])
    error = metrics.top_label_ece(predicted, test[1])
    print(f"{name:>25} {accuracy:>10.3f} {score:>10.3f} {error:>18.3f}")

# %%
# What is no digit
# ----------------
# Five kinds of inputs that the network has never seen, ever further away: digits turned by 90 degrees, their negatives,
# pixels in random order, uniform noise, and noise ten times as bright. How sure is each method of the class it names?

generator = torch.Generator().manual_seed(1)
shuffled = test[0].flatten(1)[:, torch.randperm(64, generator=generator)].reshape(-1, 1, 8, 8)
noise = torch.rand(597, 1, 8, 8, generator=generator)
kinds = {
    "test digits": test[0],
    "turned": test[0].rot90(1, (2, 3)),
    "negatives": 1 - test[0],
    "pixels shuffled": shuffled,
    "noise": noise,
    "noise x 10": 10 * noise,
}
confidence = {
    name: {kind: posterior.predict(inputs).probs.amax(1) for kind, inputs in kinds.items()}
    for name, posterior in posteriors.items()
}
print(f"\n{'mean confidence':>25} " + " ".join(f"{kind:>16}" for kind in kinds))
for name, by_kind in confidence.items():
    print(f"{name:>25} " + " ".join(f"{float(values.mean()):>16.2f}" for values in by_kind.values()))

# %%
# As inputs move away
# -------------------
# Noise is multiplied by a growing factor. The confidence of the point estimate goes to 1; under Laplace it stays where
# it is, because the standard deviations of the logits grow as fast as the logits do. Near the digits it helps less: a
# digit that is turned looks like another one, and shuffled pixels have the strokes of many.

factors = torch.logspace(0, 3, 13)
moving = {
    name: torch.stack([posterior.predict(factor * noise[:100]).probs.amax(1).mean() for factor in factors])
    for name, posterior in posteriors.items()
}

# %%
# The picture
# -----------

colors = dict(zip(posteriors, ("#b2182b", "#2166ac"), strict=True))
figure, axes = plt.subplots(3, 1, figsize=(9, 10), height_ratios=[1.25, 1, 1], layout="constrained")
top, middle, bottom = axes
positions = torch.arange(len(kinds))
for shift, (name, by_kind) in zip((-0.17, 0.17), confidence.items(), strict=True):
    boxes = top.boxplot(
        [values.numpy() for values in by_kind.values()],
        positions=(positions + shift).tolist(),
        widths=0.28,
        patch_artist=True,
        showfliers=False,
        whis=(5, 95),
        medianprops={"color": "black", "linewidth": 1.2},
    )
    for box in boxes["boxes"]:
        box.set(facecolor=colors[name], edgecolor=colors[name], alpha=0.9)
    for line in (*boxes["whiskers"], *boxes["caps"]):
        line.set(color=colors[name])
    top.plot([], [], color=colors[name], linewidth=7, label=name)
top.axhline(0.1, color="0.5", linewidth=0.8, linestyle="--")
top.annotate("one in ten: knows nothing", (len(kinds) - 0.55, 0.115), ha="right", fontsize=8, color="0.35")
top.set(xticks=positions.tolist(), xticklabels=list(kinds), ylim=(0, 1.03), ylabel="confidence in the named class")
top.set_title("Certain of digits, less so of what is none", loc="left")
figure.legend(loc="outside upper center", frameon=False, ncols=3)
for name, values in moving.items():
    middle.plot(factors, values, color=colors[name], linewidth=2)
middle.set(xscale="log", xlabel="brightness of the noise, times", ylabel="mean confidence", ylim=(0, 1.03))
middle.set_title("Moving away from the data along a straight line", loc="left")
spread = scores.std(1) / len(tune[1]) ** 0.5
bottom.errorbar(grid, means, spread, color=colors["Laplace"], linewidth=1.5, capsize=3)
bottom.axhline(float(enough), color="0.5", linewidth=0.8, linestyle="--")
bottom.annotate("one standard error below the best", (1.2, float(enough) + 0.02), fontsize=8, color="0.35")
bottom.plot(grid[chosen], means[chosen], "o", color=colors["Laplace"], markersize=9)
bottom.set(xscale="log", xlabel="precision of the prior", ylabel="mean log score", ylim=(-0.65, 0.05))
bottom.set_title("As much spread as 200 digits allow", loc="left")
for axis in axes:
    axis.spines[["top", "right"]].set_visible(False)
figure.savefig(pictures / "laplace_digits.png", dpi=150)
