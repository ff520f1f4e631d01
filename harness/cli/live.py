"""Progress with an ETA on stderr: live lines on a terminal, otherwise plain lines."""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn, Protocol, TypeVar

from harness.errors import BenchError, note

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from harness.executors.base import Event
    from harness.run.loop import Observer

# If stderr is not a terminal, one line for the whole sweep is written at most this often.
PLAIN_EVERY_S = 10.0


def duration(seconds: float) -> str:
    """Return a duration as text, e.g. `1m15s` for 75 seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"


@dataclass
class Countdown:
    """The progress of one stage, printed as plain lines."""

    what: str
    unit: str = "step"
    _started_s: float = field(default_factory=time.monotonic)
    _written_s: float = field(default=-PLAIN_EVERY_S)

    def tell(self, step: int, steps: int, remark: str) -> None:
        """Print a line with the ETA, at most every `PLAIN_EVERY_S` seconds, and always for the last step."""
        now_s = time.monotonic()
        # The clock starts at step 0, because the time to load a model says nothing about the pace.
        if step == 0:
            self._started_s = now_s
        if now_s - self._written_s < PLAIN_EVERY_S and step < steps:
            return
        self._written_s = now_s
        eta = duration((now_s - self._started_s) / step * (steps - step)) if step else "?"
        note(f"{self.what}: {self.unit} {step}/{steps}, {remark}, ETA {eta}")


@dataclass
class LiveRun:
    """The observer of a sweep's run (`harness.run.loop.Observer`). Use it as a context manager."""

    unit: str = "cells"
    states: dict[str, str] = field(default_factory=dict)
    _total: int | None = 0
    _done_before: int = 0
    _fractions: dict[str, float] = field(default_factory=dict)
    _elsewhere: Collection[str] = ()
    _used: dict[str, float] = field(default_factory=dict)
    _used_before: dict[str, float] = field(default_factory=dict)
    _events: dict[str, Event] = field(default_factory=dict)
    _stages: set[str] = field(default_factory=set)
    """The names of the stages in `_events`. They are not shown, because the phases say what is running."""
    _started_s: float = field(default_factory=time.monotonic)
    _written_s: float = -math.inf  # the first news of a cell is written at once
    _stack: ExitStack = field(default_factory=ExitStack)
    _display: Progress | None = None
    _tasks: dict[str, TaskID] = field(default_factory=dict)

    def __enter__(self) -> LiveRun:
        if sys.stderr.isatty():
            self._display = self._stack.enter_context(_display())
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def planned(self, total: int | None, done: int) -> None:
        """Record the number of cells at the start. total: None for a search with an open number of trials."""
        self._total, self._done_before = total, done
        self._started_s = time.monotonic()
        if total is None:
            what = "search"
            note(f"{self._count(done)} done already")
        else:
            what = f"sweep, {self._count(total - done)}"
            if done < total:
                note(f"{self._count(total)}, {done} done already, {total - done} to run")
        if self._display:
            self._tasks["sweep"] = self._display.add_task(what, total=1.0, remark="")

    def used(self, budget: Mapping[str, float]) -> None:
        """Record the used fraction of each budget. The first call sets the fractions at the start."""
        self._used_before = self._used_before or dict(budget)
        self._used = dict(budget)

    def remark(self, sentence: str) -> None:
        note(sentence)

    def stage(self, name: str, event: Event | None) -> None:
        """Show the progress of a shared stage, such as the cold start. event: None if the stage has ended."""
        if event is None:
            self._forget(name)
            return
        if not self._display and name not in self._events:
            note(event["phase"])
        self._stages.add(name)
        self._show(name, event)

    def progress(self, name: str, event: Event) -> None:
        self._fractions[name] = event["done_frac"]
        self._show(name, event)

    def elsewhere(self, fractions: Mapping[str, float]) -> None:
        """Record the cells that other processes are running, each with the fraction done in [0, 1]."""
        self._fractions |= fractions
        self._elsewhere = [*fractions]
        self._show_sweep()

    def _show(self, name: str, event: Event) -> None:
        self._events[name] = event
        if self._display:
            if name not in self._tasks:
                shown = "" if name in self._stages else name
                self._tasks[name] = self._display.add_task(shown, total=1.0, remark="")
            self._display.update(self._tasks[name], completed=event["done_frac"], remark=_remark(event))
        self._show_sweep()

    def _show_sweep(self) -> None:
        """Update the line of the sweep. If stderr is not a terminal, write one line for all cells instead."""
        if self._display:
            self._display.update(self._tasks["sweep"], completed=self._sweep_frac(), remark=self._sweep_remark())
        elif time.monotonic() - self._written_s >= PLAIN_EVERY_S:
            self._written_s = time.monotonic()
            running = "; ".join(
                _remark(event) if name in self._stages else f"{name} {_remark(event)}"
                for name, event in self._events.items()
            )
            note(f"{self._so_far()}, ETA {self._eta()}{f' | {running}' if running else ''}")

    def ended(self, name: str, state: str, reason: str | None) -> None:
        self.states[name] = state
        self._fractions[name] = 1.0
        self._forget(name)
        if state != "done":
            note(f"{name}: {state}: {reason}")

    def _forget(self, name: str) -> None:
        self._events.pop(name, None)
        if self._display and name in self._tasks:
            self._display.remove_task(self._tasks.pop(name))

    def _count(self, n: int) -> str:
        return f"{n} {self.unit.removesuffix('s') if n == 1 else self.unit}"

    def _so_far(self) -> str:
        ended = len(self.states)
        if self._total is None:
            cells = self._count(self._done_before + ended)
        else:
            cells = f"{ended}/{self._count(self._total - self._done_before)}"
        return ", ".join([cells, *self._others(), *self._budget()])

    def _others(self) -> list[str]:
        return [f"{len(self._elsewhere)} run elsewhere"] if self._elsewhere else []

    def _budget(self) -> list[str]:
        return [f"{share:.0%} of {bound}" for bound, share in self._used.items()]

    def _sweep_remark(self) -> str:
        return ", ".join([*self._others(), *self._budget(), f"ETA {self._eta()}"])

    def _sweep_frac(self) -> float:
        """Return the fraction done of what was left at the start, by the limit that is closest to being reached."""
        before = self._used_before
        # It is relative to the start of this run, because the ETA is extrapolated from this run's time.
        done = [
            (share - before[bound]) / (1 - before[bound]) for bound, share in self._used.items() if before[bound] < 1
        ]
        if self._total is not None:
            done.append(sum(self._fractions.values()) / max(1, self._total - self._done_before))
        return max(done, default=0.0)

    def _eta(self) -> str:
        """Return the remaining time at the pace so far, or `?` if it is unknown."""
        done = self._sweep_frac()
        # It is 1 or more if trials that dead workers left are being trained in addition to the plan.
        known = 0.01 < done < 1
        return duration((time.monotonic() - self._started_s) * (1 - done) / done) if known else "?"


