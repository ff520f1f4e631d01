"""Figures of a search, from this folder and plug-ins: every `SearchFigure` at a module's top level is registered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeGuard

from harness.plugins import Kind
from harness.records.study import StudyRecord
from reports.drawing.rendering import Drawing, RenderedFigure, render_figure
from reports.figures import AFTER_OURS, drawing_of, in_reading_order, require_figure_name
from reports.search.values import StudyObjective, objectives_of


@dataclass(frozen=True)
class SearchFigure:
    """One figure of the page of a search. Raises ValueError for a name that cannot be that of a file."""

    name: str
    """Like title and order, as in a `reports.figures.Figure`."""
    title: str
    draw: Callable[[StudyRecord, StudyObjective], Drawing | None]
    """Draws the figure for an objective, or returns None if the record holds nothing to show."""
    each_objective: bool = False
    """True if it is drawn for the second objective too."""
    order: int = AFTER_OURS

    def __post_init__(self) -> None:
        require_figure_name(self.name)


def _is_search_figure(thing: object) -> TypeGuard[SearchFigure]:
    return isinstance(thing, SearchFigure)


SEARCH_FIGURES: Kind[SearchFigure] = Kind(
    "figure of a search",
    _is_search_figure,
    "reports.search.figures",
    "bench ls figures",
    summary_of=lambda figure: f"Search: {figure.title}",
)


def render_search_figures(study: StudyRecord) -> list[RenderedFigure]:
    """Draw every figure for which there is something to show, in reading order."""
    rendered = []
    for figure in in_reading_order(SEARCH_FIGURES):
        for objective in objectives_of(study)[: 2 if figure.each_objective else 1]:
            name = figure.name if objective.index == 0 else f"{figure.name}_{objective.index + 1}"
            several = figure.each_objective and len(study.objectives) > 1
            title = f"{figure.title}: {objective.name}" if several else figure.title
            drawing = partial(drawing_of, SEARCH_FIGURES, figure.name, study, objective)
            rendered.append(render_figure(name, title, drawing))
    return [figure for figure in rendered if figure is not None]
