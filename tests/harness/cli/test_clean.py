"""`bench clean` deletes what no sweep of a home refers to, once it has been shown, and nothing else."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from harness.cli.clean import YOUNG_S
from harness.plan import Plan, make_plan
from harness.records import CellRecord
from harness.records.cell import EVALUATION_FILE, EVALUATIONS
from harness.records.files import write_json
from harness.records.lease import hold_lease
from harness.run.question import make_cells, write_question
from harness.run.stages import find_stage, result_path
from tests.harness.cli.conftest import Bench
from tests.harness.plan.files import write_sweep_file


def asked(home: Path, folder: Path, *settings: str, seeds: int = 2, name: str = "mine", **changes: Any) -> Plan:
    """A question whose cells are done, with what they read from the cache."""
    path = write_sweep_file(folder, name=name, **changes)
    plan = make_plan(str(path), settings=settings, seeds=seeds)
    make_cells(plan, plan.cells, home)
    write_question(plan, home, "bench run")
    for cell in plan.cells:
        record = plan.record(cell, home)
        write_json(record.path / EVALUATION_FILE, {"hash": cell.evaluation, "tasks": {}})
        record.write_status("done")
    write_json(result_path(find_stage("base"), plan.first_spec, home), [])
    return plan


def paths(plan: Plan, home: Path) -> set[str]:
    return {str(plan.record(cell, home).path.relative_to(home)) for cell in plan.cells}


def base(plan: Plan, home: Path) -> str:
    return str(result_path(find_stage("base"), plan.first_spec, home).relative_to(home))


def age(home: Path) -> None:
    then_s = time.time() - 2 * YOUNG_S
    for path in home.rglob("*"):
        os.utime(path, (then_s, then_s))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def listed(bench: Bench, home: Path, *words: str) -> set[str]:
    result = bench("clean", "--home", home, "--json", *words)
    assert result.code == 0, result.err
    return {str(Path(row["path"]).relative_to(home)) for row in result.document["leftovers"]}


def test_what_an_earlier_question_left_is_shown_and_then_deleted(bench: Bench, tmp_path: Path, home: Path) -> None:
    earlier = asked(home, tmp_path, "train.steps=7", "eval.samples=4")
    asked(home, tmp_path, "train.steps=8")
    asked(home, tmp_path, "train.steps=9", name="other")
    (home / "cache" / "rows-0123456789abcdef.json").write_text("[]")  # what was first read is not a result
    age(home)
    leftovers = {*paths(earlier, home), base(earlier, home)}
    assert listed(bench, home) == leftovers, "and what the sweeps of today refer to is not among it"

    assert f"{len(leftovers)} in all" in bench("clean", "--home", home).out
    before = set(home.rglob("*"))
    assert {str(path.relative_to(home)) for path in before} >= leftovers, "nothing is deleted before it was shown"

    done = bench("clean", "--home", home, "--yes")
    assert f"deleted {len(leftovers)} of {len(leftovers)}" in done.out
    gone = before - set(home.rglob("*"))
    assert {path for path in gone if path.parent not in gone} == {home / path for path in leftovers}
    assert listed(bench, home) == set()


def test_an_evaluation_that_is_asked_for_no_more(bench: Bench, tmp_path: Path, home: Path) -> None:
    plan = asked(home, tmp_path)
    evaluations = plan.record(plan.cells[0], home).path / EVALUATIONS
    for name in ("0123456789", "abcdef0123"):
        (evaluations / name).mkdir(parents=True)
    age(home)
    assert listed(bench, home) == {str((evaluations / name).relative_to(home)) for name in ("0123456789", "abcdef0123")}
    topped_up = make_plan(str(home / "mine"), settings=["eval.samples=3"])
    write_question(topped_up, home, "bench run")
    record = topped_up.record(topped_up.cells[0], home)
    assert record.evaluation is not None
    record.evaluation_folder.mkdir()
    age(home)
    assert str(record.evaluation_folder.relative_to(home)) not in listed(bench, home)


def test_nothing_is_taken_from_a_running_sweep(bench: Bench, tmp_path: Path, home: Path) -> None:
    earlier = asked(home, tmp_path, "train.steps=7", "eval.samples=4")
    now = asked(home, tmp_path, "train.steps=8")
    age(home)
    for held in (earlier, now):
        with hold_lease(held.record(held.cells[0], home).path):
            age(home)
            assert listed(bench, home, "--yes") == set()
    age(home)
    assert listed(bench, home) >= paths(earlier, home)


def test_a_cell_that_is_taken_meanwhile_stays(
    bench: Bench, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the listing and the deletion a run may begin."""
    earlier = asked(home, tmp_path, "train.steps=7")
    asked(home, tmp_path, "train.steps=8")
    age(home)
    monkeypatch.setattr("harness.cli.clean._is_running", lambda sweep: False)
    taken = earlier.record(earlier.cells[0], home).path
    with hold_lease(taken):
        age(home)
        rows = bench("clean", "--home", home, "--yes", "--json").document["leftovers"]
        cells = {Path(row["path"]): row["deleted"] for row in rows if "/cells/" in row["path"]}
        assert cells[taken] is False and sum(cells.values()) == len(earlier.cells) - 1
    assert CellRecord.at(taken).is_done


