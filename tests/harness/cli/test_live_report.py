"""`bench report --live`: written when records change, until all cells have ended."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.cli.report import EVERY_S, follow, write
from harness.errors import RefusedError
from tests.harness.cli.conftest import Bench
from tests.reports.synthetic import write_sweep

pytestmark = pytest.mark.slow

STATES = {("up", 1): {"state": "pending"}}


def end(cell: Path, state: str = "done") -> None:
    status = json.loads((cell / "status.json").read_text())
    (cell / "status.json").write_text(json.dumps(status | {"state": state}))


def test_it_is_written_when_records_change_and_ends_with_the_last_cell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = write_sweep(tmp_path / "sweep", {"base": 0.0, "up": 3.0}, seeds=2, changes=STATES)
    pending = next(cell.path for cell in sweep.cells if (cell.arm, cell.seed) == ("up", 1))
    written: list[int] = []
    looks: list[float] = []

    def wait(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            end(pending)

    def write_one() -> dict[str, Any]:
        written.append(len(looks))
        return {"n": len(written)}

    assert follow(sweep.path, write_one, wait) == {"n": 2}
    assert written == [0, 3]
    assert looks == [EVERY_S] * 3
    assert "3/4 cells have ended" in capsys.readouterr().err


def test_before_the_first_cell_is_done_it_waits(tmp_path: Path) -> None:
    changes = {("base", 0): {"state": "running"}, ("base", 1): {"state": "failed"}}
    sweep = write_sweep(tmp_path / "sweep", {"base": 0.0}, seeds=2, changes=changes)
    written: list[str] = []

    def wait(seconds: float) -> None:
        assert written == []
        end(sweep.cells[0].path)

    def write_one() -> dict[str, Any]:
        written.append("page")
        return {}

    follow(sweep.path, write_one, wait)
    assert written == ["page"]


def test_an_interim_page_says_so_and_reloads_itself(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "sweep", {"base": 0.0, "up": 3.0}, seeds=4, changes=STATES)
    write(sweep.path, reload_s=20)
    page, markdown = ((sweep.path / "report" / name).read_text() for name in ("index.html", "report.md"))
    assert '<meta http-equiv="refresh" content="20">' in page
    for text in (page, markdown):
        assert "Unfinished sweep: 7 of 8 cells have ended." in text
    end(next(cell.path for cell in sweep.cells if (cell.arm, cell.seed) == ("up", 1)))
    write(sweep.path)
    page = (sweep.path / "report" / "index.html").read_text()
    assert "refresh" not in page and "Interim" not in page
    assert not list((sweep.path / "report").rglob("*.tmp"))


@pytest.mark.parametrize("finished", [True, False])
def test_after_ctrl_c_the_page_does_not_reload_itself(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished: bool
) -> None:
    written: list[float | None] = []

    def write_one(folder: Path, words: object, reload_s: float | None = None) -> dict[str, Any]:
        written.append(reload_s)
        if not finished:
            raise RefusedError("no cell is done yet")
        return {}

    def interrupted(folder: Path, write: Callable[[], dict[str, Any]]) -> None:
        if finished:
            write()
        raise KeyboardInterrupt

    write_sweep(tmp_path / "runs" / "question", {"base": 0.0}, seeds=1)
    monkeypatch.setattr("harness.cli.report.write", write_one)
    monkeypatch.setattr("harness.cli.report.follow", interrupted)
    assert bench("report", "question", "--live").code == 130
    assert written == ([EVERY_S, None] if finished else [None])


def test_the_verb(bench: Bench, tmp_path: Path) -> None:
    write_sweep(tmp_path / "runs" / "question", {"base": 0.0, "up": 3.0}, seeds=3)
    result = bench("report", "question", "--live")
    assert result.code == 0, result.err
    assert "6/6 cells have ended" in result.err
    assert re.search("^up (is|against)", result.out, re.MULTILINE)
    assert result.out.splitlines()[-1].startswith("report: ")
