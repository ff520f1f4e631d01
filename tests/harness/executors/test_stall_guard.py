"""Jobs that stand still, on an executor and a clock that do as they are told."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from harness.executors.base import Ended, Event, Job, Progress, StallGuard
from harness.run.loop import run_jobs
from tests.harness.run.small import small_spec

TRAINING: Event = {"phase": "training"}
AT = "slow of /mine/rewards.py, line 12"


class Scripted:
    """Does one job after another. What it tells of them is a script: seconds that pass, before each event."""

    slots = 1

    def __init__(self, clock: list[float], *script: tuple[float, Event | str]) -> None:
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
        if isinstance(event, str):
            return [Ended(job, "done", None)] if event == "done" else []
        return [Progress(job, event)]

    def kill(self, job: Job) -> None:
        self.killed.append(job)

    def cancel(self, job: Job) -> None: ...
    def close(self) -> None: ...


class Listening:
    """One job."""

    def __init__(self) -> None:
        self.waiting: list[Job] = [Job("cell", "small/cells/arm-s0-0123456789", small_spec())]
        self.told: list[Event] = []
        self.ends: list[Ended] = []

    def next(self) -> Job | None:
        return self.waiting.pop() if self.waiting else None

    def is_over(self) -> bool:
        return not self.waiting

    def progress(self, job: Job, event: Event) -> bool:
        self.told.append(event)
        return False

    def ended(self, ended: Ended) -> None:
        self.ends.append(ended)


def guarded(monkeypatch: pytest.MonkeyPatch, *script: tuple[float, Event | str]) -> tuple[Scripted, Listening]:
    """Run a job that may make no progress for 20 s."""
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    executor, seen = Scripted(clock, *script), Listening()
    run_jobs(StallGuard(executor, 20.0), seen)
    assert executor.script == []
    return executor, seen


def still(seconds: float) -> Event:
    return {"still_s": seconds, "at": AT}


def test_heartbeats_and_progress_keep_a_job_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    executor, seen = guarded(
        monkeypatch,
        *((9.9, ""), (9.9, still(0)), (9.9, ""), (9.9, still(5)), (9.9, ""), (4, TRAINING)),
        *((9.9, ""), (9.9, ""), (0, still(1)), (10, "done")),
    )
    assert executor.killed == []
    assert [ended.state for ended in seen.ends] == ["done"]
    assert seen.told == [{"phase": "training"}], "heartbeats are not passed on"


def test_a_job_without_progress_is_named_killed_and_restarted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    executor, seen = guarded(
        monkeypatch, (8, still(8)), (3, still(11)), (4, still(15)), (5, still(20)), (2, still(0)), (1, "done")
    )
    assert len(executor.started) == 2 and len(executor.killed) == 1
    assert [(ended.state, ended.reason) for ended in seen.ends] == [("done", None)]
    named, again = (str(event["remark"]) for event in seen.told)
    assert "11 s" in named and AT in named
    assert "20 s" in again and AT in again


def test_after_the_second_time_it_is_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    executor, seen = guarded(monkeypatch, (10, ""), (10, ""), (10, still(10)), (10, still(20)))
    assert len(executor.started) == 2
    (ended,) = seen.ends
    assert ended.state == "failed"
    assert "20 s" in str(ended.reason) and AT in str(ended.reason)
    assert AT not in str(seen.told[0]["remark"])


def test_who_was_stopped_with_its_workers_takes_none_for_hanging(monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-Z, or where a scheduler suspends jobs, hours have passed and nothing was heard."""
    executor, seen = guarded(monkeypatch, (1, still(0)), (7200, ""), (1, still(2)), (7200, still(3)), (1, "done"))
    assert executor.killed == []
    assert [ended.state for ended in seen.ends] == ["done"]


DUMP = """something else
Timeout (0:00:09)!
Thread 0x00007f0000000001 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait
  File "/mine/threads.py", line 1 in serve

Thread 0x00007f0000000002 (most recent call first):
  File "/usr/lib/python3.11/re/__init__.py", line 166 in match
  File "/venv/lib/python3.11/site-packages/regex/regex.py", line 255 in match
  File "/mine/rewards.py", line 12 in slow
  File "/bench/harness/rewards/total.py", line 138 in checked
"""


def test_where_native_code_kept_it_is_read_from_what_its_process_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Printing(Scripted):
        def wait(self, timeout_s: float) -> list[Progress | Ended]:
            return [replace(one, output=DUMP) if isinstance(one, Ended) else one for one in super().wait(timeout_s)]

    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    executor, seen = Printing(clock, (10, ""), (10, ""), (10, ""), (10, "")), Listening()
    run_jobs(StallGuard(executor, 20.0), seen)
    assert str(seen.ends[0].reason).endswith(AT)


def test_a_job_that_ends_in_time_after_all_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    class Late(Scripted):
        def kill(self, job: Job) -> None:
            """Its end was on the way."""

    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    executor, seen = Late(clock, (10, ""), (10, still(20)), (0, "done")), Listening()
    run_jobs(StallGuard(executor, 20.0), seen)
    assert [ended.state for ended in seen.ends] == ["done"] and len(executor.started) == 1
