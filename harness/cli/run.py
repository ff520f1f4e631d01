"""`bench run`: train and evaluate what a sweep lacks, and answer its question."""

from __future__ import annotations

import shlex
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.console import print_json
from harness.cli.executor import STALLED_AFTER, ChosenExecutor, ExecutorOption, StalledAfterOption, WorkersOption
from harness.cli.live import watched
from harness.cli.options import (
    SWEEP_ARGUMENT,
    ArmsOption,
    EvalSamplesOption,
    HomeOption,
    JsonOption,
    OpenOption,
    ProfileOption,
    SeedsOption,
    SetOption,
    TrustOption,
    command_line,
    question_in,
    with_eval_samples,
    words,
)
from harness.cli.status import states_of
from harness.cli.until import (
    MostSeedsOption,
    UntilOption,
    command_until,
    goes_on,
    looks_to_take,
    require_one_plan_of_seeds,
)
from harness.errors import BenchError, RefusedError, few, note
from harness.runs import home_folder, home_of, run_folder
from harness.words import said

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from harness.plan import Plan
    from harness.records import CellRecord
    from harness.run.sweep import SweepRun


RetryInvalidOption = Annotated[bool, typer.Option("--retry-invalid", help=said("cli.help_retry_invalid"))]
RetryFailedOption = Annotated[bool, typer.Option("--retry-failed", help=said("cli.help_retry_failed"))]


def run(
    sweep: Annotated[str | None, SWEEP_ARGUMENT] = None,
    profile: ProfileOption = None,
    set_: SetOption = None,
    seeds: SeedsOption = None,
    eval_samples: EvalSamplesOption = None,
    arms: ArmsOption = None,
    workers: WorkersOption = None,
    retry_invalid: RetryInvalidOption = False,
    retry_failed: RetryFailedOption = False,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help=said("cli.help_run_fail_fast"))] = False,
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="RUN",
            help=said("cli.help_run_from"),
        ),
    ] = None,
    until: UntilOption = None,
    most_seeds: MostSeedsOption = None,
    executor: ExecutorOption = "local",
    stalled_after: StalledAfterOption = STALLED_AFTER,
    open_: OpenOption = False,
    trust_code: TrustOption = False,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Train and evaluate a sweep's missing cells; print the verdict. The report is written too.

    A cell is one arm at one seed; it is missing if it has no result yet. The same command continues where it stopped:
    after Ctrl-C, a kill, a full disk, or a failed cell. To extend a sweep that you have run, pass its name: --seeds
    trains additional seeds, and --eval-samples draws additional samples from the final checkpoints.

    Example: bench run sweeps/std_norm.yaml --seeds 6

    Example: bench run std_norm --eval-samples 256

    Example: bench run std_norm --until verdict --most-seeds 24

    Example: bench run std_norm --fail-fast --retry-failed

    Example: bench run std_norm --executor ray:head:6379

    Example: bench run --from runs/std_norm --home again
    """
    from harness.cli.report import open_page, page_of
    from harness.cli.tune import each_at_its_best
    from harness.plan import make_plan
    from harness.plan.tuning import with_known_tuning
    from harness.records import read_sweep
    from harness.run.question import require_same_kind, write_design
    from harness.run.sweep import SweepRun

    require_one_plan_of_seeds(until, most_seeds, seeds)
    settings = with_eval_samples(set_, eval_samples)
    repeated = None
    if from_ is not None:
        if sweep or profile or settings or seeds is not None or arms or until:
            raise RefusedError("cli.from_with_question", given=from_)
        folder = home_folder(home)
        repeated = run_to_repeat(from_, folder)
        sweep = given = str(repeated)
    elif sweep is None:
        raise RefusedError("cli.no_sweep_given")
    else:
        folder = home_of(sweep, home)
        given = question_in(folder, sweep, asks_anew=bool(profile or set_ or arms))

    where = ChosenExecutor(executor, folder, stalled_after)

    def planned_with(count: int | None) -> Plan:
        """Return the plan with a number of seeds; None means the sweep's own."""
        planned = make_plan(given, profile, settings, count, words("--arms", arms), where.on_gpu)
        return with_known_tuning(planned, folder)

    first = planned_with(seeds)
    at_once = workers or where.at_once(first.arms.values())
    open_executor = where.opener(first.arms.values())
    require_same_kind(first.folder(folder), is_search=False)
    command = command_until(command_line("run", sweep, profile, settings, seeds, arms), until, most_seeds)
    if repeated is not None:
        command = f"bench run --from {shlex.quote(str(repeated))}"
        say_what_differs(repeated, first)
    for warning in [*first.warnings, *where.shortages(first.arms, at_once)]:
        note(f"warning: {warning}")
    # The cells of a tuned arm have no hash before its search, so the sweep is planned again afterwards.
    if first.to_tune:
        each_at_its_best(first, folder, command, at_once, open_executor)
        first = planned_with(seeds)
    plans: Iterable[Plan] = [first]
    if until is not None:
        looks = write_design(first, most_seeds, folder, command)
        # Lazy: each look is planned only if the one before left a contrast unsettled.
        plans = map(planned_with, looks_to_take(read_sweep(first.folder(folder)), looks))
    for planned in plans:
        sweep_run = SweepRun(planned, folder, command, at_once, open_executor, retry_invalid, fail_fast, retry_failed)
        with ExitStack() as mirrored:  # closed last, so that MLflow gets the report too
            records = watched(sweep_run, folder, mirrored)
            if until is not None and goes_on(read_sweep(sweep_run.folder)):
                continue
            not_confirmed = _confirm_screening(sweep_run)
            unmeasured = _report_sweep(sweep_run.folder, records, as_json=json) + not_confirmed
        break
    if repeated is not None:
        say_whether_equal(repeated, sweep_run.folder)
    if open_ and page_of(sweep_run.folder).is_file():
        open_page(sweep_run.folder)
    if unmeasured:
        is_any_invalid = any("(invalid)" in cell for cell in unmeasured)
        remedy = " Invalid cells run again with --retry-invalid." if is_any_invalid else ""
        raise BenchError(
            "cli.cells_not_done",
            n_not_done=len(unmeasured),
            n_cells=len(planned.cells),
            cells=", ".join(unmeasured),
            sweep=planned.sweep.name,
            remedy=remedy,
        )


