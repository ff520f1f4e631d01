"""Many panels at places that are given in inches.

A layout engine measures every text of every panel several times, which for dozens of panels takes seconds a figure.
Panels share limits without being linked, as linked axes look each other up at every turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np

from reports.figures.style import GREY, RC, WIDTH_IN, legend_columns
from reports.statistics import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

X_LABEL_IN = 0.27
"""From the bottom of a panel to the label of its x axis: the ticks' labels are between."""
LEGEND_ROW_IN = 0.2


@dataclass(frozen=True)
class Panels:
    """Where panels lie. Inches: `height` of a panel, gaps between panels, margins of the figure.

    `above`: further room above some rows, by their number.
    """

    rows: int
    columns: int
    height: float
    column_gap: float
    row_gap: float
    left: float
    top: float
    right: float = 0.2
    bottom: float = 0.5
    above: Mapping[int, float] = field(default_factory=dict)

    def draw(self, legend: Sequence[str] = ()) -> tuple[Figure, list[list[Axes]]]:
        """A figure with empty panels, [rows][columns], and room below them for a legend of these labels."""
        from matplotlib.figure import Figure

        legend_rows = -(-len(legend) // legend_columns(legend)) if legend else 0
        bottom = self.bottom + LEGEND_ROW_IN * legend_rows + (0.1 if legend else 0)
        total = self.top + self.rows * self.height + (self.rows - 1) * self.row_gap + bottom + sum(self.above.values())
        width = (WIDTH_IN - self.left - self.right - (self.columns - 1) * self.column_gap) / self.columns
        figure = Figure(figsize=(WIDTH_IN, total))

        def place(row: int, column: int) -> Axes:
            x = self.left + column * (width + self.column_gap)
            above = sum(room for below, room in self.above.items() if below <= row)
            y = total - self.top - above - row * (self.height + self.row_gap) - self.height
            axes = figure.add_axes((x / WIDTH_IN, y / total, width / WIDTH_IN, self.height / total))
            # Fixed, where they would be searched for anew, by measuring all ticks, whenever a panel is drawn.
            axes.xaxis.set_label_coords(0.5, -X_LABEL_IN / self.height)
            axes.yaxis.set_label_coords(0, 0.5)
            return axes

        return figure, [[place(row, column) for column in range(self.columns)] for row in range(self.rows)]


STRIPS = partial(Panels, columns=1, height=0.36, column_gap=0.0, row_gap=0.26, left=0.2, top=0.3, bottom=0.48)
"""A low panel for each arm, made by `as_strip`."""

MEAN_Y, SEEDS_Y = 0.3, -0.5
"""In a strip, which reaches from -1 to 1: of a mean with its bar, and of the seeds below it."""


def as_strip(panel: Axes, name: str, numbers: str = "") -> None:
    """A panel of one arm, in which y means nothing, with its texts above it: never on what it shows."""
    panel.set_title(name, loc="left")
    panel.set_title(numbers, loc="right")
    panel.set_ylim(-1, 1)
    panel.set_yticks([])
    panel.grid(axis="y", visible=False)
    panel.spines["left"].set_visible(False)
    panel.spines["bottom"].set(color=GREY, linewidth=0.5)


def share_limits(panels: Sequence[Axes], axis: Literal["x", "y"]) -> None:
    """Give all panels the limits that hold what each shows."""
    limits = [panel.get_xlim() if axis == "x" else panel.get_ylim() for panel in panels]
    low, high = min(one[0] for one in limits), max(one[1] for one in limits)
    for panel in panels:
        if axis == "x":
            panel.set_xlim(low, high)
        else:
            panel.set_ylim(low, high)


def keep_only_grid(panels: Iterable[Axes], axis: Literal["x", "y"]) -> None:
    """Of an axis whose labels another panel shows, once limits are set: the grid, as one line with gaps. An axis that
    is drawn makes five artists for each of its ticks, which is a third of what a panel costs."""
    from matplotlib.lines import Line2D

    for panel in panels:
        own = panel.xaxis if axis == "x" else panel.yaxis
        low, high = sorted(own.get_view_interval())
        ticks = [tick for tick in own.get_majorticklocs() if low <= tick <= high]
        own.set_visible(False)
        line = Line2D(
            *_grid(ticks, axis),
            color=RC["grid.color"],
            alpha=RC["grid.alpha"],
            linewidth=RC["grid.linewidth"],
            solid_capstyle="butt",
            transform=panel.get_xaxis_transform() if axis == "x" else panel.get_yaxis_transform(),
            zorder=0.5,  # as that of an axis: below all data
        )
        panel.add_artist(line)


def _grid(ticks: Sequence[float], axis: Literal["x", "y"]) -> tuple[FloatArray, FloatArray]:
    """x and y of a line from edge to edge at each tick, in units of the data along the axis and of the panel across."""
    along, across = np.repeat(ticks, 3), np.tile([0.0, 1.0, np.nan], len(ticks))
    return (along, across) if axis == "x" else (across, along)


def legend_at_bottom(figure: Figure, handles: Sequence[Line2D]) -> None:
    """Into the room that `Panels.draw` left for it."""
    figure.legend(
        handles=list(handles),
        loc="lower center",
        ncols=legend_columns([str(handle.get_label()) for handle in handles]),
        handlelength=4.0,
        borderaxespad=0.3,
    )
