r"""How far a calibrated forecast may stray from the diagonal of a reliability diagram by chance.

A bin holds n forecasts of mean confidence c. If each event came true with its stated probability, the number of hits
K would be a sum of independent events whose mean is n c. The band of the bin is

    [q_(1 - level)/2 / n,  q_(1 + level)/2 / n],   q_a the smallest k with P(K <= k) >= a,   K ~ Binomial(n, c),

the consistency bars of "Increasing the Reliability of Reliability Diagrams" (Brocker, Smith, 2007). Confidences that
differ inside the bin make the sum less spread than the binomial ("On the Distribution of the Number of Successes in
Independent Trials", Hoeffding, 1956), so the band errs on the wide side, and it is exact where they are equal.
"""

import numpy as np
import numpy.typing as npt
from scipy.special import bdtr, bdtrik

from credibly.metrics.bins import BinTable

__all__ = ["consistency_band"]


def consistency_band(table: BinTable, level: float = 0.95) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The lowest and highest frequency of each bin that calibrated forecasts leave plausible.

    Args:
        table: the bins.
        level: probability of the band, bin by bin (not of all bins at once), strictly between 0 and 1.

    Returns:
        Lower and upper frequencies, each (num_bins,); NaN where a bin is empty.
    """
    if not 0 < level < 1:
        raise ValueError(f"`level` must lie between 0 and 1; got {level}")
    counts = table.counts.cpu().numpy()
    confidence = table.confidence.cpu().numpy().clip(0, 1)
    tail = (1 - level) / 2
    lower, upper = np.full(len(counts), np.nan), np.full(len(counts), np.nan)
    some = counts > 0
    lower[some] = _binomial_quantile(tail, counts[some], confidence[some]) / counts[some]
    upper[some] = _binomial_quantile(1 - tail, counts[some], confidence[some]) / counts[some]
    return lower, upper


def _binomial_quantile(level: float, n: npt.NDArray[np.int64], p: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The smallest k with P(K <= k) >= level."""
    inside = (p > 0) & (p < 1)
    safe = np.where(inside, p, 0.5)
    k = np.ceil(bdtrik(level, n, safe))
    one_less = np.maximum(k - 1, 0)
    k = np.where(bdtr(one_less, n, safe) >= level, one_less, k)
    return np.where(inside, k, np.where(p > 0, n, 0))
