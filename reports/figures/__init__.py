"""Figures of a report. To add one: a module with NAME, TITLE and draw(analysis) -> Drawing | None, listed here."""

from __future__ import annotations

import gc
import pickle
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

from reports.analysis import Analysis
from reports.csv_text import csv_text
from reports.figures import (
    across_tasks,
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
from reports.processes import each_in_processes
from reports.reflection import DEFAULT_WORDS


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
        across_tasks,
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
    """A figure as files. `inline` goes into a page as it is; `csv` are the numbers shown."""

    name: str
    title: str
    caption: str
    svg: str
    inline: str
    png: bytes
    csv: str


def render_figures(analysis: Analysis) -> list[RenderedFigure]:
    """Draw every figure for which there are records, in reading order."""
    names = [kind.name for kind in FIGURES]
    if analysis.processes == 1:
        rendered = [_render(analysis, name) for name in names]
    else:
        with TemporaryDirectory() as folder:  # what all figures are drawn from is sent to each process once
            path = Path(folder) / "analysis.pickle"
            path.write_bytes(pickle.dumps(analysis))
            rendered = each_in_processes(partial(_render_from, path), names, analysis.processes)
    return [figure for figure in rendered if figure is not None]


def _render_from(path: Path, name: str) -> RenderedFigure | None:
    return _render(_analysis_at(path), name)


@lru_cache(maxsize=1)
def _analysis_at(path: Path) -> Analysis:
    analysis: Analysis = pickle.loads(path.read_bytes())
    return analysis


def _render(analysis: Analysis, name: str) -> RenderedFigure | None:
    with _garbage_afterwards():
        return _draw(analysis, name)


def _draw(analysis: Analysis, name: str) -> RenderedFigure | None:
    import matplotlib as mpl

    kind = next(kind for kind in FIGURES if kind.name == name)
    with mpl.rc_context(RC):
        drawing = kind.draw(analysis)
    if drawing is None:
        return None
    document = svg(drawing.figure, kind.name)
    drawing.figure.set_layout_engine("none")  # it stays as laid out, which is half of the time that this takes
    return RenderedFigure(
        name=kind.name,
        title=kind.title,
        caption=f"{drawing.caption} Made by: {_command(analysis)}",
        svg=document,
        inline=inline_svg(document, kind.name, kind.title),
        png=png(drawing.figure),
        csv=csv_text(drawing.rows),
    )


def _command(analysis: Analysis) -> str:
    """What to type for the same figures."""
    words = [*analysis.reflection_words]
    followed = [] if words == [*DEFAULT_WORDS] else ["--reflection-words", ",".join(words)]
    return shlex.join(["bench", "report", analysis.sweep.name, *followed])


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
