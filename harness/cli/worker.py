"""`bench worker`: run free cells of a sweep. Many workers, on any number of machines, share one sweep."""

from __future__ import annotations

import shlex
from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.console import print_json, print_text
from harness.cli.executor import STALLED_AFTER, ChosenExecutor, ExecutorOption, StalledAfterOption, WorkersOption
from harness.cli.live import LiveRun, told_of_signals
from harness.cli.options import (
    ArmsOption,
    EvalSamplesOption,
    HomeOption,
    JsonOption,
    ProfileOption,
    SeedsOption,
    SetOption,
    SweepArgument,
    TrustOption,
    command_line,
    question_in,
    with_eval_samples,
    words,
)
from harness.cli.run import RetryFailedOption, RetryInvalidOption
from harness.cli.status import states_of
from harness.errors import BenchError, RefusedError, few, note
from harness.runs import home_of
from harness.words import said

if TYPE_CHECKING:
    from harness.run.shared_sweep import WorkerRun


def worker(
    sweep: SweepArgument,
    profile: ProfileOption = None,
    set_: SetOption = None,
    seeds: SeedsOption = None,
    eval_samples: EvalSamplesOption = None,
    arms: ArmsOption = None,
    workers: WorkersOption = None,
    wait: Annotated[
        bool,
        typer.Option("--wait", help=said("cli.help_worker_wait")),
    ] = False,
    retry_invalid: RetryInvalidOption = False,
    retry_failed: RetryFailedOption = False,
    executor: ExecutorOption = "local",
    stalled_after: StalledAfterOption = STALLED_AFTER,
    trust_code: TrustOption = False,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Run the free cells of a sweep, together with workers on other machines.

    A worker takes one free cell after another. Use it with job arrays, Kubernetes or ssh: start it on as many machines
    as you like, with the same arguments and the same --home on a shared disk. There is no head node and no open port; a
    lease file reserves each cell for one worker. When all cells are done, `bench run` writes the report.

    A worker exits when other live workers are running all the remaining cells; with --wait, when those have finished
    too. If a worker dies, another one takes over its cells within about two minutes.

    On SIGTERM, running cells save a checkpoint and the worker exits with 143; on Ctrl-C, with 130. Requeue it, and it
    continues. It exits with 1 if a cell that it ran failed.

    Example: bench worker std_norm --home /shared/runs

    Example: sbatch --array=0-7 --requeue --wrap "bench worker std_norm"
    """
    from harness.plan import make_plan
    from harness.plan.tuning import with_known_tuning
    from harness.run.question import require_same_kind
    from harness.run.shared_sweep import WorkerRun

    folder = home_of(sweep, home)
    settings = with_eval_samples(set_, eval_samples)
    given = question_in(folder, sweep, asks_anew=bool(profile or set_ or arms))
    where = ChosenExecutor(executor, folder, stalled_after)
    plan = with_known_tuning(make_plan(given, profile, settings, seeds, words("--arms", arms), where.on_gpu), folder)
    require_same_kind(plan.folder(folder), is_search=False)
    if plan.to_tune:
        raise RefusedError("cli.search_not_done", sweep=plan.sweep.name, arms=few(plan.to_tune))
    for warning in plan.warnings:
        note(f"warning: {warning}")
    command = command_line("run", sweep, profile, settings, seeds, arms)
    at_once = workers or where.at_once(plan.arms.values())
    work = WorkerRun(
        plan,
        folder,
        command,
        at_once,
        where.opener(plan.arms.values()),
        retry_invalid=retry_invalid,
        retry_failed=retry_failed,
        waits=wait,
    )
    # Workers do not mirror to MLflow; `bench run` and `bench sync` do.
    with told_of_signals(), LiveRun() as live:
        work.run(live)
    _say_what_is_done(work, as_json=json)
    if bad := [f"{name} ({state})" for name, state in work.ran.items() if state != "done"]:
        raise BenchError(
            "cli.worker_cells_not_done",
            n_not_done=len(bad),
            n_cells=len(work.ran),
            cells=few(bad),
            sweep=plan.sweep.name,
        )


def _say_what_is_done(work: WorkerRun, as_json: bool) -> None:
    """Print what this worker ran, the state of the sweep, and the command for the report, which no worker writes."""
    cells = states_of(work.records())
    found = Counter(cell["state"] for cell in cells)
    report = shlex.join(["bench", "run", work.plan.sweep.name, "--home", str(work.home)])
    if as_json:
        print_json({"sweep": work.plan.sweep.name, "ran": work.ran, "cells": cells, "report": report})
        return
    others = ", ".join(f"{n} {state}" for state, n in found.items() if state != "done")
    now = f"{found['done']} of {len(cells)} cells are done{f', {others}' if others else ''}"
    print_text(f"this worker ran {len(work.ran)}; {now}")
    print_text(f"for the report: {report}")
