"""Many panels at fixed positions, in inches.

A layout engine would measure every text of every panel several times, which takes seconds for a figure with dozens of
panels. Panels have equal limits without being linked, because linked axes are slow: they look each other up constantly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from reports.drawing.marks import mark
from reports.drawing.style import GREY, RC, is_narrow, legend_columns, new_figure, short_name, width_in

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.container import BarContainer
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

X_LABEL_IN = 0.27
"""The distance from the bottom of a panel to the x axis's label. The tick labels are in between."""
PANEL_LEGEND_ROW_IN = 0.2
HEADING_SIZE = 8.0


@dataclass(frozen=True)
class Panels:
    """The layout of panels, in inches: the height of a panel, gaps between panels, margins of the figure."""

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
    """Additional space above some rows, by row number."""

    def draw(self, legend: Sequence[str] = ()) -> tuple[Figure, list[list[Axes]]]:
        """Create a figure with empty panels [rows][columns], and space below them for a legend with these labels."""
        legend_rows = -(-len(legend) // legend_columns(legend)) if legend else 0
        bottom = self.bottom + PANEL_LEGEND_ROW_IN * legend_rows + (0.1 if legend else 0)
        total = self.top + self.rows * self.height + (self.rows - 1) * self.row_gap + bottom + sum(self.above.values())
        page = width_in()
        width = (page - self.left - self.right - (self.columns - 1) * self.column_gap) / self.columns
        figure = new_figure(total, laid_out=False)

        def place(row: int, column: int) -> Axes:
            x = self.left + column * (width + self.column_gap)
            above = sum(room for below, room in self.above.items() if below <= row)
            y = total - self.top - above - row * (self.height + self.row_gap) - self.height
            # Matplotlib measures from the lower left corner, in fractions of the figure.
            axes = figure.add_axes((x / page, y / total, width / page, self.height / total))
            # Without fixed coordinates, matplotlib measures all ticks to place the labels whenever a panel is drawn.
            axes.xaxis.set_label_coords(0.5, -X_LABEL_IN / self.height)
            axes.yaxis.set_label_coords(0, 0.5)
            return axes

        return figure, [[place(row, column) for column in range(self.columns)] for row in range(self.rows)]

    def draw_some(self, number: int, legend: Sequence[str] = ()) -> tuple[Figure, list[Axes]]:
        """Create a figure like `draw`, but with only the first `number` panels of the grid."""
        figure, grid = self.draw(legend)
        panels = [panel for row in grid for panel in row]
        for panel in panels[number:]:
            panel.remove()
        return figure, panels[:number]

    def across_the_top(self, figure: Figure, top: float, height: float) -> Axes:
        """Add axes across the full width, in the margin above the panels.

        top: the distance from the figure's upper edge, in inches.
        """
        page, total = figure.get_size_inches()
        place = (self.left / page, 1 - (top + height) / total, 1 - (self.left + self.right) / page, height / total)
        return figure.add_axes(place)


NARROW_TITLE_IN = 0.15
"""The height of the second line of a strip's title."""


def strip_panels(
    rows: int, *, columns: int = 1, height: float = 0.36, above: Mapping[int, float] | None = None
) -> Panels:
    """Lay out a low panel for each arm, to be set up by `as_strip`."""
    more = NARROW_TITLE_IN if is_narrow() else 0.0
    return Panels(
        rows,
        columns,
        height,
        column_gap=0.4,
        row_gap=0.26 + more,
        left=0.2,
        top=0.3 + more,
        bottom=0.48,
        above=above or {},
    )


MEAN_Y, SEEDS_Y = 0.3, -0.5
"""The heights, from -1 to 1, of a strip's mean with its bar, and of the seeds below it."""


def as_strip(panel: Axes, name: str, numbers: str = "") -> None:
    """Set up the panel of one arm, in which y has no meaning.

    Its texts are above the panel, so that they never cover the data.
    """
    shown = short_name(name)
    title = panel.set_title(f"{shown}\n{numbers}" if is_narrow() and numbers else shown, loc="left")
    mark(title, name, "name")
    if not is_narrow():
        panel.set_title(numbers, loc="right")
    panel.set_ylim(-1, 1)
    panel.set_yticks([])
    panel.grid(axis="y", visible=False)
    panel.spines["left"].set_visible(False)
    panel.spines["bottom"].set(color=GREY, linewidth=0.5)


def write_above(panel: Axes, text: str, offset_points: float, *, bold: bool = False) -> None:
    """Write a heading above a panel and its title, either bold or in a smaller font."""
    heading = panel.annotate(text, (0, 1), (0, offset_points), xycoords="axes fraction", textcoords="offset points")
    heading.set(fontweight="bold") if bold else heading.set(fontsize=HEADING_SIZE)


def share_limits(panels: Sequence[Axes], axis: Literal["x", "y"]) -> None:
    """Give all panels the same limits, wide enough for the data of each."""
    limits = [panel.get_xlim() if axis == "x" else panel.get_ylim() for panel in panels]
    low, high = min(one[0] for one in limits), max(one[1] for one in limits)
    for panel in panels:
        if axis == "x":
            panel.set_xlim(low, high)
        else:
            panel.set_ylim(low, high)


def hide_labels(panels: Iterable[Axes], axis: Literal["x", "y"]) -> None:
    """Hide an axis, except for its grid, because another panel shows the same axis. Call this after setting the limits.

    Drawing an axis creates five artists per tick, which is a third of the cost of a panel.
    """
    # These lines replace the grid: they have its look and also lie below the data.
    for panel in panels:
        own = panel.xaxis if axis == "x" else panel.yaxis
        low, high = sorted(own.get_view_interval())
        ticks = [tick for tick in own.get_majorticklocs() if low <= tick <= high]
        if axis == "x":
            lines = panel.vlines(ticks, 0, 1, transform=panel.get_xaxis_transform())
        else:
            lines = panel.hlines(ticks, 0, 1, transform=panel.get_yaxis_transform())
        lines.set(**{name: RC[f"grid.{name}"] for name in ("color", "alpha", "linewidth")}, zorder=0.5)
        own.set_visible(False)


def share_axes(panels: Sequence[Axes], columns: int) -> None:
    """Give panels in rows of `columns` the same axes, with labels only on the left and at the bottom."""
    share_limits(panels, "x")
    share_limits(panels, "y")
    hide_labels((panel for i, panel in enumerate(panels) if i % columns), "y")
    hide_labels(panels[:-columns], "x")


def legend_at_bottom(figure: Figure, handles: Sequence[Line2D | BarContainer]) -> None:
    """Add a legend in the space that `Panels.draw` reserved for it."""
    figure.legend(
        handles=list(handles),
        loc="lower center",
        ncols=legend_columns([str(handle.get_label()) for handle in handles]),
        handlelength=4.0,
        borderaxespad=0.3,
    )
