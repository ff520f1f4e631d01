from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from harness.cli import live
from tests.frozen import frozen


def test_beyond_what_was_foreseen_there_is_no_eta(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in a search without a limit of trials: one is foreseen at a time."""
    monkeypatch.setattr(live, "PLAIN_EVERY_S", 0.0)
    with live.LiveRun("trials") as run:
        run.planned(2, 0)
        for number in range(3):
            run.progress(f"trial_{number}", {"phase": "training", "step": 1, "steps": 2, "done_frac": 0.5})
            run.ended(f"trial_{number}", "done", None)
        run.progress("trial_3", {"phase": "training", "step": 1, "steps": 2, "done_frac": 0.5})
    lines = [line for line in capsys.readouterr().err.splitlines() if "ETA" in line]
    assert "ETA ?" not in lines[1] and "ETA ?" in lines[-1]
    assert not any("ETA -" in line for line in lines)


@pytest.mark.parametrize("columns", [60, 80, 100, 140])
def test_names_shares_and_times_stay_whole_on_every_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    name, remark = "clip_high=0.28+beta=0.001-s11", "training, step 12/120 (10%), reward 0.45, 1,234 tokens/s"
    display = live._display()
    display.start_task(display.add_task(name, total=4, completed=1, remark=remark))
    console = Console(width=columns, file=io.StringIO())
    console.print(display.get_renderable())
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert max(map(len, lines)) <= columns
    assert re.match(rf"{re.escape(name)} .*25% 0:00:00 training", lines[0])
    assert all(word in " ".join(lines) for word in remark.split())


def test_progress_is_told_by_what_will_end_the_cell() -> None:
    cells = [(30, 120, 0.25, ""), (30, 120, 0.5, "token budget"), (31, 120, 1.0, "FLOP budget"), (120, 120, 1.0, "it")]
    frozen("cli/progress", "\n".join(f"{cell}: {live.how_far(*cell)}" for cell in cells))


def test_a_stage_is_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    phase = "loading the model"
    with live.LiveRun() as run:
        run.planned(2, 0)
        run.stage("load", {"phase": phase, "step": 0, "steps": 0, "done_frac": 0.0})
    assert capsys.readouterr().err.splitlines()[-1].endswith(f"| {phase}")
