"""
Counts and durations
====================

How often will a patient see a doctor, and how long will another live? Neither is a Gaussian question. Counts vary more
than a Poisson allows, and many are zero; durations are often still running when the study ends. The likelihood is the
part of a model that says so, and leave-one-out scores and the probability integral transform say which one is right.

Run as a script, it writes its pictures to ``demo/``, or to the folder named as its first argument.
"""

# %%
# Visits to the doctor
# --------------------
# The RAND health insurance experiment: 20,190 person-years, nine covariates about insurance and health, and the number
# of visits (Deb, Trivedi, "The Structure of Demand for Health Care", 2002; here from statsmodels).

import sys
import warnings
from pathlib import Path

import arviz as az
import matplotlib.pyplot as plt
import torch
from statsmodels.datasets import heart, randhie
from torch import nn

from credibly import Model, Standardize, diagnostics, distributions, inference, likelihoods, metrics, nets, plots
from credibly.posteriors import Posterior

pictures = Path(sys.argv[1] if len(sys.argv) > 1 else "demo")
pictures.mkdir(parents=True, exist_ok=True)
torch.set_num_threads(1)  # so small a network is slower on two cores than on one

table = torch.as_tensor(randhie.load_pandas().data.to_numpy(), dtype=torch.float32)
table = table[torch.randperm(len(table), generator=torch.Generator().manual_seed(0))]
visits, covariates = table[:, 0], table[:, 1:]
x_train, y_train = covariates[:5000], visits[:5000]
x_test, y_test = covariates[5000:10_000], visits[5000:10_000]

none = 100 * (visits == 0).float().mean()
print(f"visits: mean {visits.mean():.2f}, variance {visits.var():.1f}, none at all {none:.0f} %")

# %%
# Four likelihoods over one network
# ---------------------------------
# Each is trained in the same way, and its uncertainty is that over dropout masks. `to_arviz` hands the draws to ArviZ,
# whose leave-one-out score needs the training rows only. The test rows check what it says.

COUNTS = {
    "Poisson": likelihoods.Poisson(),
    "zero-inflated Poisson": likelihoods.ZeroInflated(likelihoods.Poisson()),
    "negative binomial": likelihoods.NegativeBinomial(),
    "zero-inflated negative binomial": likelihoods.ZeroInflated(likelihoods.NegativeBinomial()),
}

exported, predicted = {}, {}
for name, likelihood in COUNTS.items():
    torch.manual_seed(0)
    net = nets.mlp(x_train.shape[1], likelihood.num_outputs, hidden=(32, 32), dropout=0.05)
    model = Model(net, likelihood, inputs=Standardize())
    method = inference.MCDropout(train=inference.MAP(num_epochs=30, batch_size=128, learning_rate=3e-3))
    posterior = method.fit(model, (x_train, y_train), seed=0)
    exported[name] = diagnostics.to_arviz(
        posterior, (x_train, y_train), num_draws=100, seed=0, posterior_predictive=False, constant_data=False
    )
    predicted[name] = posterior.predict(x_test, num_draws=100, seed=1)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # a high Pareto k is printed below
    ranking = az.compare(exported, ic="loo")

print(f"\n{'':33s}leave-one-out          on test rows     zeros (seen {100 * (y_test == 0).float().mean():.1f} %)")
for name in ranking.index:
    row, d = ranking.loc[name], predicted[name]
    zeros = distributions.cdf(d, 0.0).mean()
    print(
        f"{name:33s}{row.elpd_loo / len(y_train):7.4f} +- {row.se / len(y_train):.4f}   "
        f"{metrics.log_score(d, y_test):10.4f}     {100 * zeros:8.1f} %"
    )

# %%
# Are they calibrated?
# --------------------
# The randomised probability integral transform of a true model is uniform. The Poisson is surprised at both ends; the
# negative binomial is not.

figure, axes = plt.subplots(1, 4, figsize=(12, 3.2), sharey=True, layout="constrained")
for ax, (name, d) in zip(axes, predicted.items(), strict=True):
    plots.pit_histogram(metrics.pit_histogram(metrics.pit(d, y_test, seed=0), num_bins=20), ax, title=name)
figure.savefig(pictures / "pit_of_counts.png", dpi=150)

# %%
# How long?
# ---------
# 69 patients after a heart transplant (Miller, "Least Squares Regression with Censored Data", 1976). A third were alive
# when the study ended: of them only a lower bound is known. Targets are pairs of bounds, equal where the day is known.

patients = heart.load_pandas()
years = torch.tensor((patients.endog / 365.25).to_list())
died = torch.tensor((patients.censors == 1).to_list())
age = torch.tensor(patients.exog.to_list()).unsqueeze(-1)
bounds = torch.stack([years, torch.where(died, years, torch.inf)], -1)  # in years: a network begins at scales about 1

single = inference.MAP(num_epochs=300, batch_size=None, learning_rate=0.03)
method = inference.Ensemble(of=single, num_members=20, bootstrap=True)


def fit(targets: torch.Tensor) -> Posterior:
    """Twenty fits to resampled patients."""
    model = Model(nn.Linear(1, 2), likelihoods.Censored(likelihoods.Weibull()), inputs=Standardize())
    return method.fit(model, (age, targets), seed=0)


respected, ignored = fit(bounds), fit(torch.stack([years, years], -1))

print(f"\n{'':13s}alive after 90 days    1 year    3 years    median")
for name, posterior in {"respected": respected, "ignored": ignored}.items():
    d = posterior.predict(torch.tensor([[30.0], [45.0], [60.0]]))
    for row, at_age in enumerate((30, 45, 60)):
        alive = [100 * float(distributions.survival(d, after)[row]) for after in (90 / 365.25, 1.0, 3.0)]
        print(
            f"{name if not row else '':11s}{at_age:3d}{alive[0]:17.0f} %{alive[1]:8.0f} %{alive[2]:9.0f} %"
            f"{float(d.icdf(0.5)[row]):8.2f} years"
        )

# %%
# The curve beside what was seen
# ------------------------------
# The product-limit estimate (Kaplan, Meier, "Nonparametric Estimation from Incomplete Observations", 1958) assumes no
# shape and sees no ages. Taking the last visit of the living for their death shortens every life.

times, order = torch.linspace(0, 5, 101), years.argsort()
at_risk = torch.arange(len(years), 0, -1)
product_limit = (1 - died[order] / at_risk).cumprod(0)

figure, ax = plt.subplots(figsize=(5.2, 3.6), layout="constrained")
steps, shares = torch.cat([torch.zeros(1), years[order]]), torch.cat([torch.ones(1), product_limit])
ax.step(steps, shares, where="post", color="0.25", label="product limit")
for label, posterior, line in (("Weibull, censoring respected", respected, "-"), ("censoring ignored", ignored, "--")):
    d = posterior.predict(age)
    ax.plot(times, [distributions.survival(d, float(t)).mean() for t in times], line, label=label)
ax.set(xlabel="years after the transplant", ylabel="share alive", ylim=(0, 1), xlim=(0, 5))
ax.spines[["top", "right"]].set_visible(False)
ax.legend(frameon=False)
figure.savefig(pictures / "survival.png", dpi=150)
