"""Where a search ends that is bounded by tokens, and how its progress is told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.cli import live
from tests.harness.search.fake_cells import FakeCells, Score, Silent, search, write_search

pytestmark = pytest.mark.slow

MEDIAN = {"pruner": {"type": "median", "options": {"n_startup_trials": 1, "n_warmup_steps": 0}}}


def worse_and_worse() -> Score:
    scores = iter([0.9 - 0.001 * place for place in range(1000)])
    return lambda spec: next(scores)


def test_pruned_trials_use_the_budget_of_tokens(tmp_path: Path) -> None:
    """Each stops at half of its tokens; more than twenty of them in a row are no reason to end."""
    path = write_search(tmp_path, MEDIAN | {"budget": {"tokens": 16_000}, "sampler": {"type": "random"}})
    observer = Silent()
    study, _ = search(path, None, FakeCells(score=worse_and_worse()), observer)
    states = [trial["state"] for trial in study["trials"]]
    assert states == ["complete"] + ["pruned"] * 30
    assert [trial["generated_tokens"] for trial in study["trials"]] == [1000] + [500] * 30
    assert observer.remarks == []


def test_progress_without_a_number_of_trials_is_that_of_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(live, "PLAIN_EVERY_S", 0.0)
    path = write_search(tmp_path, {"budget": {"tokens": 4000}})
    search(path, 1, observer=live.LiveRun("trials"))
    search(path, None, observer=live.LiveRun("trials"))
    lines = capsys.readouterr().err.splitlines()
    told = [line.partition(", ETA ")[0] for line in lines if "ETA" in line]
    assert [re.findall(r"\d+%|\d,\d+|\d+/\d+", told[n]) for n in (0, 2, -1)] == [
        ["0/1", "0%", "4,000"], ["25%", "4,000"], ["75%", "4,000"]
    ]  # fmt: skip
    etas = [line.partition(", ETA ")[2].partition(" | ")[0] for line in lines if "ETA" in line]
    assert etas[2] == "?" and "?" not in etas[-1]
