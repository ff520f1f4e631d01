"""Verbs that train: `bench run` answers a sweep's question, `bench tune` searches settings and confirms the best."""

from __future__ import annotations

import os
import shlex
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli.console import note, print_json, print_table
from harness.cli.options import (
    ArmsOption,
    EvalSamplesOption,
    ExecutorOption,
    HomeOption,
    JsonOption,
    ProfileOption,
    SeedsOption,
    SetOption,
    SweepArgument,
    arm_names,
    command_line,
    executor_named,
    home_of,
    numbers,
    question_in,
    with_eval_samples,
)
from harness.errors import BenchError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.config.run_spec import RunSpec
    from harness.records import CellRecord
    from harness.run.sweep import SweepRun
    from harness.search.run import SearchRun

WAIT_S = 2.0
"""How often a search waiting to be confirmed checks whether other workers are still training trials."""


class InterruptedByUserError(BenchError):
    """Ctrl-C."""

    exit_code = 130


def run(
    sweep: SweepArgument,
    profile: ProfileOption = None,
    set_: SetOption = None,
    seeds: SeedsOption = None,
    eval_samples: EvalSamplesOption = None,
    arms: ArmsOption = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers", metavar="N", min=1, help="Cells to run at once; default: one per CPU core, or one on a GPU."
        ),
    ] = None,
    retry_invalid: Annotated[
        bool, typer.Option("--retry-invalid", help="Also rerun cells that could not be measured (state invalid).")
    ] = False,
    executor: ExecutorOption = "local",
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Train and evaluate what a sweep lacks, and print the verdict. The report is written too.

    The same command continues where it stopped: after Ctrl-C, a kill, a full disk, or a failed cell. The name of a
    sweep that was run goes on with it: more --seeds are trained, more --eval-samples drawn from the last checkpoints.

    Example: bench run sweeps/std_norm.yaml --seeds 6

    Example: bench run std_norm --eval-samples 256
    """
    from harness.plan import make_plan
    from harness.run.question import require_same_kind
    from harness.run.sweep import SweepRun

    folder = home_of(sweep, home)
    settings = with_eval_samples(set_, eval_samples)
    given = question_in(folder, sweep, asks_anew=bool(profile or set_ or arms))
    planned = make_plan(given, profile, settings, seeds, arm_names(arms))
    # From here on: the plug-ins of the file are in use, and one of them may give the executor.
    open_executor = executor_named(executor, folder)
    require_same_kind(planned.folder(folder), is_search=False)
    for warning in planned.warnings:
        note(f"warning: {warning}")
    sweep_run = SweepRun(
        planned,
        folder,
        command_line("run", sweep, profile, settings, seeds, arms),
        workers or default_workers([*planned.arms.values()]),
        open_executor,
        retry_invalid,
    )
    with ExitStack() as mirrored:  # to the end, so that MLflow gets the report too
        _watched(sweep_run, folder, mirrored)
        not_confirmed = _confirm_screening(sweep_run)
        unmeasured = _report_sweep(sweep_run, as_json=json) + not_confirmed
        if unmeasured:
            is_any_invalid = any("(invalid)" in cell for cell in unmeasured)
            remedy = " Invalid cells run again with --retry-invalid." if is_any_invalid else ""
            raise BenchError(
                f"{len(unmeasured)} of {len(planned.cells)} cells are not done: {', '.join(unmeasured)}. "
                f"`bench status {planned.sweep.name}` says why.{remedy}"
            )


def _confirm_screening(screened: SweepRun) -> list[str]:
    """Where the sweep is a screening, train its best arms and the baseline on fresh seeds, and keep the verdicts with
    it; returns the cells that are not done, as `_unmeasured`."""
    from harness.cli.report import write
    from harness.run.screening import best_arms, confirming_plan, record_confirmation
    from harness.run.sweep import SweepRun

    screening = screened.plan.sweep.screening
    if screening is None or not any(cell.state == "done" for cell in screened.records()):
        return []
    best = best_arms(write(screened.folder))
    if not best:  # some cells have not ended
        return []
    plan = confirming_plan(screened.plan, screening, best)
    note(f"confirming {', '.join(best)} against {screened.plan.baseline} on {screening.seeds} fresh seeds")
    confirming = SweepRun(plan, screened.home, screened.command, screened.workers, screened.open_executor)
    with ExitStack() as mirrored:
        _watched(confirming, screened.home, mirrored)
        unmeasured = _unmeasured(confirming.records())
        if len(unmeasured) < len(plan.cells):
            record_confirmation(screened.folder, plan, write(confirming.folder))
    return unmeasured


def _watched(work: Any, home: Path, mirrored: ExitStack, unit: str = "cells") -> Any:
    """Run a sweep or a search with its progress shown; MLflow is kept up to date until `mirrored` is closed. Returns
    what the work returns. Raises InterruptedByUserError."""
    from harness.cli.live import LiveRun
    from harness.tracking import Mirror, MirrorThread, tracking_uri

    mirror = MirrorThread(Mirror(work.folder, tracking_uri(home)))
    try:
        with LiveRun(unit) as live:
            return work.run(live, while_running=lambda: mirrored.enter_context(mirror))
    except KeyboardInterrupt:
        raise InterruptedByUserError("interrupted; the same command continues") from None


def default_workers(specs: Sequence[RunSpec]) -> int:
    """How many cells of these specs run at once. On a GPU each takes all of it."""
    devices = {spec.train.device.partition(":")[0] for spec in specs}
    return 1 if "cuda" in devices else os.cpu_count() or 1


def _report_sweep(sweep_run: SweepRun, as_json: bool) -> list[str]:
    """Report and verdict; returns the cells that are not done, as `<arm>-s<seed> (<state>)`."""
    from harness.cli.report import print_verdict, write
    from reports.page.document import SECTIONS

    records = sweep_run.records()
    unmeasured = _unmeasured(records)
    if len(unmeasured) == len(records):
        if as_json:
            cells = [
                {"arm": r.arm, "seed": r.seed, "hash": r.hash, "state": r.state, "reason": r.reason} for r in records
            ]
            print_json({key: [] for key in SECTIONS} | {"cells": cells})
        return unmeasured
    document = write(sweep_run.folder)
    if as_json:
        print_json(document)
    else:
        print_verdict(document, sweep_run.folder)
    return unmeasured


def _unmeasured(records: Sequence[CellRecord]) -> list[str]:
    return [f"{r.arm}-s{r.seed} ({r.state})" for r in records if r.state != "done"]


def tune(
    sweep: SweepArgument,
    trials: Annotated[
        int | None,
        typer.Option(
            "--trials", metavar="N", min=1, help="Trials in all, those of earlier runs included; default: the file's."
        ),
    ] = None,
    confirm: Annotated[
        int | None,
        typer.Option(
            "--confirm", metavar="SEEDS", min=1, help="Then train the best setting and the default with fresh seeds."
        ),
    ] = None,
    finish: Annotated[
        str | None,
        typer.Option(
            "--finish", metavar="N,N", help="Then train these pruned trials to the end, from where they stopped."
        ),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option("--storage", metavar="URL", help="A database for workers on many machines; default: a file."),
    ] = None,
    profile: ProfileOption = None,
    set_: SetOption = None,
    seeds: SeedsOption = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers", metavar="N", min=1, help="Trials at once; default: one per CPU core, or one on a GPU."
        ),
    ] = None,
    executor: ExecutorOption = "local",
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Search for good settings with Optuna; confirm the best one. The sweep file gives ranges under `search:`.

    Each trial trains one setting. The same command continues. Several at once share the
    search, also on other machines.

    Example: bench tune tune_grpo --trials 20 --confirm 6
    """
    from harness.plan.search_plan import make_search_plan
    from harness.run.question import require_same_kind
    from harness.run.sweep import SweepRun
    from harness.search.confirm import finish_plan
    from harness.search.optuna_parts import reporting_storage_errors, without_password
    from harness.search.records import write_confirmation
    from harness.search.run import SearchRun

    folder = home_of(sweep, home)
    plan = make_search_plan(sweep, profile, set_ or [], seeds)
    open_executor = executor_named(executor, folder)
    require_same_kind(plan.folder(folder), is_search=True)
    budget = plan.search.budget
    limit = trials or budget.trials
    if limit is None and budget.tokens is None and budget.hours is None:
        raise RefusedError(f"{sweep}: the search would never end. Give --trials N, or `search.budget` in the file.")
    at_once = workers or default_workers([plan.spec({}, plan.seeds[0])])
    command = command_line("tune", sweep, profile, set_, seeds)
    command += f" --trials {trials}" if trials else ""
    command += f" --storage {shlex.quote(without_password(storage))}" if storage else ""
    problem: BenchError | None = None
    with reporting_storage_errors(storage):
        search_run = SearchRun(plan, folder, command, at_once, open_executor, limit, storage)
        with ExitStack() as mirrored:
            study = _watched(search_run, folder, mirrored, "trials")
        if finish is not None:
            finishing = finish_plan(search_run.study, numbers("--finish", finish))
            with ExitStack() as mirrored:
                _watched(SweepRun(finishing, folder, command, at_once, open_executor), folder, mirrored)
            study = search_run.write(with_importances=True)
        if confirm is not None:
            study = _when_all_have_ended(search_run, study)
            try:
                study, problem = _confirm(search_run, study, confirm, f"{command} --confirm {confirm}")
                if study["confirmation"] is not None:
                    with search_run.study.turn():  # others write study.json after each of their trials
                        write_confirmation(search_run.folder, study["confirmation"])
            except RefusedError as error:  # what the search found is shown all the same
                problem = error
    _report_search(search_run.folder, study, json)
    if problem is not None:
        raise problem


