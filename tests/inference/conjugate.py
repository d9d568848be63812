"""Bayesian linear regression with known noise, in closed form: what every method must find where it can be exact."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal

from credibly import Model, likelihoods, priors


@dataclass(frozen=True)
class Conjugate:
    """y = design @ w + noise, for D outputs with weights of their own.

    Attributes:
        inputs: (rows, P).
        targets: (rows, D).
        noise: the standard deviation of each output's noise, (D,).
        prior: the standard deviation of the weights' prior.
        bias: whether there is a constant.
    """

    inputs: Tensor
    targets: Tensor
    noise: Tensor
    prior: float
    bias: bool

    @property
    def design(self) -> Tensor:
        """Inputs, and a column of ones last, (rows, Q)."""
        return self.of(self.inputs)

    def of(self, inputs: Tensor) -> Tensor:
        """The design at other inputs."""
        return torch.cat([inputs, torch.ones(len(inputs), 1).to(inputs)], 1) if self.bias else inputs

    def precision(self, output: int) -> Tensor:
        """Of the weights of one output, (Q, Q)."""
        x = self.design
        return x.T @ x / self.noise[output] ** 2 + torch.eye(x.shape[1]).to(x) / self.prior**2

    def mean(self, output: int) -> Tensor:
        """Of the weights of one output, (Q,)."""
        moment = self.design.T @ self.targets[:, output] / self.noise[output] ** 2
        return torch.linalg.solve(self.precision(output), moment)

    def predictive(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the function, each (rows, D)."""
        x, every = self.of(inputs), range(len(self.noise))
        means = torch.stack([x @ self.mean(d) for d in every], 1)
        variances = torch.stack([(x * torch.linalg.solve(self.precision(d), x.T).T).sum(1) for d in every], 1)
        return means, variances

    def log_evidence(self) -> float:
        """The log density of all targets, weights integrated out."""
        x = self.design
        return sum(
            float(
                MultivariateNormal(
                    torch.zeros(len(x)).to(x), self.prior**2 * x @ x.T + noise**2 * torch.eye(len(x)).to(x)
                ).log_prob(self.targets[:, d])
            )
            for d, noise in enumerate(self.noise)
        )

    def net(self) -> nn.Linear:
        """The network at the exact mean."""
        net = nn.Linear(self.inputs.shape[1], len(self.noise), bias=self.bias).double()
        means = torch.stack([self.mean(d) for d in range(len(self.noise))])
        with torch.no_grad():
            net.weight.copy_(means[:, : self.inputs.shape[1]])
            if self.bias:
                net.bias.copy_(means[:, -1])
        return net

    def model(self) -> Model:
        """Network, noise and prior."""
        scale = self.noise.tolist() if len(self.noise) > 1 else float(self.noise[0])
        likelihood = likelihoods.Gaussian(len(self.noise), scale=scale)
        return Model(self.net(), likelihood, priors.Normal(self.prior))

    @property
    def data(self) -> tuple[Tensor, Tensor]:
        """As a user passes it."""
        return self.inputs, self.targets if len(self.noise) > 1 else self.targets.squeeze(1)

    def covariance(self) -> Tensor:
        """Of the network's flat vector: the weight row by row, then the bias."""
        outputs, inputs = len(self.noise), self.inputs.shape[1]
        whole = torch.block_diag(*(torch.linalg.inv(self.precision(d)) for d in range(outputs)))
        own = inputs + self.bias
        weight = [d * own + k for d in range(outputs) for k in range(inputs)]
        order = weight + [d * own + inputs for d in range(outputs)] * self.bias
        return whole[order][:, order]


def conjugate(num_outputs: int = 1, *, bias: bool = False, num_rows: int = 30, seed: int = 0) -> Conjugate:
    """Anisotropic, correlated inputs; outputs of different noise."""
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.tensor([[3.0, 0.0, 0.0], [2.0, 0.5, 0.0], [-1.0, 0.3, 0.1]]).double()
    inputs = torch.randn(num_rows, 3, generator=generator, dtype=torch.float64) @ mixing.T + 0.5
    truth = torch.randn(num_outputs, 3, generator=generator, dtype=torch.float64)
    noise = torch.linspace(0.4, 0.9, num_outputs).double()
    targets = inputs @ truth.T + 0.7 * bias
    targets = targets + noise * torch.randn(num_rows, num_outputs, generator=generator, dtype=torch.float64)
    return Conjugate(inputs, targets, noise, 1.3, bias)


def well_conditioned(num_outputs: int = 1, *, num_rows: int = 40, bias: bool = True) -> Conjugate:
    """Correlated inputs of different spread, of a condition that training by gradients copes with; equal noise."""
    generator = torch.Generator().manual_seed(2)
    mixing = torch.tensor([[1.0, 0.8, 0.0], [0.0, 0.6, 0.3], [0.0, 0.0, 2.0]]).double()
    inputs = torch.randn(num_rows, 3, generator=generator, dtype=torch.float64) @ mixing
    noise = torch.full((num_outputs,), 0.5).double()
    targets = inputs @ torch.randn(3, num_outputs, generator=generator, dtype=torch.float64) + float(bias)
    targets = targets + noise * torch.randn(num_rows, num_outputs, generator=generator, dtype=torch.float64)
    return Conjugate(inputs, targets, noise, 1.5, bias)
