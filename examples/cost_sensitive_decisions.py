"""
An error that costs ten times as much
=====================================

The most probable class is the right answer only if all errors cost the same. Here a tumour is to be called malignant or
benign, and to miss a malignant one costs ten times as much as a false alarm. Calibrated probabilities say what to do
about that without training anything again: take the act whose expected cost is least, ask somebody else where both acts
are too dear, and answer only where a promise can be kept.

Run as a script, it writes its pictures to ``demo/``, or to the folder named as its first argument.
"""

# %%
# Data
# ----
# 569 tumours, each described by 30 measurements of the nuclei of its cells (Wolberg, Street, Mangasarian, 1995; in
# scikit-learn); 212 of them are malignant. The costs are a matrix: a row for each act, a column for each truth.

# sphinx_gallery_thumbnail_number = 2  # noqa: ERA001
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_breast_cancer
from torch import Tensor
from torch.distributions import Distribution

from credibly import (
    Model,
    Standardize,
    calibration,
    decision,
    distributions,
    inference,
    likelihoods,
    metrics,
    nets,
    plots,
    posteriors,
)

pictures = Path(sys.argv[1] if len(sys.argv) > 1 else "demo")
pictures.mkdir(parents=True, exist_ok=True)
torch.set_num_threads(1)  # so small a network is slower on two cores than on one

measured, benign = load_breast_cancer(return_X_y=True)
x, y = torch.as_tensor(measured, dtype=torch.float32), torch.as_tensor(1 - benign)
names = load_breast_cancer().feature_names.tolist()
order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))

ACTS = ["benign", "malignant"]  # what may be said, and what may be true
COSTS = torch.tensor([[0.0, 10.0], [1.0, 0.0]])

# %%
# Probabilities for every tumour
# ------------------------------
# Five networks learn 40 % of the rows by heart, a temperature is fitted to another 40 %, and the last 20 % are
# predicted. Five such splits predict each row once, by networks and a temperature that have not seen it.


def fit(rows: Tensor, columns: Tensor | slice = slice(None), num_epochs: int = 60) -> posteriors.Posterior:
    """Five networks on some rows and columns."""
    torch.manual_seed(0)
    inputs = x[rows][:, columns]
    net = nets.mlp(inputs.shape[1], 1, hidden=(32,))
    model = Model(net, likelihoods.Bernoulli(), inputs=Standardize())
    recipe = inference.Ensemble(of=inference.MLE(num_epochs=num_epochs, learning_rate=1e-2), num_members=5)
    return recipe.fit(model, (inputs, y[rows]), seed=1)


folds = torch.tensor_split(order, 5)
raw, scaled, temperatures = [], [], []
for fold in range(5):
    test, *others = (folds[(fold + step) % 5] for step in range(5))
    train, tune = torch.cat(others[:2]), torch.cat(others[2:])
    posterior = fit(train)
    scaling = calibration.TemperatureScaling().fit(posterior.predict(x[tune]), y[tune])
    temperatures.append(scaling.temperature)
    raw.append(posterior.predict(x[test]))
    scaled.append(scaling(raw[-1]))
predicted = {"as trained": distributions.concatenate(raw), "calibrated": distributions.concatenate(scaled)}
truth = y[order]

print("temperatures of the five splits:", "  ".join(f"{temperature:.2f}" for temperature in temperatures))
for name, d in predicted.items():
    print(f"{name:<11} accuracy {metrics.accuracy(d, truth):.3f}, negative log likelihood {metrics.nll(d, truth):.3f}")

# %%
# Acts
# ----
# The most probable class is the Bayes act of costs that are all 1. With these costs the tumour is called malignant from
# a probability of 1/11 on. The rows are resampled to see how sure the total cost is.


