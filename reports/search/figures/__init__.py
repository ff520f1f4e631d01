"""The figures of a search. Every `SearchFigure` at the top level of a module here or in a plug-in is registered."""

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
    """One figure of the page of a search. Raises ValueError if the name is not valid as a file name."""

    name: str
    """The name of its files; see `reports.figures.Figure` for name, title and order."""
    title: str
    draw: Callable[[StudyRecord, StudyObjective], Drawing | None]
    """Draws the figure for an objective, or returns None if there is nothing to show."""
    each_objective: bool = False
    """True to draw the figure for the second objective as well."""
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
    """Draw every figure that has something to show, in reading order."""
    rendered = []
    for figure in in_reading_order(SEARCH_FIGURES):
        for objective in objectives_of(study)[: 2 if figure.each_objective else 1]:
            name = figure.name if objective.index == 0 else f"{figure.name}_{objective.index + 1}"
            several = figure.each_objective and len(study.objectives) > 1
            title = f"{figure.title}: {objective.name}" if several else figure.title
            drawing = partial(drawing_of, SEARCH_FIGURES, figure.name, study, objective)
            rendered.append(render_figure(name, title, drawing))
    return [figure for figure in rendered if figure is not None]
