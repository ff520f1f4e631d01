"""A drawing as the files of a figure, which are the same bytes every time."""

from __future__ import annotations

import gc
import html
import io
import re
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from reports.drawing.marks import as_attributes, mark_panels
from reports.drawing.style import INK, RC, drawn_narrow
from reports.formats import count, csv_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WORDS_OR_LONG_NUMBER = re.compile(r'data-\w+="[^"]*"|>[^<]*<|\d+\.\d{3,}(?![\d\w%&])')
"""What a reader sees, which stays; or a coordinate with more digits than a figure can show, which would double its
size."""

PNG_DOTS_PER_INCH = 200
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
PNG_BITS, TRUE_COLOUR, UNFILTERED = 8, 2, 0


DataRow = dict[str, str | int | float]
"""One row of the numbers in a figure."""


@dataclass(frozen=True)
class Drawing:
    """What a figure's `draw` returns: the figure, its caption, and the numbers shown as rows of one table.

    in_words: the caption says it all, and the figure is not shown.
    """

    figure: Figure
    caption: str
    rows: list[DataRow]
    in_words: bool = False


@dataclass(frozen=True)
class View:
    """An SVG element for a page. over: what x counts, where a figure can be drawn over several; "" elsewhere."""

    inline: str
    over: str = ""
    narrow: bool = False


@dataclass(frozen=True)
class RenderedFigure:
    """A figure as files, and as elements for a page. csv: the numbers shown. svg, png, views: empty if the caption says
    it all."""

    name: str
    title: str
    caption: str
    svg: str
    png: bytes
    csv: str
    views: list[View]


Draw = Callable[[], Drawing | None]


def render_figure(
    name: str, title: str, draw: Draw, over: str = "", others: Mapping[str, Draw] | None = None
) -> RenderedFigure | None:
    """Draw in the style of all figures, for a wide and for a narrow page; None if `draw` returns None.

    over: what x counts. others: what draws the same over something else, by what x counts then.
    """
    with _garbage_collected_afterwards():
        return _render(name, title, draw, over, others or {})


def _render(name: str, title: str, draw: Draw, over: str, others: Mapping[str, Draw]) -> RenderedFigure | None:
    drawing = _drawn(draw)
    if drawing is None:
        return None
    if drawing.in_words:
        return RenderedFigure(name, title, drawing.caption, "", b"", csv_text(drawing.rows), [])
    label = f"{title}. {describe_rows(drawing.rows)}"
    document = svg(drawing.figure, name)
    drawing.figure.set_layout_engine("none")  # the layout stays: computing it again would double the time
    views = [View(inline_svg(document, name, label), over)]
    with drawn_narrow():
        narrow = _drawn(draw)
    if narrow is not None:
        views.append(View(inline_svg(svg(narrow.figure, f"{name}-narrow"), f"{name}-narrow", label), over, narrow=True))
    for number, (over_it, draw_it) in enumerate(others.items()):
        again = _drawn(draw_it)
        if again is not None and not again.in_words:
            prefix = f"{name}-{number}"
            views.append(View(inline_svg(svg(again.figure, prefix), prefix, label), over_it))
    return RenderedFigure(
        name=name,
        title=title,
        caption=drawing.caption,
        svg=document,
        png=png(drawing.figure),
        csv=csv_text(drawing.rows),
        views=views,
    )


def _drawn(draw: Draw) -> Drawing | None:
    import matplotlib as mpl

    with mpl.rc_context(RC):
        return draw()


def describe_rows(rows: Sequence[DataRow]) -> str:
    """What the numbers of a figure are, for those who cannot see it: how many, and of each arm the mean and the range
    of the last quantity."""
    numbers = [key for key, value in rows[-1].items() if isinstance(value, float)] if rows else []
    by_arm: dict[str, list[float]] = {}
    for row in rows:
        if numbers and "arm" in row and isinstance(value := row.get(numbers[-1]), int | float) and value == value:
            by_arm.setdefault(str(row["arm"]), []).append(value)
    arms = [
        f"{arm} {sum(values) / len(values):.3g} ({min(values):.3g} to {max(values):.3g})"
        for arm, values in by_arm.items()
    ]
    what = f" Mean and range of {numbers[-1]}: {'; '.join(arms)}." if arms else ""
    return f"{count(len(rows), 'row')} of data.{what}"


def _shortened(found: re.Match[str]) -> str:
    """Tenths of a point for places, hundredths for the shapes of small markers."""
    if not found[0][0].isdigit():
        return found[0]
    value = float(found[0])
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


@contextmanager
def _garbage_collected_afterwards() -> Iterator[None]:
    """Collect garbage once, after the figure is drawn. While it is drawn, Python would look through its parts again and
    again, which takes a fifth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.collect(0)
        if was_enabled:
            gc.enable()


def svg(figure: Figure, name: str) -> str:
    """The figure as an SVG document, the same bytes for the same figure."""
    import matplotlib as mpl

    mark_panels(figure)
    buffer = io.StringIO()
    with mpl.rc_context({**RC, "svg.hashsalt": name}):
        figure.savefig(
            buffer,
            format="svg",
            transparent=True,
            metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
        )
    short = _WORDS_OR_LONG_NUMBER.sub(_shortened, as_attributes(buffer.getvalue()))
    return re.sub(r"\s*\n\s*", "\n", short)


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
    """The SVG element for a page: its ids are unique by `name`, its ink is the page's text colour, it has no size."""
    element = document[document.index("<svg") :]
    start, rest = element.split(">", 1)
    view_box = re.search(r'viewBox="[^"]+"', start)
    if view_box is None:
        raise ValueError(f"the SVG of {name} has no viewBox: draw it with matplotlib")
    for reference in (' id="', 'href="#', "url(#"):
        rest = rest.replace(reference, f"{reference}{name}-")
    rest = rest.replace("xlink:href", "href")
    return f'<svg {view_box.group()} role="img" aria-label="{html.escape(label)}">{rest}'.replace(INK, "currentColor")


def encode_png(pixels: NDArray[np.uint8], dots_per_inch: float) -> bytes:
    """A PNG file (W3C, Portable Network Graphics, third edition). pixels [height, width, 3]: red, green and blue.

    Rows are compressed as they are. Pillow tries five filters on each row, as the standard advises for photographs. For
    lines on white this takes four times as long, a tenth of a large report's time, and makes no smaller files.
    """
    height, width, _ = pixels.shape
    rows = np.full((height, 1 + 3 * width), UNFILTERED, dtype=np.uint8)
    rows[:, 1:] = pixels.reshape(height, -1)
    per_metre = round(dots_per_inch / 0.0254)
    return PNG_SIGNATURE + b"".join(
        (
            _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, PNG_BITS, TRUE_COLOUR, 0, 0, 0)),
            _chunk(b"pHYs", struct.pack(">IIB", per_metre, per_metre, 1)),
            _chunk(b"IDAT", zlib.compress(rows.tobytes(), level=3)),
            _chunk(b"IEND", b""),
        )
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
