"""`bench report`: the page, from the records alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from harness.cli.console import note, print_json, print_table, print_text
from harness.cli.options import (
    HomeOption,
    JsonOption,
    RunArgument,
    home_folder,
    run_folder,
    use_recorded_plugins,
    words,
)
from harness.errors import RefusedError


def report(
    sweep: RunArgument,
    reflection_words: Annotated[
        str | None,
        typer.Option(
            "--reflection-words",
            metavar="A,B",
            help="Words whose tokens are followed through training, whole words in any case; default: However, "
            "Recheck, Wait, Aha, Hmm, Alternatively.",
        ),
    ] = None,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Write the page of a sweep that was run, and print the verdict.

    The folder `report` of the sweep gets index.html, report.md, report.json and the figures.
    `bench ui` keeps pages up to date while a sweep or a search runs.

    Example: bench report std_norm
    """
    folder = run_folder(sweep, home_folder(home))
    use_recorded_plugins([folder])
    followed = words("--reflection-words", reflection_words) if reflection_words is not None else None
    if (folder / "study.json").is_file():
        _report_search(folder, followed, json)
        return
    document = write(folder, followed)
    if json:
        print_json(document)
    else:
        print_verdict(document, folder)


def write_search(folder: Path) -> tuple[dict[str, Any], str]:
    """Write the report of a search's folder; returns report.json and the sentence that it comes down to."""
    from harness.records.study import read_study
    from reports.search import search_sentence, write_search_report

    study = read_study(folder)
    note("writing the report")
    document = write_search_report(study, folder / "report")
    list_runs(folder.parent)
    return document, search_sentence(study)


def _report_search(folder: Path, followed: object, as_json: bool) -> None:
    if followed is not None:
        raise RefusedError(
            f"{folder.name} is a search, whose page has no --reflection-words: its cells are read by no report."
        )
    document, sentence = write_search(folder)
    if as_json:
        print_json(document)
    else:
        print(f"report: {folder / 'report' / 'index.html'}")
        print(sentence)


def write(folder: Path, reflection_words: Sequence[str] | None = None) -> dict[str, Any]:
    """Write the report of a sweep's folder; returns report.json. Showing the verdicts of a complete plan is recorded as
    a look.

    Raises RefusedError if no cell is done, or none has the metric that the sweep compares."""
    from harness.records import read_sweep
    from reports.measure.measurements import MetricError
    from reports.page import write_report

    sweep = read_sweep(folder)
    if not any(cell.state == "done" for cell in sweep.cells):
        raise RefusedError(
            f"{sweep.name}: no cell is done yet, so there is nothing to report. `bench run` continues it."
        )
    note("writing the report")
    try:
        document = dict(write_report(sweep, folder / "report", reflection_words))
    except MetricError as error:
        raise RefusedError(f"{error}.") from None
    declared = document["interactions"] or document["contrasts"]
    sweep.record_look({contrast["arm"]: contrast["verdict"] for contrast in declared})
    list_runs(folder.parent)
    return document


def list_runs(home: Path) -> None:
    """Write index.html of a home, the page of all its runs."""
    from reports.home import INDEX, write_index

    if write_index(home) is None:
        note(f"warning: {home / INDEX} is not ours and stays, so it does not list the runs; `bench ui` does.")


def announce_page(folder: Path) -> None:
    """Say where the page of a run that begins will be. It is in the page of all runs from now on."""
    list_runs(folder.parent)
    note(f"page: {folder / 'report' / 'index.html'} (live: bench ui)")


def print_verdict(document: Any, folder: Path) -> None:
    """The tables of effects and arms, what qualifies the verdicts, the report's path, and the verdicts last."""
    from reports.page.effects import effect_table, secondary_note
    from reports.page.tables import result_table
    from reports.page.verdict import contrast_name, declared_rows, interim_sentence, statements, verdict_details

    effects = effect_table(document["interactions"])
    for table in [*([] if effects is None else [effects]), result_table(document)]:
        print_table(table.title, table.columns, table.rows)
    if note_on_arms := secondary_note(document["interactions"], document["contrasts"]):
        print_text(note_on_arms)
    for cell in document["cells"]:
        if cell["flags"]:
            print(
                f"flagged: {cell['arm']} seed {cell['seed']}: {', '.join(cell['flags'])}, scored at step {cell['step']}"
            )
    for row in declared_rows(document):
        if details := verdict_details(row):
            print(f"{contrast_name(row)}:")
            for detail in details:
                print_text(detail, "  - ")
    print(f"report: {folder / 'report' / 'index.html'}")
    for registration in document["registration"]:
        print_text(registration["sentence"])
    if interim := interim_sentence(document):
        print_text(interim)
    for statement in statements(document):
        print_text(statement.sentence)
