"""Verbs that hold a sweep to its question: `bench freeze` before it runs, `bench verify` and `bench verdict` after."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.console import print_json, print_text
from harness.cli.executor import ChosenExecutor, ExecutorOption
from harness.cli.options import (
    ArmsOption,
    HomeOption,
    JsonOption,
    ProfileOption,
    RunArgument,
    SeedsOption,
    SetOption,
    SweepArgument,
    TrustOption,
    command_line,
    words,
)
from harness.cli.until import MostSeedsOption, UntilOption, command_until, require_one_plan_of_seeds
from harness.errors import BenchError, RefusedError, few, note
from harness.runs import finished_verdicts, home_folder, home_of, read_arms, run_folder, use_recorded_plugins
from harness.words import said

if TYPE_CHECKING:
    from harness.plan import Plan


def freeze(
    sweep: SweepArgument,
    profile: ProfileOption = None,
    set_: SetOption = None,
    seeds: SeedsOption = None,
    arms: ArmsOption = None,
    until: UntilOption = None,
    most_seeds: MostSeedsOption = None,
    executor: ExecutorOption = "local",
    trust_code: TrustOption = False,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Register a sweep's question before any cell runs, with a digest.

    Publish the digest where others can see its date. The report then says whether the question was registered before
    the first cell, and what has changed since. With --until, the stopping rule is part of the question.

    Example: bench freeze clip_high

    Example: bench freeze clip_high --until verdict --most-seeds 24
    """
    from harness.plan import make_plan
    from harness.plan.tuning import searches_begun, with_known_tuning
    from harness.records.registration import REGISTERED, Registration, read_registration, started_cells
    from harness.run.question import (
        planned_design,
        planned_looks,
        register_design,
        require_looks,
        require_same_kind,
        write_question,
    )

    require_one_plan_of_seeds(until, most_seeds, seeds)
    folder = home_of(sweep, home)
    on_gpu = ChosenExecutor(executor, folder).on_gpu

    def planned_with(count: int | None) -> Plan:
        """Return the plan with a number of seeds."""
        return with_known_tuning(make_plan(sweep, profile, set_ or [], count, words("--arms", arms), on_gpu), folder)

    planned = planned_with(seeds)
    planned.require_answerable()
    if until is not None:
        require_looks(planned)
        # Every cell that may be trained is registered, so the plan has the seeds of the last look.
        planned = planned_with(planned_looks(planned, most_seeds)[-1])
    place = planned.folder(folder)
    require_same_kind(place, is_search=False)
    if started := started_cells(planned.record(cell, folder) for cell in planned.cells):
        raise RefusedError(
            "cli.cells_already_run",
            sweep=planned.sweep.name,
            n_started=len(started),
            n_cells=len(planned.cells),
            cells=few(started, 3),
        )
    if searched := searches_begun(planned, folder):
        raise RefusedError("cli.search_already_begun", sweep=planned.sweep.name, arms=few(searched, 3))
    command = command_until(command_line("run", sweep, profile, set_, seeds, arms), until, most_seeds)
    asked = write_question(planned, folder, command)
    question = register_design(asked, None if until is None else planned_design(planned, asked, most_seeds))
    specs = {arm: spec.model_dump(mode="json") for arm, spec in planned.arms.items()}
    registration, earlier = Registration.of(question, specs), read_registration(place)
    # No cell has run (checked above), so a registration may be replaced, and the output says so.
    replaced = None if earlier is None or earlier.digest == registration.digest else earlier.digest
    registration.write(place)
    if json:
        print_json({"sweep": question.name, "digest": registration.digest, "time": registration.time,
                    "path": str(place / REGISTERED), "cells": len(planned.cells), "replaced": replaced,
                    "looks": None if question.design is None else question.design.looks})  # fmt: skip
        return
    print_text(f"question: {question.question}")
    print_text(
        f"plan: {len(question.arms)} arms x {len(question.seeds)} seeds = {len(planned.cells)} cells on profile "
        f"{question.profile}; {question.metric}, margin {question.margin_pp:g} pp, alpha {question.alpha:g}"
    )
    if question.design is not None:
        looks = ", ".join(map(str, question.design.looks))
        print_text(f"looks: at {looks} seeds, until every contrast has a verdict; the level holds over all of them")
    if replaced is not None:
        print_text(f"replaces the registration {replaced}, under which no cell has run")
    print(f"wrote {place / REGISTERED}")
    print(f"digest: {registration.digest}")
    print(f"Publish the digest, then: {command}")


