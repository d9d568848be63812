"""
Between the data
================

Two groups of inputs with nothing between them. What a method says about the gap tells what it holds for possible
there: many functions pass through both groups, and they differ most where no row ties them down. Five methods are put
side by side on one small network. A single network says nothing. Independent weights cannot say much: for one hidden
layer of ReLU units it is proven that mean field and MC dropout cannot be much less sure between two groups than at
them, however they are trained (*On the Expressiveness of Approximate Inference in Bayesian Neural Networks*, Foong,
Burt, Li, Turner, 2020).

Run as a script, it writes its picture to ``demo/``, or to the folder named as its first argument.
"""

# %%
# Data
# ----
# Eighty rows of a smooth function with noise of standard deviation 0.1, which is known here so that all that differs is
# what is believed about the function. Each seed draws data and first weights anew.

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

from credibly import Model, inference, likelihoods, priors
from credibly.posteriors import Posterior
from credibly.training import cosine

pictures = Path(sys.argv[1] if len(sys.argv) > 1 else "demo")
pictures.mkdir(parents=True, exist_ok=True)
torch.set_num_threads(1)  # so small a network is slower on two cores than on one

NOISE, LEFT, RIGHT, SEEDS = 0.1, (-1.5, -0.7), (0.5, 1.3), range(5)


def truth(x: Tensor) -> Tensor:
    """The function without noise."""
    return torch.sin(3 * x) * 0.6 + 0.3 * x


def simulated(seed: int) -> tuple[Tensor, Tensor]:
    """Forty rows in each group."""
    generator = torch.Generator().manual_seed(seed)
    groups = [low + (high - low) * torch.rand(40, 1, generator=generator) for low, high in (LEFT, RIGHT)]
    x = torch.cat(groups)
    return x, truth(x[:, 0]) + NOISE * torch.randn(len(x), generator=generator)


# %%
# Five methods
# ------------
# One hidden layer of 50 tanh units and one prior for all: Normal, of a variance that shrinks with the number of inputs
# of a layer. MC dropout needs dropout in the network. Laplace's method takes all 151 weights with all their
# covariances, and predicts by the network linearised in them.


def model(seed: int, dropout: float = 0.0) -> Model:
    """The network, the known noise and the prior."""
    torch.manual_seed(seed)
    hidden = [nn.Linear(1, 50), nn.Tanh(), *([nn.Dropout(dropout)] if dropout else [])]
    prior = priors.Normal(3.0, fan_in_scaled=True)
    return Model(nn.Sequential(*hidden, nn.Linear(50, 1)), likelihoods.Gaussian(scale=NOISE), prior)


training = {"num_epochs": 1000, "batch_size": None, "learning_rate": 0.02, "schedule": cosine}
train = inference.MAP(**training)
METHODS = {
    "MAP": (train, 0.0),
    "ensemble of 10": (inference.Ensemble(of=train, num_members=10), 0.0),
    "MC dropout": (inference.MCDropout(train=train), 0.1),
    "mean field": (inference.MeanField(**training), 0.0),
    "Laplace": (inference.Laplace(structure=inference.Dense(), train=train), 0.0),
}


def deviations(posterior: Posterior, x: Tensor) -> Tensor:
    """The standard deviation that ignorance of the function makes, row by row."""
    predicted = posterior.predict(x, seed=0)
    return predicted.epistemic_variance.sqrt()


# %%
# In the gap and on the data
# --------------------------
# For every seed: the mean of that standard deviation over the middle of the gap, in units of its mean over the data.

middle = torch.linspace(-0.4, 0.2, 25).unsqueeze(1)
ratios: dict[str, list[float]] = {name: [] for name in METHODS}
first: dict[str, Posterior] = {}
for seed in SEEDS:
    x, y = simulated(seed)
    for name, (method, dropout) in METHODS.items():
        posterior = method.fit(model(seed, dropout), (x, y), seed=seed)
        first.setdefault(name, posterior)
        if name != "MAP":
            ratio = deviations(posterior, middle).mean() / deviations(posterior, x).mean()
            ratios[name].append(float(ratio))

print("epistemic standard deviation in the gap, over that on the data")
print(f"{'seed':<18}" + "".join(f"{seed:>8}" for seed in SEEDS))
for name, values in ratios.items():
    if name != "MAP":
        print(f"{name:<18}" + "".join(f"{value:>8.2f}" for value in values))

# %%
# In all five seeds the ensemble and Laplace's method are many times less sure in the gap than on the data, and mean
# field about twice. MC dropout is surer there: its spread follows the size of the function, not where the rows are. In
# absolute terms the ensemble is the surest of the four, on the data and in the gap: its members differ by their first
# weights alone, and agree on more than they should.

# %%
# Picture
# -------
# The methods of the first seed: the mean, and two standard deviations of the function (dark) and of a new row (light).

x, y = simulated(0)
grid = torch.linspace(-2.1, 1.9, 300).unsqueeze(1)
figure, axes = plt.subplots(1, 5, figsize=(14, 3.4), sharey=True, layout="constrained")
for axis, (name, posterior) in zip(axes, first.items(), strict=True):
    predicted = posterior.predict(grid, seed=0)
    mean = predicted.mean
    wide = 2 * predicted.variance.sqrt()
    axis.fill_between(grid[:, 0], mean - wide, mean + wide, color="tab:blue", alpha=0.15, linewidth=0)
    if name != "MAP":
        narrow = 2 * predicted.epistemic_variance.sqrt()
        axis.fill_between(grid[:, 0], mean - narrow, mean + narrow, color="tab:blue", alpha=0.35, linewidth=0)
    axis.plot(grid[:, 0], mean, color="tab:blue", linewidth=1.6)
    axis.plot(grid[:, 0], truth(grid[:, 0]), color="0.2", linewidth=1, linestyle="--")
    axis.scatter(x[:, 0], y, s=7, color="0.2", linewidths=0, zorder=3)
    axis.set(title=name, xlim=(-2.1, 1.9), ylim=(-2.2, 2.2), xlabel="input")
    axis.spines[["top", "right"]].set_visible(False)
axes[0].set_ylabel("target")
axes[0].annotate("dashed: the function", (-2.0, -2.0), fontsize="small", color="0.3")
figure.savefig(pictures / "regression_gap.png", dpi=150)
