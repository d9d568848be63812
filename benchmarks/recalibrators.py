"""Every recalibrator on real data, before and after: a Markdown table, for docs/recalibration.md. No promise of speed.

Run `python -m benchmarks.recalibrators`. Each forecast comes from a network trained without restraint on part of the
rows; a second part fits the recalibrators, a third judges. In brackets: a bootstrap interval of 95 % over the rows that
judge.
"""

import math
import warnings
from collections.abc import Callable, Iterator

import torch
from sklearn.datasets import load_diabetes, load_digits
from statsmodels.datasets import randhie
from torch import Tensor
from torch.distributions import Distribution

from credibly import Model, Standardize, calibration, inference, likelihoods, metrics, nets
from credibly.core.errors import ConvergenceWarning, NotFiniteError, NotSupportedError
from credibly.distributions import Predictive, icdf, log_prob
from credibly.metrics import Metric

Recipes = dict[str, calibration.Recalibrator]
Parts = dict[str, tuple[Distribution, Tensor]]
Score = Callable[[Distribution, Tensor], str]

CLASSES: Recipes = {
    "TemperatureScaling": calibration.TemperatureScaling(),
    "VectorScaling": calibration.VectorScaling(),
    "MatrixScaling": calibration.MatrixScaling(),
    "DirichletCalibration": calibration.DirichletCalibration(),
    "PlattScaling": calibration.PlattScaling(),
    "BetaCalibration": calibration.BetaCalibration(),
    "Isotonic": calibration.Isotonic(),
    "CenteredIsotonic": calibration.CenteredIsotonic(),
    "HistogramBinning": calibration.HistogramBinning(),
    "VennAbers": calibration.VennAbers(),
    "BayesianRecalibration, temperature": calibration.BayesianRecalibration(
        draws_of_map=calibration.LaplaceTemperature()
    ),
}
NUMBERS: Recipes = {
    "VarianceScaling": calibration.VarianceScaling(),
    "QuantileRecalibration": calibration.QuantileRecalibration(),
    "QuantileRecalibration, 5 knots": calibration.QuantileRecalibration(num_knots=5),
    "ConformalPredictiveSystem": calibration.ConformalPredictiveSystem(),
}
COUNTS: Recipes = {name: recipe for name, recipe in NUMBERS.items() if name != "VarianceScaling"}
COUNTS["QuantileRecalibration, 20 knots"] = calibration.QuantileRecalibration(num_knots=20)
del COUNTS["QuantileRecalibration, 5 knots"]


def _split(x: Tensor, y: Tensor, sizes: tuple[int, int, int]) -> Iterator[tuple[Tensor, Tensor]]:
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[: sum(sizes)]
    for rows in order.split(sizes):
        yield x[rows], y[rows]


def _forecasts(model: Model, x: Tensor, y: Tensor, sizes: tuple[int, int, int], **options: float) -> Parts:
    train, fit, judge = _split(x, y, sizes)
    posterior = inference.MLE(**options).fit(model, train, seed=0)
    return {"fit": (posterior.predict(fit[0]), fit[1]), "judge": (posterior.predict(judge[0]), judge[1])}


def digits() -> Parts:
    """A network of 128-128 units on 300 of the handwritten digits."""
    x, y = load_digits(return_X_y=True)
    torch.manual_seed(0)  # of the weights at the start
    model = Model(nets.mlp(64, 10, hidden=(128, 128)), likelihoods.Categorical(num_classes=10))
    data = torch.as_tensor(x, dtype=torch.float32) / 16, torch.as_tensor(y)
    return _forecasts(model, *data, (300, 500, 997), num_epochs=150, learning_rate=3e-3)


def diabetes() -> Parts:
    """A heteroscedastic network of 32 units on 142 of the patients."""
    x, y = (torch.as_tensor(part, dtype=torch.float32) for part in load_diabetes(return_X_y=True))
    likelihood = likelihoods.HeteroscedasticGaussian()
    torch.manual_seed(0)  # of the weights at the start
    model = Model(nets.mlp(10, 2, hidden=(32,)), likelihood, inputs=Standardize(), targets=Standardize())
    return _forecasts(model, x, y, (142, 150, 150), num_epochs=150, learning_rate=3e-3)