def _when_all_have_ended(search_run: SearchRun, study: dict[str, Any]) -> dict[str, Any]:
    """The study once no other worker is training a trial, which could be the best."""
    announced = False
    while running := search_run.study.running():
        if not announced:
            note(f"waiting for trial {', '.join(map(str, running))}, which another worker trains")
            announced = True
        time.sleep(WAIT_S)
        study = search_run.write(with_importances=True)
    return study


def _confirm(
    search_run: SearchRun, study: dict[str, Any], seeds: int, command: str
) -> tuple[dict[str, Any], BenchError | None]:
    """The study with its confirmation, and what is missing of that. Raises RefusedError where there is nothing to
    confirm."""
    from harness.cli.report import write
    from harness.run.sweep import SweepRun
    from harness.search.confirm import Winner, confirmation, confirmation_plan
    from reports.formats import count

    winner = Winner.of(study)
    confirming = confirmation_plan(search_run.plan, winner, seeds)
    home = search_run.home
    note(f"confirming trial {winner.number} against the default with {count(seeds, 'fresh seed')}")
    sweep_run = SweepRun(confirming, home, command, search_run.workers, search_run.open_executor)
    with ExitStack() as mirrored:
        _watched(sweep_run, home, mirrored)
    unmeasured = [cell.directory for cell in confirming.cells if confirming.record(cell, home).state != "done"]
    problem = None
    if unmeasured:
        problem = BenchError(
            f"{len(unmeasured)} of {len(confirming.cells)} confirming cells are not done: {', '.join(unmeasured)}. See "
            f"`bench status {confirming.sweep.name}`."
        )
    if len(unmeasured) == len(confirming.cells):
        return study, problem
    found = confirmation(confirming, winner, write(sweep_run.folder))
    return study | {"confirmation": found}, problem


