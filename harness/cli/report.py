"""`bench report`: the page, from the records alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.cli.console import note, print_json, print_table
from harness.cli.options import HomeOption, JsonOption, RunArgument, home_folder, run_folder


def report(sweep: RunArgument, home: HomeOption = None, json: JsonOption = False) -> None:
    """Write index.html, report.md, report.json and the figures of a sweep that was run, and print the verdict.

    Example: bench report std_norm
    """
    folder = run_folder(sweep, home_folder(home))
    document = write(folder)
    if json:
        print_json(document)
    else:
        print_verdict(document, folder)


def write(folder: Path) -> dict[str, Any]:
    """Write the report of a sweep's folder; returns report.json."""
    from harness.records import read_sweep
    from reports.page import write_report

    note("writing the report")
    return dict(write_report(read_sweep(folder), folder / "report"))


def print_verdict(document: Any, folder: Path) -> None:
    """The table of arms, the report's path, and the verdict's sentences last."""
    from reports.summary import result_table, verdict_sentences

    table = result_table(document)
    print_table(table.title, table.columns, table.rows)
    print(f"report: {folder / 'report' / 'index.html'}")
    for sentence in verdict_sentences(document):
        print(sentence)
