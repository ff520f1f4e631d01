"""The look of every figure: one colour, marker and dash for each arm."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDE_IN, NARROW_IN = 6.4, 3.6
"""The two widths that every figure is laid out for: a page on screen or paper, and a phone."""

_width_in = ContextVar("_width_in", default=WIDE_IN)

# The colour of axes, text and the baseline. In an inline SVG it becomes currentColor, so that it follows the page into
# dark mode. Pure black would not work: as SVG's default, it is left out of the file.
INK = "#111111"
GREY = "#808080"

# The opacity of the thin lines of seeds, and what it becomes on a dark page.
SEED_ALPHA, SEED_ALPHA_ON_DARK = 0.4, 0.7

# The name of the model before training, in legends and in data.
BASE_MODEL = "base model"

# Each colour has a contrast of at least 3:1 with both the white and the dark page (WCAG 2.2, 1.4.11), and is
# distinguishable from the others with common forms of colour blindness. The first four are from Okabe & Ito (2008); the
# others come from a search under both conditions. Black is left out because it is the baseline's colour. From the 13th
# arm onwards, colours repeat.
ARM_COLORS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#AA78FA", "#506E5A"),
    *("#826E8C", "#BE323C", "#6482D2", "#825ADC", "#F0646E"),
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "d", "*")
DASHES: tuple[object, ...] = ("-", (0, (6, 2)), (0, (2, 1.2)), (0, (6, 2, 1, 2)), (0, (1, 1)))

RC: dict[str, object] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "axes.labelsize": 9.0,
    "axes.titlesize": 8.0,
    "axes.titley": 1.0,  # Otherwise matplotlib measures the axes at each drawing to place titles.
    "figure.constrained_layout.w_pad": 0.08,
    "figure.constrained_layout.h_pad": 0.08,
    "axes.facecolor": "none",  # The page shows through a panel.
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.linewidth": 0.7,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": INK,
    "grid.alpha": 0.12,
    "grid.linewidth": 0.6,
    "xtick.bottom": False,  # Grid lines show the positions of ticks.
    "ytick.left": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "text.parse_math": False,  # Names of arms may contain dollar signs.
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.solid_capstyle": "round",
    "svg.fonttype": "none",  # Text stays text, which can be searched, copied and read aloud.
}

MAX_NAME_CHARACTERS, MAX_NARROW_NAME_CHARACTERS = 44, 30
LEGEND_CHARACTERS_PER_IN = 14.4
# The height of a legend row that matplotlib places.
LEGEND_ROW_IN = 0.22

# In percentage points: intervals no wider than this are always shown completely.
MIN_VIEW = 10.0


@dataclass(frozen=True)
class ArmStyle:
    color: str
    marker: str
    dash: object


def width_in() -> float:
    """Return the width that figures are currently drawn for, in inches."""
    return _width_in.get()


def is_narrow() -> bool:
    """Return whether figures are drawn for a phone, where panels are stacked instead of side by side."""
    return width_in() < WIDE_IN


@contextmanager
def drawn_narrow() -> Iterator[None]:
    """Lay out all figures created in this context for a phone."""
    token = _width_in.set(NARROW_IN)
    try:
        yield
    finally:
        _width_in.reset(token)


def new_figure(height_in: float, *, laid_out: bool = True) -> Figure:
    """Create an empty figure of the current width. laid_out: True if matplotlib places the axes and labels."""
    # pyplot would keep every figure alive in a global registry.
    from matplotlib.figure import Figure

    return Figure(figsize=(width_in(), height_in), layout="constrained" if laid_out else None)


def arm_styles(arms: Sequence[str], baseline: str) -> dict[str, ArmStyle]:
    """Map each arm to its style: the baseline in INK, the others in ARM_COLORS.

    For up to 12 arms, both colours and markers are unique.
    """
    others = [arm for arm in arms if arm != baseline]
    styles = {baseline: ArmStyle(INK, MARKERS[0], DASHES[0])}
    for i, arm in enumerate(others):
        # The dash shifts with each round of colours, so that arms of the same colour differ in dash and marker.
        dash = DASHES[1 + (i + 2 * (i // len(ARM_COLORS))) % (len(DASHES) - 1)]
        styles[arm] = ArmStyle(ARM_COLORS[i % len(ARM_COLORS)], MARKERS[(1 + i) % len(MARKERS)], dash)
    return styles


def say_not_recorded(axes: Axes) -> None:
    """Write "not recorded" into a panel that would be empty."""
    axes.text(0.5, 0.5, "not recorded", ha="center", va="center", transform=axes.transAxes, color=GREY)


def short_name(name: str) -> str:
    """Return the name, with its middle shortened if it is too long for a figure."""
    most = MAX_NARROW_NAME_CHARACTERS if is_narrow() else MAX_NAME_CHARACTERS
    if len(name) <= most:
        return name
    half = most // 2 - 1
    return f"{name[:half]}…{name[-half:]}"


def bounded_view(values: Sequence[float], ends: Sequence[float]) -> tuple[float, float]:
    """Return the range of an axis that shows all values, and the ends of intervals up to a bound.

    Beyond the values, the axis extends by at most their own spread. Otherwise the interval of a few seeds with one
    outlier would be so wide that nothing else was visible.
    """
    low, high = min(values), max(values)
    widest = max(high - low, MIN_VIEW)
    known = [end for end in ends if math.isfinite(end)]
    return max(min([low, *known]), low - widest), min(max([high, *known]), high + widest)


def legend_columns(labels: Sequence[str]) -> int:
    """Return the number of legend columns that fit below a figure, filled as evenly as possible."""
    # Eight characters account for an entry's handle and the gaps around it.
    fitting = max(1, min(4, int(LEGEND_CHARACTERS_PER_IN * width_in()) // (max(map(len, labels)) + 8)))
    return math.ceil(len(labels) / math.ceil(len(labels) / fitting))
