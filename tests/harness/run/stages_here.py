"""A sweep's run without processes: its stages are done in this one, its cells are only kept."""

from __future__ import annotations

from harness.executors.local import Ended, OnEnded, OnProgress
from harness.models.start import StartingPoint
from harness.run.jobs import Job, run_job


class Quiet:
    """Is told, and says nothing."""

    def remark(self, sentence: str) -> None: ...
    def planned(self, total: int | None, done: int) -> None: ...
    def used(self, budget: object) -> None: ...
    def stage(self, name: str, event: object) -> None: ...
    def progress(self, name: str, event: object) -> None: ...
    def ended(self, name: str, state: str, reason: str | None) -> None: ...


class StagesInThisProcess:
    """A pool that does the stages here and keeps the cells' jobs without doing them."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def __call__(self, workers: int) -> StagesInThisProcess:
        return self

    def __enter__(self) -> StagesInThisProcess:
        return self

    def __exit__(self, *exc: object) -> None: ...

    def run(self, jobs: list[Job], on_progress: OnProgress, on_ended: OnEnded) -> None:
        for job in jobs:
            self.jobs.append(job)
            if job.kind != "cell":
                state, reason = run_job(job, StartingPoint(), lambda event: on_progress(job, event))  # noqa: B023
                on_ended(Ended(job, state, reason))

    def of_kind(self, kind: str) -> list[Job]:
        return [job for job in self.jobs if job.kind == kind]