def _remark(event: Event) -> str:
    parts = [event["phase"]]
    if event["steps"]:
        parts.append(how_far(event["step"], event["steps"], event["done_frac"], event.get("budget", "")))
    if event.get("reward") is not None:
        parts.append(f"reward {event['reward']:.2f}")
    if event.get("tokens_per_s"):
        parts.append(f"{event['tokens_per_s']:,.0f} tokens/s")
    return ", ".join(parts)


def how_far(step: int, steps: int, done_frac: float, budget: str) -> str:
    """Return the position of a run by what will end it: its steps, or its budget if more of that is used.

    done_frac: the larger of the two fractions.
    """
    if done_frac <= step / steps:
        return f"step {step}/{steps} ({step / steps:.0%})"
    if done_frac < 1:
        return f"step {step}, {done_frac:.0%} of the {budget}"
    return f"step {step}: {budget} reached"


def _display() -> Progress:
    """Return the live display. Names, fractions and times are never broken over lines.

    On a narrow terminal, the bar is shortened first. Then the remark is broken over several lines.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn
    from rich.table import Column

    console = Console(stderr=True)
    bar_width = max(0, min(24, (console.width - 60) // 2))
    columns: list[ProgressColumn] = [
        TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ignore")),
        *([BarColumn(bar_width=bar_width)] if bar_width else []),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[remark]}", table_column=Column(overflow="fold", min_width=12)),
    ]
    return Progress(*columns, console=console, transient=True)


class InterruptedByUserError(BenchError):
    exit_code = 128 + signal.SIGINT


class TerminatedError(BenchError):
    """The process received SIGTERM, which schedulers send before SIGKILL. The exit code is the one that shells use."""

    exit_code = 128 + signal.SIGTERM


Result = TypeVar("Result", covariant=True)


class Work(Protocol[Result]):
    @property
    def folder(self) -> Path: ...
    def run(self, observer: Observer, while_running: Callable[[], object]) -> Result: ...


def watched(work: Work[Result], home: Path, mirrored: ExitStack | None = None, unit: str = "cells") -> Result:
    """Run a sweep or a search and show its progress. Return its result.

    mirrored: MLflow is kept up to date until this closes, which prints MLflow's address. None: until the end of the
    run.
    Raises InterruptedByUserError and TerminatedError.
    """
    if mirrored is None:
        with ExitStack() as mirrored:
            return watched(work, home, mirrored, unit)
    from harness.cli.report import announce_page
    from harness.tracking import Mirror, MirrorThread, server_command, tracking_uri

    mirror = Mirror(work.folder, tracking_uri(home))
    mirrored.callback(lambda: _say_where(mirror.address, server_command(mirror.tracking_uri)))

    def with_records() -> None:
        announce_page(work.folder)
        mirrored.enter_context(MirrorThread(mirror))

    # The mirror outlives this block, because the caller may keep `mirrored` open until the report is written.
    with told_of_signals(), LiveRun(unit) as live:
        return work.run(live, while_running=with_records)


@contextmanager
def told_of_signals() -> Iterator[None]:
    """Turn Ctrl-C and SIGTERM during the block into errors with exit codes."""

    def end(signum: int, frame: FrameType | None) -> NoReturn:
        # A second SIGTERM must not be treated as a second Ctrl-C.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise _Terminated

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except _Terminated:
        raise TerminatedError("stopped by SIGTERM; progress is saved, and the same command continues") from None
    except KeyboardInterrupt:
        raise InterruptedByUserError("interrupted; the same command continues") from None
    finally:
        signal.signal(signal.SIGTERM, before)


class _Terminated(KeyboardInterrupt):
    """SIGTERM was received. This derives from KeyboardInterrupt, so that it is handled like Ctrl-C."""


def _say_where(address: str | None, command: str | None) -> None:
    if address is not None:
        note(f"MLflow: {address}" + (f"\n  served by: {command}" if command else ""))
