from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.records import SweepRecord, read_sweep
from harness.records.files import DamagedRecordError, append_jsonl
from harness.records.registration import (
    REGISTERED,
    STARTED_WITH,
    Registration,
    RegistrationCheck,
    check_registration,
    read_registration,
    registration_found,
)
from tests.refusals import refuses
from tests.reports.synthetic import write_sweep

SPECS = {arm: {"seed": 0, "train": {"steps": 60, "learning_rate": 1e-4}} for arm in ("base", "up")}


def registered(folder: Path, *, started_with: str | None = "it", **fields: Any) -> SweepRecord:
    """A sweep that was registered, and whose cells then started and found a digest: `it` is the registration's."""
    sweep = write_sweep(folder, {"base": 0.0, "up": 1.0}, seeds=2, **fields)
    registration = Registration.of(sweep, SPECS)
    registration.write(folder)
    for cell in sweep.cells:
        (cell.path / "starts.jsonl").unlink()
        (cell.path / "spec.json").write_text(json.dumps(SPECS[cell.arm] | {"seed": cell.seed}))
        found = registration.digest if started_with == "it" else started_with
        append_jsonl(cell.path / "starts.jsonl", [{"epoch": 1, "from_step": 0, STARTED_WITH: found}])
    return sweep


def changed(sweep: SweepRecord, **fields: Any) -> RegistrationCheck:
    path = sweep.path / "sweep.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    found = check_registration(read_sweep(sweep.path))
    assert found is not None
    return found


def test_a_question_that_stood_before_its_first_cell(tmp_path):
    found = changed(registered(tmp_path))
    assert found.holds and found.digest is not None
    assert found.digest in found.sentence
    assert registration_found(tmp_path) == {STARTED_WITH: found.digest}


def test_a_sweep_that_was_never_registered_says_nothing(tmp_path):
    assert check_registration(write_sweep(tmp_path, {"base": 0.0}, seeds=1)) is None
    assert registration_found(tmp_path) == {STARTED_WITH: None}


def test_what_was_changed_since_is_named(tmp_path):
    sweep = registered(tmp_path)
    asked = (tmp_path / "sweep.json").read_text()
    for fields, told in (
        ({"margin_pp": 2.0}, "margin_pp 1 -> 2"),
        ({"alpha": 0.1}, "alpha 0.05 -> 0.1"),
        ({"metric": "eval.final.pass@4"}, "metric eval.final.pass@1 -> eval.final.pass@4"),
        ({"seeds": [0, 1, 2, 3]}, "seeds 0..1 -> 0..3"),
        ({"baseline": "up"}, "baseline base -> up"),
        ({"question": "Which?"}, "-> Which?"),
    ):
        (tmp_path / "sweep.json").write_text(asked)
        found = changed(sweep, **fields)
        assert not found.holds
        (change,) = found.changes
        assert told in change and change in found.sentence


def test_a_knob_that_was_changed_is_named_once_and_another_cause_of_another_hash_too(tmp_path):
    sweep = registered(tmp_path)
    cells = json.loads((tmp_path / "sweep.json").read_text())["cells"]
    for entry, cell in zip(cells, sweep.cells, strict=True):
        entry["hash"] = f"f{entry['hash'][1:]}"
        (cell.path / "spec.json").write_text(
            json.dumps({"seed": cell.seed, "train": {"steps": 30, "learning_rate": 1e-4}})
        )
    (change,) = changed(sweep, cells=cells).changes
    assert change.split() == ["train.steps", "60", "->", "30"]
    for cell in sweep.cells:
        (cell.path / "spec.json").write_text(json.dumps(SPECS[cell.arm] | {"seed": cell.seed}))
    assert [change.split()[-1] for change in changed(sweep, cells=cells).changes] == ["base", "up"]


TUNING: dict[str, Any] = {
    "knobs": ["train.learning_rate"],
    "ranges": {"train.learning_rate": {"log": [1e-5, 1e-3]}},
    "trials": 8,
    "seeds": [1000000, 1000001],
    "searches": {"base": "it-tune-base", "up": "it-tune-up"},
    "arms": {},
}


