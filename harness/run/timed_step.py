"""The duration of a step, measured by training a cell for two steps in a temporary folder."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

from evals.tasks import get_task
from harness.config.run_spec import RunSpec
from harness.errors import RefusedError
from harness.executors.base import Ended, Event, Executor, Job
from harness.plan.expected_time import Pace, pace_of
from harness.records import CellRecord, cell_directory_name
from harness.records.files import write_json
from harness.run.loop import Observer, StageJobs, closing, run_jobs
from harness.run.sweep import cell_job, do_stages

STEPS = 2
"""The first step is slower than later ones: memory is allocated, and kernels are chosen or recorded."""


def timed_pace(spec: RunSpec, home: Path, open_executor: Callable[[Path], Executor], observer: Observer) -> Pace:
    """Measure the pace of a cell with this spec.

    The measured cell trains STEPS steps, of which the last counts, and evaluates about as many samples as a step takes.
    It is not recorded. Stages use the home's cache if there is one, otherwise their results are discarded.
    open_executor: returns an executor with a single slot for a home.
    Raises RefusedError if the cell fails, and EvalError if problems cannot be loaded.
    """
    problems = len(list(islice(get_task(spec.eval.tasks[0]).split("test").load(), spec.eval.problems)))
    short = _shortened(spec, problems)
    with tempfile.TemporaryDirectory(prefix="bench-timed-") as folder:
        aside = Path(folder)
        if (home / "cache").is_dir():
            # Stages write through the link, so the real run finds their results in the home's cache.
            (aside / "cache").symlink_to((home / "cache").resolve())
        record = CellRecord.at(aside / "timed" / "cells" / cell_directory_name("timed", spec.seed, "0" * 10))
        record.path.mkdir(parents=True)
        write_json(record.path / "spec.json", short.model_dump(mode="json"))
        with closing(open_executor(aside), observer) as executor:
            observer.planned(1, 0)
            do_stages(executor, [short], aside, observer)
            run_jobs(executor, _OneCell([cell_job(record, short, aside)], aside, observer))
        pace = pace_of(record)
        timing = record.read_timing()
        if pace is None or len(timing) < STEPS:
            raise RefusedError("run.timed_cell_diverged", steps=STEPS)
        last_s = timing[STEPS - 1]["total_s"]
    # The learning-rate schedule and the budget of the shortened spec differ from those of the cell.
    return replace(pace, spec=spec.model_copy(update={"eval": short.eval}), step_s=last_s, problems=problems)


def _shortened(spec: RunSpec, problems: int) -> RunSpec:
    drawn = spec.rollout.prompts_per_step * spec.rollout.samples_per_prompt
    document = spec.model_dump(mode="json")
    document["train"] |= {"steps": STEPS, "warmup_steps": 0}
    # Evaluate about as many samples as a step takes.
    document["eval"] |= {"every": 0, "problems": min(problems, max(1, drawn // spec.eval.samples))}
    # A token budget could end the run before its second step.
    document["budget"] = {"tokens": None}
    return RunSpec.model_validate(document)


class _OneCell(StageJobs):
    """A single cell as a source of jobs. The run fails if the cell does."""

    def progress(self, job: Job, event: Event) -> bool:
        if remark := event.get("remark"):
            self._observer.remark(remark)
        else:
            self._observer.progress("a timed step", event)
        return False

    def ended(self, ended: Ended) -> None:
        self._observer.ended("a timed step", ended.state, None)
        if ended.state != "done":
            raise RefusedError(f"--time: the timed cell is {ended.state}: {ended.reason}\n{ended.output}".rstrip())
