"""The look of every figure: one colour, marker and dash per arm, and files that are the same bytes every time."""

from __future__ import annotations

import html
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from reports.figures.png_file import encode_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_IN = 6.4

# Axes, text and the baseline. Inline SVG turns it into currentColor, so that it follows the page into dark mode; pure
# black would not do, as it is SVG's default and left out of the file.
INK = "#111111"
GREY = "#808080"

PNG_DOTS_PER_INCH = 200

# Of the thin lines of seeds. On a dark page they need more, which its style sheet gives whatever has this opacity.
SEED_ALPHA = 0.4

# What the model before training is called, in legends and in data.
BASE_MODEL = "base model"

# Okabe & Ito (2008), told apart under the common kinds of colour blindness. Without black, which the baseline has, and
# yellow, which is lost on white: from the eighth arm on colours come again with another dash and marker.
OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "d", "*")
DASHES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (2, 1.2)), (0, (6, 2, 1, 2)), (0, (1, 1)))

RC: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "axes.labelsize": 9.0,
    "axes.titlesize": 8.0,
    "axes.titley": 1.0,  # else whatever is at the top is measured at each drawing, for a title to stand clear of it
    "figure.constrained_layout.w_pad": 0.08,
    "figure.constrained_layout.h_pad": 0.08,
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
    "xtick.bottom": False,  # the grid's lines say where a tick is
    "ytick.left": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "text.parse_math": False,  # an arm's name may hold a dollar sign
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.solid_capstyle": "round",
    "svg.fonttype": "path",  # looks the same on a machine without the font
}

MAX_NAME_CHARACTERS = 44

# In percentage points: intervals no wider than this are always shown whole.
MIN_VIEW = 10.0


@dataclass(frozen=True)
class ArmStyle:
    color: str
    marker: str
    dash: Any


@dataclass(frozen=True)
class Drawing:
    """A finished figure, its caption, and the numbers in it as rows of one table."""

    figure: Figure
    caption: str
    rows: list[dict[str, str | int | float]]


def arm_styles(arms: Sequence[str], baseline: str) -> dict[str, ArmStyle]:
    """A style for each arm, unique up to 13 arms: the baseline in ink, the others in Okabe-Ito colours."""
    others = [arm for arm in arms if arm != baseline]
    styles = {baseline: ArmStyle(INK, MARKERS[0], DASHES[0])}
    for i, arm in enumerate(others):
        # The dash moves on with each round of colours, so that arms of one colour differ in dash and in marker.
        dash = DASHES[1 + (i + i // len(OKABE_ITO)) % (len(DASHES) - 1)]
        styles[arm] = ArmStyle(OKABE_ITO[i % len(OKABE_ITO)], MARKERS[(1 + i) % len(MARKERS)], dash)
    return styles


def say_not_recorded(axes: Axes) -> None:
    """In a panel that would be empty."""
    axes.text(0.5, 0.5, "not recorded", ha="center", va="center", transform=axes.transAxes, color=GREY)


def short_name(name: str) -> str:
    """The name, shortened in its middle where it would not fit a figure."""
    if len(name) <= MAX_NAME_CHARACTERS:
        return name
    half = MAX_NAME_CHARACTERS // 2 - 1
    return f"{name[:half]}…{name[-half:]}"


def bounded_view(values: Sequence[float], ends: Sequence[float]) -> tuple[float, float]:
    """The range that a figure shows of these ends of intervals: no further from the values, which all show, than these
    lie apart. Few seeds and one far off give intervals beside which nothing else could be seen."""
    low, high = min(values), max(values)
    widest = max(high - low, MIN_VIEW)
    known = [end for end in ends if math.isfinite(end)]
    return max(min([low, *known]), low - widest), min(max([high, *known]), high + widest)


def legend_columns(labels: Sequence[str]) -> int:
    """How many columns of these labels fit below a figure, filled as evenly as can be."""
    fitting = max(1, min(4, 92 // (max(map(len, labels)) + 8)))
    return math.ceil(len(labels) / math.ceil(len(labels) / fitting))


def svg(figure: Figure, name: str) -> str:
    """The figure as an SVG document, the same bytes for the same figure."""
    import matplotlib as mpl

    buffer = io.StringIO()
    with mpl.rc_context({**RC, "svg.hashsalt": name}):
        figure.savefig(
            buffer,
            format="svg",
            transparent=True,
            metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
        )
    return buffer.getvalue()


def png(figure: Figure) -> bytes:
    """The figure as a PNG on white, the same bytes for the same figure."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    with mpl.rc_context(RC):
        figure.set(dpi=PNG_DOTS_PER_INCH, facecolor="white")
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
    return encode_png(np.asarray(canvas.buffer_rgba())[..., :3], PNG_DOTS_PER_INCH)


def inline_svg(document: str, name: str, label: str) -> str:
    """An SVG element to put into a page: ids made unique by `name`, ink as the page's text colour, no outer size."""
    element = document[document.index("<svg") :]
    start, rest = element.split(">", 1)
    view_box = re.search(r'viewBox="[^"]+"', start)
    if view_box is None:
        raise ValueError(f"the SVG of {name} has no viewBox: draw it with matplotlib")
    for reference in (' id="', 'href="#', "url(#"):
        rest = rest.replace(reference, f"{reference}{name}-")
    rest = rest.replace("xlink:href", "href")
    return f'<svg {view_box.group()} role="img" aria-label="{html.escape(label)}">{rest}'.replace(INK, "currentColor")
