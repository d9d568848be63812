"""The errors of this library: a small tree, so that callers can catch what they mean to catch.

Every message names the argument, what is required of it and what came.
"""

from typing import Any

__all__ = [
    "ConvergenceWarning",
    "CrediblyError",
    "FileFormatError",
    "NotFiniteError",
    "NotSupportedError",
    "ShapeError",
    "SupportError",
]


class CrediblyError(Exception):
    """Base class of this library's own errors; arguments of a wrong value or type raise ValueError and TypeError."""


class ShapeError(CrediblyError, ValueError):
    """An array has a shape that does not fit the others."""


class SupportError(CrediblyError, ValueError):
    """A value lies where the distribution puts no mass: a count of -1, a class that does not exist."""


class NotFiniteError(CrediblyError, ValueError):
    """A value is NaN or infinite where only finite values make sense.

    Attributes:
        posterior: where training broke off, the posterior at the best weights so far; otherwise None.
    """

    posterior: Any = None


class NotSupportedError(CrediblyError):
    """The request is understood and refused: this object cannot give it. The message names an alternative."""


class FileFormatError(CrediblyError, ValueError):
    """A file was not written by this library, is damaged, or does not fit the network it is loaded into."""


class ConvergenceWarning(UserWarning):
    """A fit ended, and its result may be less than was asked for; the message says why."""
