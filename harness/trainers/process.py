"""A running program: its process group, its output in the cell's log, and its Python environment."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TypedDict

from harness.config.trainer import OutsideTrainer
from harness.errors import RefusedError
from harness.secrets import registered_variables

GUARD = Path(__file__).with_name("_guard.py")
GRACE_S = 6.0
"""How long a program may take to stop before it is killed. An interrupted cell has 9 s in all."""
_KILLED_WITHIN_S = 1.5
TELL_EVERY_S = 5.0
END_WITHIN_S = 60.0
"""How long a program may continue after it has used up its budget and written its last checkpoint."""
LAST_LINES = 20
_LAST_BYTES = 64_000
"""The number of bytes, at the end of the log, in which these lines are searched for."""
_LIST_PACKAGES = (
    "import importlib.metadata as m, json, sys; "
    "print(json.dumps({'python': sys.version.split()[0], "
    "'packages': {d.metadata['Name']: d.version for d in m.distributions() if d.metadata['Name']}}))"
)


class ProcessGroup:
    """A program at the head of its own process group.

    Leaving the block ends the whole group. So does the end of this process, for whatever reason.
    """

    def __init__(self, argv: Sequence[str], folder: str | None, env: Mapping[str, str], log: Path) -> None:
        """Start the program. log: the file to which its output is appended."""
        self._log, self._begin = log, log.stat().st_size if log.exists() else 0
        with log.open("ab") as output:
            # The guard outlives this process. It has the other end of this pipe, and ends the group once the pipe is
            # closed.
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", str(GUARD), str(GRACE_S), ",".join(registered_variables), *argv],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                cwd=folder,
                env={**os.environ, **env},
                process_group=0,
            )

    def exit_code(self) -> int | None:
        """Return the exit code, or None while the program runs. It is 128 + the number of a signal that ended it."""
        return self._guard.poll()

    def ask_to_stop(self) -> None:
        """Send SIGTERM to the group, without waiting for it to end."""
        assert self._guard.stdin is not None
        with suppress(BrokenPipeError):
            self._guard.stdin.write(b"stop\n")
            self._guard.stdin.flush()

    def written_bytes(self) -> int:
        """Return the size of the program's log, which grows with its output."""
        return self._log.stat().st_size

    def last_lines(self) -> list[str]:
        with self._log.open("rb") as handle:
            handle.seek(max(self._begin, self.written_bytes() - _LAST_BYTES))
            text = handle.read().decode(errors="replace")
        # Progress bars end their lines with \r instead of \n.
        return [line for line in re.split(r"[\r\n]+", text) if line.strip()][-LAST_LINES:]

    def failed(self, reason: str) -> RefusedError:
        """Return an error with the reason in its first line, followed by the program's last lines of output."""
        lines = self.last_lines() or ["(it wrote no output)"]
        return RefusedError("\n  ".join([f"{reason.rstrip('.')}.", "Its last lines:", *lines]))

    def __enter__(self) -> ProcessGroup:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._guard.stdin is not None
        with suppress(BrokenPipeError):
            self._guard.stdin.close()
        self._guard.wait(GRACE_S + _KILLED_WITHIN_S)


class Watch:
    """Decides, by the clock, when a running program must end."""

    def __init__(self, process: ProcessGroup, trainer: OutsideTrainer) -> None:
        self._process, self._trainer = process, trainer
        self._began_s = self._row_s = self._heard_s = time.monotonic()
        self._told_s = -TELL_EVERY_S
        self._bytes = process.written_bytes()
        self._end_by_s: float | None = None
        self._was_asked = False

    def row_took_s(self) -> float:
        """Return the seconds since the previous row, or since the start."""
        before, self._row_s = self._row_s, time.monotonic()
        self._heard_s = self._row_s
        return self._row_s - before

    def tell(self, report: Callable[[], None]) -> None:
        """Call `report` after a row, and otherwise every few seconds."""
        now_s = time.monotonic()
        if now_s - self._told_s >= TELL_EVERY_S or self._row_s > self._told_s:
            self._told_s = now_s
            report()

    def may_end_by_itself(self, at_once: bool) -> bool:
        """Return whether to wait longer for the program to end. Called repeatedly once the budget is used up.

        Halfway through the wait, or immediately if `at_once`, the program is asked to stop.
        """
        now_s = time.monotonic()
        self._end_by_s = self._end_by_s or now_s + END_WITHIN_S
        if not self._was_asked and (at_once or now_s > self._end_by_s - END_WITHIN_S / 2):
            self._was_asked = True
            self._process.ask_to_stop()
        return now_s < self._end_by_s

    def reason_to_end(self) -> str | None:
        """Return the reason why the program must end now, with the remedy, or None if it may continue."""
        now_s, trainer = time.monotonic(), self._trainer
        if (size := self._process.written_bytes()) != self._bytes:
            self._bytes, self._heard_s = size, now_s
        if trainer.timeout_h is not None and now_s - self._began_s > 3600 * trainer.timeout_h:
            return f"the program was stopped after trainer.timeout_h={trainer.timeout_h:g} hours. Raise it to go on"
        if now_s - self._heard_s > 60 * trainer.silence_min:
            return (
                f"the program was silent for trainer.silence_min={trainer.silence_min:g} minutes and was stopped. "
                "Raise it if the program was at work, or let it print a line now and then"
            )
        return None


def find_command(argv: Sequence[str], folder: str | None, env: Mapping[str, str]) -> Path:
    """Return the file of the command's first word. Raises RefusedError if there is none."""
    command = argv[0]
    # `which` would search for a relative path in bench's current folder instead of in the program's folder.
    place = str(Path(folder or ".") / command) if os.sep in command else command
    found = shutil.which(place, path=env.get("PATH", os.environ.get("PATH")))
    if found is None:
        raise RefusedError("trainers.no_command", command=command)
    return Path(found)


class PythonEnvironment(TypedDict):
    """The versions of an interpreter and of its installed packages."""

    python: str
    packages: dict[str, str]


def environment_of(command: Path) -> PythonEnvironment | None:
    """Return the environment of the interpreter that runs a command, or None if it is not Python.

    The command may be an interpreter or a Python script.
    """
    interpreter = _interpreter(command)
    return None if interpreter is None else _packages(interpreter)


def _interpreter(command: Path) -> str | None:
    """Return the Python that runs a command: the command itself, or that in its first line; None if neither is."""
    if re.fullmatch(r"python[\d.]*", command.name):
        return str(command)
    with command.open("rb") as handle:
        first = handle.readline(1024).decode(errors="replace")
    words = first.removeprefix("#!").split() if first.startswith("#!") else []
    # Handle a first line such as `#!/usr/bin/env python3`.
    if words and Path(words[0]).name == "env":
        words = words[1:]
    return words[0] if words and re.fullmatch(r"python[\d.]*", Path(words[0]).name) else None


@functools.cache
def _packages(interpreter: str) -> PythonEnvironment:
    result = subprocess.run([interpreter, "-c", _LIST_PACKAGES], capture_output=True, text=True, check=False)
    if result.returncode:
        raise RefusedError(
            "trainers.interpreter_does_not_start", interpreter=interpreter, output=result.stderr.strip()[-300:]
        )
    # Startup code of the site may print something before the JSON line.
    found: PythonEnvironment = json.loads(result.stdout.splitlines()[-1])
    return found
