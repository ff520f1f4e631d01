"""Shared parts of a search's figures: the marks of trials, the axes of knobs, and labels that fit.

Trials of different kinds differ in marker as well as in colour.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.records.study import RangeRecord, TrialRecord
from reports.drawing.style import ARM_COLORS, GREY, INK
from reports.search.values import StudyObjective, value_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.lines import Line2D
    from matplotlib.transforms import Transform

BLUE, VERMILION, GREEN = ARM_COLORS[:3]
TICK_CHARACTER_IN = 0.062
"""The average width of a character in a tick label at TICK_POINTS, in inches."""
TICK_POINTS = 7.0
AXIS_CHARACTERS = 34


@dataclass(frozen=True)
class Mark:
    """How trials of one kind are drawn."""

    color: str
    marker: str
    size: float = 5.5
    hollow: bool = False
    """True if only the outline of the marker is drawn."""

    def plot(
        self,
        axes: Axes,
        xs: Sequence[float],
        ys: Sequence[float],
        label: str = "",
        *,
        transform: Transform | None = None,
        zorder: float = 2,
    ) -> Line2D:
        """Draw a marker at each point and return their handle. transform: of the points; None for data coordinates."""
        (line,) = axes.plot(
            xs,
            ys,
            color=self.color,
            marker=self.marker,
            markersize=self.size,
            markerfacecolor="none" if self.hollow else self.color,
            markeredgewidth=1.2,
            linestyle="none",
            label=label,
            transform=transform or axes.transData,
            zorder=zorder,
        )
        return line


MARKS = {
    "complete": Mark(BLUE, "o"),
    "default": Mark(GREEN, "D"),
    "repeated setting": Mark(BLUE, "o", hollow=True),
    "pruned": Mark(VERMILION, "x"),
    "failed": Mark(VERMILION, "|", size=9),
    "running": Mark(GREY, "^", hollow=True),
}
BEST = Mark(INK, "o", size=11, hollow=True)
"""A ring around the best trial."""


def kind_of(trial: TrialRecord) -> str:
    """Return the key of MARKS for a trial. The state takes precedence: a default that was pruned is shown as pruned."""
    if trial.state != "complete":
        return trial.state
    if trial.is_default:
        return "default"
    return "complete" if trial.same_as is None else "repeated setting"


def draw_trials(
    axes: Axes,
    trials: Sequence[TrialRecord],
    xs: Sequence[float],
    ys: Sequence[float],
    best: int | None,
    transform: Transform | None = None,
) -> dict[str, Line2D]:
    """Draw a marker for each trial and a ring around the best, and return a legend handle for each kind.

    transform: of the points; None for data coordinates.
    """
    handles: dict[str, Line2D] = {}
    for kind, mark in MARKS.items():
        mine = [(x, y) for trial, x, y in zip(trials, xs, ys, strict=True) if kind_of(trial) == kind]
        if mine:
            mine_x, mine_y = zip(*mine, strict=True)
            handles[kind] = mark.plot(axes, mine_x, mine_y, kind, transform=transform)
    for trial, x, y in zip(trials, xs, ys, strict=True):
        if trial.number == best:
            handles["best"] = BEST.plot(axes, [x], [y], best_label(trial.number), transform=transform)
    return handles


def best_label(number: int) -> str:
    return f"best: trial {number}"


def count_kinds(trials: Sequence[TrialRecord]) -> str:
    """Count the trials of each kind: `14 complete, 1 default, 3 pruned`."""
    kinds = [kind_of(trial) for trial in trials]
    return ", ".join(f"{kinds.count(kind)} {kind}" for kind in MARKS if kind in kinds)


def label_values(axis: Axis, objective: StudyObjective) -> None:
    """Label the ticks of an axis that shows values of an objective: 72.5, or 120k."""
    from matplotlib.ticker import EngFormatter, ScalarFormatter

    axis.set_major_formatter(ScalarFormatter(useOffset=False) if objective.is_fraction else EngFormatter(sep=""))


def axis_label(objective: StudyObjective) -> str:
    """Return an axis label that fits the axis: the name of a task may be as long as a file name."""
    return shortened(objective.words, AXIS_CHARACTERS) + objective.unit


def two_lines(text: str, characters: int) -> str:
    """Break the text into at most two lines, after a space, dot or underscore if both lines then fit.

    If it is too long for two lines, its middle is left out.
    """
    text = shortened(text, 2 * characters)
    if len(text) <= characters:
        return text
    breaks = [i + 1 for i, character in enumerate(text[:characters]) if character in " ._" and i > 0]
    fitting = [place for place in breaks if len(text) - place <= characters]
    # The latest break that fits keeps the first line full. If none fits, break at the limit.
    place = max(fitting, default=characters)
    return f"{text[:place].rstrip()}\n{text[place:]}"


def shortened(text: str, characters: int) -> str:
    """Return the text, replacing its middle by an ellipsis if it is longer than `characters` (at least 3)."""
    if len(text) <= characters:
        return text
    start = characters // 2
    return f"{text[:start]}…{text[start + 1 - characters :]}"


CHOICE_CENTRE = 0.5


@dataclass(frozen=True)
class KnobAxis:
    """A knob's axis, mapped to positions from 0 to 1: linear, logarithmic, or one place per choice."""

    kind: str
    low: float
    """In the unit of the scale, like high. On a log scale, it is the logarithm."""
    high: float
    choices: tuple[str, ...]
    """The choices of a categorical knob, as JSON; empty for other knobs."""
    choice_at: float
    """The position of a choice within its section of the axis, from 0 to 1."""

    @classmethod
    def of(cls, knob: RangeRecord, values: Iterable[Any], choice_at: float = CHOICE_CENTRE) -> KnobAxis:
        """Build the axis of a knob.

        values: the values of the trials. The default's value may lie outside the searched range.
        """
        if knob.kind == "categorical":
            choices = dict.fromkeys(_json(value) for value in [*(knob.choices or []), *values])
            return cls(knob.kind, 0.0, 1.0, tuple(choices), choice_at)
        is_log = knob.kind == "log"
        # A default of 0 has no logarithm, so a log axis does not extend to it.
        ends = [float(end) for end in (knob.low, knob.high, *values) if end is not None and (end > 0 or not is_log)]
        scaled = [math.log(end) if is_log else end for end in ends]
        return cls(knob.kind, min(scaled), max(scaled), (), choice_at)

    def position(self, value: Any) -> float:
        """Return the position of a value, from 0 to 1.

        On a log scale, a value that is not positive is placed at the low end.
        """
        if self.choices:
            return (self.choices.index(_json(value)) + self.choice_at) / len(self.choices)
        if self.high == self.low:
            return CHOICE_CENTRE
        if self.kind != "log":
            return (float(value) - self.low) / (self.high - self.low)
        return (math.log(value) - self.low) / (self.high - self.low) if value > 0 else 0.0

    def ticks(self, n: int) -> list[tuple[float, str]]:
        """Return the positions and labels of ticks: one per choice, or up to n values from end to end."""
        if self.choices:
            values = [json.loads(choice) for choice in self.choices]
        else:
            values = [self._value(self.low + i * (self.high - self.low) / (n - 1)) for i in range(n)]
            # Rounding may make neighbours equal, e.g. in a short range of integers.
            values = list(dict.fromkeys(values))
        return [(self.position(value), value_text(value)) for value in values]

    def _value(self, scaled: float) -> float:
        value = math.exp(scaled) if self.kind == "log" else scaled
        return round(value) if self.kind == "int" else float(f"{value:.2g}")


def _json(value: object) -> str:
    """Return the value as JSON, where true and 1 differ; in Python they are equal."""
    return json.dumps(value, sort_keys=True)
