"""Figures of a report. To add one: a module with NAME, TITLE and draw(analysis) -> Drawing | None, listed here."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from reports.analysis import Analysis
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
from reports.figures.rendering import RenderedFigure, render_figure
from reports.figures.style import Drawing
from reports.processes import SentOnce, each_in_processes
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


def render_figures(analysis: Analysis) -> list[RenderedFigure]:
    """Draw every figure for which there are records, in reading order."""
    names = [kind.name for kind in FIGURES]
    if analysis.processes == 1:
        rendered = [_render(analysis, name) for name in names]
    else:
        with TemporaryDirectory() as folder:
            sent = SentOnce(analysis, Path(folder) / "analysis.pickle")
            # From the last on: those take longest, and one begun at the end would keep the others waiting.
            rendered = each_in_processes(partial(_render_sent, sent), names[::-1], analysis.processes)[::-1]
    return [figure for figure in rendered if figure is not None]


def _render_sent(analysis: SentOnce[Analysis], name: str) -> RenderedFigure | None:
    return _render(analysis.get(), name)


def _render(analysis: Analysis, name: str) -> RenderedFigure | None:
    kind = next(kind for kind in FIGURES if kind.name == name)
    return render_figure(kind.name, kind.title, _command(analysis), partial(kind.draw, analysis))


def _command(analysis: Analysis) -> str:
    """What to type for the same figures."""
    words = [*analysis.reflection_words]
    followed = [] if words == [*DEFAULT_WORDS] else ["--reflection-words", ",".join(words)]
    return shlex.join(["bench", "report", analysis.sweep.name, *followed])
