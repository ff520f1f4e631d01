"""`bench report`: the page of a sweep, written from its records alone."""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from harness.cli.console import print_json, print_link, print_table, print_text
from harness.cli.options import HomeOption, JsonOption, OpenOption, RunArgument, TrustOption, words
from harness.errors import RefusedError, note
from harness.runs import home_folder, record_look, require_any_done, run_folder, use_recorded_plugins, warn_of_damage
from harness.words import said

if TYPE_CHECKING:
    from harness.records import SweepRecord
    from reports.formats import Table
    from reports.report import Report

_STAND = ".stand"
"""The file in the report's folder with the digest of what the report was made from."""
COLOUR_OF = {
    "better": "green",
    "best": "green",
    "worse": "red",
    "equivalent": "blue",
    "identical": "blue",
    "inconclusive": "yellow",
    "careful": "yellow",
}
"""Colours of the signs before verdicts."""


def report(
    sweep: RunArgument,
    reflection_words: Annotated[
        str | None,
        typer.Option(
            "--reflection-words",
            metavar="A,B",
            help=said("cli.help_report_reflection_words"),
        ),
    ] = None,
    format_: Annotated[
        Literal["latex", "csv"] | None,
        typer.Option("--format", help=said("cli.help_report_format")),
    ] = None,
    open_: OpenOption = False,
    trust_code: TrustOption = False,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Write the HTML report of a sweep that you have run; print the verdict.

    Writes index.html, report.md, report.json, the figures and samples.html to the sweep's folder `report`. In
    samples.html you can read, search and compare prompts, completions and the grader's decisions. `bench ui` keeps
    pages up to date while a sweep or a search runs.

    Example: bench report std_norm --open

    Example: bench report std_norm --format latex > results.tex
    """
    if json and format_ is not None:
        raise RefusedError("cli.json_with_format")
    folder = run_folder(sweep, home_folder(home))
    use_recorded_plugins([folder])
    followed = words("--reflection-words", reflection_words) or None
    # Only a search has a study, and its report is another one.
    if (folder / "study.json").is_file():
        _report_search(folder, followed, format_, json)
        if open_:
            open_page(folder)
        return
    document = write(folder, followed)
    if json:
        print_json(document.as_json())
    elif format_ is not None:
        from reports import formats

        write_table = formats.latex_table if format_ == "latex" else formats.csv_table
        print("\n".join(map(write_table, result_tables(document))), end="")
    else:
        print_verdict(document, folder)
    if open_:
        open_page(folder)


def write_search(folder: Path) -> tuple[dict[str, object], str]:
    """Write the report of a search's folder; return report.json and a sentence with its result."""
    from harness.records import read_sweep
    from harness.records.study import read_study
    from reports.processes import meanwhile, process_count
    from reports.samples import write_sweep_samples
    from reports.search import search_sentence, write_search_report

    page = folder / "report"
    with _alone_on_page(folder):
        study, trials = read_study(folder), read_sweep(folder)
        note("writing the report")
        # The samples page does not depend on the report, so another process writes it at the same time.
        with meanwhile(partial(write_sweep_samples, trials, page), process_count(len(trials.cells))):
            document = write_search_report(study, page)
    list_runs(folder.parent)
    return document, search_sentence(study)


def _report_search(folder: Path, followed: object, format_: str | None, as_json: bool) -> None:
    if format_ is not None:
        raise RefusedError("cli.search_with_format", search=folder.name, path=folder / "report" / "report.json")
    if followed is not None:
        raise RefusedError("cli.search_with_reflection_words", search=folder.name)
    document, sentence = write_search(folder)
    if as_json:
        print_json(document)
    else:
        print_text(sentence)
        print_link("report", page_of(folder))


def write(folder: Path, reflection_words: Sequence[str] | None = None) -> Report:
    """Write the report of a sweep's folder, and return it.

    Showing the verdicts of a complete plan is recorded as a look. Raises RefusedError if no cell is done, or none has
    the metric that the sweep compares.
    """
    from harness.records import read_sweep
    from harness.records.sweep import reading_around_damage
    from reports.measure.measurements import MetricError
    from reports.page import write_report
    from reports.processes import meanwhile, process_count
    from reports.samples import write_sweep_samples

    page = folder / "report"
    with _alone_on_page(folder):

        def written(sweep: SweepRecord) -> tuple[SweepRecord, Report]:
            """Return the sweep that was read, without damaged cells, and its report."""
            require_any_done(sweep, "nothing to report")
            processes = process_count(len(sweep.cells))
            with meanwhile(partial(write_sweep_samples, sweep, page), processes):
                try:
                    return sweep, write_report(sweep, page, reflection_words, processes)
                except MetricError as error:
                    raise RefusedError("cli.in_metric", error=error) from None

        # The states are fixed, so that all parts of the page see the same ones while cells go on.
        whole = read_sweep(folder).as_it_stands
        require_any_done(whole, "nothing to report")
        note("writing the report")
        # Taken before anything is read: a change while the page is written makes another stand, and the page out of
        # date.
        records = whole.stand()
        sweep, document = reading_around_damage(whole, written)
        warn_of_damage(sweep.cells)
        record_look(sweep, document)
        # Only a page with the usual words and without damage may be reused.
        if reflection_words is None and sweep is whole:
            (page / _STAND).write_text(_stand(records, page))
    list_runs(folder.parent)
    return document


def written_already(folder: Path) -> Report | None:
    """Return the written report if its records, its files and the code that makes it are unchanged; else None."""
    from harness.records import read_sweep
    from reports.report import read_report

    page = folder / "report"
    if not (page / _STAND).is_file() or not (page / "report.json").is_file():
        return None
    if (page / _STAND).read_text() != _stand(read_sweep(folder).stand(), page):
        return None
    return read_report(page / "report.json")


def _stand(records: str, page: Path) -> str:
    """Return a digest that changes with the records, with a file of the report, and with the code that makes it."""
    import harness.records
    import reports
    from harness.records.counted import stand

    places = [page, Path(reports.__file__).parent, Path(harness.records.__file__).parent]
    return hashlib.blake2b(repr([records, *map(stand, places)]).encode(), digest_size=16).hexdigest()


@contextmanager
def _alone_on_page(folder: Path) -> Iterator[None]:
    """Keep other processes from rendering this page during the block.

    Helper processes are started once, and end with the block.
    """
    from harness.records.files import require_inside
    from reports.processes import end_processes

    require_inside(folder, [folder / ".report.lock", folder / "report", *(folder / "report").rglob("*")])
    # `bench run` and `bench ui` may render at once. A page begun earlier, from fewer records, would replace a later
    # one.
    with (folder / ".report.lock").open("a", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            end_processes()


def list_runs(home: Path) -> None:
    """Write index.html of a home, the page of all its runs."""
    from reports.home import INDEX, write_index

    if write_index(home) is None:
        note(f"warning: {home / INDEX} is not ours and stays, so it does not list the runs; `bench ui` does.")


def announce_page(folder: Path) -> None:
    """Say where the page of a run that begins will be, and add it to the page of all runs."""
    list_runs(folder.parent)
    note(f"page: {page_of(folder)} (live: bench ui)")


def result_tables(document: Report) -> list[Table]:
    """Return the tables of results: the effects of a factorial, and the arms."""
    from reports.page.effects import effect_table
    from reports.page.tables import result_table

    effects = effect_table(document.interactions)
    return [*([] if effects is None else [effects]), result_table(document)]


def print_verdict(document: Report, folder: Path) -> None:
    """Print the tables of effects and arms, the verdicts, their caveats, the answer, and the report's path last."""
    from reports.page.effects import secondary_note
    from reports.page.verdict import interim_sentence, statements

    over_problems = any(row.is_over_problems for row in document.contrasts)
    for table in result_tables(document):
        print_table(*compact(table, over_problems))
    for registration in document.registration:
        print_text(registration.sentence)
    if interim := interim_sentence(document):
        print_text(interim)
    said = statements(document)
    for statement in said:
        print_judgement(statement.verdict, statement.sentence)
    if note_on_arms := secondary_note(document.interactions, document.contrasts):
        print_text(note_on_arms)
    for cell in document.cells:
        if cell.flags:
            flags = ", ".join(cell.flags)
            print_text(f"flagged: {cell.arm} seed {cell.seed}: {flags}, scored at step {cell.step}")
    for names, notes in _notes(document).items():
        print_text(f"{'; '.join(names)}:")
        for one in notes:
            print_text(one, "  - ")
    for answer in document.headline:
        # An answer that equals a statement was printed above.
        if answer.sentence not in [statement.sentence for statement in said]:
            print_text(answer.sentence)
    print_link("report", page_of(folder))


def print_judgement(verdict: str, sentence: str) -> None:
    """Print the sentence of a verdict; on a terminal behind the verdict's sign, in its colour."""
    from reports.page.verdict import SIGNS

    print_text(sentence, sign=SIGNS[verdict], colour=COLOUR_OF.get(verdict, ""))


def page_of(folder: Path) -> Path:
    """Return the path of a run's page."""
    return folder / "report" / "index.html"


def open_page(folder: Path) -> None:
    """Show the written page in the browser, or say where it is."""
    import webbrowser

    page = page_of(folder).resolve()
    if not webbrowser.open(page.as_uri()):
        note(f"warning: no browser was found to open {page}")


def _notes(document: Report) -> dict[tuple[str, ...], list[str]]:
    """Map contrasts to the caveats of their verdicts; a caveat that several contrasts share appears once."""
    from reports.page.verdict import verdict_details

    about: dict[str, list[str]] = {}
    for row in document.declared:
        for detail in verdict_details(row):
            about.setdefault(detail, []).append(row.name)
    notes: dict[tuple[str, ...], list[str]] = {}
    for detail, names in about.items():
        notes.setdefault(tuple(names), []).append(detail)
    return notes


def compact(table: Table, over_problems: bool) -> tuple[str, list[str], list[list[str]]]:
    """Return title, columns and rows; a number of seeds that all rows share moves to the title.

    If problems are the unit of replication, the number is shown there only if it is above 1.
    """
    place = table.columns.index("seeds")
    counts = {row[place] for row in table.rows}
    if len(counts) != 1:
        return table.title, table.columns, table.rows
    (n,) = counts
    title = table.title if over_problems and n == "1" else f"{table.title}, n = {n} seed{'' if n == '1' else 's'}"
    return title, _without(table.columns, place), [_without(row, place) for row in table.rows]


def _without(values: list[str], place: int) -> list[str]:
    """Return the values without the one at an index."""
    return values[:place] + values[place + 1 :]
