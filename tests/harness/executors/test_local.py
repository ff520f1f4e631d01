"""The pool with workers of our own making: what a job does is none of its business."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.executors import local
from harness.executors.base import Ended, Job
from harness.executors.local import LocalPool
from harness.executors.slots import Slot
from harness.run.loop import MOST_ATTEMPTS, run_jobs
from tests.harness.run.small import small_spec

WORKER = """
import json, os, subprocess, sys, time
for line in sys.stdin:
    job = json.loads(line)
    what, _, value = job["path"].partition(" ")
    def tell(**event):
        print(json.dumps(event), flush=True)
    tell(event="progress", pid=os.getpid())
    if what == "variable":
        value = os.environ[value]
    if what == "sleep":
        time.sleep(float(value))
    if what == "crash":
        sys.exit("it went wrong\\nbadly: " + value)
    if what == "child":
        value = str(subprocess.Popen(["sleep", "60"]).pid)
    if what == "kill":
        os.kill(os.getpid(), 9)
    tell(event="ended", state="refused" if what == "refuse" else "done", reason=value or None)
    if what == "last":
        sys.exit(0)
"""


@pytest.fixture(autouse=True)
def scripted_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    real = subprocess.Popen

    def start(arguments: list[str], **settings: object) -> object:
        assert arguments[-4:-1] == ["-P", "-m", "the.worker"]
        return real([sys.executable, str(script)], **settings)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "Popen", start)


@pytest.fixture
def pool() -> Iterator[LocalPool]:
    with opened(2) as made:
        yield made


@contextmanager
def opened(slots: int) -> Iterator[LocalPool]:
    pool = LocalPool([Slot("cpu", "")] * slots, Path("home"), "the.worker")
    try:
        yield pool
    finally:
        pool.close()


class Seen:
    """Work of jobs that are named by what the worker above is to do."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.waiting = [Job("cell", path, small_spec()) for path in paths]
        self.ends: list[Ended] = []
        self.pids: list[int] = []

    def next(self) -> Job | None:
        return self.waiting.pop(0) if self.waiting else None

    def is_over(self) -> bool:
        return not self.waiting

    def progress(self, job: Job, event: Any) -> bool:
        if "remark" not in event:
            self.pids.append(event["pid"])
        return False

    def ended(self, ended: Ended) -> None:
        self.ends.append(ended)

    def outcomes(self) -> dict[str, tuple[str, str | None]]:
        return {ended.job.path: (ended.state, ended.reason) for ended in self.ends}


def run(pool: LocalPool, *paths: str) -> Seen:
    seen = Seen(paths)
    run_jobs(pool, seen)
    return seen


def test_does_all_jobs_and_reports_their_end(pool: LocalPool) -> None:
    seen = run(pool, "ok", "refuse missing", "ok 2")
    assert seen.outcomes() == {"ok": ("done", None), "refuse missing": ("refused", "missing"), "ok 2": ("done", "2")}


