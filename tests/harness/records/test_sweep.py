from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.records import read_sweep
from harness.records.files import DamagedRecordError
from harness.records.schema import SCHEMA, OtherVersionError
from tests.refusals import refuses
from tests.reports.synthetic import write_sweep


def test_the_question_is_read_back(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "mine", {"one": 0.0, "other": 2.0}, seeds=2, margin_pp=2, budget_tokens=None)
    assert sweep.name == "mine"
    assert sweep.arms == ["one", "other"]
    assert sweep.baseline == "one"
    assert sweep.seeds == [0, 1]
    assert sweep.margin_pp == 2.0
    assert sweep.budget_tokens is None
    assert sweep.gate.ok is True
    assert [(cell.arm, cell.seed, cell.state) for cell in sweep.cells] == [
        ("one", 0, "done"), ("one", 1, "done"), ("other", 0, "done"), ("other", 1, "done")
    ]  # fmt: skip
    assert sweep.other_cells == []


def test_cells_of_other_questions_are_listed_apart_and_stray_files_are_not_cells(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "mine", {"one": 0.0}, seeds=1)
    cells = sweep.path / "cells"
    (cells / "older-s4-0123456789").mkdir()
    (cells / ".DS_Store").touch()
    (cells / "notes").mkdir()
    again = read_sweep(sweep.path)
    assert [(cell.arm, cell.seed, cell.hash) for cell in again.other_cells] == [("older", 4, "0123456789")]
    assert len(again.cells) == 1


def test_a_sweep_without_cells_on_disk_is_all_pending(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "mine", {"one": 0.0}, seeds=1).path
    (folder / "cells").rename(folder / "elsewhere")
    sweep = read_sweep(folder)
    assert sweep.other_cells == []
    assert [cell.state for cell in sweep.cells] == ["pending"]


def test_a_sweep_as_it_stands_is_asked_for_its_states_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = write_sweep(tmp_path / "mine", {"one": 0.0, "other": 2.0}, seeds=1).as_it_stands
    one, other = sweep.cells
    one.write_status("failed", reason="it fell over")
    assert [cell.state for cell in read_sweep(sweep.path).cells] == ["failed", "done"]
    monkeypatch.setattr("harness.records.cell.status_in", None)
    assert [(cell.state, cell.own.state, cell.reason) for cell in sweep.cells] == [("done", "done", None)] * 2
    aside = sweep.setting_aside(DamagedRecordError(f"{other.path / 'steps.jsonl'}: is damaged"))
    assert [cell.state for cell in aside.cells] == ["done", "damaged"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"arms": "one"}, "arms:"),
        ({"baseline": "two"}, "baseline two one"),
        ({"cells": [{"arm": "up", "seed": 0, "hash": "0", "dir": "d"}]}, "up cell one"),
        ({"cells": [1]}, "cells.0:"),
        *(({"alpha": alpha}, "alpha:") for alpha in (0, 1, -0.05, 5, float("nan"))),
        ({"base_scores": [{"task": "a"}]}, "metrics:"),
        ({"data": [{"task": "a"}]}, "data.0.split: data.0.origin:"),
        ({"base_scores": [{"task": "a", "metrics": {}, "reliability": [{"confidence": None}]}]}, "count, correct_frac"),
        ({"alpha": None, "k": None}, "alpha: k:"),
        *(
            ({"cells": [{"arm": "one", "seed": 0, "hash": "0", "dir": "d"} | {field: name}]}, f"cells.0.{field}:")
            for field in ("dir", "evaluation")
            for name in ("../../elsewhere", "/elsewhere", "..", "a/b", "")
        ),
    ],
)
def test_records_that_this_version_cannot_read_are_refused(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    file = write_sweep(tmp_path / "mine", {"one": 0.0}, seeds=1).path / "sweep.json"
    changed = json.loads(file.read_text()) | change
    file.write_text(json.dumps({key: value for key, value in changed.items() if change.get(key, "") is not None}))
    with pytest.raises(DamagedRecordError) as caught:
        read_sweep(file.parent)
    assert all(name in str(caught.value) for name in [str(file), *named.split()]), caught.value


@pytest.mark.parametrize(
    ("schema", "code"),
    [
        (SCHEMA + 1, "newer_version"),
        *((schema, "development_version") for schema in (SCHEMA - 1, "x", None)),
    ],
)
def test_records_of_other_versions_are_refused(tmp_path: Path, schema: Any, code: str) -> None:
    file = write_sweep(tmp_path / "mine", {"one": 0.0}, seeds=1).path / "sweep.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"schema": schema}))
    with refuses(OtherVersionError, f"records.{code}", path="sweep.json"):
        read_sweep(file.parent)


@pytest.mark.parametrize("link", ["cells", "cells/CELL", "cells/CELL/evaluations"])
def test_a_link_that_leads_out_of_the_records_is_refused(tmp_path: Path, link: str) -> None:
    cell = write_sweep(tmp_path / "made", {"base": 0.0}, seeds=1).cells[0].path.name
    path = tmp_path / "made" / link.replace("CELL", cell)
    (tmp_path / "elsewhere").mkdir()
    path.rename(tmp_path / "aside") if path.exists() else None
    path.symlink_to(tmp_path / "elsewhere")
    with refuses(DamagedRecordError, "records.link_outside_folder", target="elsewhere"):
        read_sweep(tmp_path / "made")
    path.unlink()
    (tmp_path / "made" / "inside").mkdir()
    path.symlink_to(tmp_path / "made" / "inside")
    assert len(read_sweep(tmp_path / "made").cells) == 1
