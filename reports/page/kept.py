"""A short report to commit next to the conclusions drawn from it: the question, report.json and the final scores.

It takes a hundredth of the space of the cells, yet every contrast can be recomputed from it. What only the cells could
show (curves, samples, laws of individual seeds) is not checked. `kept.json` has the digests of all files, and the
version of the numerics that trained the cells.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

from harness.errors import RefusedError
from harness.records import CellRecord, SweepRecord, read_sweep
from harness.records.files import read_object, write_json
from harness.records.rows import Status
from harness.records.schema import SCHEMA, require_schema
from reports.measure.contrasts import EQUAL_COMPLETIONS, Contrast, compare_arms
from reports.measure.interactions import factor_effects
from reports.measure.measurements import Measurement, TaskMetric
from reports.page.document import FINAL_SCORES, contrast_fields
from reports.page.headline import with_headline
from reports.page.templating import write_text
from reports.page.verification import ABSENT, Difference, Verification, differing
from reports.report import ArmRow, ContrastRow, Node, Report, read_report

KEPT = "kept.json"
_SCORES = f"data/{FINAL_SCORES}"
_AT_LENGTH = ("flips", "problem_ranges", "across_tasks", "modes")
"""Sections of report.json that are left out because they are long: they list individual problems and tasks."""


def keep_report(folder: Path, out: Path, numerics: int, beside: Mapping[str, str | bytes] | None = None) -> None:
    """Keep the report of a sweep that has ended.

    folder: the folder of the sweep.
    out: the folder to write. It is created if needed; existing files are overwritten.
    numerics: the NUMERICS_VERSION that trained the cells.
    beside: contents of further files by name, such as a figure.
    Raises RefusedError if cells are unfinished, or if arms evaluate one checkpoint, which needs scores of problems.
    """
    sweep, page = read_sweep(folder), folder / "report"
    if not sweep.is_complete:
        raise RefusedError("reports.cells_unfinished", folder=folder, sweep=sweep.name)
    if sweep.checkpoint is not None:
        raise RefusedError("reports.no_scores_of_problems", folder=folder)
    report = read_object(page / "report.json")
    short = {key: [] if key in _AT_LENGTH else rows for key, rows in report.items()}
    short["laws"] = [row for row in report["laws"] if row.get("seed") is None]
    # Leave out the long parts, and the request, which names folders of this machine.
    question = sweep.model_copy(update={"contamination": [], "best_of_n": {}, "asked": None, "path": out})
    contents: dict[str, str | bytes] = {
        "report.json": _compact(short),
        _SCORES: (page / _SCORES).read_text(encoding="utf-8"),
        **(beside or {}),
    }
    for name, content in contents.items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            write_text(path, content)
    question.write()
    # Compute digests from the files as written, because write_text redacts secrets.
    digests = {name: _digest(out / name) for name in sorted(["sweep.json", *contents])}
    write_json(out / KEPT, {"schema": SCHEMA, "numerics": numerics, "files": digests})


def is_kept(folder: Path) -> bool:
    return (folder / KEPT).is_file()


def kept_report(folder: Path) -> tuple[SweepRecord, Report]:
    """Read the question and the report that were kept in a folder."""
    return read_sweep(folder), read_report(folder / "report.json")


def verify_kept(folder: Path) -> Verification:
    """Check the files against their digests, then recompute the report from the final scores and compare."""
    kept = read_object(folder / KEPT)
    require_schema(folder / KEPT, kept)
    # Check digests first: numbers from a modified file would prove nothing.
    for name, digest in kept["files"].items():
        found = _digest(folder / name) if (folder / name).is_file() else ABSENT
        if found != digest:
            return Verification({}, Difference(name, "the digest", digest, found))
    sweep, report = kept_report(folder)
    kept, again = read_object(folder / "report.json"), _recomputed(sweep, report, folder)
    # Compare only recomputed fields; the others rest on records that were not kept.
    written = {key: [_only(row, now) for row, now in zip(kept[key], again[key], strict=False)] for key in again}
    return differing("report.json", written, again)


def _recomputed(sweep: SweepRecord, report: Report, folder: Path) -> dict[str, list[dict[str, object]]]:
    """Recompute the sections of report.json that can be derived from the final scores."""
    measurements = _measurements(sweep, report, folder)
    contrasts, effects = compare_arms(sweep, measurements), factor_effects(sweep, measurements)
    scored = {arm: [m for m in cells if m.score_pp is not None] for arm, cells in measurements.items()}
    arms = [
        ArmRow(arm=arm, seeds=[m.cell.seed for m in cells], scores_pp=[m.score_pp for m in cells])
        for arm, cells in scored.items()
    ]
    found: dict[str, Sequence[Node]] = {
        "contrasts": _rows(sweep, contrasts),
        "interactions": _rows(sweep, [effect.contrast for effect in effects]),
        "arms": arms,
        "headline": with_headline(report).headline,
    }
    return {section: [row.as_json() for row in rows] for section, rows in found.items()}


def _rows(sweep: SweepRecord, contrasts: Sequence[Contrast]) -> list[ContrastRow]:
    n = len(contrasts)
    return [ContrastRow(**contrast_fields(one, sweep.metric, sweep.margin_pp, n)) for one in contrasts]


def _measurements(sweep: SweepRecord, report: Report, folder: Path) -> dict[str, list[Measurement]]:
    """Return the finished cells that the report counts, with the final scores as their only measurements."""
    metric, evaluation = TaskMetric.of(sweep), sweep.evaluation
    drawn = {}
    if evaluation is not None:
        known = [n for n in (evaluation.problems, sweep.n_held_out(metric.task)) if n is not None]
        drawn = {"n_problems": min(known, default=None), "n_samples": evaluation.samples}
    rows = {(row.arm, row.seed): cast(Status, row.as_json()) for row in report.cells}
    cells = []
    for cell in sweep.cells:
        row = rows[cell.arm, cell.seed]
        cells.append(CellRecord(cell.path, cell.arm, cell.seed, cell.hash, cell.evaluation, seen=row))
    # sweep.cells is cached. Fill the cache, or the comparison would look for folders of cells that were not kept.
    vars(sweep)["cells"] = cells
    scores = {(row["arm"], int(row["seed"])): row for row in _read_scores(folder) if row["task"] == metric.task}
    found: dict[str, list[Measurement]] = {arm: [] for arm in sweep.arms}
    for cell in cells:
        if cell.state == "done":
            metrics = dict(_numbers(scores[cell.arm, cell.seed]))
            one = Measurement(cell, metric)
            final = {"final": True, "task": metric.task, "metrics": metrics, **drawn}
            # Fill cached properties in the same way: a measurement would read these from the cell's records.
            vars(one).update(scores=[final], final_samples=None, evaluates_checkpoint=False)
            found[cell.arm].append(one)
    return found


def _read_scores(folder: Path) -> list[dict[str, str]]:
    with (folder / _SCORES).open(encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle))


def _numbers(row: Mapping[str, str]) -> Iterator[tuple[str, float]]:
    for name, text in row.items():
        if name not in ("arm", "seed", "task") and text and math.isfinite(number := float(text)):
            yield name, number


def _only(row: Mapping[str, object], now: Mapping[str, object]) -> dict[str, object]:
    return {key: _without_texts(row.get(key, ABSENT)) for key in now}


def _without_texts(value: object) -> object:
    """Return the value without the note on equal completions, which cannot be checked because texts are not kept."""
    if isinstance(value, dict):
        return {key: _without_texts(item) for key, item in value.items()}
    return (
        "; ".join(part for part in value.split("; ") if part != EQUAL_COMPLETIONS) if isinstance(value, str) else value
    )


def _compact(document: object) -> str:
    """Serialise JSON with one section per line, so that a diff shows which section changed."""
    if not isinstance(document, dict):
        return json.dumps(document, ensure_ascii=False, allow_nan=False)
    lines = [
        f"{json.dumps(key)}: {json.dumps(rows, ensure_ascii=False, allow_nan=False)}" for key, rows in document.items()
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _digest(path: Path) -> str:
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
