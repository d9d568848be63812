"""uncertainty-toolbox beside us: Gaussian forecasts of numbers."""

from collections.abc import Iterator

import numpy as np
import torch
from torch.distributions import Normal
from uncertainty_toolbox import metrics_calibration, metrics_scoring_rule

from benchmarks.peers.rows import Row
from credibly import metrics

__all__ = ["rows"]

ROWS = 500


def rows() -> Iterator[Row]:
    """What differs, then what agrees."""
    random = np.random.default_rng(0)
    centre, scale = random.normal(size=ROWS), np.exp(0.3 * random.normal(size=ROWS))
    came = centre - 0.5 * scale + 1.3 * scale * random.normal(size=ROWS)
    given = (centre, scale, came)
    predicted = Normal(torch.from_numpy(centre), torch.from_numpy(scale), validate_args=False)
    yield Row("sharpness", float(metrics_calibration.sharpness(scale)), float(metrics.sharpness(predicted)))
    one_sided = metrics_calibration.get_proportion_lists(*given, num_bins=11, prop_type="quantile")[1]
    curve = metrics.one_sided_calibration_curve(metrics.pit(predicted, came), levels=[0.1, 0.9]).observed
    yield Row("one-sided curve at 0.1 and 0.9", [one_sided[1], one_sided[9]], curve.tolist())
    for number in (100, 1000):
        theirs = float(metrics_calibration.mean_absolute_calibration_error(*given, num_bins=number))
        area = float(metrics_calibration.miscalibration_area(*given, num_bins=number))
        ours = float(metrics.MiscalibrationArea(number, central=True)(predicted, came))
        yield Row(f"mean absolute error and area of the central curve, {number} levels", (theirs, area), ours)
    scores = metrics_scoring_rule
    yield Row("CRPS", float(scores.crps_gaussian(*given)), float(metrics.crps(predicted, came)))
    yield Row("NLL", float(scores.nll_gaussian(*given)), float(metrics.nll(predicted, came)))
    theirs = float(scores.interval_score(*given, start_p=0.9, end_p=0.9, resolution=1))
    yield Row("interval score at 0.9", theirs, float(metrics.interval_score(predicted, came, coverage=0.9)))
    theirs = float(scores.check_score(*given, start_q=0.01, end_q=0.99, resolution=99))
    yield Row("pinball, 99 levels", theirs, float(metrics.pinball(predicted, came, np.linspace(0.01, 0.99, 99))))
