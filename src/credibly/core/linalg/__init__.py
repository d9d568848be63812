"""Positive definite matrices in the structures that posteriors over weights have."""
