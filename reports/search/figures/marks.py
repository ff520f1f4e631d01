"""How trials look in figures: told apart by marker as well as by colour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.records.study import TrialRecord
from reports.figures.style import GREY, INK, OKABE_ITO
from reports.search.objectives import Objective

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.lines import Line2D

BLUE, VERMILION, _, _, ORANGE, _ = OKABE_ITO
TICK_CHARACTER_IN = 0.062
"""Width of a character of a tick's label of TICK_POINTS, on average."""
TICK_POINTS = 7.0
AXIS_CHARACTERS = 34


@dataclass(frozen=True)
class Mark:
    """`hollow`: only the marker's edge is drawn."""

    color: str
    marker: str
    size: float = 5.5
    hollow: bool = False

    def drawn(self) -> dict[str, Any]:
        """Arguments of `plot`."""
        face = "none" if self.hollow else self.color
        return {"color": self.color, "marker": self.marker, "markersize": self.size, "markerfacecolor": face,
                "markeredgewidth": 1.2, "linestyle": "none"}  # fmt: skip


MARKS = {
    "complete": Mark(BLUE, "o"),
    "default": Mark(ORANGE, "D"),
    "repeated setting": Mark(BLUE, "o", hollow=True),
    "pruned": Mark(VERMILION, "x"),
    "failed": Mark(VERMILION, "|", size=9),
    "running": Mark(GREY, "^", hollow=True),
}
BEST = Mark(INK, "o", size=11, hollow=True)
"""A ring around the best."""


def kind_of(trial: TrialRecord) -> str:
    """A key of MARKS. Its state comes first: a default that was pruned is shown as pruned."""
    if trial.state != "complete":
        return trial.state
    if trial.is_default:
        return "default"
    return "complete" if trial.same_as is None else "repeated setting"


def draw_trials(
    axes: Axes, trials: Sequence[TrialRecord], xs: Sequence[float], ys: Sequence[float], best: int | None, **plot: Any
) -> dict[str, Line2D]:
    """A marker for each trial and a ring around the best; a handle of each kind, for a legend."""
    handles: dict[str, Line2D] = {}
    for kind, mark in MARKS.items():
        mine = [(x, y) for trial, x, y in zip(trials, xs, ys, strict=True) if kind_of(trial) == kind]
        if mine:
            (handles[kind],) = axes.plot(*zip(*mine, strict=True), label=kind, **mark.drawn(), **plot)
    for trial, x, y in zip(trials, xs, ys, strict=True):
        if trial.number == best:
            (handles["best"],) = axes.plot(x, y, label=best_label(trial.number), **BEST.drawn(), **plot)
    return handles


def best_label(number: int) -> str:
    return f"best: trial {number}"


def count_kinds(trials: Sequence[TrialRecord]) -> str:
    """14 complete, 1 default, 3 pruned."""
    kinds = [kind_of(trial) for trial in trials]
    return ", ".join(f"{kinds.count(kind)} {kind}" for kind in MARKS if kind in kinds)


def label_values(axis: Axis, objective: Objective) -> None:
    """Ticks of an axis that shows values of an objective: 72.5, or 120k."""
    from matplotlib.ticker import EngFormatter, ScalarFormatter

    axis.set_major_formatter(ScalarFormatter(useOffset=False) if objective.is_fraction else EngFormatter(sep=""))


def axis_label(objective: Objective) -> str:
    """What an axis shows, no longer than the axis; a task may have the name of a file."""
    return shortened(objective.words, AXIS_CHARACTERS) + objective.unit


def two_lines(text: str, characters: int) -> str:
    """The text on one line or, if it is longer, on two, broken after a mark where that fits; shortened in its middle
    where it does not."""
    text = shortened(text, 2 * characters)
    if len(text) <= characters:
        return text
    breaks = [i + 1 for i, character in enumerate(text[:characters]) if character in " ._" and i > 0]
    fitting = [place for place in breaks if len(text) - place <= characters]
    place = max(fitting, default=characters)
    return f"{text[:place].rstrip()}\n{text[place:]}"


def shortened(text: str, characters: int) -> str:
    """The text, its middle left out where it is longer than so many characters (at least 3)."""
    if len(text) <= characters:
        return text
    start = characters // 2
    return f"{text[:start]}…{text[start + 1 - characters :]}"
