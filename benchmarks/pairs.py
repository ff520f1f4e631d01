"""Contestants take turns, so that what else the machine does strikes all of them alike.

A contestant is a process that is warm and waits for its turn (`Contestant`, with `Turns` on its side), or any
function that does the work once and says how long it took.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from harness.executors.slots import ONE_THREAD

Row = dict[str, Any]
"""What a turn measured: `seconds` for one unit of work, and what was done in it."""


def environment(threads: int, ours: bool) -> dict[str, str]:
    """A contestant's environment: ours has that of our workers but for the threads; others keep the user's."""
    own = ONE_THREAD if ours else {"TOKENIZERS_PARALLELISM": "false"}
    return os.environ | own | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}


@dataclass(frozen=True)
class Entrant:
    """One way of doing the work: `side` is what is compared, `name` one setting of it."""

    side: str
    name: str
    turn: Callable[[], Row]


@dataclass(frozen=True)
class Comparison:
    """The best setting of each side, by its median, and the ratio of the two round by round."""

    best: dict[str, str]
    median_s: dict[str, float]
    ratios: list[float]

    @property
    def ratio(self) -> float:
        """Median over the rounds."""
        return statistics.median(self.ratios)


class ContestantError(RuntimeError):
    """A contestant ended before its last turn; holds the end of what it wrote to stderr."""


class Contestant:
    """A process that warms up, then works one turn whenever it is told to. Use as a context manager."""

    def __init__(self, command: Sequence[str], threads: int, ours: bool = False) -> None:
        # Not kept open by a pipe that nobody reads: a chatty library would block on it.
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=environment(threads, ours),
        )
        try:
            self.ready = self._read()
        except BaseException:
            self._stop()
            raise

    def turn(self) -> Row:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(b"go\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ContestantError(self._last_words()) from None
        return self._read()

    def __enter__(self) -> Contestant:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop()

    def _read(self) -> Row:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ContestantError(self._last_words())
        row: Row = json.loads(line)
        return row

    def _last_words(self) -> str:
        code = self._process.wait()
        self._stderr.seek(0)
        return f"exit code {code}\n" + self._stderr.read().decode(errors="replace")[-4000:]

    def _stop(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._stderr.close()


class Turns:
    """The other end, in the contestant's process. What it prints otherwise goes to stderr."""

    def __init__(self) -> None:
        self._channel = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def report(self, row: Row) -> None:
        """Say that the warm-up or a turn is over, and wait for the next; ends the process if none comes."""
        self._channel.write(json.dumps(row) + "\n")
        self._channel.flush()
        if sys.stdin.readline() != "go\n":
            raise SystemExit(0)


class StepTurns:
    """Turns of a training loop: `after_step` is called after each step and holds the loop while others work."""

    def __init__(self, warmup_steps: int, steps_a_turn: int, measured: Callable[[int, int], Row]) -> None:
        """measured: (first step, last step) of a turn -> what they did; it is not timed."""
        self._turns, self._warmup, self._steps, self._measured = Turns(), warmup_steps, steps_a_turn, measured
        self._started_s, self._started_cpu_s = 0.0, 0.0

    def after_step(self, step: int) -> None:
        """`step` counts from 1."""
        ended_s, ended_cpu_s = time.perf_counter(), time.process_time()
        done = step - self._warmup
        if done < 0 or done % self._steps:
            return
        row: Row = {}
        if done > 0:
            row = {
                "seconds": (ended_s - self._started_s) / self._steps,
                # Summed over threads; steadier than wall time on a machine that does other work too.
                "cpu_seconds": (ended_cpu_s - self._started_cpu_s) / self._steps,
                **self._measured(step - self._steps + 1, step),
            }
        self._turns.report(row)
        self._started_s, self._started_cpu_s = time.perf_counter(), time.process_time()


def alternate(entrants: Sequence[Entrant], rounds: int) -> dict[str, list[Row]]:
    """Every entrant has one turn a round, in an order that is turned around each time; rows by name."""
    rows: dict[str, list[Row]] = {entrant.name: [] for entrant in entrants}
    if len(rows) != len(entrants):
        raise ValueError("two entrants have one name")
    started_s = time.perf_counter()
    for number in range(rounds):
        for entrant in entrants if number % 2 == 0 else entrants[::-1]:
            rows[entrant.name].append(entrant.turn())
        spent_s = time.perf_counter() - started_s
        note(
            f"round {number + 1}/{rounds}, {spent_s:.0f} s, {spent_s / (number + 1) * (rounds - number - 1):.0f} s left"
        )
    return rows


def compare(sides: Mapping[str, str], seconds: Mapping[str, Sequence[float]], ours: str, theirs: str) -> Comparison:
    """sides: name -> side. The ratio is that of `ours` over `theirs`: below 1 ours is faster."""
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    best = {
        side: min((name for name in seconds if sides[name] == side), key=medians.__getitem__) for side in (ours, theirs)
    }
    ratios = [mine / other for mine, other in zip(seconds[best[ours]], seconds[best[theirs]], strict=True)]
    return Comparison(best, medians, ratios)


def note(text: str) -> None:
    """Progress, for people: on stderr."""
    print(text, file=sys.stderr, flush=True)
