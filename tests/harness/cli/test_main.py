"""Exit codes of design section 6, whatever raises."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from typing import Any

import pytest

import harness.plan
from evals.errors import DataMissingError
from harness.errors import BenchError, GateError, RefusedError
from tests.harness.cli.conftest import Bench


def make_plan_raise(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def raising(*_: Any) -> None:
        raise error

    monkeypatch.setattr(harness.plan, "make_plan", raising)


@pytest.mark.parametrize(
    ("error", "code"),
    [(BenchError("why"), 1), (RefusedError("why"), 2), (DataMissingError("why"), 2), (GateError("why"), 3)],
)
def test_a_mistake_is_a_message_and_a_code(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    make_plan_raise(monkeypatch, error)
    result = bench("plan", "std_norm")
    assert (result.code, result.out, result.err) == (code, "", "error: why\n")


def test_ctrl_c_is_130(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    make_plan_raise(monkeypatch, KeyboardInterrupt())
    for verb in ("plan", "run"):
        result = bench(verb, "std_norm")
        assert (result.code, result.err) == (130, "error: interrupted.\n")


def test_ctrl_c_while_it_starts_is_130_too() -> None:
    program = "import os, signal, sys, harness.cli as cli\nclass Late:\n    def find_spec(self, name, *_):\n"
    program += "        if name == 'harness.cli.app': os.kill(os.getpid(), signal.SIGINT)\n"
    program += "sys.meta_path.insert(0, Late())\ncli.main()"
    ended = subprocess.run([sys.executable, "-c", program, "--help"], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "error: interrupted.\n")


def test_a_fault_of_ours_is_not_hidden(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    make_plan_raise(monkeypatch, ZeroDivisionError("ours"))
    with pytest.raises(ZeroDivisionError, match="ours"):
        bench("plan", "std_norm")


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "a"), "a: Permission denied. Make it yours to read"),
        (
            FileNotFoundError(errno.ENOENT, "No such file", "a"),
            "a: No such file. Restore it, or run again what makes it",
        ),
        (NotADirectoryError(errno.ENOTDIR, "Not a directory", "a"), "a: Not a directory. Something else has its name"),
        (IsADirectoryError(errno.EISDIR, "Is a directory", ".a.tmp", None, "a"), "a: Is a directory. Something else"),
        (OSError(errno.EIO, "Input/output error"), "Input/output error. Once that is mended, the same command"),
    ],
)
def test_what_the_system_refuses_is_told(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, error: OSError, says: str
) -> None:
    make_plan_raise(monkeypatch, error)
    result = bench("plan", "std_norm")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"error: {says}")


def test_a_library_that_says_oserror_is_not_the_system(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    make_plan_raise(monkeypatch, OSError("cannot load"))
    with pytest.raises(OSError, match="cannot load"):
        bench("plan", "std_norm")


def test_the_version(bench: Bench) -> None:
    result = bench("--version")
    assert result.code == 0
    assert result.out.startswith("bench ")


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["run", "--help"], ["plan", "-h"]])
def test_help_goes_to_stdout_with_an_example(bench: Bench, words: list[str]) -> None:
    result = bench(*words)
    assert (result.code, result.err) == (0, "")
    assert "Example: bench " in result.out


@pytest.mark.slow
def test_a_notebook_s_drawing_package_is_not_ours() -> None:
    """Its kernel may run in another environment than the bench that it starts."""
    program = "from harness.cli import main\ntry:\n    main()\nfinally:\n    import matplotlib\n"
    ended = subprocess.run(
        [sys.executable, "-c", program, "--version"],
        env=os.environ | {"MPLBACKEND": "not_installed_here"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
