"""Figures of a search. To add one: a module with NAME, TITLE, draw(study, objective) -> Drawing | None, listed here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from harness.records.study import StudyRecord
from reports.figures.rendering import RenderedFigure, render_figure
from reports.figures.style import Drawing
from reports.search.figures import history, importance, intermediate, parallel_coordinates, pareto, slices
from reports.search.objectives import objectives_of


@dataclass(frozen=True)
class SearchFigureKind:
    """`name` is the stem of its files; `draw` gives None when the record holds nothing to show. `each`: drawn for the
    second objective as well, not for the first alone."""

    name: str
    title: str
    draw: Callable[..., Drawing | None]
    each: bool


FIGURES = [  # the reading order
    SearchFigureKind(module.NAME, module.TITLE, module.draw, each)
    for module, each in (
        (pareto, False),
        (history, True),
        (importance, True),
        (parallel_coordinates, False),
        (slices, True),
        (intermediate, False),
    )
]

FIGURE_NAMES = [name for kind in FIGURES for name in (kind.name, *([f"{kind.name}_2"] if kind.each else []))]
"""Of all files that a report may have."""


def render_search_figures(study: StudyRecord) -> list[RenderedFigure]:
    """Draw every figure for which there is something to show, in reading order."""
    rendered = []
    for kind in FIGURES:
        for objective in objectives_of(study)[: 2 if kind.each else 1]:
            name = kind.name if objective.index == 0 else f"{kind.name}_{objective.index + 1}"
            several = kind.each and len(study.objectives) > 1
            title = f"{kind.title}: {objective.name}" if several else kind.title
            rendered.append(render_figure(name, title, study.command, partial(kind.draw, study, objective)))
    return [figure for figure in rendered if figure is not None]
