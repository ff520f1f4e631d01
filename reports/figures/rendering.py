"""A drawing as the files of a figure."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from reports.csv_text import csv_text
from reports.figures.style import RC, Drawing, inline_svg, png, svg


@dataclass(frozen=True)
class RenderedFigure:
    """A figure as files. `inline` goes into a page as it is; `csv` are the numbers shown."""

    name: str
    title: str
    caption: str
    svg: str
    inline: str
    png: bytes
    csv: str


def render_figure(name: str, title: str, command: str, draw: Callable[[], Drawing | None]) -> RenderedFigure | None:
    """The drawing in the house style; None where `draw` has none. command: what makes it, for the caption."""
    with _garbage_afterwards():
        return _render(name, title, command, draw)


def _render(name: str, title: str, command: str, draw: Callable[[], Drawing | None]) -> RenderedFigure | None:
    import matplotlib as mpl

    with mpl.rc_context(RC):
        drawing = draw()
    if drawing is None:
        return None
    document = svg(drawing.figure, name)
    drawing.figure.set_layout_engine("none")  # it stays as laid out, which is half of the time that this takes
    return RenderedFigure(
        name=name,
        title=title,
        caption=f"{drawing.caption} Made by: {command}",
        svg=document,
        inline=inline_svg(document, name, title),
        png=png(drawing.figure),
        csv=csv_text(drawing.rows),
    )


@contextmanager
def _garbage_afterwards() -> Iterator[None]:
    """Collect garbage once a figure is done. Of its own accord Python would look through all that a figure is made of
    again and again while it is drawn: a fifth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.collect(0)
        if was_enabled:
            gc.enable()