@pytest.mark.parametrize("variable", ["OMP_NUM_THREADS", "MKL_NUM_THREADS"])
def test_workers_are_told_to_use_one_thread(pool: LocalPool, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    """Which of the two torch heeds depends on how it was built."""
    monkeypatch.setenv(variable, "2")
    assert run(pool, f"variable {variable}").outcomes() == {f"variable {variable}": ("done", "1")}


def test_all_workers_start_before_the_first_job_and_live_on_between_runs(pool: LocalPool) -> None:
    """Their imports take seconds, in which the caller gets the jobs ready."""
    started = {worker.process.pid for worker in pool._workers}
    assert len(started) == 2
    assert {*run(pool, "ok").pids} < started
    assert {*run(pool, "sleep .3", "sleep .3", "sleep .3").pids} == started, "no more than allowed"


def test_jobs_start_in_order() -> None:
    with opened(1) as single:
        order = [ended.job.path for ended in run(single, *(f"ok {number}" for number in range(9))).ends]
    assert order == [f"ok {number}" for number in range(9)]


def test_a_crash_takes_only_its_job_with_it_and_a_kill_is_worth_another_attempt(pool: LocalPool) -> None:
    seen = run(pool, "crash unknown", "ok 1", "ok 2", "kill", "ok 3", "ok 4")
    reasons = {name: reason or "" for name, (state, reason) in seen.outcomes().items() if state == "failed"}
    assert reasons.keys() == {"crash unknown", "kill"} and len(seen.outcomes()) == 6
    assert "code 1" in reasons["crash unknown"] and reasons["crash unknown"].endswith("badly: unknown")
    assert "signal 9" in reasons["kill"]
    ends = {ended.job.path: ended for ended in seen.ends}
    assert ends["crash unknown"].output.endswith("badly: unknown\n")
    assert ends["kill"].again and not ends["crash unknown"].again
    assert len(seen.pids) == 5 + MOST_ATTEMPTS


def test_every_worker_crashing_still_ends(pool: LocalPool) -> None:
    assert {state for state, _ in run(pool, *(f"crash {number}" for number in range(5))).outcomes().values()} == {
        "failed"
    }


@pytest.mark.parametrize("wait_s", [0.0, 0.5])
def test_a_worker_that_died_idle_is_replaced_or_fails_one_job(pool: LocalPool, wait_s: float) -> None:
    """Whether its end is seen before or after the next job is given to it, nothing hangs and nothing escapes."""
    run(pool, "last")
    time.sleep(wait_s)
    outcomes = run(pool, "ok 1", "ok 2", "ok 3").outcomes()
    assert len(outcomes) == 3
    assert sum(state == "failed" for state, _ in outcomes.values()) <= 1
    assert run(pool, "ok 4").outcomes() == {"ok 4": ("done", "4")}


def test_a_worker_that_dies_idle_in_a_run_is_forgotten(pool: LocalPool) -> None:
    assert run(pool, "last", "sleep .5").outcomes()["sleep .5"] == ("done", ".5")
    assert len(pool._workers) == 1
    assert set(run(pool, "ok 1", "ok 2").outcomes().values()) == {("done", "1"), ("done", "2")}


def test_on_ended_may_stop_the_run() -> None:
    class StopError(Exception):
        pass

    class Stopping(Seen):
        def ended(self, ended: Ended) -> None:
            raise StopError

    seen = Stopping(["ok", "sleep 60"])
    started_s = time.monotonic()
    with pytest.raises(StopError), opened(2) as pool:
        run_jobs(pool, seen)
    assert time.monotonic() - started_s < 30
    assert not any(is_alive(pid) for pid in seen.pids)


def test_leaving_stops_the_workers() -> None:
    with opened(2) as pool:
        pids = run(pool, "sleep .3", "sleep .3").pids
        assert all(is_alive(pid) for pid in pids)
    assert not any(is_alive(pid) for pid in pids)


def stop(pid: int) -> None:
    """Stop a child. It is known to be: of two signals that are under way at once, SIGTERM would come first."""
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)


def test_leaving_waits_for_all_workers_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "STOP_WITHIN_S", 1.0)
    with opened(3) as pool:
        pids = run(pool, "sleep .3", "sleep .3", "sleep .3").pids
        for pid in pids:
            stop(pid)
        started_s = time.monotonic()
    assert len(set(pids)) == 3 and time.monotonic() - started_s < 2.5
    assert not any(is_alive(pid) for pid in pids)


def test_ctrl_c_while_leaving_ends_all_workers_at_once() -> None:
    with pytest.raises(KeyboardInterrupt), opened(2) as pool:
        pids = run(pool, "sleep .3", "sleep .3").pids
        for pid in pids:
            stop(pid)
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        started_s = time.monotonic()
    assert time.monotonic() - started_s < local.STOP_WITHIN_S - 3
    assert not any(is_alive(pid) for pid in pids)


def test_what_a_worker_started_ends_with_it(pool: LocalPool) -> None:
    child = int(run(pool, "child").outcomes()["child"][1] or 0)
    assert is_alive(child)
    pool.close()
    started_s = time.monotonic()
    while is_alive(child):  # init takes a moment to bury it
        assert time.monotonic() - started_s < 10
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
