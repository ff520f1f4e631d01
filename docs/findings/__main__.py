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

from docs.findings.answer import Kept, all_runs
from docs.findings.measures import MEASURES, measures_table
from docs.findings.method import method_page
from docs.findings.page import FIGURE, contents, page
from docs.findings.source import FOLDER, Finding, Run, read_findings
from harness.config.hashing import NUMERICS_VERSION
from harness.errors import BenchError
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
    parser.add_argument("numbers", nargs="*", type=int, help="run these findings only; default: all")
    parser.add_argument("--pages", action="store_true", help="run nothing: write the pages of what is kept")
    asked = parser.parse_args(arguments)
    try:
        findings = read_findings()
        wanted = [one for one in findings if not asked.numbers or one.number in asked.numbers]
        failed = [] if asked.pages else [one for one in all_runs(wanted).values() if not _made(one, findings, call)]
        for path, text in pages(findings).items():
            path.write_text(text, encoding="utf-8")
    except BenchError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    for run in failed:
        print(f"has not ended, and is not kept: {run.command}", file=sys.stderr)
    return 1 if failed else 0


def _made(run: Run, findings: Sequence[Finding], call: Bench) -> bool:
    """Whether the run is kept, now if it was not before. Where its cells are at hand it is kept anew, since a finding
    may ask for another measure."""
    if not is_kept(run.record):
        if not (run.folder / REGISTERED).exists() and call(["freeze", run.sweep, *run.options]) != 0:
            return False
        if call(["run", run.sweep, *run.options]) != 0:
            return False
    if _was_asked_last(run):
        measures = [text for one in findings if run in one.runs.values() for text in one.measured]
        _keep(run, run.folder, list(dict.fromkeys(measures)))
    return True


def _was_asked_last(run: Run) -> bool:
    """Whether the records at hand are of this run, not of another evaluation of the same cells."""
    if not (run.folder / "sweep.json").is_file():
        return False
    asked = read_sweep(run.folder).asked
    return asked is not None and asked.settings == run.set


def _keep(run: Run, folder: Path, measures: Sequence[str]) -> None:
    report = folder / "report"
    beside = {MEASURES: measures_table(report, measures)} if measures else {}
    if (figure := report / "figures" / FIGURE).is_file():
        beside[FIGURE] = figure.read_text(encoding="utf-8")
    keep_report(folder, run.record, NUMERICS_VERSION, beside)


def pages(findings: Sequence[Finding]) -> dict[Path, str]:
    """Every page that there is to write. A finding that has not been run has none."""
    kept = [Kept(folder) for folder in all_runs(findings) if is_kept(folder)]
    written = {FOLDER / "README.md": contents(findings, kept)}
    if kept:
        written[FOLDER / "method.md"] = method_page(findings, kept)
    for finding in findings:
        if finding.is_run or (finding.about == "coverage" and kept):
            written[FOLDER / finding.page] = page(finding, kept)
    return written


if __name__ == "__main__":
    sys.exit(main())
