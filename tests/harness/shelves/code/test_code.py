"""Cells whose completions are programs: rewards come from their tests, on conditions that are refused or recorded."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from evals.errors import EvalError
from evals.grading import Submission, Verdict
from evals.shelves.code.grading import Trial, UnitTestResult, reference_of, unit_tests
from harness.config.hashing import training_hash
from harness.errors import RefusedError
from harness.records import CellRecord
from harness.sampling.conditions import Conditions
from harness.sampling.services import services_in
from harness.shelves.code import services
from harness.shelves.code.parts import PassedTests
from harness.shelves.code.services import CodeTester
from tests.harness.rewards.attempts import attempt, context, part_rewards, same
from tests.harness.run import bench
from tests.harness.run.small import run_cell, small_spec
from tests.harness.shelves.code.sums_with_tests import write_sums
from tests.refusals import refuses

STEPS = {"train.steps": 3, "train.checkpoint_every": 3, "eval.every": 0, "eval.samples": 2, "eval.problems": 8}


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    return write_sums(tmp_path, monkeypatch)[0]


def _trained(folder: Path, home: Path, settings: dict[str, Any]) -> CellRecord:
    cell = CellRecord.at(folder)
    cell.path.mkdir(parents=True)
    with services_in(home, True):
        run_cell(cell, small_spec({**STEPS, **settings}))
    return cell


@pytest.mark.slow
def test_a_cell_learns_from_tests_as_from_the_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same verdicts give the same cell, and what was run once is not run again."""
    task, numbers = write_sums(tmp_path, monkeypatch)
    by_tests = _trained(tmp_path / "a" / "x-s0-0123456789", tmp_path, {"task.train": task, "reward.allow_code": True})
    by_number = _trained(tmp_path / "b" / "x-s0-0123456789", tmp_path, {"task.train": numbers})
    columns = ("reward/correct", "reward/mean", "update/grad_norm")
    seen = [[{name: row.get(name) for name in columns} for row in cell.read_steps()] for cell in (by_tests, by_number)]
    assert seen[0] == seen[1]
    assert any(0 < (row["reward/correct"] or 0) < 1 for row in seen[0])
    accuracy = [cell.own.read_scores()[-1]["metrics"]["pass@1"] for cell in (by_tests, by_number)]
    assert accuracy[0] == accuracy[1] and (accuracy[0] or 0) > 0

    assert by_tests.own.provenance["code"]["processes"] == "none but its own"
    assert "code" not in by_number.own.provenance

    monkeypatch.setattr(services, "outcome_of", lambda trial: pytest.fail("a program was run again"))
    part = {"reward.parts": {"correct": 0.0, "tests_passed": 1.0}}
    settings = {"task.train": task, "reward.allow_code": True, **part}
    again = _trained(tmp_path / "c" / "x-s0-0123456789", tmp_path, settings)
    assert [row["reward/mean"] for row in again.read_steps()] == [row["reward/mean"] for row in seen[1]]


@pytest.mark.slow
def test_the_page_says_what_contained_the_programs(task: str, tmp_path: Path) -> None:
    settings = {"task.train": task, "reward.allow_code": True}
    share = {**settings, "reward.parts": {"correct": 0.0, "tests_passed": 1.0}}
    code, printed = bench.run_here(
        bench.write_sweep(tmp_path, {"all": settings, "share": share}, seeds=1), tmp_path / "runs", page=True
    )
    assert code == 0, printed
    page = (tmp_path / "runs" / "small" / "report" / "report.md").read_text()
    assert {"code.network", "code.processes"} <= {line.split(" | ")[0].strip("| ") for line in page.splitlines()}


def test_the_permission_is_asked_for_by_name(task: str) -> None:
    with pytest.raises(RefusedError) as refused:
        small_spec({"task.train": task})
    assert "reward.allow_code: true" in str(refused.value)
    allowed = small_spec({"task.train": task, "reward.allow_code": True})
    assert allowed.runs_code and not small_spec().runs_code
    # Permission changes no number, and cells that run no programs are filed as before.
    assert training_hash(small_spec({"reward.allow_code": True})) == training_hash(small_spec())


def test_verdicts_stored_without_programs_are_not_graded_again() -> None:
    """Stored samples name the graders that were asked; this one is asked only where it decides."""
    by_number, by_tests = (
        Conditions.of_training(small_spec({"task.train": task, "reward.allow_code": True})).graders
        for task in ("arithmetic", "programs")
    )
    assert "unit_tests" not in by_number and by_tests == by_number | {"unit_tests": unit_tests.version}


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"reward.grader": "unit_tests"}, "reward.grader=unit_tests with arithmetic"),
        ({"eval.grader": "unit_tests"}, "eval.grader=unit_tests with arithmetic"),
        ({"eval.tasks": ["arithmetic", "programs"]}, "eval.grader=numeric with programs"),
        ({"task.train": "programs", "reward.grader": "exact"}, "reward.grader=exact with programs"),
        ({"reward.parts": {"tests_passed": 1.0}}, "reward.parts.tests_passed with reward.grader=numeric"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(RefusedError) as refused:
        small_spec({"reward.allow_code": True, **settings})
    assert named in str(refused.value)


def test_the_share_of_passed_tests_is_paid() -> None:
    verdicts = [
        Verdict(False, "", "mismatch", score=0.4),
        Verdict(False, "", "timeout"),
        Verdict(True, "", "match", score=1.0),
    ]
    group = [attempt(verdict=verdict) for verdict in verdicts]
    assert same(part_rewards(PassedTests, group, context()), [0.4, math.nan, 1.0])


def test_outcomes_are_remembered_by_program_and_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run: list[Trial] = []

    def outcome_of(trial: Trial) -> UnitTestResult:
        run.append(trial)
        return UnitTestResult("mismatch", len(trial.code))

    monkeypatch.setattr(services, "outcome_of", outcome_of)
    one, other, third = Trial("a", "x"), Trial("\ud800", "x"), Trial("a", "y")
    tester = CodeTester(tmp_path)
    assert tester.outcomes([one, other, one]) == [UnitTestResult("mismatch", 1)] * 3
    assert sorted(run) == sorted([one, other])
    path = next((tmp_path / "cache" / "code").glob("*/*.jsonl"))
    assert CodeTester(tmp_path).outcomes([third, one]) == [UnitTestResult("mismatch", 1)] * 2
    assert len(run) == 3, "another process knows it too; other tests are another question"
    path.write_text(path.read_text().replace("mismatch", "undefined", 1))
    CodeTester(tmp_path).outcomes([one, other])
    assert len(run) == 4, "a damaged line is passed over"


def test_programs_are_allowed_for_a_while_only(tmp_path: Path) -> None:
    with services_in(tmp_path, False), refuses(EvalError, "evals.shelves.code.code_not_allowed"):
        unit_tests.verdicts([_submission()])
    with services_in(tmp_path, True):
        assert unit_tests.verdicts([_submission()])[0].correct
    with refuses(EvalError, "evals.shelves.code.code_not_allowed"):
        unit_tests.verdicts([_submission()])


def _submission() -> Submission:
    return Submission("", reference_of("f", [{"args": [], "returns": 1}]), "", "def f(): return 1")
