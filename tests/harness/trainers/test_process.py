"""A program is ended with all its processes, whatever ends the process that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.errors import RefusedError
from harness.trainers.process import LAST_LINES, ProcessGroup, environment_of, find_command
from tests.harness.run.bench import state_of, wait_until
from tests.refusals import refuses

FAMILY = """
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path(sys.argv[1]).write_text(str(child.pid))
time.sleep(600)
"""


def is_gone(pid: int) -> bool:
    return state_of(pid) in (None, "Z")


def family(folder: Path) -> tuple[list[str], Path]:
    (folder / "family.py").write_text(FAMILY)
    return [sys.executable, str(folder / "family.py"), str(folder / "child")], folder / "child"


def test_leaving_ends_the_program_and_its_children(tmp_path: Path) -> None:
    argv, child = family(tmp_path)
    with ProcessGroup(argv, None, {}, tmp_path / "log"):
        wait_until(lambda: child.exists() and child.read_text() != "")
        assert not is_gone(int(child.read_text()))
    wait_until(lambda: is_gone(int(child.read_text())), 5)


def test_a_killed_parent_takes_its_program_along(tmp_path: Path) -> None:
    argv, child = family(tmp_path)
    code = f"""
import pathlib, time
from harness.trainers.process import ProcessGroup
ProcessGroup({argv!r}, None, {{}}, pathlib.Path({str(tmp_path / "log")!r}))
time.sleep(600)
"""
    parent = subprocess.Popen([sys.executable, "-c", code])
    wait_until(lambda: child.exists() and child.read_text() != "")
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    wait_until(lambda: is_gone(int(child.read_text())), 20)


def test_exit_codes_and_last_lines_are_the_programs(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("of bench\n")
    code = f"import sys; print('\\r'.join(map(str, range({LAST_LINES + 5})))); sys.exit(7)"
    with ProcessGroup([sys.executable, "-c", code], None, {}, log) as process:
        wait_until(lambda: process.exit_code() is not None)
        assert process.exit_code() == 7
        assert process.last_lines() == [str(number) for number in range(5, LAST_LINES + 5)]
    with ProcessGroup([sys.executable, "-c", "import time; time.sleep(600)"], None, {}, log) as process:
        process.ask_to_stop()
        wait_until(lambda: process.exit_code() is not None)
        assert process.exit_code() == 128 + signal.SIGTERM


def test_a_word_that_holds_blanks_or_a_dollar_stays_one(tmp_path: Path) -> None:
    words = ["a b", "$HOME", "; ls", "*"]
    code = "import sys, os; print('\\n'.join(sys.argv[1:]), os.environ['OWN'], flush=True)"
    with ProcessGroup([sys.executable, "-c", code, *words], None, {"OWN": "x"}, tmp_path / "log") as process:
        wait_until(lambda: process.exit_code() is not None)
        assert process.last_lines() == ["a b", "$HOME", "; ls", "* x"]


def test_a_command_that_is_not_there_is_named(tmp_path: Path) -> None:
    with refuses(RefusedError, "trainers.no_command", command="train_it"):
        find_command(["train_it"], None, {})
    script = tmp_path / "mine"
    script.write_text(f"#!{sys.executable}\n")
    script.chmod(0o755)
    assert find_command(["./mine"], str(tmp_path), {}) == script
    environment = environment_of(script)
    assert environment is not None and "pytest" in environment["packages"]
    other = tmp_path / "other"
    other.write_text("#!/bin/sh\n")
    assert environment_of(other) is None


def test_a_program_that_cannot_be_started_says_why(tmp_path: Path) -> None:
    (tmp_path / "not_for_us").write_text("x")
    with ProcessGroup([str(tmp_path / "not_for_us")], None, {}, tmp_path / "log") as process:
        wait_until(lambda: process.exit_code() is not None)
        assert process.exit_code() == 127
        assert "(Permission denied)" in process.last_lines()[0]


def test_the_deaf_are_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.trainers.process.GRACE_S", 0.2)
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('x', flush=True); time.sleep(600)"
    began_s = time.monotonic()
    with ProcessGroup([sys.executable, "-c", code], None, {}, tmp_path / "log") as process:
        wait_until(lambda: process.written_bytes() > 0)
    assert process.exit_code() == 128 + signal.SIGKILL and time.monotonic() - began_s < 60
