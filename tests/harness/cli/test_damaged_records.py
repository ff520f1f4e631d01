"""Records that somebody or something touched: `report` and `replay` name the file and end with 2."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.records import CellRecord, read_sweep
from reports.home import read_home
from tests.harness.cli.conftest import Bench
from tests.harness.run.small import small_spec
from tests.reports.rewriting import rewrite_rows
from tests.reports.synthetic import STEPS, write_sweep

Damage = Callable[[CellRecord], None]


def write(name: str, text: str) -> Damage:
    def damage(cell: CellRecord) -> None:
        (cell.path / name).write_text(text)

    return damage


def write_bytes(name: str, content: bytes) -> Damage:
    def damage(cell: CellRecord) -> None:
        (cell.path / name).write_bytes(content)

    return damage


def tear_last_line(cell: CellRecord) -> None:
    path = cell.path / "steps.jsonl"
    path.write_bytes(path.read_bytes()[:-60])


def put_a_file_for_the_rollouts(cell: CellRecord) -> None:
    shutil.rmtree(cell.rollouts)
    cell.rollouts.write_text("mine")


def cut(pattern: str) -> Damage:
    def damage(cell: CellRecord) -> None:
        for path in cell.path.glob(pattern):
            path.write_bytes(path.read_bytes()[:100])

    return damage


def unlink(name: str) -> Damage:
    return lambda cell: cell.path.joinpath(name).unlink()


def fill_rollouts_with_nothing(cell: CellRecord) -> None:
    for path in cell.rollouts.glob("*"):
        path.write_bytes(b"")


def lose_a_counted_row(cell: CellRecord) -> None:
    cell.write_status("done", records=cell.count("evals.parquet"))
    tear_last_line(cell)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (write("status.json", '{"schema": 4}'), "status.json: is damaged"),
        (write("status.json", "[]"), "status.json: is damaged"),
        (write("scores.jsonl", '{"step": 1}\n'), "scores.jsonl, row 1: "),
        (write("steps.jsonl", STEPS * '{"step": 1}\n'), "steps.jsonl: "),
        (cut("steps.jsonl"), f"steps.jsonl: is damaged (it has 0 of the {STEPS} steps that status.json counts)"),
        (tear_last_line, f"steps.jsonl: is damaged (it has {STEPS - 1} of the {STEPS} steps"),
        (write_bytes("steps.jsonl", 50 * b"\xff\xfe\x00"), f"steps.jsonl: is damaged (it has 0 of the {STEPS} steps"),
        (unlink("steps.jsonl"), f"steps.jsonl: is damaged (it has 0 of the {STEPS} steps"),
        (cut("evals.parquet"), "evals.parquet: is damaged"),
        (cut("rollouts/*"), ".parquet: is damaged"),
        (fill_rollouts_with_nothing, ".parquet: is damaged"),
        (put_a_file_for_the_rollouts, "rollouts: is damaged (it is not a folder)"),
        (lose_a_counted_row, f"steps.jsonl: holds {STEPS - 1} of the {STEPS} rows that were counted"),
        (unlink("spec.json"), "spec.json: is missing"),
        (write("spec.json", "[1]"), "spec.json: is damaged"),
        (write("spec.json", '{"model": {"sou'), "spec.json: is damaged"),
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_report_names_the_file(
    bench: Bench, request: pytest.FixtureRequest, tmp_path: Path, damage: Damage, says: str, seed: int
) -> None:
    if seed:  # its figures are those of the other cell, which are drawn for each damage to that one
        request.getfixturevalue("no_figures")
    sweep = write_sweep(tmp_path / "runs" / "mine", {"base": 0.0}, seeds=2)
    damage(sweep.cells[seed])
    result = bench("report", "mine")
    assert says in result.err and "Traceback" not in result.err
    assert f"warning: base-s{seed} is damaged and left out: " in result.err
    assert result.code == 0
    document = json.loads((sweep.path / "report" / "report.json").read_text())
    assert [cell["state"] for cell in document["cells"]] == ["damaged" if s == seed else "done" for s in (0, 1)]
    assert not read_sweep(sweep.path).looks, "the verdicts are of an incomplete plan"
    damage(sweep.cells[1 - seed])
    result = bench("report", "mine")
    assert (result.code, result.out) == (2, "")
    result.refused("bench.no_whole_cell_done")
    assert says in result.err


def put_a_folder_for(name: str) -> Damage:
    def damage(cell: CellRecord) -> None:
        (cell.path / name).unlink()
        (cell.path / name).mkdir()

    return damage


def tear_before_it_is_done(cell: CellRecord) -> None:
    cell.write_status("interrupted")
    (cell.path / "steps.jsonl").write_text('{"step": 1}\n{"st\n{"step": 3}\n')


BAD = {
    "status without its state": write("status.json", '{"schema": 4}'),
    "status of bytes": write_bytes("status.json", b"\xff\xfe"),
    "a status too deep": write("status.json", 100_000 * "["),
    "a status with a number of too many digits": write("status.json", f'{{"step": {5000 * "9"}}}'),
    "a status that counts nothing": write(
        "status.json", '{"schema": 4, "state": "done", "records": {"steps.jsonl": 5}}'
    ),
    "a folder for the status": put_a_folder_for("status.json"),
    "steps torn in the middle": tear_before_it_is_done,
    "a counted row lost": lose_a_counted_row,
}


@pytest.mark.parametrize("kind", BAD)
def test_one_bad_cell_is_listed_with_the_others(bench: Bench, tmp_path: Path, kind: str) -> None:
    sweep = write_sweep(tmp_path / "runs" / "mine", {"base": 0.0}, seeds=2)
    BAD[kind](sweep.cells[0])
    (sweep.path / "cells" / "a stray folder").mkdir()
    (sweep.path / "cells" / "base-s7-0123456789").write_text("a stray file")
    (tmp_path / "runs" / "a stray folder").mkdir()
    assert bench("ls", "runs").code == 0
    first, second = json.loads(bench("status", "mine", "--json").out)["cells"]
    assert (first["state"], second["state"]) == ("damaged", "done")
    assert sweep.cells[0].path.name in first["reason"] and "Restore" in first["reason"]
    assert "damaged" in bench("status", "mine").out
    (entry,) = [entry for entry in read_home(tmp_path / "runs").sweeps if entry.name == "mine"]
    assert not entry.fault and entry.total == 2


def test_a_report_by_what_was_never_recorded_is_refused(bench: Bench, tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "runs" / "mine", {"base": 0.0, "up": 3.0}, seeds=2)
    rewrite_rows(sweep, "scores.jsonl", lambda row: row | {"metrics": {"pass@2": 0.5}})
    bench("report", "mine").refused("reports.metric_not_recorded")


@pytest.mark.slow
@pytest.mark.parametrize("in_the_way", ["report", "report/index.html", "report/figures"])
def test_what_stands_in_the_way_of_a_report_is_named(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_the_way: str
) -> None:
    monkeypatch.setattr("reports.page.render_figures", lambda analysis: [])
    sweep = write_sweep(tmp_path / "runs" / "mine", {"base": 0.0}, seeds=1)
    path = sweep.path / in_the_way
    if path.suffix:
        path.mkdir(parents=True)
    else:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    result = bench("report", "mine")
    assert (result.code, result.out) == (2, "")
    assert in_the_way in result.err and "Traceback" not in result.err


@pytest.mark.parametrize(
    ("spec", "code"), [({"seed": 0}, "config.spec_of_other_version"), ([1], "records.not_an_object")]
)
@pytest.mark.parametrize("whole_arm", [True, False])
def test_a_replay_of_another_versions_cell_is_refused(
    bench: Bench, tmp_path: Path, spec: object, code: str, whole_arm: bool
) -> None:
    sweep = write_sweep(tmp_path / "runs" / "mine", {"base": 0.0}, seeds=1)
    (cell,) = sweep.cells
    (cell.path / "spec.json").write_text(json.dumps(spec))
    result = bench("replay", "mine/base" if whole_arm else cell.path, "--algorithms", "grpo")
    result.refused(code, path="spec.json")


def test_steps_far_beyond_what_is_stored_are_refused_at_once(bench: Bench, tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "runs" / "mine", {"base": 0.0}, seeds=1)
    (cell,) = sweep.cells
    (cell.path / "spec.json").write_text(json.dumps(small_spec().model_dump(mode="json")))
    for steps in ("1-999999999999999999", "1-3,2-999999999999999999"):
        bench("replay", "mine", "--algorithms", "grpo", "--steps", steps).refused("shelves.replay.step_not_stored")
    result = bench("replay", "mine", "--algorithms", "grpo", "--steps", "1-" + 5000 * "9")
    result.refused("shelves.replay.steps_malformed")
