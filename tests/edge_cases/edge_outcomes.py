"""What an edge case may lead to: a sound value, or an error that the library raises itself and documents."""

import dataclasses
import traceback
from pathlib import Path

import hypothesis
import torch

import credibly
from credibly.core.errors import CrediblyError

OWN = str(Path(credibly.__file__).parent)
THOROUGH = hypothesis.settings.default == hypothesis.settings.get_profile("thorough")
"""Whether the tests run with `--hypothesis-profile thorough`."""


def examples(number):
    """Settings for a test at the edges: so many examples, and 25 in a thorough run."""
    return hypothesis.settings(max_examples=25 if THOROUGH else number)


def in_turn(names, choices, first):
    """Pairs of every name with one of the choices, which take turns from the `first`."""
    return [(name, choices[(first + index) % len(choices)]) for index, name in enumerate(names)]


def share(names, part):
    """Every fourth of the names, from that of a number on; in a thorough run all."""
    return list(names) if THOROUGH else list(names)[part % 4 :: 4]


def outcome(action, *arguments):
    """The value of an action, or its error; anything that is no documented error passes through as it is.

    Documented is a CrediblyError, ValueError or TypeError that the library raises itself: one that comes out of torch,
    numpy or scipy was not thought of.
    """
    try:
        return action(*arguments)
    except (CrediblyError, ValueError, TypeError) as error:
        raised_by = traceback.extract_tb(error.__traceback__)[-1].filename
        if not raised_by.startswith(OWN):
            raise
        return error


def names_its_argument(error):
    """Whether an error says what is wrong with which argument; of what cannot be read at all it says what came."""
    return "`" in str(error) or isinstance(error, CrediblyError) or "expected numbers, got" in str(error)


def tensors(value):
    """The tensors in a result."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, float):
        yield torch.tensor(value)
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from tensors(part)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from tensors(getattr(value, field.name))


def holds_nan(value):
    return any(bool(part.isnan().any()) for part in tensors(value) if part.is_floating_point())
