"""The check of a written report: recompute and redraw it from the records, and report the first difference."""

from __future__ import annotations

import csv
import hashlib
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from harness.records.files import read_object
from harness.words import said

if TYPE_CHECKING:
    from harness.records import SweepRecord

RELATIVE_TOLERANCE = 1e-9
"""Allows for another machine adding the terms of a sum in a different order."""
ABSENT = "absent"
FIGURES = "figures"
_IN_FIGURE = "figure "

_OF_TODAY = ("hash", "state", "digest")
"""The fields of a cell that reveal whether it was rerun or continued after the report was written."""
_SVG = re.compile(r"<svg.*?</svg>", re.DOTALL)
_RELOADS = re.compile(r'<meta http-equiv="refresh"[^>]*>\n')

Leaf = tuple[str, object]
"""A place in a file, in words, and the value there. Each place occurs once per file."""


@dataclass(frozen=True)
class Difference:
    """The first difference between a report and what its records give."""

    file: str
    place: str
    written: object
    """The value in the report."""
    recomputed: object
    """The value that the records give."""
    is_stale: bool = False
    """True if the cells have changed since the report was written."""

    @property
    def sentence(self) -> str:
        found = f"{self.file}{f', {self.place}' if self.place else ''}"
        differs = said(
            "reports.report_says_records_give", found=found, written=self.written, recomputed=self.recomputed
        )
        if self.is_stale:
            return said("reports.report_older_than_its", differs=differs)
        drawn = said("reports.all_numbers_words_agree") if self.is_drawn else ""
        return f"{differs}.{drawn}"

    @property
    def is_drawn(self) -> bool:
        """True if the difference is in a figure. Figures are compared last, so all else agrees then."""
        return self.file.startswith(FIGURES) or self.place.startswith(_IN_FIGURE)


@dataclass(frozen=True)
class Verification:
    """The outcome of a check."""

    checked: dict[str, int]
    """For each file, the number of values that agree before the first difference."""
    difference: Difference | None


def verify_report(sweep: SweepRecord, folder: Path, reflection_words: Sequence[str] | None = None) -> Verification:
    """Recompute a report from the present records into a temporary folder, and compare the two.

    folder: the folder of the written report.
    reflection_words: the words that it was written with.
    The comparison covers report.json, the tables of data/, the words and tables of report.md and index.html, and every
    figure. The same records give byte-identical figures. Raises the errors of `read_measurements`.
    """
    from reports.page import write_report
    from reports.processes import end_processes, process_count

    with TemporaryDirectory() as aside:
        try:
            write_report(sweep, Path(aside), reflection_words, process_count(len(sweep.cells)))
        finally:
            end_processes()
        return compare_reports(folder, Path(aside))


def compare_reports(written: Path, recomputed: Path) -> Verification:
    """Compare a written report with its recomputation. Raises DamagedRecordError for a file that cannot be read."""
    checked: dict[str, int] = {}
    stale = _stale(written / "report.json", recomputed / "report.json")
    # One changed cell would make many values differ, so report only the cell.
    if stale is not None:
        return Verification(checked, stale)
    for file in _files(written, recomputed):
        found = _compare(file, dict(_leaves(written / file)), dict(_leaves(recomputed / file)))
        checked |= found.checked
        if found.difference is not None:
            return Verification(checked, found.difference)
    return Verification(checked, None)


def differing(file: str, written: object, recomputed: object) -> Verification:
    """Compare two versions of a JSON document."""
    return _compare(file, dict(_nested(written, "")), dict(_nested(recomputed, "")))


def _compare(file: str, written: dict[str, object], recomputed: dict[str, object]) -> Verification:
    """Compare the values at each place of a file, up to the first difference."""
    n_checked = 0
    # The union contains the places of both; a value that only one of them has differs from ABSENT.
    for place in recomputed | written:
        one, other = written.get(place, ABSENT), recomputed.get(place, ABSENT)
        if not _agree(one, other):
            return Verification({file: n_checked}, Difference(file, place, one, other))
        n_checked += 1
    return Verification({file: n_checked}, None)


