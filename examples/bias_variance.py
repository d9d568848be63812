"""
Noise, bias and variance
========================

Why is a prediction wrong? Because the world is noisy, because the method cannot express the truth, or because another
sample of training data would have given another answer. On a simulator, where the truth is known, the three can be told
apart: train again and again on fresh data and look at the predictions.

Run as a script, it writes its picture to ``demo/``, or to the folder named as its first argument.
"""

# %%
# A simulator
# -----------
# A wave, seen through much noise at 20 random places. Every seed is another data set.

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from torch.distributions import Normal

from credibly import Model, diagnostics, inference, likelihoods, nets, priors

pictures = Path(sys.argv[1] if len(sys.argv) > 1 else "demo")
pictures.mkdir(parents=True, exist_ok=True)
torch.set_num_threads(1)  # so small a network is slower on two cores than on one

NOISE = 0.7


def truth(x: Tensor) -> Normal:
    """What the targets are at x: mean and noise, one target a row."""
    return Normal(torch.sin(2 * x.squeeze(-1)), NOISE, validate_args=False)


def simulate(seed: int) -> tuple[Tensor, Tensor]:
    """A training set of 20 rows."""
    generator = torch.Generator().manual_seed(seed)
    x = 4 * torch.rand(20, 1, generator=generator) - 2
    return x, truth(x).mean + NOISE * torch.randn(20, generator=generator)


inputs = torch.linspace(-2, 2, 81).unsqueeze(-1)

# %%
# One network, a wider one, and two cures
# ---------------------------------------
# A single hidden unit cannot bend twice: it is wrong in the same way on every data set. Ten units can, and follow the
# noise as well. A prior on the weights (MAP) keeps them from it; an ensemble of networks that see resampled rows
# averages what they make of the noise. Every row of the table is the same 30 data sets. The bias is corrected for their
# number, so that it does not contain a share of the variance; where it is small it may come out below 0.

OPTIONS = {"num_epochs": 300, "batch_size": None, "learning_rate": 0.1}
ALTERNATIVES = {
    "1 unit, MLE": (1, inference.MLE(**OPTIONS), priors.Flat()),
    "3 units, MLE": (3, inference.MLE(**OPTIONS), priors.Flat()),
    "10 units, MLE": (10, inference.MLE(**OPTIONS), priors.Flat()),
    "10 units, MAP": (10, inference.MAP(**OPTIONS), priors.Normal(1.0)),
    "10 units, bagged": (
        10,
        inference.Ensemble(of=inference.MLE(**OPTIONS), num_members=10, bootstrap=True),
        priors.Flat(),
    ),
}


def decompose(name: str, *, num_datasets: int = 30) -> diagnostics.BiasVariance:
    """Noise, bias and variance of one of the alternatives."""
    width, method, prior = ALTERNATIVES[name]
    torch.manual_seed(0)
    model = Model(nets.mlp(1, 1, hidden=(width,), activation=nn.Tanh), likelihoods.Gaussian(scale=NOISE), prior)
    return diagnostics.bias_variance(
        method, model, simulate, inputs, truth=truth(inputs), num_datasets=num_datasets, seed=0
    )


results = {}
print(f"{'':20s}noise     bias            variance        error")
for name in ALTERNATIVES:
    results[name] = parts = decompose(name)
    error = parts.standard_error
    print(
        f"{name:20s}{parts.noise:5.3f}   {parts.bias:6.3f} +- {error.bias:.3f}   "
        f"{parts.variance:6.3f} +- {error.variance:.3f}   {parts.error:6.3f}"
    )

# %%
# What it looks like
# ------------------
# Each thin line is what one data set led to; the thick one is their mean, the dashed one the truth.

shown = ["1 unit, MLE", "10 units, MLE", "10 units, MAP", "10 units, bagged"]
figure, axes = plt.subplots(1, len(shown), figsize=(11, 3.2), sharey=True, layout="constrained")
x = inputs.squeeze(-1)
for ax, name in zip(axes, shown, strict=True):
    parts = results[name]
    ax.plot(x, parts.means.T, color="tab:blue", alpha=0.25, linewidth=0.7)
    ax.plot(x, parts.means.mean(0), color="tab:blue", linewidth=2)
    ax.plot(x, truth(inputs).mean, color="0.2", linestyle="--", linewidth=1.2)
    ax.set_title(f"{name}\nbias {parts.bias:.2f}, variance {parts.variance:.2f}", fontsize=10)
    ax.set(xlabel="x", ylim=(-3, 3))
    ax.spines[["top", "right"]].set_visible(False)
axes[0].set_ylabel("prediction")
figure.savefig(pictures / "bias_variance.png", dpi=150)
