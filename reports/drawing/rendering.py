"""A drawing and its files. The same drawing always gives the same bytes."""

from __future__ import annotations

import gc
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, overload

from reports.drawing.style import RC, drawn_narrow
from reports.formats import count, csv_text
from reports.processes import give_back_memory

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from reports.drawing.svg import Picture, Sheet

PNG_DOTS_PER_INCH = 200


DataRow = dict[str, str | int | float]
"""One row of the numbers in a figure."""


class Rows(Sequence[DataRow]):
    """Rows that are generated anew on each iteration.

    All steps of a thousand cells make many rows. A figure is drawn several times, but only one of its drawings becomes
    a data file, so the rows are not kept in memory.
    """

    def __init__(self, make: Callable[[], Iterable[DataRow]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[DataRow]:
        return iter(self._make())

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @overload
    def __getitem__(self, place: int) -> DataRow: ...
    @overload
    def __getitem__(self, place: slice) -> list[DataRow]: ...
    def __getitem__(self, place: int | slice) -> DataRow | list[DataRow]:
        return list(self)[place]


@dataclass(frozen=True)
class Drawing:
    """The result of a figure's `draw`: the figure, its caption, and the numbers shown as rows of one table."""

    figure: Figure
    caption: str
    rows: Sequence[DataRow]
    in_words: bool = False
    """True if the caption states everything, so that the figure is not shown."""


@dataclass(frozen=True)
class View:
    """An SVG element for a page."""

    inline: str
    over: str = ""
    """The quantity on the x axis, if the figure can be drawn over several quantities; otherwise ""."""
    narrow: bool = False


@dataclass(frozen=True)
class RenderedFigure:
    """A figure as files and as elements for a page. If the caption states everything, svg, png and views are empty."""

    name: str
    title: str
    caption: str
    svg: str
    png: bytes
    csv: str
    """The numbers shown in the figure."""
    views: list[View]


Draw = Callable[[], Drawing | None]


def render_figure(
    name: str, title: str, draw: Draw, over: str = "", others: Mapping[str, Draw] | None = None
) -> RenderedFigure | None:
    """Draw in the common style, for a wide and for a narrow page; return None if `draw` returns None.

    over: the quantity on the x axis.
    others: for each other quantity that x can show, the function that draws the figure over it.
    """
    with _garbage_collected_afterwards():
        return _render(name, title, draw, over, others or {})


def _render(name: str, title: str, draw: Draw, over: str, others: Mapping[str, Draw]) -> RenderedFigure | None:
    drawing = _drawn(draw)
    if drawing is None:
        return None
    if drawing.in_words:
        return RenderedFigure(name, title, drawing.caption, "", b"", csv_text(list(drawing.rows)), [])
    from reports.drawing.svg import Sheet, draw_svg

    # Generate the rows once, for the label and the file, and free them before the drawings need the memory.
    rows = list(drawing.rows)
    label, sheet, csv = f"{title}. {describe_rows(rows)}", Sheet(), csv_text(rows)
    del rows
    first, caption = draw_svg(drawing.figure, sheet, name), drawing.caption
    document, pixels = first.document(label, sheet), png(drawing.figure)
    del drawing  # Free it before the next drawing.
    views = []
    with drawn_narrow():
        narrow = _drawn_again(draw, sheet, f"{name}-narrow")
    if narrow is not None:
        views.append(View(narrow.element(label), over, narrow=True))
    for number, (over_it, draw_it) in enumerate(others.items()):
        again = _drawn_again(draw_it, sheet, f"{name}-{number}")
        if again is not None:
            views.append(View(again.element(label), over_it))
    # The first view carries the style sheet of all views, which contains each style once.
    views.insert(0, View(first.element(label, sheet.for_page(name)), over))
    return RenderedFigure(name, title, caption, document, pixels, csv, views)


def _drawn_again(draw: Draw, sheet: Sheet, prefix: str) -> Picture | None:
    """Draw another view and return its elements, or None if there is no figure to show.

    The view shares the style sheet of the first one. prefix: keeps ids unique on a page.
    """
    from reports.drawing.svg import draw_svg

    with _garbage_collected_afterwards():
        drawing = _drawn(draw)
        picture = None if drawing is None or drawing.in_words else draw_svg(drawing.figure, sheet, prefix)
        del drawing
    return picture


def _drawn(draw: Draw) -> Drawing | None:
    """Draw with the matplotlib settings that all figures share."""
    import matplotlib as mpl

    with mpl.rc_context(RC):
        return draw()


def describe_rows(rows: Sequence[DataRow]) -> str:
    """Describe the numbers of a figure for readers who cannot see it.

    The text states the number of rows, and each arm's mean and range of the last quantity.
    """
    numbers = [key for key, value in rows[-1].items() if isinstance(value, float)] if rows else []
    by_arm: dict[str, list[float]] = {}
    for row in rows:
        # NaN is not equal to itself.
        if numbers and "arm" in row and isinstance(value := row.get(numbers[-1]), int | float) and value == value:
            by_arm.setdefault(str(row["arm"]), []).append(value)
    arms = [
        f"{arm} {sum(values) / len(values):.3g} ({min(values):.3g} to {max(values):.3g})"
        for arm, values in by_arm.items()
    ]
    what = f" Mean and range of {numbers[-1]}: {'; '.join(arms)}." if arms else ""
    return f"{count(len(rows), 'row')} of data.{what}"


@contextmanager
def _garbage_collected_afterwards() -> Iterator[None]:
    """Disable garbage collection while a figure is drawn; collect before and after, and free the memory.

    Otherwise Python would scan the figure's parts repeatedly, which takes a fifth of the time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    gc.collect(0)  # Frees an earlier figure.
    try:
        yield
    finally:
        gc.collect(0)
        give_back_memory()
        if was_enabled:
            gc.enable()


def png(figure: Figure) -> bytes:
    """Return the figure as a PNG on white. The same figure gives the same bytes."""
    import matplotlib as mpl
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    written = io.BytesIO()
    figure.patch.set(visible=True, facecolor="white")
    figure.set_dpi(PNG_DOTS_PER_INCH)
    canvas = FigureCanvasAgg(figure)
    with mpl.rc_context(RC):
        canvas.draw()
    # `print_png` would keep an alpha channel, and write matplotlib's version into the file.
    image = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    image.save(written, "png", dpi=(PNG_DOTS_PER_INCH, PNG_DOTS_PER_INCH), compress_level=3)
    return written.getvalue()