def total(costs: Tensor, num_replicates: int = 4000) -> str:
    """The sum of the rows' costs, and the 95 % interval of its bootstrap."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(len(costs), (num_replicates, len(costs)), generator=generator)
    low, high = costs[drawn].sum(1).quantile(torch.tensor([0.025, 0.975], dtype=costs.dtype)).tolist()
    return f"{costs.sum():7.1f} ({low:6.1f} to {high:6.1f})"


incurred = {}
print(f"\n{len(truth)} tumours{'missed':>24}{'false alarms':>14}   total cost, 95 % interval")
for name, d in predicted.items():
    for rule, costs in (("most probable", 1 - torch.eye(2)), ("least cost", COSTS)):
        acts = decision.bayes_act(d, costs).acts
        incurred[name, rule] = decision.incurred_costs(acts, truth, COSTS)
        missed, alarms = int(((acts == 0) & (truth == 1)).sum()), int(((acts == 1) & (truth == 0)).sum())
        print(f"{name:<14}{rule:<15}{missed:>6}{alarms:>14}   {total(incurred[name, rule])}")

saved = incurred["calibrated", "most probable"] - incurred["calibrated", "least cost"]
print(f"saved by acting on costs{'':>25}{total(saved)}")

# %%
# The members of an ensemble disagree, and each would act by itself. The share of them for whom an act is the best says
# which decisions hang on the network that happened to be trained, and the value of information what it would be worth
# to know the right one: little here, against what an error costs.

doubt = decision.cost_uncertainty(predicted["as trained"], COSTS)
split = doubt.best_probability.amax(-1) < 0.999
print(f"\nmembers disagree about {int(split.sum())} tumours; to know the right network would save an expected")
print(f"{doubt.information_value.sum():.2f} in all, of expected costs of {doubt.expected_costs.amin(-1).sum():.1f}")

# %%
# A second opinion
# ----------------
# A pathologist misses 2 % of malignant tumours and raises the alarm for 5 % of the benign ones, at a fee. The network
# decides by itself where that is the cheaper; the dearer the pathologist, the more it decides. What the second opinion
# did cost is the fee and, by the pathologist's own rates, the errors.

expert = decision.expert_confusion([0.05, 0.02])
errors = (expert * COSTS.T).sum(1)[truth]
print(f"\nfee    tumours sent on{'':>14}total cost, 95 % interval")
for fee in (0.02, 0.1, 0.3):
    sent = decision.defer(predicted["calibrated"], COSTS, expert=expert, fee=fee)
    costs = decision.incurred_costs(sent.acts, truth, COSTS, abstained=fee + errors)
    print(f"{fee:<11.2f}{int(sent.abstained.sum()):>11}{'':>14}{total(costs)}")
print(f"never{'':>17}0{'':>14}{total(incurred['calibrated', 'least cost'])}")
print(f"always, at 0.02{'':>5}{len(truth)}{'':>14}{total(0.02 + errors)}")

# %%
# A promise
# ---------
# Costs weigh one error against another. A promise is something else: of the tumours that are answered, at most 5 % are
# answered wrongly, with a probability of 90 % over the rows on which the threshold was chosen. That takes rows that
# trained nothing: networks learn from 129 rows, a threshold is found on 220, and the other 220 judge.

train, held_out, test = order[:129], order[129:349], order[349:]
posterior = fit(train)
sure = {"held out": posterior.predict(x[held_out]), "test": posterior.predict(x[test])}
wrong = metrics.zero_one_loss(sure["held out"], y[held_out])
recipe = decision.SelectiveRisk(risk=0.05, delta=0.1)
selective = recipe.calibrate(metrics.largest_prob(sure["held out"]), wrong)
answered = selective.answers(metrics.largest_prob(sure["test"]))
errors_made = metrics.zero_one_loss(sure["test"], y[test])
print(f"\nheld-out rows: {wrong.mean():.1%} wrong; {selective.risk:.1%} of the {selective.coverage:.1%} above the")
print(f"threshold {selective.threshold:.3f}: the promise {'can' if selective.controlled else 'cannot'} be made")
share, kept = answered.double().mean(), errors_made[answered].mean()
print(f"test rows: {errors_made.mean():.1%} wrong; {kept:.1%} of the {share:.1%} that are answered")

figure, axes = plt.subplots(1, 2, figsize=(9.4, 4.2), layout="constrained")
table = metrics.risk_coverage(sure["test"], y[test])
plots.risk_coverage(table, axes[0], title="Errors among the surest test rows", ylabel="share of errors")
axes[0].axhline(recipe.risk, color="0.4", linewidth=0.8, linestyle=":")
axes[0].set_ylim(0, 0.06)
axes[0].plot(share, kept, "o", color="tab:red", clip_on=False, zorder=4)
axes[0].annotate(
    "threshold with\na promise of 5 %",
    (float(share), float(kept)),
    xytext=(-12, 34),
    textcoords="offset points",
    ha="right",
    fontsize="small",
    arrowprops={"arrowstyle": "-", "color": "0.4"},
)
prices = torch.linspace(0, 0.5, 51)
paid = []
for fee in prices:
    sent = decision.defer(predicted["calibrated"], COSTS, expert=expert, fee=fee)
    paid.append(float(decision.incurred_costs(sent.acts, truth, COSTS, abstained=fee + errors).sum()))
ax = axes[1]
ax.plot(prices, paid, color="tab:blue", label="second opinion where it pays")
ax.axhline(float(incurred["calibrated", "least cost"].sum()), color="0.25", linestyle="--", label="never")
ax.plot(prices, [float((fee + errors).sum()) for fee in prices], color="tab:orange", label="always")
ax.set(xlabel="fee of a second opinion", ylabel="total cost", title="Whom to ask", ylim=(0, 150), xlim=(0, 0.5))
ax.spines[["top", "right"]].set_visible(False)
ax.legend(fontsize="small", frameon=False)
figure.savefig(pictures / "second_opinion.png", dpi=150)

# %%
# Where the line is drawn
# -----------------------
# With two of the measurements the acts can be seen. Costs move the line into the benign tumours, and the second opinion
# takes the ground between.

pair = torch.tensor([names.index("worst radius"), names.index("worst concave points")])
plane = fit(order, pair, num_epochs=15)
points = x[:, pair]
ends = points.quantile(torch.tensor([0.0, 1.0]), 0)
across, up = (torch.linspace(float(low), float(high), 160) for low, high in ends.T)
grid = torch.cartesian_prod(up, across).flip(1)


def shown(d: Distribution) -> dict[str, Tensor]:
    """The acts of three rules on the grid."""
    return {
        "The most probable class": decision.bayes_act(d, 1 - torch.eye(2)).acts,
        "The least expected cost": decision.bayes_act(d, COSTS).acts,
        "... with a second opinion at 0.1": decision.defer(d, COSTS, expert=expert, fee=0.1).acts,
    }


figure, axes = plt.subplots(1, 3, figsize=(13.5, 4.8), layout="constrained", sharey=True)
for ax, (title, acts) in zip(axes, shown(plane.predict(grid)).items(), strict=True):
    plots.decision_regions(
        across,
        up,
        acts.reshape(len(up), len(across)),
        ax,
        names=[f"say {act}" for act in ACTS],
        abstained="ask",
        points=points,
        classes=y,
        class_names=ACTS,
        title=title,
        xlabel="largest radius",
        ylabel="largest concave points" if ax is axes[0] else "",
    )
figure.savefig(pictures / "decision_regions.png", dpi=150)
