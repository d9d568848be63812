"""
Which patients is the model unsure of?
======================================

A network predicts how far diabetes will have progressed after a year, from ten measurements of 442 patients. Monte
Carlo dropout says how sure it is of each of them, and how much of the doubt is about the patient and how much about
the function; conformal prediction makes intervals that hold as many targets as they promise. Everything goes in and
comes out in the units of the study.

Run as a script, it writes its picture to ``demo/``, or to the folder named as its first argument.
"""

# %%
# Data
# ----
# Split once: 242 patients to train on, 100 to calibrate on, 100 to judge by.

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_diabetes

from credibly import Model, Standardize, conformal, inference, likelihoods, metrics, nets, plots, priors

pictures = Path(sys.argv[1] if len(sys.argv) > 1 else "demo")
pictures.mkdir(parents=True, exist_ok=True)
torch.set_num_threads(1)  # so small a network is slower on two cores than on one

data = load_diabetes(scaled=False)
order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
x = torch.as_tensor(data.data, dtype=torch.float32)[order]
y = torch.as_tensor(data.target, dtype=torch.float32)[order]
x_train, y_train = x[:242], y[:242]
x_calibration, y_calibration = x[242:342], y[242:342]
x_test, y_test = x[342:], y[342:]

# %%
# One training, two posteriors
# ----------------------------
# Inputs and targets are standardised on the training rows, inside the model. The network gives two outputs: where the
# target lies, and how noisy it is, patient by patient. The prior shrinks with the width of a layer, which keeps a large
# network sober on few patients. MAP trains; MC dropout starts from what MAP found and does not train again, it only
# keeps the dropout on. 200 masks are 200 functions.

torch.manual_seed(0)
model = Model(
    nets.mlp(10, 2, hidden=(64, 64), dropout=0.1),
    likelihoods.HeteroscedasticGaussian(),
    priors.Normal(fan_in_scaled=True),
    inputs=Standardize(),
    targets=Standardize(),
)
trained = inference.MAP(num_epochs=200).fit(model, (x_train, y_train), seed=1)
dropout = inference.MCDropout().fit(model, (x_train, y_train), start=trained)

predictions = {"MAP": trained.predict(x_test), "MC dropout": dropout.predict(x_test, num_draws=200, seed=2)}

print(f"{len(y_test)} test patients, in the units of the study's score, which runs from {y.min():.0f} to {y.max():.0f}")
print(f"{'':<12}{'RMSE':>8}{'CRPS':>8}{'log score':>11}{'90 % interval: coverage':>25}{'width':>8}")
for name, predicted in predictions.items():
    print(
        f"{name:<12}{metrics.rmse(predicted, y_test):>8.1f}{metrics.crps(predicted, y_test):>8.1f}"
        f"{metrics.log_score(predicted, y_test):>11.3f}{metrics.coverage(predicted, y_test, 0.9):>25.2f}"
        f"{metrics.width(predicted, 0.9):>8.0f}"
    )
print()

# %%
# The most uncertain patients
# ---------------------------
# The variance of a prediction has two parts that add up: noise, which more patients would not remove, and doubt about
# the function, which they would. ``unlike`` says how far a patient's measurements are from the average, in standard
# deviations of the training patients, in the root mean square over the ten.

predicted = predictions["MC dropout"]
lower, upper = predicted.interval(0.9)
epistemic, aleatoric = predicted.epistemic_variance.sqrt(), predicted.aleatoric_variance.sqrt()
distance = ((x_test - x_train.mean(0)) / x_train.std(0)).square().mean(1).sqrt()

print(f"{'patient':>8}{'age':>5}{'bmi':>6}{'bp':>5}{'unlike':>8}{'mean':>7}{'noise':>7}{'function':>10}", end="")
print(f"{'90 % interval':>17}{'truth':>7}")
ranked = predicted.stddev.argsort(descending=True).tolist()
for row in [*ranked[:8], None, *ranked[-3:]]:
    if row is None:
        print(f"{'...':>8}")
        continue
    age, _, bmi, pressure = x_test[row, :4].tolist()
    print(
        f"{int(order[342 + row]):>8}{age:>5.0f}{bmi:>6.1f}{pressure:>5.0f}{distance[row]:>8.2f}"
        f"{predicted.mean[row]:>7.0f}{aleatoric[row]:>7.1f}{epistemic[row]:>10.1f}"
        f"{f'{lower[row]:.0f} to {upper[row]:.0f}':>17}{y_test[row]:>7.0f}"
    )
rank_correlation = torch.corrcoef(torch.stack([distance, epistemic]).argsort(1).argsort(1).double())[0, 1]
print(f"rank correlation of being unlike the training patients and doubt about the function: {rank_correlation:.2f}")
print()

# %%
# Intervals that hold what they promise
# -------------------------------------
# Conformal prediction asks the 100 calibration patients how far off the predictions are. Plain residuals give everybody
# the same width; divided by the predicted standard deviation they give wider intervals to those the model is unsure of.

held_out = dropout.predict(x_calibration, num_draws=200, seed=2)
score = conformal.AbsoluteResidual()
constant = score.calibrate(held_out, y_calibration)
scaled = score.calibrate(held_out, y_calibration, difficulty=held_out.stddev)

columns = ["asked for", "98 % interval", "coverage", "width", "narrowest", "widest"]
print(f"{'intervals':<22}" + "".join(f"{column:>15}" for column in columns))
for coverage in (0.9, 0.8):
    low, high = metrics.coverage_interval(len(y_calibration), len(y_test), coverage)
    rows = {
        "residual": constant.predict(predicted, coverage),
        "residual / deviation": scaled.predict(predicted, coverage, difficulty=predicted.stddev),
    }
    for name, intervals in rows.items():
        width = intervals.width
        print(
            f"{name:<22}{coverage:>15.2f}{f'{low:.2f} to {high:.2f}':>15}{intervals.empirical_coverage(y_test):>15.2f}"
            f"{width.mean():>15.0f}{width.min():>15.0f}{width.max():>15.0f}"
        )

# %%
# The 90 % intervals, from the patient with the lowest prediction to the one with the highest:

intervals = scaled.predict(predicted, 0.9, difficulty=predicted.stddev)
figure, ax = plt.subplots(figsize=(9, 4.6), layout="constrained")
plots.prediction_intervals(
    intervals.lower,
    intervals.upper,
    y_test,
    ax,
    centers=predicted.mean,
    title="Conformal intervals of 90 %",
    xlabel="patients, in order of their prediction",
    ylabel="progression after a year",
)
figure.savefig(pictures / "diabetes_intervals.png", dpi=150)
