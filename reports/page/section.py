"""The contribution of a shelf to the page of a sweep: an object of this class in its `page.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness.plugins import Kind
from reports.formats import Table
from reports.measure import Analysis


@dataclass(frozen=True)
class Section:
    """Rows of report.json, and their tables, shown among those of the policy; only sweeps that train have them."""

    name: str
    """The key in report.json."""
    summary: str
    rows: Callable[[Analysis], list[dict[str, object]]]
    tables: Callable[[Analysis], list[Table]]


SECTIONS: Kind[Section] = Kind(
    "section of the page", lambda thing: isinstance(thing, Section), "reports.page", "bench ls sections"
)
