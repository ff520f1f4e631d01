"""A sweep's run without processes: its stages are done in this one, its cells are only kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from harness.config.hashing import code_digests
from harness.config.run_spec import RunSpec
from harness.engines.base import Engine
from harness.executors.base import Ended, Job, JobState, Progress
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


class StagesHere:
    """An executor that does the stages in this process. Cells end as somebody else's, unless `cells` says otherwise."""

    slots = 1

    def __init__(self, home: Path, cells: tuple[JobState, str | None] = ("taken", "kept")) -> None:
        self.home, self.cells = home, cells
        self.jobs: list[Job] = []
        self._events: list[Progress | Ended] = []

    def start(self, job: Job) -> None:
        self.jobs.append(job)
        if job.kind == "cell":
            self._events.append(Ended(job, *self.cells))
            return
        told = self._events
        ended = run_job(job, self.home, StartingPoint(), lambda event: told.append(Progress(job, event)))
        self._events.append(Ended(job, *ended))

    def wait(self, timeout_s: float) -> list[Progress | Ended]:
        events, self._events = self._events, []
        return events

    def cancel(self, job: Job) -> None: ...

    def close(self) -> None: ...

    def of_kind(self, kind: str) -> list[Job]:
        return [job for job in self.jobs if job.kind == kind]


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

    def tell(event: dict[str, Any]) -> None:
        told.append((event["step"], event["steps"]))

    find_stage(name).make(path, _OfModel(spec, path.parent, StartingPoint(), name, tell, model, engine))
    return told
