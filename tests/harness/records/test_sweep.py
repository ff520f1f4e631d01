from __future__ import annotations

import json
import re
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


def test_a_sweep_that_was_never_run(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_sweep(tmp_path / "none")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"arms": "one"}, "is damaged: arms: Input should be a valid array"),
        ({"baseline": "two"}, "two is its baseline or the arm of a cell, but not among its arms one"),
        ({"cells": [{"arm": "up", "seed": 0, "hash": "0", "dir": "d"}]}, "up is its baseline or the arm of a cell"),
        ({"cells": [1]}, "is damaged: cells.0: Input should be an object"),
        ({"alpha": 5}, "is damaged: alpha: Input should be less than 1"),
        ({"base_scores": [{"task": "a"}]}, "is damaged: metrics: Field required"),
        ({"data": [{"task": "a"}]}, "is damaged: data.0.split: Field required; data.0.origin: Field required; data.0"),
        (
            {"base_scores": [{"task": "a", "metrics": {}, "reliability": [{"confidence": None}]}]},
            "sweep.json, a, reliability, row 1: lacks count, correct_frac",
        ),
        ({"alpha": None, "k": None}, "is damaged: alpha: Field required; k: Field required. `bench run` writes it"),
    ],
)
def test_records_that_this_version_cannot_read_are_refused_in_words(
    tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    file = write_sweep(tmp_path / "mine", {"one": 0.0}, seeds=1).path / "sweep.json"
    changed = json.loads(file.read_text()) | change
    file.write_text(json.dumps({key: value for key, value in changed.items() if change.get(key, "") is not None}))
    with pytest.raises(DamagedRecordError) as caught:
        read_sweep(file.parent)
    assert says in str(caught.value) and str(file) in str(caught.value)


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (SCHEMA + 1, f"sweep.json: was made by a newer version of bench (records of schema {SCHEMA + 1}"),
        (SCHEMA - 1, "sweep.json: was made by a development version of bench before 0.2."),
        ("x", "sweep.json: was made by a development version of bench before 0.2."),
        (None, "sweep.json: was made by a development version of bench before 0.2."),
    ],
)
def test_records_of_other_versions_are_refused(tmp_path: Path, schema: Any, says: str) -> None:
    file = write_sweep(tmp_path / "mine", {"one": 0.0}, seeds=1).path / "sweep.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"schema": schema}))
    with pytest.raises(OtherVersionError, match=re.escape(says)):
        read_sweep(file.parent)


@pytest.mark.parametrize("alpha", [0, 1, -0.05, 5, float("nan")])
def test_an_alpha_that_is_no_level_is_damage(tmp_path: Path, alpha: float) -> None:
    with pytest.raises(DamagedRecordError, match=r"sweep\.json: is damaged: alpha: Input should be"):
        write_sweep(tmp_path / "mine", {"one": 0.0}, seeds=1, alpha=alpha)


@pytest.mark.parametrize("name", ["../../elsewhere", "/elsewhere", "..", "a/b", ""])
@pytest.mark.parametrize("field", ["dir", "evaluation"])
def test_records_name_no_folder_but_their_own(tmp_path: Path, field: str, name: str) -> None:
    write_sweep(tmp_path / "made", {"base": 0.0}, seeds=1)
    document = json.loads((tmp_path / "made" / "sweep.json").read_text())
    document["cells"][0][field] = name
    (tmp_path / "made" / "sweep.json").write_text(json.dumps(document))
    with pytest.raises(DamagedRecordError, match=f"cells.0.{field}: .* is not the plain name"):
        read_sweep(tmp_path / "made")


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
