"""`bench run --until verdict`: looks that were fixed beforehand, over cells that a test makes in place of training."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.records import CellRecord, read_sweep
from harness.records.cell import EVALUATION_FILE
from harness.records.files import write_json
from harness.records.registration import check_registration
from harness.run.question import write_question
from harness.run.sweep import SweepRun
from reports.measure import analyse
from reports.page.document import report_document
from tests.frozen import frozen
from tests.harness.cli.conftest import Bench
from tests.harness.plan.files import write_sweep_file
from tests.reports.synthetic import write_cell

Score = Callable[[str, int], float]


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch, plain_report: None) -> dict[str, Any]:
    """`score`: the final score of an arm and a seed; `seeds`: those that were trained, in the order of the runs."""
    trained: dict[str, Any] = {"seeds": []}

    def run(sweep_run: SweepRun, observer: object, while_running: Callable[[], Any]) -> list[CellRecord]:
        missing = sweep_run.missing()
        for cell in missing:
            score = trained["score"](cell.arm, cell.seed)
            arm = [*sweep_run.plan.arms].index(cell.arm)
            folder = sweep_run.plan.record(cell, sweep_run.home).path
            write_cell(folder, arm, cell.seed, score)
            write_json(folder / EVALUATION_FILE, {"hash": cell.evaluation, "tasks": {}})
        trained["seeds"].append(sorted({cell.seed for cell in missing}))
        write_question(sweep_run.plan, sweep_run.home, sweep_run.command)
        if trained.get("interrupt_at") == len(sweep_run.plan.request.seed_list):
            raise KeyboardInterrupt
        return sweep_run.records()

    monkeypatch.setattr(SweepRun, "run", run)
    monkeypatch.setattr("harness.tracking.MirrorThread", lambda mirror: contextlib.nullcontext())
    monkeypatch.setattr("reports.page.write_report", lambda sweep, *_: report_document(analyse(sweep)))
    monkeypatch.setattr("reports.processes.process_count", lambda n_cells: 1)
    return trained


def noisy(effect: float) -> Score:
    """Differences of `effect` with a standard deviation of 1.8 pp."""
    return lambda arm, seed: 0.5 + (effect + (0.018 if seed % 2 else -0.018) if arm == "without" else 0.0)


@pytest.mark.slow
def test_it_stops_at_the_look_that_settles_all_and_says_so(bench: Bench, tmp_path: Path, trained: Any) -> None:
    sweep = write_sweep_file(tmp_path, seeds=12)
    trained["score"] = noisy(0.025)
    result = bench("run", sweep, "--until", "verdict")
    assert result.code == 0, result.err
    assert trained["seeds"] == [[*range(6)], [*range(6, 12)]]
    frozen("cli/until_verdict", "".join(f"{line}\n" for line in result.err.splitlines() if line.startswith("look ")))
    record = read_sweep(tmp_path / "runs" / "mine")
    assert [design.looks for design in record.designs] == [[6, 12, 18, 24]]
    assert [(len(look.seeds), look.planned, look.verdicts["without"]) for look in record.looks] == [
        (6, True, "inconclusive"),
        (12, True, "better"),
    ]
    again = bench("run", sweep, "--until", "verdict", "--json")
    assert trained["seeds"][2:] == [[]]
    (contrast,) = again.document["contrasts"]
    assert contrast["look"]["planned"] == [6, 12, 18, 24]
    assert [look["seeds"] for look in again.document["looks"]] == [6, 12]


@pytest.mark.slow
def test_it_goes_on_after_ctrl_c_to_the_last_look_and_not_beyond(bench: Bench, tmp_path: Path, trained: Any) -> None:
    sweep = write_sweep_file(tmp_path)
    trained |= {"score": noisy(0.0), "interrupt_at": 9}
    command = ("run", sweep, "--until", "verdict", "--most-seeds", 12)
    assert bench(*command).code == 130
    trained["interrupt_at"] = None
    bench(*command)
    assert trained["seeds"] == [[*range(6)], [6, 7, 8], [], [9, 10, 11]]
    assert len(read_sweep(tmp_path / "runs" / "mine").looks) == 3

    bench("run", sweep, "--until", "verdict", "--most-seeds", 24).refused("run.looks_are_fixed")
    assert [len(look.seeds) for look in read_sweep(tmp_path / "runs" / "mine").looks] == [6, 9, 12]
    (contrast,) = bench("run", sweep, "--seeds", 14, "--json").document["contrasts"]
    assert contrast["look"]["number"] == 4


@pytest.mark.long
def test_seeds_added_after_a_verdict_are_a_further_look(bench: Bench, tmp_path: Path, trained: Any) -> None:
    sweep = write_sweep_file(tmp_path)
    trained["score"] = noisy(0.0)
    (contrast,) = bench("run", sweep, "--seeds", 6, "--json").document["contrasts"]
    assert contrast["level"] == 0.95
    (way, *_) = bench("power", "mine", "--json").document["contrasts"][0]["next_step"]["ways"]
    assert way["command"] == f"bench run mine --seeds {way['needed']}"
    second = bench("run", sweep, "--seeds", way["needed"], "--json")
    (contrast,) = second.document["contrasts"]
    assert contrast["level"] == pytest.approx(way["level"])
    assert 0.975 < contrast["level"] < 0.9875
    # Showing the same cells again is no look, whatever the margin; another question has looks of its own.
    assert bench("report", "mine", "--json").document["contrasts"][0]["level"] == contrast["level"]
    wider = write_sweep_file(tmp_path, compare={"margin_pp": 3.0})
    assert bench("run", wider, "--seeds", 6, "--json").document["contrasts"][0]["level"] == 0.975
    other = write_sweep_file(tmp_path, compare={"metric": "eval.final.maj@4"})
    assert bench("run", other, "--seeds", 6, "--json").document["contrasts"][0]["level"] == 0.95
    back = bench("run", write_sweep_file(tmp_path), "--seeds", 6, "--json")
    assert back.document["contrasts"][0]["level"] == 0.975


def changes_since_registration(home: Path) -> list[str]:
    found = check_registration(read_sweep(home / "mine"))
    assert found is not None and not found.altered
    return found.changes


@pytest.mark.slow
def test_a_stopping_rule_that_was_registered_is_no_change(bench: Bench, tmp_path: Path, trained: Any) -> None:
    sweep, home = write_sweep_file(tmp_path, seeds=12), tmp_path / "runs"
    fixed = bench("freeze", sweep, "--seeds", "24", "--json").document
    frozen = bench("freeze", sweep, "--until", "verdict", "--most-seeds", "24", "--json").document
    assert (frozen["looks"], frozen["cells"], frozen["replaced"]) == ([6, 12, 18, 24], 48, fixed["digest"])
    trained["score"] = noisy(0.025)
    assert bench("run", sweep, "--until", "verdict").code == 0
    assert trained["seeds"] == [[*range(6)], [*range(6, 12)]], "the second look settles it"
    assert changes_since_registration(home) == []
    bench("run", sweep, "--seeds", "13")
    assert changes_since_registration(home) == ["seeds 0..23 -> 0..12"]


@pytest.mark.slow
def test_a_stopping_rule_that_was_not_registered_is_one(bench: Bench, tmp_path: Path, trained: Any) -> None:
    sweep = write_sweep_file(tmp_path, seeds=12)
    looked = bench("freeze", sweep, "--until", "verdict", "--most-seeds", "24", "--json").document
    frozen = bench("freeze", sweep, "--json").document
    assert (frozen["looks"], frozen["replaced"]) == (None, looked["digest"]), "no cell has run: it may be asked anew"
    trained["score"] = noisy(0.025)
    bench("run", sweep, "--until", "verdict", "--most-seeds", "24")
    changes = changes_since_registration(tmp_path / "runs")
    assert changes == ["seeds 0..11 -> 0..23", "looks None -> [6, 12, 18, 24]"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--until", "verdct"], "cli.unknown_end"),
        (["--until", "verdict", "--seeds", 8], "cli.seeds_with_until"),
        (["--most-seeds", 8], "cli.most_seeds_without_until"),
    ],
)
def test_options_that_do_not_go_together(bench: Bench, tmp_path: Path, words: list[Any], code: str) -> None:
    bench("run", write_sweep_file(tmp_path), *words).refused(code)
    assert not (tmp_path / "runs").exists()


def test_a_screening_ranks_and_has_no_verdict_to_go_on_for(bench: Bench, tmp_path: Path) -> None:
    arms = {"with": {}, "without": {"objective.scale": "none"}, "batch": {"objective.scale": "batch_std"}}
    sweep = write_sweep_file(tmp_path, arms=arms, screening={"best": 1, "seeds": 6}, compare={"baseline": "with"})
    bench("run", sweep, "--until", "verdict").refused("run.screening_has_no_verdict")
    assert not (tmp_path / "runs").exists()