def doctor_visits() -> Parts:
    """A Poisson regression by a network of 32 units on 2000 persons: visits vary far more than a Poisson number."""
    table = torch.as_tensor(randhie.load_pandas().data.to_numpy(), dtype=torch.float32)
    torch.manual_seed(0)  # of the weights at the start
    model = Model(nets.mlp(9, 1, hidden=(32,)), likelihoods.Poisson(), inputs=Standardize())
    return _forecasts(model, table[:, 1:], table[:, 0], (2000, 1000, 1000), num_epochs=60, learning_rate=3e-3)


def _scored(metric: Metric) -> Score:
    """The value with its interval, or why there is none."""

    def cell(predicted: Distribution, targets: Tensor) -> str:
        try:
            value = float(metric(predicted, targets))
        except (NotSupportedError, NotFiniteError):
            return _without_value(predicted, targets)
        if not math.isfinite(value):
            return _without_value(predicted, targets)
        estimate = metric.bootstrap(predicted, targets, coverage=0.95, num_replicates=500, seed=0)
        return f"{value:.4g} [{float(estimate.lower):.4g}, {float(estimate.upper):.4g}]"

    return cell


def _without_value(predicted: Distribution, targets: Tensor) -> str:
    """Why there is none: no density, or a probability of 0 for what came."""
    try:
        lost = int(log_prob(predicted, targets).isneginf().sum())
    except NotSupportedError:
        return "no density"
    return f"infinite ({lost} rows)"


def _coverage(predicted: Distribution, targets: Tensor) -> str:
    """How many targets the intervals of 90 % hold, counts with both ends."""
    low, high = predicted.interval(0.9) if isinstance(predicted, Predictive) else _interval(predicted)
    return f"{float(((targets >= low) & (targets <= high)).double().mean()):.3f}"


def _interval(predicted: Distribution) -> tuple[Tensor, Tensor]:
    return icdf(predicted, 0.05), icdf(predicted, 0.95)


def _pit_error(predicted: Distribution, targets: Tensor) -> str:
    """The largest distance of the PIT's distribution function from the diagonal."""
    u = metrics.pit(predicted, targets, seed=0).sort().values
    ranks = torch.arange(len(u) + 1, dtype=u.dtype) / len(u)
    return f"{float(torch.maximum((ranks[1:] - u).max(), (u - ranks[:-1]).max())):.3f}"


def _table(title: str, parts: Parts, recipes: Recipes, scores: dict[str, Score]) -> None:
    print(f"\n{title}\n")
    print("| recalibrator | " + " | ".join(scores) + " |")
    print("|---|" + "---|" * len(scores))
    predicted, targets = parts["judge"]
    for name, recipe in {"none": None, **recipes}.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            after = predicted if recipe is None else recipe.fit(*parts["fit"])(predicted)
        label = name if recipe is None else f"`{name}`"
        print(f"| {label} | " + " | ".join(score(after, targets) for score in scores.values()) + " |")


def main() -> None:
    """Print the three tables."""
    torch.set_num_threads(1)
    classes = {
        "NLL": _scored(metrics.NLL()),
        "Brier": _scored(metrics.Brier()),
        "smooth ECE": _scored(metrics.SmoothECE()),
    }
    _table("digits", digits(), CLASSES, classes)
    numbers = {
        "NLL": _scored(metrics.NLL()),
        "CRPS": _scored(metrics.CRPS()),
        "PIT to diagonal, at most": _pit_error,
        "in 90 % intervals": _coverage,
    }
    _table("diabetes", diabetes(), NUMBERS, numbers)
    _table("randhie", doctor_visits(), COUNTS, numbers)


if __name__ == "__main__":
    main()
