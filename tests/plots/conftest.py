"""Pictures are drawn without a screen, and leave matplotlib's settings as they were."""

from collections.abc import Iterator

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest


@pytest.fixture(autouse=True)
def _no_screen_and_no_style() -> Iterator[None]:
    plt.switch_backend("agg")
    before = dict(mpl.rcParams)
    yield
    after = dict(mpl.rcParams)
    plt.close("all")
    assert {key: value for key, value in after.items() if before[key] != value} == {}