def verify(
    sweep: RunArgument,
    reflection_words: Annotated[
        str | None,
        typer.Option("--reflection-words", metavar="A,B", help=said("cli.help_verify_reflection_words")),
    ] = None,
    trust_code: TrustOption = False,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Recompute every number of a written report from the records. Exits 1 if one differs.

    It names the first number that differs, with both values. Figures are drawn again and compared as well. A kept
    report has no cells; its contrasts are recomputed from the final scores.

    Example: bench verify std_norm

    Example: bench verify docs/findings/records/std_norm-tiny
    """
    from reports.measure.measurements import MetricError
    from reports.page.kept import is_kept, verify_kept
    from reports.page.verification import verify_report

    folder = run_folder(sweep, home_folder(home))
    use_recorded_plugins([folder])
    record = read_arms(folder, "a search's page is checked by `bench report`")
    kept = is_kept(folder)
    if not kept and not (folder / "report" / "report.json").is_file():
        raise RefusedError("cli.no_written_report", sweep=record.name)
    if kept and reflection_words is not None:
        raise RefusedError("cli.kept_report_without_texts", folder=folder)
    followed = words("--reflection-words", reflection_words) or None
    note("computing the report again")
    try:
        found = verify_kept(folder) if kept else verify_report(record, folder / "report", followed)
    except MetricError as error:
        raise RefusedError("cli.in_metric", error=error) from None
    difference = found.difference
    if json:
        first = None if difference is None else {
            "file": difference.file, "place": difference.place, "stale": difference.is_stale,
            "written": difference.written, "recomputed": difference.recomputed,
        }  # fmt: skip
        print_json({"sweep": record.name, "agrees": first is None, "checked": found.checked, "difference": first})
    elif difference is None:
        total = sum(found.checked.values())
        of_what = "the kept report match its final scores" if kept else f"{len(found.checked)} files match the records"
        print_text(f"{record.name}: all {total:,} values of {of_what}")
    if difference is not None:
        remedy = f" `bench report {record.name}` writes it again." if difference.is_stale else ""
        raise BenchError("cli.report_differs", sweep=record.name, difference=difference.sentence, remedy=remedy)


def verdict(
    sweep: RunArgument,
    require: Annotated[
        list[str] | None,
        typer.Option(
            "--require",
            metavar="TEXT",
            help=said("cli.help_verdict_require"),
        ),
    ] = None,
    trust_code: TrustOption = False,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Print a sweep's answer, verdicts and next steps. With --require it exits 1 unless every requirement holds.

    "Not worse" rules out a loss as large as the margin; "not better" rules out such a gain.

    Example: bench verdict std_norm --require "no_std not worse than group_std"
    """
    from harness.cli.report import print_judgement
    from reports.measure.next_step import OPEN_VERDICTS
    from reports.page.next_step import what_to_do
    from reports.page.requirements import judge, parse_requirement
    from reports.page.verdict import interim_sentence, statements

    asked = [parse_requirement(text) for text in require or []]
    analysis, document = finished_verdicts(sweep, home_folder(home))
    record = analysis.sweep
    interim, rows = interim_sentence(document), document.judged
    if asked and not rows:
        raise RefusedError("cli.nothing_compared_yet", sweep=record.name, statement=statements(document)[0].sentence)
    judged = [judge(one, rows, interim) for one in asked]
    sentences = [statement.sentence for statement in statements(document)]
    registered = [row.sentence for row in document.registration]
    # A next step is shown only for contrasts without a verdict.
    open_rows = [row for row in document.declared if row.verdict in OPEN_VERDICTS]
    if json:
        print_json({"sweep": record.name, "verdicts": sentences, "interim": interim,
                    "registration": registered[0] if registered else None,
                    "next_steps": {row.arm: row.as_json().get("next_step") for row in open_rows},
                    "requirements": [one.as_json() for one in judged]})  # fmt: skip
    else:
        answers = [] if judged else [row.sentence for row in document.headline]
        unsaid = [one for one in answers if one not in sentences]
        for line in [*unsaid, *registered, *([interim] if interim else []), *(one.sentence for one in judged)]:
            print_text(line)
        for statement in [] if judged else statements(document):
            print_judgement(statement.verdict, statement.sentence)
        for row in [] if judged else open_rows:
            print_text(f"{row.name}: {what_to_do(row, record)}")
    if failed := sum(not one.holds for one in judged):
        raise BenchError("cli.requirements_not_met", sweep=record.name, n_failed=failed, n_requirements=len(judged))
