"""The picture of training shows what the history recorded."""

import matplotlib.pyplot as plt
import pytest

from credibly.plots.history import training_history
from credibly.training.history import History


def history(validation: bool = True, shift: float = 0.0) -> History:
    scores = [-2.0 - shift, -0.5 - shift, -0.75 - shift] if validation else []
    return History([1.0, 0.5, 0.25], scores, [0.1, 0.1, 0.1], best_epoch=1 if validation else 2)


def lines(ax: plt.Axes) -> dict[str, list[float]]:
    return {line.get_label(): list(line.get_ydata()) for line in ax.lines if not line.get_label().startswith("_")}


def test_draws_loss_validation_and_best_epoch() -> None:
    ax = training_history(history(), title="T")
    assert lines(ax) == {"training loss": [1.0, 0.5, 0.25], "validation": [2.0, 0.5, 0.75], "best": [0.5]}
    assert ax.get_title() == "T"
    assert [line.get_xdata() for line in ax.lines if line.get_label() == "best"] == [[1]]


def test_without_validation_there_is_no_best_epoch_to_show() -> None:
    assert lines(training_history(history(validation=False))) == {"training loss": [1.0, 0.5, 0.25]}


def test_members_of_an_ensemble_share_the_legend() -> None:
    ax = training_history([history(), history(shift=1.0)])
    assert len(ax.lines) == 6
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["training loss", "validation", "best"]


def test_draws_on_the_given_axes_and_returns_them() -> None:
    figure, ax = plt.subplots()
    assert training_history(history(), ax, legend=False) is ax
    assert plt.get_fignums() == [figure.number]
    assert ax.get_legend() is None


@pytest.mark.parametrize("nothing", [History(), [], [History()]])
def test_refuses_what_was_never_trained(nothing: History | list[History]) -> None:
    with pytest.raises(ValueError, match="`history` holds no epoch"):
        training_history(nothing)
