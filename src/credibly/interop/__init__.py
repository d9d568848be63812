"""Bridges outward: labels, and the conventions of other libraries."""

from credibly.interop.labels import ClassLabels

__all__ = ["ClassLabels"]
