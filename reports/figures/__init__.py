"""Figures of a report. To add one: a module with NAME, TITLE and draw(analysis) -> Drawing | None, listed here."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from reports.analysis import Analysis
from reports.figures import (
    difficulty,
    distinct_answers,
    entropy,
    entropy_law,
    entropy_score,
    forest,
    learning,
    length,
    maj_at_k,
    overoptimisation,
    paired_difference,
    pareto,
    pass_at_k,
    preference,
    reflection_policy,
    reflection_update,
    reflection_words,
    reliability,
    reward,
    sharpening,
    stability,
)
from reports.figures.style import RC, Drawing, inline_svg, png, svg


@dataclass(frozen=True)
class FigureKind:
    """`name` is the stem of its files; `draw` gives None when the records hold nothing to show."""

    name: str
    title: str
    draw: Callable[[Analysis], Drawing | None]


FIGURES: list[FigureKind] = [
    FigureKind(module.NAME, module.TITLE, module.draw)
    for module in (  # the reading order
        forest,
        learning,
        reward,
        paired_difference,
        overoptimisation,
        preference,
        pass_at_k,
        maj_at_k,
        entropy,
        entropy_law,
        entropy_score,
        length,
        stability,
        pareto,
        difficulty,
        sharpening,
        distinct_answers,
        reliability,
        reflection_words,
        reflection_policy,
        reflection_update,
    )
]


@dataclass(frozen=True)
class RenderedFigure:
    """A figure as files. `inline` goes into a page as it is; `rows` are the numbers shown."""

    name: str
    title: str
    caption: str
    svg: str
    inline: str
    png: bytes
    rows: list[dict[str, str | int | float]]


def render_figures(analysis: Analysis) -> list[RenderedFigure]:
    """Draw every figure for which there are records, in reading order."""
    rendered = []
    with _garbage_by_figure() as collect:
        for kind in FIGURES:
            if (figure := _render(kind, analysis)) is not None:
                rendered.append(figure)
            collect()
    return rendered


def _render(kind: FigureKind, analysis: Analysis) -> RenderedFigure | None:
    import matplotlib as mpl

    with mpl.rc_context(RC):
        drawing = kind.draw(analysis)
    if drawing is None:
        return None
    document = svg(drawing.figure, kind.name)
    drawing.figure.set_layout_engine("none")  # it stays as laid out, which is half of the time that this takes
    return RenderedFigure(
        name=kind.name,
        title=kind.title,
        caption=f"{drawing.caption} Made by: bench report {analysis.sweep.name}",
        svg=document,
        inline=inline_svg(document, kind.name, kind.title),
        png=png(drawing.figure),
        rows=drawing.rows,
    )


@contextmanager
def _garbage_by_figure() -> Iterator[Callable[[], int]]:
    """Collect garbage when asked, a figure at a time. Of its own accord Python would look through all that a figure is
    made of again and again while it is drawn: a fifth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield lambda: gc.collect(0)
    finally:
        if was_enabled:
            gc.enable()
