"""A sweep's run without processes: its stages are done in this one, and its cells too if asked, else they are kept."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

import pytest

from harness.config.hashing import code_digests
from harness.config.run_spec import RunSpec
from harness.engines.base import Engine
from harness.executors.base import Ended, Event, Job, JobState, Progress
from harness.executors.local import LOCAL
from harness.executors.slots import Slot
from harness.models.language_model import LanguageModel
from harness.models.start import StartingPoint
from harness.plan import Plan
from harness.run.loop import Observer
from harness.run.stages import StageContext, find_stage
from harness.run.sweep import SweepRun
from harness.run.worker import run_job


class Quiet:
    """Is told, and says nothing."""

    def remark(self, sentence: str) -> None: ...
    def planned(self, total: int | None, done: int) -> None: ...
    def used(self, budget: object) -> None: ...
    def stage(self, name: str, event: object) -> None: ...
    def progress(self, name: str, event: object) -> None: ...
    def elsewhere(self, fractions: Mapping[str, float]) -> None: ...
    def ended(self, name: str, state: str, reason: str | None) -> None: ...


class AllHere:
    """An executor that does all jobs in this process."""

    slots = 1

    def __init__(self, home: Path) -> None:
        self.home = home
        self.jobs: list[Job] = []
        self._start = StartingPoint()
        self._events: list[Progress | Ended] = []

    def start(self, job: Job) -> None:
        self.jobs.append(job)
        self._events.append(Ended(job, *self._do(job)))

    def _do(self, job: Job) -> tuple[JobState, str | None]:
        told = self._events
        return run_job(job, self.home, self._start, lambda event: told.append(Progress(job, event)))

    def wait(self, timeout_s: float) -> list[Progress | Ended]:
        events, self._events = self._events, []
        return events

    def cancel(self, job: Job) -> None: ...
    def kill(self, job: Job) -> None: ...

    def close(self) -> None: ...

    def of_kind(self, kind: str) -> list[Job]:
        return [job for job in self.jobs if job.kind == kind]


class StagesHere(AllHere):
    """Does the stages only. Cells end as somebody else's, unless `cells` says otherwise."""

    def __init__(self, home: Path, cells: tuple[JobState, str | None] = ("taken", "kept")) -> None:
        super().__init__(home)
        self.cells = cells

    def _do(self, job: Job) -> tuple[JobState, str | None]:
        return self.cells if job.kind == "cell" else super()._do(job)


def without_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have `bench` train in this process, without MLflow: a worker imports for five seconds before it can begin."""

    def make(slots: Sequence[Slot], home: Path, worker_module: str) -> AllHere:
        return AllHere(home)

    monkeypatch.setattr("harness.cli.executor.ChosenExecutor.kind", replace(LOCAL, make=make))
    monkeypatch.setattr("harness.tracking.MirrorThread", lambda mirror: contextlib.nullcontext())


def run_here(
    plan: Plan, home: Path, observer: Observer | None = None, cells: tuple[JobState, str | None] = ("taken", "kept")
) -> StagesHere:
    """Run a plan with stages in this process; returns the executor, which knows the jobs."""
    executor = StagesHere(home, cells)
    SweepRun(plan, home, "bench run", 1, lambda slots: executor).run(observer or Quiet())
    return executor


def no_executor(slots: int) -> NoReturn:
    """In the place of one, where nothing is to be started."""
    raise AssertionError("an executor was opened")


def job_of(kind: str, path: Path, spec: RunSpec, home: Path) -> Job:
    return Job(kind, str(path.relative_to(home)), spec, code=code_digests(spec))


@dataclass(frozen=True)
class _OfModel(StageContext):
    """A context with a model at hand, and an engine that need not be the spec's."""

    model: LanguageModel | None = None
    own_engine: Engine | None = None

    @property
    def start(self) -> LanguageModel:
        assert self.model is not None
        return self.model

    def engine(self, start: LanguageModel) -> Engine:
        return self.own_engine or super().engine(start)


def make_stage(
    name: str, path: Path, spec: RunSpec, model: LanguageModel, engine: Engine | None = None
) -> list[tuple[int, int]]:
    """Make a stage's result at the path from a model at hand; returns what was told: (step, steps)."""
    told: list[tuple[int, int]] = []

    def tell(event: Event) -> None:
        told.append((event["step"], event["steps"]))

    find_stage(name).make(path, _OfModel(spec, path.parent, StartingPoint(), name, tell, model, engine))
    return told


def load(spec: RunSpec, home: Path) -> None:
    """Do the stage before all others, which refuses what a model cannot do."""
    find_stage("load").make(home, StageContext(spec, home, StartingPoint(), "loading", lambda event: None))
