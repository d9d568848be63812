"""Small networks for examples and generative models."""

from credibly.nets.mlp import mlp

__all__ = ["mlp"]