def _files(*folders: Path) -> list[str]:
    """Return the relative paths of files in either folder, in the order of comparison: numbers, words, figures."""

    def names(place: str) -> list[str]:
        paths = [(folder, path) for folder in folders for path in (folder / place).glob("*")]
        return sorted({str(path.relative_to(folder)) for folder, path in paths if path.suffix in _READERS})

    return ["report.json", *names("data"), "report.md", "index.html", *names(FIGURES)]


def _stale(written: Path, recomputed: Path) -> Difference | None:
    """Return the first cell that has changed since the report was written, or None."""
    reports = [read_object(path) for path in (written, recomputed)]
    before, now = ({(cell["arm"], cell["seed"]): cell for cell in report["cells"]} for report in reports)
    for arm, seed in dict.fromkeys([*before, *now]):
        place, cells = f"{arm} seed {seed}", (before.get((arm, seed)), now.get((arm, seed)))
        if cells[0] is None or cells[1] is None:
            one, other = (ABSENT if cell is None else "present" for cell in cells)
            return Difference("report.json", place, one, other, is_stale=True)
        for field in _OF_TODAY:
            if cells[0].get(field) != cells[1].get(field):
                return Difference(
                    "report.json", f"{place}, {field}", cells[0].get(field), cells[1].get(field), is_stale=True
                )
    return None


def _leaves(path: Path) -> Iterator[Leaf]:
    """Yield every value of a file with its place; nothing if the file does not exist."""
    if path.exists():
        yield from _READERS[path.suffix](path)


def _json_leaves(path: Path) -> Iterator[Leaf]:
    yield from _nested(read_object(path), "")


def _nested(value: object, place: str) -> Iterator[Leaf]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _nested(item, f"{place}.{key}" if place else key)
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield from _nested(item, f"{place}[{index}]")
    else:
        yield place, value


def _csv_leaves(path: Path) -> Iterator[Leaf]:
    with path.open(encoding="utf-8", newline="") as handle:
        for number, row in enumerate(csv.DictReader(handle), start=1):
            for column, text in row.items():
                yield f"row {number}, {column}", _number(text)


def _parquet_leaves(path: Path) -> Iterator[Leaf]:
    import pyarrow.parquet

    for column, values in pyarrow.parquet.read_table(path).to_pydict().items():
        for number, value in enumerate(values, start=1):
            yield f"row {number}, {column}", value


def _text_leaves(path: Path) -> Iterator[Leaf]:
    yield from _lines(path.read_text(encoding="utf-8"))


def _page_leaves(path: Path) -> Iterator[Leaf]:
    """Yield the lines of a page without its reload tag and figures, then the lines of the figures."""
    text = _RELOADS.sub("", path.read_text(encoding="utf-8"))
    yield from _lines(_SVG.sub("", text))
    for number, figure in enumerate(_SVG.findall(text), start=1):
        yield from _lines(figure, f"{_IN_FIGURE}{number}, ")


def _lines(text: str, place: str = "") -> Iterator[Leaf]:
    for number, line in enumerate(text.splitlines(), start=1):
        yield f"{place}line {number}", line


def _image_leaves(path: Path) -> Iterator[Leaf]:
    yield "", said("reports.image_sha256", hexdigest=hashlib.sha256(path.read_bytes()).hexdigest()[:12])


_READERS: dict[str, Callable[[Path], Iterator[Leaf]]] = {
    ".json": _json_leaves,
    ".csv": _csv_leaves,
    ".parquet": _parquet_leaves,
    ".md": _text_leaves,
    ".html": _page_leaves,
    ".svg": _text_leaves,
    ".png": _image_leaves,
}


def _number(text: str | None) -> float | str | None:
    try:
        return float(text or "")
    except ValueError:
        return text


def _agree(written: object, recomputed: object) -> bool:
    if isinstance(written, float) and isinstance(recomputed, float | int) and not isinstance(recomputed, bool):
        both_absent = math.isnan(written) and math.isnan(recomputed)
        return both_absent or math.isclose(written, recomputed, rel_tol=RELATIVE_TOLERANCE, abs_tol=RELATIVE_TOLERANCE)
    return bool(written == recomputed)