def test_what_was_just_written_stays(bench: Bench, tmp_path: Path, home: Path) -> None:
    """A run makes cells before it writes down that it asks for them."""
    earlier = asked(home, tmp_path, "train.steps=7")
    asked(home, tmp_path, "train.steps=8")
    assert listed(bench, home) == set()
    age(home)
    young = earlier.record(earlier.cells[0], home).path
    (young / "log.txt").touch()
    assert paths(earlier, home) - listed(bench, home) == {str(young.relative_to(home))}


def test_a_cell_whose_checkpoint_another_sweep_evaluates_stays(bench: Bench, tmp_path: Path, home: Path) -> None:
    earlier = asked(home, tmp_path, "train.steps=7")
    asked(home, tmp_path, "train.steps=8")
    evaluated = earlier.record(earlier.cells[0], home).path
    record = asked(home, tmp_path, name="other").folder(home) / "sweep.json"
    record.write_text(
        record.read_text().replace('"checkpoint": null', f'"checkpoint": "{evaluated}/checkpoints/step-7"', 1)
    )
    age(home)
    assert paths(earlier, home) - listed(bench, home) == {str(evaluated.relative_to(home))}


def test_a_sweep_that_cannot_be_read_keeps_its_cells_and_the_cache(bench: Bench, tmp_path: Path, home: Path) -> None:
    earlier = asked(home, tmp_path, "train.steps=7", "eval.samples=4")
    asked(home, tmp_path, "train.steps=8")
    asked(home, tmp_path, name="other")
    (home / "other" / "sweep.json").write_text("{")
    age(home)
    assert listed(bench, home) == paths(earlier, home)


def test_nothing_is_deleted_through_a_link(bench: Bench, tmp_path: Path, home: Path) -> None:
    """A copied home may hold links into the user's own."""
    own, copied = tmp_path / "own", home
    own.mkdir()
    asked(own, tmp_path, name="kept")
    asked(copied, tmp_path, name="mine")
    (own / "cache" / "base-0123456789abcdef.json").write_text("[]")
    for name in ("mine/cells", "cache"):
        (copied / name).rename(copied / f"{name}-aside")
    (copied / "mine" / "cells").symlink_to(own / "kept" / "cells")
    (copied / "cache").symlink_to(own / "cache")
    (copied / "mine" / ".x.deleted").symlink_to(own / "kept")
    age(tmp_path)
    before = set(own.rglob("*"))
    assert listed(bench, copied, "--yes") == {"mine/.x.deleted"}, "the link itself goes"
    (copied / "mine" / "cells").unlink()
    (copied / "mine" / "cells-aside").rename(copied / "mine" / "cells")
    assert listed(bench, copied, "--yes") == set()
    assert set(own.rglob("*")) == before
