"""`make findings`: run what has not been run, keep its reports, write the pages.

A run that is kept is not run again, in this checkout or in another one: to run it anew, delete its folder of records.
Each question is registered before its first cell. After Ctrl-C the same command goes on.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from docs.findings.answer import BEFORE_AND_AFTER, Kept, all_runs
from docs.findings.change import before_and_after
from docs.findings.contents import README, contents, has_begun, with_head
from docs.findings.imported import import_runs
from docs.findings.measures import MEASURES, measures_table
from docs.findings.method import method_page
from docs.findings.page import FIGURE, page
from docs.findings.sharpening import figure, figure_name
from docs.findings.source import FOLDER, Finding, Run, read_findings
from harness.config.hashing import NUMERICS_VERSION
from harness.errors import BenchError, UnknownNameError
from harness.records import read_sweep
from harness.records.registration import REGISTERED
from reports.page.kept import is_kept, keep_report

Bench = Callable[[Sequence[str]], int]
"""Calls `bench` with these words and returns its exit code."""


def bench(words: Sequence[str]) -> int:
    """In a process of its own, as a reader would call it."""
    return subprocess.call([sys.executable, "-c", "from harness.cli import main; main()", *words])


def main(arguments: Sequence[str] | None = None, call: Bench = bench) -> int:
    """The exit code: 1 if a run did not end."""
    parser = argparse.ArgumentParser(prog="python -m docs.findings", description=__doc__)
    parser.add_argument("numbers", nargs="*", type=int, help="make these findings only, in this order; default: all")
    parser.add_argument("--pages", action="store_true", help="run nothing: write the pages of what is kept")
    parser.add_argument("--workers", type=int, metavar="N", help="how many cells `bench run` trains at a time")
    asked = parser.parse_args(arguments)
    try:
        findings = read_findings()
        wanted = _numbered(findings, asked.numbers)
        if not asked.pages and not _made(wanted, findings, asked.workers, call):
            return 1
        _write(pages(findings))
    except BenchError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def _numbered(findings: Sequence[Finding], numbers: Sequence[int]) -> list[Finding]:
    by_number = {one.number: one for one in findings}
    if unknown := [number for number in numbers if number not in by_number]:
        raise UnknownNameError("finding", str(unknown[0]), [*map(str, by_number)])
    return [by_number[number] for number in numbers] or [*findings]


def _made(wanted: Sequence[Finding], findings: Sequence[Finding], workers: int | None, call: Bench) -> bool:
    """Run and import what is not kept yet; True if everything is kept afterwards. The pages are written after each
    run, so they are consistent whenever this is stopped."""
    failed = []
    for imported in (one for finding in wanted for one in finding.imported.values() if not one.record.is_file()):
        if import_runs(imported, call):
            _write(pages(findings))
        else:
            failed.append(f"the import of {imported.logs}")
    for run in all_runs(wanted).values():
        if _run(run, workers, call):
            _keep_anew(run, findings)
            _write(pages(findings))
        else:
            failed.append(run.command)
    for command in failed:
        print(f"has not ended, and is not kept: {command}", file=sys.stderr)
    return not failed


def _run(run: Run, workers: int | None, call: Bench) -> bool:
    """Run it unless it is kept; True if it has ended. It is registered before its first cell."""
    if is_kept(run.record):
        return True
    if not (run.folder / REGISTERED).exists() and call(["freeze", run.sweep, *run.options]) != 0:
        return False
    at_once = [] if workers is None else ["--workers", str(workers)]
    return call(["run", run.sweep, *run.options, *at_once]) == 0


def _keep_anew(run: Run, findings: Sequence[Finding]) -> None:
    """Keep the report again if its cells are on this machine, since a finding may now ask for a measure of theirs."""
    if _was_asked_last(run):
        measures = [text for one in findings if run in one.runs.values() for text in one.measures.values()]
        _keep(run, run.folder, list(dict.fromkeys(measures)))


def _write(texts: dict[Path, str]) -> None:
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")


def _was_asked_last(run: Run) -> bool:
    """Whether the records at hand are of this run, not of another evaluation of the same cells."""
    if not (run.folder / "sweep.json").is_file():
        return False
    asked = read_sweep(run.folder).asked
    return asked is not None and asked.settings == run.set


def _keep(run: Run, folder: Path, measures: Sequence[str]) -> None:
    report = folder / "report"
    beside = {MEASURES: table} if (table := measures_table(report, measures)) else {}
    if (figure := report / "figures" / FIGURE).is_file():
        beside[FIGURE] = figure.read_text(encoding="utf-8")
    if run.before_and_after is not None:
        beside[BEFORE_AND_AFTER] = before_and_after(run)
    keep_report(folder, run.record, NUMERICS_VERSION, beside)


def pages(findings: Sequence[Finding]) -> dict[Path, str]:
    """Every page to write, and README.md with the first rows of the table. A finding with no run yet has no page."""
    kept = [Kept(folder) for folder in all_runs(findings) if is_kept(folder)]
    written = {FOLDER / "README.md": contents(findings, kept)}
    written[README] = with_head(README.read_text(encoding="utf-8"), findings, kept)
    if kept:
        written[FOLDER / "method.md"] = method_page(findings, kept)
        about_all = [one for one in findings if one.about == "coverage"]
        written |= {FOLDER / figure_name(one): figure(kept) for one in about_all}
    return written | {FOLDER / one.page: page(one, kept) for one in findings if has_begun(one, kept)}


if __name__ == "__main__":
    sys.exit(main())
