"""`bench run`: do what is missing of a sweep, and answer its question."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.console import note, print_json
from harness.cli.options import (
    ArmsOption,
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
)
from harness.errors import BenchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.config.run_spec import RunSpec
    from harness.records import CellRecord
    from harness.run.sweep import SweepRun


class InterruptedByUserError(BenchError):
    """Ctrl-C."""

    exit_code = 130


def run(
    sweep: SweepArgument,
    profile: ProfileOption = None,
    set_: SetOption = None,
    seeds: SeedsOption = None,
    arms: ArmsOption = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers", metavar="N", min=1, help="Cells run at once; default: one a processor core, on a GPU one."
        ),
    ] = None,
    retry_invalid: Annotated[
        bool, typer.Option("--retry-invalid", help="Also run cells again that could not be measured (state invalid).")
    ] = False,
    executor: ExecutorOption = "local",
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Train and evaluate every missing cell of a sweep, write the report, print the verdict.

    The same command continues where it stopped: after Ctrl-C, a kill, a full disk, or a failed cell.

    Example: bench run sweeps/std_norm.yaml --seeds 6
    """
    from harness.cli.live import LiveRun
    from harness.plan import make_plan
    from harness.run.question import require_same_kind
    from harness.run.sweep import SweepRun
    from harness.tracking import Mirror, MirrorThread, tracking_uri

    folder = home_of(sweep, home)
    planned = make_plan(sweep, profile, set_ or [], seeds, arm_names(arms))
    open_executor = executor_named(executor, folder)  # after the plan: its plug-ins may give one
    require_same_kind(planned.folder(folder), is_search=False)
    for warning in planned.warnings:
        note(f"warning: {warning}")
    sweep_run = SweepRun(
        planned,
        folder,
        command_line("run", sweep, profile, set_, seeds, arms),
        workers or default_workers([*planned.arms.values()]),
        open_executor,
        retry_invalid,
    )
    with ExitStack() as stack:
        mirror = MirrorThread(Mirror(sweep_run.folder, tracking_uri(folder)))
        try:
            with LiveRun() as live:
                sweep_run.run(live, while_running=lambda: stack.enter_context(mirror))
        except KeyboardInterrupt:
            raise InterruptedByUserError("interrupted; the same command continues") from None
        unmeasured = _finish(sweep_run, as_json=json)
        if unmeasured:
            raise BenchError(f"{len(unmeasured)} of {len(planned.cells)} cells are not done: {', '.join(unmeasured)}.")


def default_workers(specs: Sequence[RunSpec]) -> int:
    """How many cells of these specs run at once. On a GPU each takes all of it."""
    devices = {spec.train.device.partition(":")[0] for spec in specs}
    return 1 if "cuda" in devices else os.cpu_count() or 1


def _finish(sweep_run: SweepRun, as_json: bool) -> list[str]:
    """Report and verdict; returns the cells that are not done, as `<arm>-s<seed> (<state>)`."""
    from harness.cli.report import print_verdict, write
    from reports.page.document import SECTIONS

    records = [sweep_run.plan.record(cell, sweep_run.home) for cell in sweep_run.plan.cells]
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
