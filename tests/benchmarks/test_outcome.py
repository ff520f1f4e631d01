"""What a benchmark ends with."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import outcome
import pytest


def end(result: dict[str, Any], as_json: bool = True, save: bool = False) -> int:
    with pytest.raises(SystemExit) as ended:
        outcome.finish("thing", result, ["a line"], argparse.Namespace(json=as_json, save=save))
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_only_json_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert end({"ratio": 0.5, "required": outcome.bounds(at_most={"ratio": 0.5})}) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["benchmark"] == "thing"
    assert printed["met"] is True
    assert {"processor", "cores", "torch"} <= set(printed["machine"])


@pytest.mark.parametrize(
    "result",
    [
        {"ratio": 0.51, "required": outcome.bounds(at_most={"ratio": 0.5})},
        {"ratio": float("nan"), "required": outcome.bounds(at_most={"ratio": 0.5})},
        {"speed": 1.49, "required": outcome.bounds(at_least={"speed": 1.5})},
        {"required": outcome.bounds(), "faults": ["not the same work"]},
    ],
)
def test_a_missed_bound_is_an_exit_code(result: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert end(result, as_json=False) == 1
    assert "missed: " in capsys.readouterr().out


def test_what_was_not_measured_is_not_missed() -> None:
    assert outcome.missed({"required": outcome.bounds(at_most={"ratio_full": 0.8})}) == []


def test_it_is_kept_only_on_demand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcome, "RESULTS", tmp_path / "results")
    end({"ratio": 1 / 3})
    assert not (tmp_path / "results").exists()
    end({"ratio": 1 / 3}, save=True)
    (kept,) = (tmp_path / "results").glob("thing-*.json")
    assert json.loads(kept.read_text())["ratio"] == 0.333333
