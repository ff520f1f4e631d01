"""Jobs that stand still, on an executor and a clock that do as they are told."""

from __future__ import annotations

import time

import pytest

from harness.executors.base import Ended, Job, Progress, StallGuard
from harness.run.loop import run_jobs
from tests.harness.run.small import small_spec

AT = "slow of /mine/rewards.py, line 12"


class Scripted:
    """Does one job after another. What it tells of them is a script: seconds that pass, before each event."""

    slots = 1

    def __init__(self, clock: list[float], *script: tuple[float, dict[str, object] | str]) -> None:
        self.clock, self.script = clock, list(script)
        self.started: list[Job] = []
        self.killed: list[Job] = []

    def start(self, job: Job) -> None:
        self.started.append(job)

    def wait(self, timeout_s: float) -> list[Progress | Ended]:
        job = self.started[-1]
        if len(self.killed) == len(self.started):
            return [Ended(job, "failed", "its worker process was killed by signal 9")]
        after_s, event = self.script.pop(0)
        self.clock[0] += after_s
        if isinstance(event, dict):
            return [Progress(job, event)]
        return [Ended(job, "done", None)] if event == "done" else []

    def kill(self, job: Job) -> None:
        self.killed.append(job)

    def cancel(self, job: Job) -> None: ...
    def close(self) -> None: ...


class Listening:
    """One job."""

    def __init__(self) -> None:
        self.waiting: list[Job] = [Job("cell", "small/cells/arm-s0-0123456789", small_spec())]
        self.told: list[dict[str, object]] = []
        self.ends: list[Ended] = []

    def next(self) -> Job | None:
        return self.waiting.pop() if self.waiting else None

    def is_over(self) -> bool:
        return not self.waiting

    def progress(self, job: Job, event: dict[str, object]) -> bool:
        self.told.append(event)
        return False

    def ended(self, ended: Ended) -> None:
        self.ends.append(ended)


def guarded(
    monkeypatch: pytest.MonkeyPatch, *script: tuple[float, dict[str, object] | str]
) -> tuple[Scripted, Listening]:
    """Run a job that may make no progress for 100 s."""
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    executor, seen = Scripted(clock, *script), Listening()
    run_jobs(StallGuard(executor, 100.0), seen)
    assert executor.script == []
    return executor, seen


def still(seconds: float) -> dict[str, object]:
    return {"still_s": seconds, "at": AT}


def test_heartbeats_and_progress_keep_a_job_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    executor, seen = guarded(
        monkeypatch, (99, still(0)), (99, still(5)), (94, {"phase": "training"}), (99, ""), (0, still(1)), (50, "done")
    )
    assert executor.killed == []
    assert [ended.state for ended in seen.ends] == ["done"]
    assert seen.told == [{"phase": "training"}], "heartbeats are not passed on"


def test_a_job_without_progress_is_named_killed_and_restarted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    executor, seen = guarded(
        monkeypatch, (40, still(40)), (15, still(55)), (20, still(75)), (25, still(100)), (10, still(0)), (1, "done")
    )
    assert len(executor.started) == 2 and len(executor.killed) == 1
    assert [(ended.state, ended.reason) for ended in seen.ends] == [("done", None)]
    named, again = (str(event["remark"]) for event in seen.told)
    assert named.startswith("arm-s0-0123456789 has made no progress for 55 s (since ")
    assert named.endswith(f"); it is in {AT}")
    assert again == (
        "arm-s0-0123456789: it made no progress for 100 s (--stalled-after); it was in slow of /mine/rewards.py, "
        "line 12; restarting it"
    )


def test_after_the_second_time_it_is_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    executor, seen = guarded(monkeypatch, (100, ""), (100, still(100)))
    assert len(executor.started) == 2
    (ended,) = seen.ends
    assert ended.state == "failed"
    assert ended.reason == (
        "it made no progress for 100 s (--stalled-after), again after a restart; it was in slow of /mine/rewards.py, "
        "line 12"
    )
    assert "its position is unknown, because it sent no heartbeat" in str(seen.told[0]["remark"])


def test_a_job_that_ends_in_time_after_all_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    class Late(Scripted):
        def kill(self, job: Job) -> None:
            """Its end was on the way."""

    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    executor, seen = Late(clock, (100, still(100)), (0, "done")), Listening()
    run_jobs(StallGuard(executor, 100.0), seen)
    assert [ended.state for ended in seen.ends] == ["done"] and len(executor.started) == 1
