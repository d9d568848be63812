"""The page on Pyro runs as it stands there, and its two posteriors are the exact one."""

import math

import pyro
import torch
from code_blocks import run_page


def test_the_page_runs_and_both_posteriors_are_exact():
    with pyro.get_param_store().scope():
        names = run_page("docs/pyro.md")
    x, y, program, posterior = names["x"], names["y"], names["program"], names["posterior"]
    loc, scale = (getattr(program.model.targets, part).double() for part in ("loc", "scale"))
    design = torch.cat([x, torch.ones(60, 1)], 1).double()
    noise = 4 / scale
    covariance = torch.linalg.inv(design.T @ design / noise**2 + torch.eye(3, dtype=torch.float64))
    mean = covariance @ design.T @ ((y.double() - loc) / scale).reshape(-1) / noise**2
    deviation = covariance.diagonal().sqrt()
    draws = torch.cat([names["draws"]["net.weight"].squeeze(1), names["draws"]["net.bias"]], 1).double()
    # an effective size of 40 of the 100 draws, 5 standard errors: fails once in a million seeds
    assert ((draws.mean(0) - mean).abs() < 5 * deviation / math.sqrt(40)).all()
    guide = torch.cat([value.flatten() for value in posterior.mean.values()]).double()
    assert ((guide - mean).abs() < 0.2 * deviation).all()
    assert ((posterior.covariance.diagonal().sqrt() / deviation - 1).abs() < 0.2).all()
    assert names["predicted"].batch_shape == (60,)
