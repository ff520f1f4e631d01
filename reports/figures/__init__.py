"""Figures of a report. Every `Figure` at the top level of a module here or in a plug-in is registered."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, Protocol, TypeGuard, TypeVar, get_args

from harness.errors import InvalidError, RefusedError
from harness.plugins import Kind
from harness.records.files import DamagedRecordError
from harness.words import said
from reports.drawing.rendering import Drawing, RenderedFigure, render_figure
from reports.measure import Analysis
from reports.measure.curves import training_axes
from reports.processes import SentOnce, each_in_processes, end_processes

Group = Literal["Result", "Learning", "Policy", "Cost", "Records"]
"""The part of the page that a figure belongs to: does an arm help, how did it learn, how did its policy change, what
did it cost, and the rest.
"""

AFTER_OURS = 1000
"""The default order of plug-ins' figures, which puts them after the shipped ones."""


@dataclass(frozen=True)
class Figure:
    """One figure of a report. Raises ValueError if the name is not valid as a file name, or if the group is unknown."""

    name: str
    """The name of its files, e.g. `pass_at_k`."""
    title: str
    """The heading on the page."""
    draw: Callable[[Analysis], Drawing | None]
    """Draws the figure from the records of a sweep, or returns None if they contain nothing to show. Import matplotlib
    only inside this function.
    """
    group: Group
    order: int = AFTER_OURS
    """The position on the page: lower comes first. Figures of the same order are sorted by name."""
    over_training: bool = False
    """True if x is `training_axis`, so that a reader can choose between tokens, steps and seconds."""

    def __post_init__(self) -> None:
        require_figure_name(self.name)
        if self.group not in get_args(Group):
            known = ", ".join(get_args(Group))
            raise InvalidError("reports.figure_group_unknown", name=self.name, group=self.group, known=known)


def require_figure_name(name: str) -> None:
    """Raise ValueError unless the name can be the stem of files and an anchor on a page."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise InvalidError("reports.figure_name_malformed", name=name)


def _is_figure(thing: object) -> TypeGuard[Figure]:
    return isinstance(thing, Figure)


FIGURES: Kind[Figure] = Kind(
    "figure",
    _is_figure,
    "reports.figures",
    "bench ls figures",
    summary_of=lambda figure: f"{figure.group}: {figure.title}",
)


class Placed(Protocol):
    """A figure with a position on a page, whatever kind of record it draws."""

    @property
    def name(self) -> str: ...
    @property
    def order(self) -> int: ...
    @property
    def draw(self) -> Callable[..., Drawing | None]: ...


AnyFigure = TypeVar("AnyFigure", bound=Placed)


def in_reading_order(kind: Kind[AnyFigure]) -> list[AnyFigure]:
    """Return every figure of a kind, sorted by order and then name."""
    return sorted(kind.all().values(), key=lambda figure: (figure.order, figure.name))


def render_figures(analysis: Analysis) -> list[RenderedFigure]:
    """Draw every figure that the records support, in reading order."""
    names = [figure.name for figure in in_reading_order(FIGURES)]
    if analysis.processes == 1:
        rendered = [drawn_figure(analysis, name) for name in names]
    else:
        end_processes()  # Processes that read records have grown; drawing ones start small.
        drawn = replace(analysis, processes=1)  # A drawing process starts no others.
        drawn.known.update(analysis.known)
        with TemporaryDirectory() as folder:
            sent = SentOnce(drawn, Path(folder) / "analysis.pickle")
            # The last figures take longest, so start them first. Otherwise all processes would end up waiting for one
            # of them.
            rendered = each_in_processes(partial(_render_sent, sent), names[::-1], analysis.processes)[::-1]
        end_processes()
    return [figure for figure in rendered if figure is not None]


def _render_sent(analysis: SentOnce[Analysis], name: str) -> RenderedFigure | None:
    return drawn_figure(analysis.get(), name)


def drawn_figure(analysis: Analysis, name: str) -> RenderedFigure | None:
    """Draw the figure with this name, or return None if the records contain nothing for it.

    Raises UnknownNameError for an unknown name.
    """
    figure = FIGURES.find(name)
    draw = partial(drawing_of, FIGURES, name)
    if not figure.over_training:
        return render_figure(name, figure.title, partial(draw, analysis))
    by_axis = {axis.label: partial(draw, replace(analysis, over=axis.field)) for axis in training_axes(analysis)}
    first, *others = by_axis
    return render_figure(name, figure.title, by_axis[first], first, {label: by_axis[label] for label in others})


def drawing_of(kind: Kind[AnyFigure], name: str, *records: object) -> Drawing | None:
    """Draw a figure from the records, or return None if they contain nothing to show.

    If the figure belongs to a plug-in, any error except DamagedRecordError becomes a RefusedError.
    """
    try:
        drawing = kind.find(name).draw(*records)
        if not isinstance(drawing, Drawing | None):
            raise TypeError(said("reports.draw_returns_but_must", name=type(drawing).__name__))
    except DamagedRecordError:
        raise
    except Exception as error:  # An error is our bug in a shipped figure, the user's in a plug-in.
        source = kind.source(name)
        if source is None:
            raise
        fault = f"{type(error).__name__}: {error}"
        raise RefusedError(
            "reports.drawing_refused", path=source.path, noun=kind.noun, name=name, fault=fault
        ) from error
    return drawing
