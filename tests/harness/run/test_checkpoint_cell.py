"""A sweep over one checkpoint, from its file to its verdicts: nothing is trained, and no sample is drawn twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.errors import RefusedError
from harness.models.start import StartingPoint
from harness.plan import Plan, make_plan
from harness.records import CellRecord, read_sweep
from harness.run.sweep import SweepRun
from reports.measure import analyse
from reports.page.document import report_document
from reports.page.verdict import seed_sentence, statements
from tests.harness.plan.files import write_sweep_file
from tests.harness.run.stages_here import AllHere, Quiet
from tests.harness.run.test_top_up import Drawn, samples_of

ARMS = {"sampled": {}, "same": {}, "greedy": {"eval.temperature": 0.0}, "exact": {"eval.grader": "exact"}}
EVALUATIONS: dict[str, Any] = {
    "checkpoint": "builtin:tiny",
    "ablate": ["eval.temperature", "eval.grader"],
    "base": {"eval.problems": 6, "eval.samples": 3},
    "arms": ARMS,
    "seeds": 2,
}


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Drawn:
    return Drawn(monkeypatch)


Run = Callable[..., Plan]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs EVALUATIONS with some keys changed in a home; returns the plan."""

    def run_in_home(settings: list[str] | None = None, **changes: Any) -> Plan:
        plan = make_plan(str(write_sweep_file(tmp_path, **(EVALUATIONS | changes))), settings=settings or [])
        home = tmp_path / "home"
        SweepRun(plan, home, "bench run mine", 1, lambda workers: AllHere(home)).run(Quiet())
        return plan

    return run_in_home


def records(plan: Plan, tmp_path: Path) -> dict[tuple[str, int], CellRecord]:
    return {(cell.arm, cell.seed): plan.record(cell, tmp_path / "home") for cell in plan.cells}


@pytest.mark.slow
def test_nothing_is_trained_and_verdicts_are_over_problems(
    run: Run, tmp_path: Path, drawn: Drawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StartingPoint, "for_training", None)
    cells = records(run(), tmp_path)
    assert {cell.state for cell in cells.values()} == {"done"}
    assert all(cell.step == cell.generated_tokens == 0 and not cell.read_steps() for cell in cells.values())
    assert not list((tmp_path / "home" / "mine" / "cells").glob("*/checkpoints"))
    # Sampled, and one greedy answer; the same decoding and another grader take over what is there.
    assert len(drawn.samples) == 2 * 6 * (3 + 1)
    sweep = read_sweep(tmp_path / "home" / "mine")
    analysis = analyse(sweep)
    report = report_document(analysis)
    rows = {row.arm: row for row in report.contrasts}
    assert {row.unit for row in rows.values()} == {"problem"}
    assert {row.n_pairs for row in rows.values()} == {6} and rows["greedy"].seeds == [0, 1]
    assert rows["same"].verdict == "identical"
    statements_of = {one.sentence.partition(" ")[0] for one in statements(report)}
    assert statements_of >= {"same", "greedy"} and "builtin:tiny" in seed_sentence(report)


@pytest.mark.slow
def test_a_kill_resumes_and_more_samples_are_topped_up(run: Run, tmp_path: Path, drawn: Drawn) -> None:
    only = {"arms": {"sampled": {}, "greedy": {"eval.temperature": 0.0}}, "ablate": ["eval.temperature"], "seeds": 1}
    drawn.killed_at = 2
    with pytest.raises(KeyboardInterrupt):
        run(**only)
    first = len(drawn.samples)
    assert first == 6 * 3
    unbroken = records(run(**only), tmp_path)
    assert len(drawn.samples) == first + 6, (
        "what was drawn before the kill is not drawn again, and a greedy arm has one sample"
    )
    drawn.samples.clear()
    run(**only)
    assert not drawn.samples
    few = samples_of(unbroken["sampled", 0])
    topped_up = records(run(["eval.samples=20"], **only), tmp_path)["sampled", 0]
    assert topped_up.evaluation is not None and topped_up.digest != unbroken["sampled", 0].digest
    assert len(samples_of(topped_up)) == 6 * 20
    assert [row for row in samples_of(topped_up) if row["sample"] < 3] == few


def test_another_sweep_takes_over_what_the_home_holds(run: Run, tmp_path: Path, drawn: Drawn) -> None:
    plan = run(arms={"sampled": {}}, ablate=[], seeds=1)
    drawn.samples.clear()
    other = run(name="other", arms={"renamed": {}}, ablate=[], seeds=1)
    assert not drawn.samples
    (one,), (taken_over,) = (records(p, tmp_path).values() for p in (plan, other))
    assert samples_of(one) == samples_of(taken_over) and one.digest == taken_over.digest


SEARCH = {"objectives": ["eval.final.pass@1"], "knobs": {"train.learning_rate": {"log": [1e-5, 1e-3]}}}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "training in an arm": ({"arms": {"a": {}, "b": {"train.steps": 3}}}, r"arms\.b: train\.steps"),
    "training in base": ({"base": {"algorithm": "grpo"}}, r"base: algorithm"),
    "a curve": ({"base": {"eval.every": 2}}, r"eval\.every is"),
    "training as the question": ({"ablate": ["objective.scale"]}, r"objective\.scale is"),
    "a model for each arm": ({"arms": {"a": {}, "b": {"checkpoint": "hf:x"}}}, r"checkpoint is"),
    "no such model": ({"checkpoint": "nowhere"}, r"'nowhere' is"),
    "a metric of no problem": ({"compare": {"metric": "eval.final.maj@2"}}, r"maj@2"),
    "pass@2 of one sample": ({"compare": {"metric": "eval.final.pass@2"}}, r"pass@2"),
    "a screening": ({"screening": {"best": 1}}, r"screening is"),
    "a search": ({"arms": None, "search": SEARCH}, r"search is"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_asked_of_a_checkpoint_is_refused(name: str, tmp_path: Path) -> None:
    changes, message = REFUSED[name]
    with pytest.raises(RefusedError, match=message):
        make_plan(str(write_sweep_file(tmp_path, **(EVALUATIONS | {"ablate": ["eval"]} | changes))))


def test_undeclared_differences_are_refused_as_everywhere(tmp_path: Path) -> None:
    plan = make_plan(str(write_sweep_file(tmp_path, **(EVALUATIONS | {"ablate": ["eval.grader"]}))))
    assert set(plan.gate.violations) == {"eval.temperature"}


@pytest.mark.slow
def test_a_trained_cell_is_a_checkpoint_whose_samples_count(run: Run, tmp_path: Path, drawn: Drawn) -> None:
    """With the noise of its own seed, what it drew itself is taken over."""
    from tests.harness.run.small import small_spec
    from tests.harness.run.test_top_up import run as run_spec

    machine = {"model.dtype": "float32", "rollout.engine": "torch", "eval.problems": 5}
    cell = run_spec(tmp_path / "trained", small_spec(machine))
    drawn.samples.clear()
    asked = {"eval.problems": 5, "eval.samples": 4, "eval.max_completion_tokens": 32}
    plan = run(checkpoint=str(cell.path), base=asked, arms={"as_trained": {}}, ablate=[], seeds=2)
    seed_0, seed_1 = records(plan, tmp_path).values()
    assert len(drawn.samples) == 5 * 4, "those of seed 1"
    assert [row["text"] for row in samples_of(seed_0)] == [row["text"] for row in samples_of(cell)]
    assert [row["text"] for row in samples_of(seed_1)] != [row["text"] for row in samples_of(cell)]
