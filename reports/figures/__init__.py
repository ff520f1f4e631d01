"""Figures of a report, in this folder and in plug-ins: every `Figure` at the top level of a module is one."""

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
"""The question of a figure: does an arm help, how did it learn, what became of the policy, what did it cost; the
rest.
"""

AFTER_OURS = 1000
"""An order beyond those of the shipped figures."""


@dataclass(frozen=True)
class Figure:
    """One figure of a report.

    Raises ValueError for a name that cannot be a file name, or an unknown group.
    """

    name: str
    """The name of its files, e.g. `pass_at_k`."""
    title: str
    """Its heading."""
    draw: Callable[[Analysis], Drawing | None]
    """Draws it from the records of a sweep, or returns None if they hold nothing to show. Matplotlib is imported
    only in this call.
    """
    group: Group
    order: int = AFTER_OURS
    """Its position on the page: lower orders come first, and figures of the same order by name."""
    over_training: bool = False
    """x is that of `training_axis`, so that a reader can choose between tokens, steps and seconds."""

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
    """A figure with a position on a page, of whatever records."""

    @property
    def name(self) -> str: ...
    @property
    def order(self) -> int: ...
    @property
    def draw(self) -> Callable[..., Drawing | None]: ...


AnyFigure = TypeVar("AnyFigure", bound=Placed)


def in_reading_order(kind: Kind[AnyFigure]) -> list[AnyFigure]:
    """Return every figure of a kind that a page may have, in order of position and then name."""
    return sorted(kind.all().values(), key=lambda figure: (figure.order, figure.name))


def render_figures(analysis: Analysis) -> list[RenderedFigure]:
    """Draw every figure for which there are records, in reading order."""
    names = [figure.name for figure in in_reading_order(FIGURES)]
    if analysis.processes == 1:
        rendered = [drawn_figure(analysis, name) for name in names]
    else:
        end_processes()  # the processes that read the records have grown; those that draw start small
        drawn = replace(analysis, processes=1)  # a drawing process starts no others
        drawn.known.update(analysis.known)
        with TemporaryDirectory() as folder:
            sent = SentOnce(drawn, Path(folder) / "analysis.pickle")
            # The last figures take longest, so they start first. Otherwise all processes would end up waiting for one.
            rendered = each_in_processes(partial(_render_sent, sent), names[::-1], analysis.processes)[::-1]
        end_processes()
    return [figure for figure in rendered if figure is not None]


def _render_sent(analysis: SentOnce[Analysis], name: str) -> RenderedFigure | None:
    return drawn_figure(analysis.get(), name)


def drawn_figure(analysis: Analysis, name: str) -> RenderedFigure | None:
    """Draw the figure of this name; None if the records hold nothing for it.

    Raises UnknownNameError.
    """
    figure = FIGURES.find(name)
    draw = partial(drawing_of, FIGURES, name)
    if not figure.over_training:
        return render_figure(name, figure.title, partial(draw, analysis))
    by_axis = {axis.label: partial(draw, replace(analysis, over=axis.field)) for axis in training_axes(analysis)}
    first, *others = by_axis
    return render_figure(name, figure.title, by_axis[first], first, {label: by_axis[label] for label in others})


def drawing_of(kind: Kind[AnyFigure], name: str, *records: object) -> Drawing | None:
    """Return the drawing of this figure from the records; None if they hold nothing to show.

    Raises RefusedError for any error of a plug-in's figure, except DamagedRecordError.
    """
    try:
        drawing = kind.find(name).draw(*records)
        if not isinstance(drawing, Drawing | None):
            raise TypeError(said("reports.draw_returns_but_must", name=type(drawing).__name__))
    except DamagedRecordError:
        raise
    except Exception as error:  # in a shipped figure it is our bug, in a plug-in the user's mistake
        source = kind.source(name)
        if source is None:
            raise
        fault = f"{type(error).__name__}: {error}"
        raise RefusedError(
            "reports.drawing_refused", path=source.path, noun=kind.noun, name=name, fault=fault
        ) from error
    return drawing
