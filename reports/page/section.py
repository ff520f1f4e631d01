"""The section that a shelf adds to the page of a sweep: an object of this class in its `page.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness.plugins import Kind
from reports.formats import Table
from reports.measure import Analysis


@dataclass(frozen=True)
class Section:
    """Rows for report.json, and tables shown in the policy group. Only sweeps that train have them."""

    name: str
    """The key in report.json."""
    summary: str
    rows: Callable[[Analysis], list[dict[str, object]]]
    tables: Callable[[Analysis], list[Table]]


SECTIONS: Kind[Section] = Kind(
    "section of the page", lambda thing: isinstance(thing, Section), "reports.page", "bench ls sections"
)