def run_to_repeat(given: str, home: Path) -> Path:
    """Return the folder of the records that --from names.

    Raises RefusedError if it lies in the home of the repeated run, or holds a search.
    """
    from harness.records import read_sweep

    place = Path(given)
    folder = place if (place / "sweep.json").is_file() else run_folder(given, home_folder(None))
    if folder.resolve().parent == home.resolve():
        raise RefusedError("cli.repeat_in_same_home", given=given, home=home, sweep=folder.name)
    if read_sweep(folder).is_search:
        raise RefusedError("cli.search_not_repeatable", given=given)
    return folder


def say_what_differs(repeated: Path, planned: Plan) -> None:
    """Print how the provenance here differs from that of the finished cells, and which cells have another hash."""
    from harness.plan.filing import records_of
    from harness.records import read_sweep
    from harness.run.provenance import differences_from_now

    finished = [cell for cell in read_sweep(repeated).cells if cell.own.is_done]
    if not finished:
        note(f"no cell of {repeated} is done: there is nothing to compare with")
        return
    differ = differences_from_now(one for cell in finished for one in cell.own.provenances)
    for name, (then, now) in differ.items():
        note(f"differs from {repeated}: {name} was {few(then)}, is {now}")
    trained = {(cell.arm, cell.seed) for cell in finished}
    # The hash of an arm that is tuned first is not known yet.
    both = [cell for cell in planned.cells if cell.arm not in planned.to_tune and (cell.arm, cell.seed) in trained]
    found = zip(both, records_of(both, repeated / "cells"), strict=True)
    others = [f"{cell.arm}-s{cell.seed}" for cell, record in found if not record.own.is_done]
    if others:
        note(
            f"differs from {repeated}: the hash of {few(others)}, since data, model files, the code of a plug-in or "
            "the numerics of bench have changed"
        )
    if not differ and not others:
        note(f"commit, versions, machine and data are the same as in {repeated}")


def say_whether_equal(repeated: Path, folder: Path) -> None:
    """Print how many cells have the same final weights as in the repeated run, bit for bit."""
    from harness.records import read_sweep

    then, now = (
        {(cell.arm, cell.seed): cell.own.digest for cell in read_sweep(path).cells if cell.own.is_done}
        for path in (repeated, folder)
    )
    both = [cell for cell in then if cell in now]
    unequal = [f"{arm}-s{seed}" for arm, seed in both if then[arm, seed] != now[arm, seed]]
    of_others = f"; {few(unequal)} differ" if unequal else ""
    note(f"weights: {len(both) - len(unequal)} of {len(both)} cells end with the same as in {repeated}{of_others}")


def _confirm_screening(screened: SweepRun) -> list[str]:
    """Train the best arms of a screening and the baseline on fresh seeds, and store the verdicts with the sweep.

    Returns the cells that are not done, as `_unmeasured` does; [] if the sweep is no screening.
    """
    from harness.cli.report import write
    from harness.run.screening import best_arms, confirming_plan, record_confirmation

    screening = screened.plan.sweep.screening
    if screening is None or not any(cell.state == "done" for cell in screened.records()):
        return []
    report = write(screened.folder)
    best = best_arms(report.screening[0].best, [cell.state for cell in report.cells])
    if not best:  # some cells have not ended
        return []
    plan = confirming_plan(screened.plan, screening, best, screened.home)
    fresh = len(plan.request.seed_list)
    note(f"confirming {', '.join(best)} against {screened.plan.baseline} on {fresh} fresh seeds")
    command = command_line("run", plan.sweep.name, None, None, None)  # continues from its records
    confirming = replace(screened, plan=plan, command=command, retry_invalid=False)
    with ExitStack() as mirrored:
        unmeasured = _unmeasured(watched(confirming, screened.home, mirrored))
        if len(unmeasured) < len(plan.cells):
            record_confirmation(screened.folder, plan, [row.as_json() for row in write(confirming.folder).contrasts])
    return unmeasured


def _report_sweep(folder: Path, records: Sequence[CellRecord], as_json: bool) -> list[str]:
    """Write the report and print the verdict; return the cells that are not done."""
    from harness.cli.report import print_verdict, write, written_already

    unmeasured = _unmeasured(records)
    if len(unmeasured) == len(records):
        if as_json:
            from reports.report import SECTIONS

            # The keys of a report, so that a reader of the JSON finds all of them.
            print_json({key: [] for key in SECTIONS} | {"cells": states_of(records)})
        return unmeasured
    document = written_already(folder) or write(folder)
    if as_json:
        print_json(document.as_json())
    else:
        print_verdict(document, folder)
    return unmeasured


def _unmeasured(records: Sequence[CellRecord]) -> list[str]:
    """Return the cells that are not done, as `<arm>-s<seed> (<state>)`."""
    return [f"{r.arm}-s{r.seed} ({r.state})" for r in records if r.state != "done"]
