"""ArviZ draws without a screen."""

from collections.abc import Iterator

import matplotlib.pyplot as plt
import pytest


@pytest.fixture(autouse=True)
def _no_screen() -> Iterator[None]:
    plt.switch_backend("agg")
    yield
    plt.close("all")