def _report_search(folder: Path, study: dict[str, Any], as_json: bool) -> None:
    from harness.cli.report import write_search

    _, sentence = write_search(folder)
    by_number = {trial["number"]: _trial_json(trial) for trial in study["trials"]}
    if as_json:
        best = None if study["best"] is None else by_number[study["best"]]
        several = len(study["objectives"]) > 1
        print_json(
            {
                "trials": [*by_number.values()],
                "best": [by_number[number] for number in study["front"]] if several else best,
                "confirmation": study["confirmation"],
            }
        )
    else:
        metrics = [objective["metric"] for objective in study["objectives"]]
        rows = [_row(trial, len(metrics)) for trial in by_number.values()]
        print_table(study["sweep"], ["trial", "state", *metrics, "setting"], rows)
        print(f"report: {folder / 'report' / 'index.html'}")
        print(sentence)
    if study["best"] is None:
        raise BenchError("no trial is complete; the table says why.")


def _trial_json(trial: dict[str, Any]) -> dict[str, Any]:
    return {key: trial[key] for key in ("number", "state", "params", "values", "hash", "reason", "flags")}


def _row(trial: dict[str, Any], n_objectives: int) -> list[str]:
    setting = ", ".join(f"{knob}={_short(value)}" for knob, value in trial["params"].items())
    values = [_short(value) for value in trial["values"] or []] or ["–"] * n_objectives
    return [str(trial["number"]), trial["state"], *values, setting]


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
