"""Completions for the shell."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.cli.conftest import Bench


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("bench plan std", {"std_norm", "std_mine", "std_mine.yaml"}),
        ("bench report std", {"std_mine"}),
        ("bench report --home elsewhere m", {"moved"}),
        ("bench run folder/", {"folder/inner/", "folder/sweep.yml"}),
    ],
)
def test_names_of_sweeps_and_runs_are_completed(
    line: str, offered: set[str], bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = ("runs/std_mine", "runs/other", "elsewhere/moved", "elsewhere/stays")
    for record in (*(f"{run}/sweep.json" for run in runs), "std_mine.yaml", "folder/sweep.yml"):
        (tmp_path / record).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / record).write_text("{}")
    (tmp_path / "folder/inner").mkdir()
    (tmp_path / "folder/notes.txt").touch()
    words = line.split(" ")
    monkeypatch.setenv("_BENCH_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    assert set(bench().out.split()) == offered
