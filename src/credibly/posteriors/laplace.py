r"""A Gaussian at the mode of the posterior, and the evidence that goes with it.

    log p(data) = log p(data | w*) + log p(w*) + (d/2) log(2 pi) - 1/2 log det P,

for a precision P, the curvature of the negative log joint at the mode w* (A Practical Bayesian Framework for
Backpropagation Networks, MacKay 1992). It is exact where the log joint is quadratic, as in linear regression, and its
mode is where the mean is.
"""

import math
from collections.abc import Sequence

from torch import Tensor

from credibly.core.errors import NotSupportedError
from credibly.core.linalg.base import PositiveDefinite
from credibly.core.linalg.selected import Selected
from credibly.model import Model
from credibly.posteriors.gaussian import GaussianPosterior
from credibly.posteriors.info import Info
from credibly.priors.base import Prior

__all__ = ["LaplacePosterior"]


class LaplacePosterior(GaussianPosterior):
    """The Gaussian of Laplace's method.

    Args:
        model: the fitted model; its weights are the mean.
        info: how the posterior came to be.
        names: which weights are random.
        covariance: of their flat vector.
        log_likelihood: of all data at the mean, in the units of the targets.
        log_prior: of the random weights at the mean; None where their prior has no density over them alone.
    """

    def __init__(
        self,
        model: Model,
        info: Info,
        *,
        names: Sequence[str],
        covariance: PositiveDefinite,
        log_likelihood: float,
        log_prior: float | None,
    ) -> None:
        super().__init__(model, info, names=names, covariance=covariance)
        self.log_likelihood = log_likelihood
        self.log_prior = log_prior

    def as_prior(self, *, dense: bool = False) -> Prior:
        """This Gaussian as the prior of the next fit; see `GaussianPosterior.as_prior`.

        Raises:
            NotSupportedError: some of the network's weights are not random, so that there is no density over them.
        """
        if isinstance(self.covariance, Selected):
            raise NotSupportedError(
                f"the posterior is over {len(self.covariance.index)} single weights of {self.covariance.size}; the "
                "others have no density. Fit it over all weights, subset=AllWeights()"
            )
        return super().as_prior(dense=dense)

    def evidence(self) -> Tensor:
        """The log marginal likelihood of the data, weights integrated out: a scalar, float64.

        Other weights, and what the likelihood learned, count as known.

        Raises:
            NotSupportedError: the prior is flat over some of the random weights, so that there is no evidence.
        """
        if self.log_prior is None:
            raise NotSupportedError(
                "there is no evidence: the prior has no density over the random weights alone (it is flat over some of "
                "them, or couples them to others). Give them a proper prior, such as Laplace(prior_precision=1.0)"
            )
        wide = self.covariance.map(lambda part: part.double())
        dimension = len(wide.index) if isinstance(wide, Selected) else wide.size
        log_joint = self.log_likelihood + self.log_prior
        volume: Tensor = 0.5 * wide.logdet()
        return volume + log_joint + 0.5 * dimension * math.log(2 * math.pi)
