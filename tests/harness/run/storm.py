"""A storm over runs of the command line: their processes are killed from outside, at moments that their records show.

What a process is at is known from the lease that it holds and the records in the folder of that lease. A blow stops its
victims, looks again, and strikes only if they are still where it wants them: so the table of what was hit is exact.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple

from harness.records.files import read_last_row
from tests.harness.run import bench

Who = Literal["parent", "worker", "both"]
OF_PARENT = ("start", "report")
"""What the parent is at while its workers have nothing to do: it plans and writes the question, or the report."""
OF_WORKERS = ("stages", "resume", "training", "checkpoint", "evaluation", "compaction")
"""What a worker is at. Resume: it has a cell, and has not cut the rows yet. Checkpoint: one is being written.
Evaluation: the last one. Compaction: evals.parquet is there, and evals.jsonl too."""
LATEST_S = {"start": 1.5, "stages": 0.1, "evaluation": 0.1, "report": 1.0}
"""A blow comes at most so late in its phase, and at once in others."""
LATEST_STEP = 5
"""In training, it comes once so many steps are recorded at most."""
SLOW_DISK = """
import os, time
fsync = os.fsync
def slowly(file):
    time.sleep(0.02)
    fsync(file)
os.fsync = slowly
"""
"""The sitecustomize.py of all processes of a storm: phases that end with a flush are long enough to be seen."""
LOOK_EVERY_S = 0.005
"""Phases that a slow disk stretches take at least four times as long. To look more often costs a core."""
MOST_RUNS = 8
"""So many may come to their end before a blow has struck, or after the storm before all is done."""
ENDS_WITHIN_S = 30.0
"""What a signal ends, and the workers of a parent that is gone."""


class Moment(NamedTuple):
    """What a process is at. place: the name of the cell's folder or of the stage, if it has one. steps: those that the
    cell has recorded."""

    phase: str
    place: str = ""
    steps: int = 0

    def __str__(self) -> str:
        at_step = f" at step {self.steps}" if self.phase in ("training", "checkpoint") else ""
        return f"{self.phase}{at_step}{' of ' if self.place else ''}{self.place}"


@dataclass(frozen=True)
class Blow:
    """phase: when; None: at any time. after_s: since the phase was seen, or since the run began. steps: that the cell
    must have recorded. arm: of the cell; None: any."""

    phase: str | None
    who: Who
    after_s: float = 0.0
    steps: int = 0
    how: signal.Signals = signal.SIGKILL
    arm: str | None = None

    def is_for(self, moment: Moment) -> bool:
        is_arm = self.arm is None or moment.place.startswith(f"{self.arm}-s")
        return self.phase in (None, moment.phase) and is_arm and moment.steps >= self.steps


@dataclass(frozen=True)
class Landed:
    """A blow that struck, what it hit, and when: since the storm began."""

    blow: Blow
    hit: list[Moment]
    at_s: float


def forecast(
    seed: int,
    middle: Sequence[str | None],
    first: Sequence[str] = ("start", "stages"),
    last: Sequence[str] = ("report",),
    arms: Sequence[str] = (),
) -> list[Blow]:
    """Kills at random of a parent, of a worker or of all processes, in these phases, those of `middle` in any order;
    and among them the signals by which people and schedulers end a parent. arms: whom those of `middle` that have a
    phase strike, one after another."""
    dice = random.Random(seed)
    whose: list[Who] = []

    def at(phase: str | None) -> Blow:
        if phase in OF_PARENT:
            who: Who = dice.choice(("parent", "both"))
        else:
            whose[:] = whose or dice.sample(("parent", "worker", "both"), 3)
            who = whose.pop()
        after_s = dice.uniform(1, 6) if phase is None else dice.uniform(0, LATEST_S.get(phase, 0))
        return Blow(phase, who, after_s, dice.randint(0, LATEST_STEP) if phase == "training" else 0)

    phased, *others = (at(phase) for phase in sorted(dice.sample(middle, len(middle)), key=lambda phase: phase is None))
    soft = (signal.SIGINT, signal.SIGTERM)
    blows = [*others, *(Blow("training", "parent", 0.0, dice.randint(0, LATEST_STEP // 2), how) for how in soft)]
    dice.shuffle(blows)
    blows.append(phased)  # the last one finds something to do, whatever those before it have left
    for arm in arms:
        place = next(n for n, blow in enumerate(blows) if blow.phase and not blow.arm and blow.how == signal.SIGKILL)
        blows[place] = replace(blows[place], arm=arm)
    return [*map(at, first), *blows, *map(at, last)]


@dataclass
class Storm:
    """One over the runs that `begin` begins, each at the head of a session of its own, in one home."""

    begin: Callable[[], subprocess.Popen[str]]
    home: Path
    landed: list[Landed] = field(default_factory=list)
    began_s: float = field(default_factory=time.monotonic)
    _run: Run | None = None
    _begun: list[subprocess.Popen[str]] = field(default_factory=list)

    def __call__(self, blows: Sequence[Blow]) -> None:
        """Let all blows strike, one after another, in as many runs as that takes; then run until all is done. Nothing
        of all these runs is alive afterwards."""
        try:
            for blow in blows:
                self._await(blow)
            for _ in range(MOST_RUNS):
                if self._end() == 0:
                    break
            else:
                raise AssertionError(f"after the storm, {MOST_RUNS} runs have not done everything")
            self._await_orphans()
        finally:
            for process in self._begun:
                bench.kill_all(process)

    def _await(self, blow: Blow) -> None:
        for _ in range(MOST_RUNS):
            run = self._run = self._run or self._next()
            since_s: float | None = None
            while run.process.poll() is None:
                moments = run.moments(self.home)
                targets = [pid for pid, moment in moments.items() if blow.is_for(moment)]
                if blow.who == "worker":
                    targets = [pid for pid in targets if pid != run.process.pid]
                now_s = time.monotonic()
                since_s = since_s or now_s if targets else None
                due_s = (run.began_s if blow.phase is None else since_s or now_s) + blow.after_s
                if targets and now_s >= due_s and self._strikes(run, blow, targets):
                    return
                time.sleep(LOOK_EVERY_S)
            if self._end() == 0 and blow.phase in OF_WORKERS:
                break
        raise AssertionError(f"the runs have ended before {blow} could strike; until then\n{self.table()}")

    def _strikes(self, run: Run, blow: Blow, targets: Sequence[int]) -> bool:
        with stopped(targets if blow.who == "worker" else run.alive()) as there:
            moments = run.moments(self.home)
            aimed_at = [pid for pid in there if pid in moments and blow.is_for(moments[pid])]
            if not aimed_at:
                return False
            victims, hit = [run.process.pid], [moments[pid] for pid in there if pid in moments]
            if blow.who == "worker":
                victims, hit = aimed_at[:1], [moments[aimed_at[0]]]
            elif blow.who == "both":
                victims = bench.processes_of(run.process.pid)
            self.landed.append(Landed(blow, hit, time.monotonic() - self.began_s))
            for pid in victims:
                os.kill(pid, blow.how)
        if blow.who != "worker":
            self._end(blow.how)
        return True

    def _next(self) -> Run:
        run = Run(self.begin())
        self._begun.append(run.process)
        return run

    def _end(self, blow: signal.Signals | None = None) -> int:
        """Let the run that is under way come to its end, begun first if there is none; returns its exit code. blow: by
        what it was struck."""
        run, self._run = self._run or self._next(), None
        code, stderr = bench.end(run.process)
        assert "Traceback" not in stderr, stderr
        expected = {None: (0, 1), signal.SIGKILL: (-9,), signal.SIGINT: (130,), signal.SIGTERM: (143,)}[blow]
        assert code in expected, f"{code}: {stderr}"
        if blow not in (None, signal.SIGKILL):
            assert "same command" in stderr
            assert not bench.processes_of(run.process.pid), "what a parent that ends leaves to nobody"
        if code == 1:  # what others still had, they leave by then
            self._await_orphans()
        return code

    def _await_orphans(self) -> None:
        bench.wait_until(lambda: not any(bench.processes_of(one.pid) for one in self._begun), ENDS_WITHIN_S)

    @property
    def kills(self) -> int:
        return sum(one.blow.how == signal.SIGKILL for one in self.landed)

    @property
    def phases_hit(self) -> Counter[str]:
        return Counter(phase for one in self.landed for phase in {moment.phase for moment in one.hit})

    @property
    def places_hit(self) -> set[str]:
        return {moment.place for one in self.landed for moment in one.hit}

    def table(self) -> str:
        lines = [
            f"{one.at_s:6.1f} s  {one.blow.how.name:7} {one.blow.who:6} " + ", ".join(map(str, one.hit))
            for one in self.landed
        ]
        counts = ", ".join(f"{phase} {self.phases_hit[phase]}" for phase in (*OF_PARENT, *OF_WORKERS))
        return "\n".join([*lines, f"{self.kills} kills in {len(self._begun)} runs; {counts}"])


@dataclass
class Run:
    """One `bench run`, as it is seen from outside."""

    process: subprocess.Popen[str]
    began_s: float = field(default_factory=time.monotonic)
    _has_worked: bool = False
    _alive: Collection[int] = ()
    _looked_s: float = 0.0

    def alive(self) -> Collection[int]:
        """Its processes, looked for now and then."""
        if time.monotonic() - self._looked_s > 0.1:
            self._alive, self._looked_s = bench.processes_of(self.process.pid), time.monotonic()
        return self._alive

    def moments(self, home: Path) -> dict[int, Moment]:
        """What its processes are at; the parent is at something only while no worker is."""
        alive = self.alive()
        found = {pid: moment for pid, moment in moments_of_leases(home) if pid in alive}
        self._has_worked |= bool(found)
        if not found and is_any_report_written(home):
            found[self.process.pid] = Moment("report")
        elif not self._has_worked:
            found[self.process.pid] = Moment("start")
        return found


def moments_of_leases(home: Path) -> Iterator[tuple[int, Moment]]:
    """What each process that holds a lease is at."""
    for path in home.glob("cache/leases/*/lease.json"):
        if (owner := owner_of(path)) is not None:
            yield owner[0], Moment("stages", path.parent.name)
    for path in home.glob("*/cells/*/lease.json"):
        if (owner := owner_of(path)) is not None:
            steps = path.with_name("steps.jsonl")
            n_steps = steps.read_bytes().count(b"\n") if steps.exists() else 0
            yield owner[0], Moment(phase_of_cell(path.parent, owner[1]), path.parent.name, n_steps)


def owner_of(lease: Path) -> tuple[int, int] | None:
    """Process and epoch; None for a lease that nobody holds, or that is being written."""
    with suppress(OSError, ValueError):
        found = json.loads(lease.read_bytes())
        return None if found["released"] else (found["pid"], found["epoch"])
    return None


def phase_of_cell(cell: Path, epoch: int) -> str:
    """epoch: of who holds it."""
    with suppress(FileNotFoundError):
        if ((read_last_row(cell / "starts.jsonl") or {}).get("epoch")) != epoch:
            return "resume"
        checkpoints = sorted(path.name for path in (cell / "checkpoints").glob("*"))
        checkpoints += [path.name for path in cell.glob(".writes-*/.step-*.tmp")]
        if not checkpoints:
            return "training"
        if checkpoints[-1].endswith(".tmp"):
            return "checkpoint"
        steps = json.loads((cell / "status.json").read_bytes())["steps"]
        if int(checkpoints[-1].rpartition("-")[2]) < steps:
            return "training"
        if (cell / "evals.parquet").exists() and (cell / "evals.jsonl").exists():
            return "compaction"
        return "done" if (cell / "evals.parquet").exists() else "evaluation"
    return "changing"


def is_any_report_written(home: Path) -> bool:
    """Whether somebody holds the lock of a page."""
    for path in home.glob("*/.report.lock"):
        with path.open("rb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
    return False


@contextmanager
def stopped(pids: Iterable[int]) -> Iterator[list[int]]:
    """Those of these processes that are there, standing still; what is alive goes on afterwards."""
    there = []
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            there.append(pid)
    bench.wait_until(lambda: all(bench.state_of(pid) in ("T", "Z", None) for pid in there))
    try:
        yield there
    finally:
        for pid in there:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