def test_what_a_search_finds_is_no_change_and_another_search_is_one(tmp_path):
    sweep = registered(tmp_path, tuning=TUNING)
    cells = json.loads((tmp_path / "sweep.json").read_text())["cells"]
    for entry, cell in zip(cells, sweep.cells, strict=True):
        entry["hash"] = f"f{entry['hash'][1:]}"
        found = {"seed": cell.seed, "train": {"steps": 60, "learning_rate": 7e-4}}
        (cell.path / "spec.json").write_text(json.dumps(found))
    assert changed(sweep, cells=cells).holds
    (change,) = changed(sweep, tuning=TUNING | {"trials": 9}).changes
    assert change.split() == ["tune.trials", "8", "->", "9"]
    wider = {"train.learning_rate": {"log": [1e-5, 1.0]}}
    (change,) = changed(sweep, tuning=TUNING | {"ranges": wider}).changes
    assert change.startswith("tune.train.learning_rate ")


def test_a_screening_that_picks_or_confirms_otherwise_is_a_change(tmp_path):
    sweep = registered(tmp_path, screening={"best": 3, "seeds": 12})
    (change,) = changed(sweep, screening={"best": 2, "seeds": 12}).changes
    assert change.split() == ["screening.best", "3", "->", "2"]
    assert any(change.startswith("screening.best") for change in changed(sweep, screening=None).changes)


def test_arms_that_came_or_went(tmp_path):
    sweep = registered(tmp_path)
    document = json.loads((tmp_path / "sweep.json").read_text())
    cells = [entry | {"arm": "late" if entry["arm"] == "up" else entry["arm"]} for entry in document["cells"]]
    added, left_out = changed(sweep, arms=["base", "late"], cells=cells).changes[:2]
    assert "late" in added and "up" in left_out


@pytest.mark.parametrize("started_with", [None, "0" * 32])
def test_a_registration_that_cells_did_not_find_is_no_proof(tmp_path, started_with):
    """Made, or exchanged, after the first cell had started."""
    found = changed(registered(tmp_path, started_with=started_with))
    assert not found.holds and len(found.cells_without) == 4


def test_one_that_was_edited_or_removed(tmp_path):
    sweep = registered(tmp_path)
    path = tmp_path / REGISTERED
    text = path.read_text()
    path.write_text(text.replace('"margin_pp": 1.0', '"margin_pp": 2.0'))
    edited = changed(sweep)
    assert edited.altered and not edited.holds
    path.write_text(text.replace('"time": "2', '"time": "1'))
    assert changed(sweep).holds, "the time proves nothing, so nothing rests on it"
    path.unlink()
    assert not changed(sweep).holds
    path.write_text('["no registration"]')
    with refuses(DamagedRecordError, "records.not_an_object"):
        read_registration(tmp_path)


def test_cells_of_other_versions_of_the_question_are_named(tmp_path):
    sweep = write_sweep(tmp_path, {"base": 0.0, "up": 1.0}, seeds=1)
    alone = Registration.of(sweep, SPECS)
    (tmp_path / "cells" / "old-s0-0123456789").mkdir()
    append_jsonl(tmp_path / "cells" / "old-s0-0123456789" / "starts.jsonl", [{"epoch": 1, "from_step": 0}])
    again = Registration.of(read_sweep(sweep.path), SPECS)
    assert (alone.cells_before, again.cells_before) == ([], ["old-s0-0123456789"])
    assert again.digest != alone.digest


def test_the_digest_is_that_of_the_question_wherever_it_is_registered(tmp_path):
    one, other = (write_sweep(tmp_path / name / "mine", {"base": 0.0, "up": 1.0}, seeds=1) for name in ("a", "b"))
    assert Registration.of(one, SPECS).digest == Registration.of(other, SPECS).digest
    slower = SPECS | {"up": {"seed": 0, "train": {"steps": 60, "learning_rate": 2e-4}}}
    assert Registration.of(one, SPECS).digest != Registration.of(one, slower).digest
