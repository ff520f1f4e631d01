"""Exit codes of design section 6, whatever raises."""

from __future__ import annotations

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
    assert bench("plan", "std_norm").code == 130
    assert bench("run", "std_norm").code == 130


def test_a_fault_of_ours_is_not_hidden(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    make_plan_raise(monkeypatch, ZeroDivisionError("ours"))
    with pytest.raises(ZeroDivisionError, match="ours"):
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
