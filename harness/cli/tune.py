"""`bench tune` searches settings and confirms the best; a sweep with `tune:` searches the best of each of its arms."""

from __future__ import annotations

import shlex
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.console import print_json, print_link, print_table, print_text
from harness.cli.executor import STALLED_AFTER, ChosenExecutor, ExecutorOption, StalledAfterOption, WorkersOption
from harness.cli.live import watched
from harness.cli.options import (
    HomeOption,
    JsonOption,
    ProfileOption,
    SeedsOption,
    SetOption,
    SweepArgument,
    TrustOption,
    command_line,
    whole_numbers,
)
from harness.errors import BenchError, RefusedError, note
from harness.runs import home_of
from harness.secrets import without_password
from harness.words import said

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.executors.base import Executor
    from harness.plan import Plan
    from harness.records.study import TrialRecord
    from harness.search.run import SearchRun

WAIT_S = 2.0
"""Seconds between two checks whether other workers still train trials, before a search is confirmed."""


def tune(
    sweep: SweepArgument,
    trials: Annotated[
        int | None,
        typer.Option("--trials", metavar="N", min=1, help=said("cli.help_tune_trials")),
    ] = None,
    confirm: Annotated[
        int | None,
        typer.Option("--confirm", metavar="SEEDS", min=1, help=said("cli.help_tune_confirm")),
    ] = None,
    finish: Annotated[
        str | None,
        typer.Option("--finish", metavar="N,N", help=said("cli.help_tune_finish")),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option("--storage", metavar="URL", help=said("cli.help_tune_storage")),
    ] = None,
    profile: ProfileOption = None,
    set_: SetOption = None,
    seeds: SeedsOption = None,
    workers: WorkersOption = None,
    executor: ExecutorOption = "local",
    stalled_after: StalledAfterOption = STALLED_AFTER,
    trust_code: TrustOption = False,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Search for good settings with Optuna; confirm the best one. The sweep file gives ranges under `search:`.

    Each trial trains one setting. The same command continues an interrupted search. Several of them running at once,
    on one machine or on many, share the search.

    Example: bench tune tune_grpo --trials 20 --confirm 6
    """
    from harness.plan.search_plan import make_search_plan
    from harness.run.question import require_same_kind
    from harness.run.sweep import SweepRun
    from harness.search.confirm import finish_plan
    from harness.search.optuna_parts import reporting_storage_errors
    from harness.search.run import SearchRun

    folder = home_of(sweep, home)
    where = ChosenExecutor(executor, folder, stalled_after)
    plan = make_search_plan(sweep, profile, set_ or [], seeds, where.on_gpu)
    specs = [plan.spec({}, plan.seeds[0])]
    open_executor = where.opener(specs)
    require_same_kind(plan.folder(folder), is_search=True)
    budget = plan.search.budget
    limit = trials or budget.trials
    if limit is None and budget.tokens is None and budget.hours is None:
        raise RefusedError("cli.search_without_limit", sweep=sweep)
    at_once = workers or where.at_once(specs)
    command = command_line("tune", sweep, profile, set_, seeds)
    command += f" --trials {trials}" if trials else ""
    command += f" --storage {shlex.quote(without_password(storage))}" if storage else ""
    problem: BenchError | None = None
    with reporting_storage_errors(storage):
        search_run = SearchRun(plan, folder, command, at_once, open_executor, limit, storage)
        watched(search_run, folder, unit="trials")
        if finish is not None:
            finishing = finish_plan(search_run.study, whole_numbers("--finish", finish, least=0))
            watched(SweepRun(finishing, folder, command, at_once, open_executor), folder)
            search_run.write(with_importances=True)
        if confirm is not None:
            _wait_until_all_have_ended(search_run)
            try:
                problem = _confirm(search_run, confirm, f"{command} --confirm {confirm}")
            # The result of the search is shown in any case, and the error after it.
            except RefusedError as error:
                problem = error
    _report_search(search_run.folder, json)
    if problem is not None:
        raise problem


def _wait_until_all_have_ended(search_run: SearchRun) -> None:
    """Wait while another worker is training a trial, which could be the best."""
    announced = False
    while running := search_run.study.running():
        if not announced:
            note(f"waiting for trial {', '.join(map(str, running))}, which another worker trains")
            announced = True
        time.sleep(WAIT_S)
        search_run.write(with_importances=True)


def _confirm(search_run: SearchRun, seeds: int, command: str) -> BenchError | None:
    """Confirm the best setting and record that in the study; return an error if cells are not done.

    Raises RefusedError if there is nothing to confirm.
    """
    from harness.cli.report import write
    from harness.records.study import read_study
    from harness.run.sweep import SweepRun
    from harness.search.confirm import Winner, confirmation, confirmation_plan
    from harness.search.records import write_confirmation
    from reports.formats import count

    winner = Winner.of(read_study(search_run.folder))
    confirming = confirmation_plan(search_run.plan, winner, seeds)
    home = search_run.home
    note(f"confirming trial {winner.number} against the default with {count(seeds, 'fresh seed')}")
    sweep_run = SweepRun(confirming, home, command, search_run.workers, search_run.open_executor)
    records = watched(sweep_run, home)
    unmeasured = [record.path.name for record in records if record.state != "done"]
    problem = None
    if unmeasured:
        problem = BenchError(
            "cli.confirming_cells_not_done",
            n_not_done=len(unmeasured),
            n_cells=len(confirming.cells),
            cells=", ".join(unmeasured),
            sweep=confirming.sweep.name,
        )
    # Without any cell there is no contrast to record.
    if len(unmeasured) == len(confirming.cells):
        return problem
    report = write(sweep_run.folder)
    (contrast,) = report.contrasts
    found = confirmation(confirming, winner, contrast.as_json(), {arm.arm: arm.mean_pp for arm in report.arms})
    # Other workers write study.json after each of their trials.
    with search_run.study.turn():
        write_confirmation(search_run.folder, found)
    return problem


def _report_search(folder: Path, as_json: bool) -> None:
    """Write the report of a search and print its trials; raise BenchError if no trial is complete."""
    from harness.cli.report import page_of, write_search
    from harness.records.study import read_study
    from reports.search.values import short_knobs, value_text

    _, sentence = write_search(folder)
    study = read_study(folder)
    if as_json:
        best = None if study.best_trial is None else _trial_json(study.best_trial)
        several = len(study.objectives) > 1
        print_json(
            {
                "trials": [_trial_json(trial) for trial in study.trials],
                "best": [_trial_json(study.trial(number)) for number in study.front] if several else best,
                "confirmation": None if study.confirmation is None else asdict(study.confirmation),
            }
        )
    else:
        metrics = [objective.metric.removeprefix("eval.final.") for objective in study.objectives]
        short = short_knobs(study.knobs)
        rows = [
            [
                *(str(trial.number), trial.state),
                *(map(value_text, trial.values) if trial.values else ["–"] * len(metrics)),
                ", ".join(f"{short[knob]}={value_text(value)}" for knob, value in trial.params.items()),
            ]
            for trial in study.trials
        ]
        print_table(study.sweep, ["trial", "state", *metrics, "setting"], rows)
        print_text(sentence)
        print_link("report", page_of(folder))
    if study.best is None:
        raise BenchError("cli.no_trial_complete")


def _trial_json(trial: TrialRecord) -> dict[str, object]:
    return {name: getattr(trial, name) for name in ("number", "state", "params", "values", "hash", "reason", "flags")}


def each_at_its_best(
    planned: Plan, home: Path, command: str, workers: int, open_executor: Callable[[int], Executor]
) -> None:
    """Run the searches for the best setting of an arm that are left, and record the results."""
    from harness.plan.tuning import arm_searches, end_warnings, ended_trials, in_words, with_tuning
    from harness.run.question import require_same_kind, write_question
    from harness.search.run import SearchRun
    from harness.search.shortfall import tuned_arm

    planned.require_answerable()
    searches = arm_searches(planned.request)
    for arm in planned.to_tune:
        search, folder = searches[arm], searches[arm].folder(home)
        trials = search.search.budget.trials or 0
        require_same_kind(folder, is_search=True)
        write_question(replace(planned, cells=[]), home, command)
        note(f"{arm}: looking for its best {', '.join(search.search.knobs)} in {trials} trials ({search.sweep.name})")
        search_run = SearchRun(search, home, command, workers, open_executor, trials)
        while len(ended_trials(folder, trials)) < trials:
            watched(search_run, home, unit="trials")
            _wait_until_all_have_ended(search_run)
        found = tuned_arm(search, home)
        planned = with_tuning(planned, {**planned.request.tuned, arm: found})
        # No cell has the new settings yet.
        write_question(replace(planned, cells=[]), home, command)
        note(f"{arm}: the best of {found.complete} scored trials is trial {found.trial}, {in_words(found.values)}")
        for warning in end_warnings(arm, found):
            note(f"warning: {warning}")
