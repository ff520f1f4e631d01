"""One cell in this process: stopped at every point where it writes, and gone on with."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from evals.tasks import get_task
from harness.config.run_spec import RunSpec
from harness.models.language_model import load_model, weights_digest
from harness.processes import Interrupted, Stopping
from harness.records import CellRecord
from harness.records import files as record_files
from harness.records.files import append_jsonl
from harness.run import cell as cell_log
from harness.run import cell as cell_module
from harness.run.learning.rollouts import Rollouts
from harness.sampling import evaluation, store
from harness.sampling.sampler import EngineSampler
from harness.training import checkpoint
from harness.training.batch import Batch
from harness.training.policy_update import PolicyUpdate
from harness.training.update_report import StepReport
from tests.harness.run.bench import rollout_rows
from tests.harness.run.small import Killed, new_cell, run_cell, small_spec

REPRODUCIBLE = ("problems.jsonl", "steps.jsonl", "scores.jsonl", "evals.parquet", "status.json")


SHORT = {"rollout.max_completion_tokens": 12, "eval.max_completion_tokens": 12}


def short_spec(settings: dict[str, Any] | None = None, seed: int = 0) -> RunSpec:
    return small_spec(SHORT | (settings or {}), seed)


def short_cell(folder: Path, settings: dict[str, Any], seed: int = 0) -> CellRecord:
    cell = new_cell(folder)
    run_cell(cell, short_spec(settings, seed))
    return cell


def contents(cell: CellRecord) -> dict[str, bytes]:
    """All but the number of the start that wrote a row."""
    rollouts = {f"rollouts/{path.name.rpartition('-')[0]}": path.read_bytes() for path in cell.rollout_files()}
    records = {name: (cell.path / name).read_bytes() for name in REPRODUCIBLE}
    counted = dict(json.loads(records["status.json"]))
    assert counted.pop("records").keys() >= {"steps.jsonl", "scores.jsonl", "rollouts"}
    records["status.json"] = json.dumps(counted).encode()
    return {name: re.sub(rb', "epoch": \d+', b"", written) for name, written in records.items()} | rollouts


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> CellRecord:
    made = new_cell(tmp_path_factory.mktemp("unbroken") / "cell")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(evaluation, "CHUNK_SAMPLES", 8)
        run_cell(made, short_spec())
    return made


class TestUnbroken:
    @pytest.mark.slow
    def test_leaves_its_records(self, unbroken: CellRecord) -> None:
        status = unbroken.read_status()
        assert (status["state"], status["step"], status["steps"], status["flags"]) == ("done", 4, 4, [])
        assert [row["step"] for row in unbroken.read_steps()] == [1, 2, 3, 4]
        assert [row["step"] for row in unbroken.read_timing() if "total_s" in row] == [1, 2, 3, 4]
        scores = [(row["step"], row["final"], row["n_samples"]) for row in unbroken.read_scores()]
        assert scores == [(2, False, 2), (4, True, 4)]
        rollouts = [path.name for path in sorted(unbroken.rollouts.iterdir())]
        assert rollouts == ["000001-000002-e1.parquet", "000003-000004-e1.parquet"]
        assert not [*unbroken.path.glob("evals.jsonl"), *unbroken.path.rglob("*.tmp")]

    @pytest.mark.slow
    def test_counts_every_generated_token(self, unbroken: CellRecord) -> None:
        rows = rollout_rows(unbroken)
        assert len(rows) == 4 * 16
        assert unbroken.generated_tokens == sum(len(row["tokens"]) for row in rows)
        for step in unbroken.read_steps():
            mine = [row for row in rows if row["step"] == step["step"]]
            assert step["reward/mean"] == pytest.approx(sum(row["reward"] for row in mine) / 16)
            assert step["generated_tokens"] == sum(len(row["tokens"]) for row in rows if row["step"] <= step["step"])

    def test_evaluations_hold_each_sample_once(self, unbroken: CellRecord) -> None:
        table = unbroken.read_evals()
        assert table is not None
        rows = [(row["step"], row["problem_id"], row["sample"]) for row in table.to_pylist()]
        assert len(rows) == len(set(rows)) == 8 * 2 + 8 * 4
        for score in unbroken.read_scores():
            correct = [row["correct"] for row in table.to_pylist() if row["step"] == score["step"]]
            assert score["metrics"]["pass@1"] == pytest.approx(sum(correct) / len(correct))

    def test_every_problem_is_recorded_once_with_its_prompt_and_answer(self, unbroken: CellRecord) -> None:
        rollouts, evals = unbroken.read_rollouts(["problem_id"]), unbroken.read_evals(["problem_id"])
        assert rollouts is not None and evals is not None
        expected = set()
        for split, table in {"train": rollouts, "test": evals}.items():
            problems = {problem.id: problem for problem in get_task("arithmetic").split(split).load()}
            used = [problems[problem_id] for problem_id in table["problem_id"].to_pylist()]
            expected |= {("arithmetic", split, one.id, one.problem, one.answer) for one in used}
        names = ("task", "split", "problem_id", "prompt", "answer")
        assert sorted(tuple(row[name] for name in names) for row in unbroken.read_problems()) == sorted(expected)  # type: ignore[literal-required]

    def test_the_digest_is_of_the_final_weights_which_have_moved(self, unbroken: CellRecord) -> None:
        last = checkpoint.load_latest(unbroken.checkpoints)
        assert last is not None
        assert (last.step, weights_digest(last.weights)) == (4, unbroken.digest)
        assert unbroken.digest != weights_digest(load_model("builtin:tiny").model.state_dict())

    def test_another_seed_is_another_run(self, unbroken: CellRecord, tmp_path: Path) -> None:
        other = short_cell(tmp_path, {"train.steps": 1, "eval.problems": 1}, seed=1)
        assert other.read_steps()[0] != unbroken.read_steps()[0]


def writes(monkeypatch: pytest.MonkeyPatch, before: Callable[[int], None], torn: bool = False) -> list[str]:
    """Call `before` with the number of each lasting write; with `torn`, an append leaves half of its text."""
    made: list[str] = []

    def counted(module: Any, name: str) -> None:
        real = getattr(module, name)

        def write(*arguments: Any, **settings: Any) -> Any:
            made.append(name)
            try:
                before(len(made))
            except Killed:
                if torn and name == "append_jsonl":
                    append_half(*arguments)
                raise
            return real(*arguments, **settings)

        monkeypatch.setattr(module, name, write)

    for module in (cell_log, record_files, store):
        counted(module, "append_jsonl")
    for module in (cell_log, store):
        counted(module, "write_atomic")
    counted(cell_log, "keep_jsonl")
    counted(cell_module, "save_checkpoint")
    counted(cell_log.CellLog, "drop_samples")
    counted(CellRecord, "write_status")
    return made


def append_half(path: Path, rows: list[dict[str, Any]]) -> None:
    aside = path.with_name("half")
    append_jsonl(aside, rows)
    text = aside.read_bytes()
    aside.unlink()
    with path.open("ab") as handle:
        handle.write(text[: len(text) // 2])


def broken_at(point: int, folder: Path, torn: bool) -> CellRecord:
    """A cell that was stopped at a write and gone on with."""

    def stop(number: int) -> None:
        if number == point:
            raise Killed

    made = new_cell(folder)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(evaluation, "CHUNK_SAMPLES", 8)
        with pytest.MonkeyPatch.context() as once, pytest.raises(Killed):
            writes(once, stop, torn)
            run_cell(made, short_spec())
        run_cell(made, short_spec())
    return made


@pytest.mark.slow
@pytest.mark.parametrize("point", [pytest.param(n, marks=() if n % 5 == 2 else pytest.mark.long) for n in range(1, 33)])
def test_stopped_anywhere_it_goes_on_as_if_unbroken(unbroken: CellRecord, tmp_path: Path, point: int) -> None:
    broken = broken_at(point, tmp_path / "broken", torn=point % 2 == 0)
    assert contents(broken) == contents(unbroken)


def numbers(cell: CellRecord) -> dict[str, Any]:
    """What counts. Rollouts lie in files of as many steps as there were between two checkpoints."""
    files = {name: content for name, content in contents(cell).items() if not name.startswith("rollouts/")}
    return files | {"rollouts": rollout_rows(cell), "weights": cell.digest}


def asked_to_stop_at(point: int, cell: CellRecord, spec: RunSpec) -> bool:
    """Ask a cell to stop, as a signal does, at one of its writes; returns whether it has as many."""
    stopping = Stopping()

    def ask(number: int) -> None:
        if number == point:
            stopping.ask()

    with pytest.MonkeyPatch.context() as once:
        writes(once, ask)
        try:
            run_cell(cell, spec, stopping)
        except Interrupted:
            return True
    return stopping.is_asked


RARELY = {"train.checkpoint_every": 50}


@pytest.mark.parametrize(
    "point", [pytest.param(n, marks=() if n in (8, 15) else pytest.mark.long) for n in range(7, 21)]
)
def test_asked_to_stop_it_leaves_a_checkpoint_and_goes_on_as_if_unbroken(
    unbroken: CellRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: int
) -> None:
    """While the first step is recorded, and in the evaluation after the second."""
    monkeypatch.setattr(evaluation, "CHUNK_SAMPLES", 8)
    cell = new_cell(tmp_path)
    assert asked_to_stop_at(point, cell, short_spec(RARELY))
    last = checkpoint.load_latest(cell.checkpoints)
    assert last is not None and last.step == len(cell.read_steps()) > 0
    run_cell(cell, short_spec(RARELY))
    assert numbers(cell) == numbers(unbroken)


@pytest.mark.slow
def test_asked_to_stop_while_it_draws_it_leaves_a_checkpoint_of_the_step_before(
    unbroken: CellRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopping, gather = Stopping(), Rollouts.gather

    def draw(self: Rollouts, step: int, *rest: Any) -> Batch:
        drawn = gather(self, step, *rest)
        if step == 3:
            stopping.ask()
        return drawn

    cell = new_cell(tmp_path / "cell")
    with monkeypatch.context() as once, pytest.raises(Interrupted):
        once.setattr(Rollouts, "gather", draw)
        run_cell(cell, short_spec(RARELY), stopping)
    assert [path.name for path in checkpoint.checkpoint_folders(cell.checkpoints)] == ["step-000000", "step-000002"]
    monkeypatch.setattr(evaluation, "CHUNK_SAMPLES", 8)
    run_cell(cell, short_spec(RARELY))
    assert numbers(cell) == numbers(unbroken)


def test_an_update_that_takes_too_long_is_left_and_leaves_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopping, run = Stopping(), PolicyUpdate.run

    def update(self: PolicyUpdate, batch: Batch, step: int) -> StepReport:
        if step == 3:
            stopping.ask()
            stopping.insist()
        return run(self, batch, step)

    monkeypatch.setattr(PolicyUpdate, "run", update)
    cell = new_cell(tmp_path / "cell")
    with pytest.raises(Interrupted):
        run_cell(cell, short_spec(RARELY), stopping)
    assert [path.name for path in checkpoint.checkpoint_folders(cell.checkpoints)] == ["step-000000"]


@pytest.mark.slow
@pytest.mark.parametrize(("lost_rows", "drawn_again"), [(0, 2), (3, 3)])
def test_the_final_evaluation_keeps_whole_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unbroken: CellRecord, lost_rows: int, drawn_again: int
) -> None:
    """8 problems x 4 samples in chunks of 8, stopped in the third; a second chunk that a kill tore is drawn again."""
    monkeypatch.setattr(evaluation, "CHUNK_SAMPLES", 8)
    drawn: list[int] = []
    real = EngineSampler.draw

    def draw(self: EngineSampler, draws: Any, *others: Any) -> Any:
        drawn.append(1 + max(draw.sample for draw in draws))
        if drawn == [2, 2, 4, 4, 4]:  # the first two are along the curve
            raise Killed
        return real(self, draws, *others)

    monkeypatch.setattr(EngineSampler, "draw", draw)
    made = new_cell(tmp_path / "cell")
    with pytest.raises(Killed):
        run_cell(made, short_spec())
    samples = made.path / "evals.jsonl"
    lines = samples.read_text().splitlines(keepends=True)
    assert len(lines) == 16 + 16
    kept = lines[: len(lines) - lost_rows]
    samples.write_text("".join(kept) + (lines[-1][:20] if lost_rows else ""))
    drawn.clear()
    run_cell(made, short_spec())
    assert drawn == [4] * drawn_again
    assert contents(made) == contents(unbroken)


def test_rollouts_after_the_checkpoint_are_cut(tmp_path: Path, unbroken: CellRecord) -> None:
    """Stopped between the rollouts of steps 1 and 2 and their checkpoint, gone on with at another interval: each
    completion is there once."""

    def stop(number: int) -> None:
        if made.count("save_checkpoint") == 2:
            raise Killed

    cell = new_cell(tmp_path / "cell")
    with pytest.MonkeyPatch.context() as once:
        made = writes(once, stop)
        with pytest.raises(Killed):
            run_cell(cell, short_spec())
    assert [path.name for path in cell.rollouts.iterdir()] == ["000001-000002-e1.parquet"]
    run_cell(cell, short_spec({"train.checkpoint_every": 4}))
    assert [path.name for path in cell.rollouts.iterdir()] == ["000001-000004-e2.parquet"]
    assert [row["step"] for row in rollout_rows(cell)] == [step for step in range(1, 5) for _ in range(16)]


@pytest.mark.slow
def test_a_token_budget_ends_a_cell_at_the_next_step(tmp_path: Path, unbroken: CellRecord) -> None:
    by_step = [row["generated_tokens"] for row in unbroken.read_steps()]
    made = short_cell(tmp_path / "cell", {"budget.tokens": by_step[1] + 1, "eval.problems": 1})
    assert (made.step, made.generated_tokens) == (3, by_step[2])
    assert [row["step"] for row in made.read_steps()] == [1, 2, 3]
    assert short_cell(tmp_path / "exactly", {"budget.tokens": by_step[1], "eval.problems": 1}).step == 2


class TestDivergence:
    @pytest.mark.slow
    def test_is_scored_at_the_last_finite_checkpoint(
        self, tmp_path: Path, unbroken: CellRecord, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = PolicyUpdate.run

        def update(self: PolicyUpdate, batch: Batch, step: int) -> StepReport:
            if step == 4:
                with torch.no_grad():
                    next(self.model.parameters()).fill_(math.nan)
            return run(self, batch, step)

        monkeypatch.setattr(PolicyUpdate, "run", update)
        made = short_cell(tmp_path, {"train.steps": 6})
        assert (made.state, made.flags, made.step) == ("done", ["nan"], 2)
        assert made.read_steps() == unbroken.read_steps()[:2]
        assert [(row["step"], row["final"]) for row in made.read_scores()] == [(2, False), (2, True)]
        table = made.read_evals()
        assert table is not None and set(table["step"].to_pylist()) == {2}
        assert [path.name for path in made.rollouts.iterdir()] == ["000001-000002-e1.parquet"]

    def test_at_the_first_step_the_starting_weights_are_scored(self, tmp_path: Path) -> None:
        made = short_cell(tmp_path, {"train.learning_rate": 1e15, "train.checkpoint_every": 4})
        assert (made.state, made.flags, made.step) == ("done", ["nan"], 0)
        assert made.digest == weights_digest(load_model("builtin:tiny").model.state_dict())
        assert made.read_steps() == []
        assert [(row["step"], row["final"]) for row in made.read_scores()] == [(0, True)]

    def test_without_an_advantage_it_is_seen_too(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A policy of NaN earns nothing anywhere: no group has an advantage, and no loss turns NaN."""
        run = PolicyUpdate.run

        def update(self: PolicyUpdate, batch: Batch, step: int) -> StepReport:
            report = run(self, batch, step)
            with torch.no_grad():
                for weight in self.model.parameters():
                    weight.mul_(1e15)  # finite, but attention scores are not
            return report

        monkeypatch.setattr(PolicyUpdate, "run", update)
        made = short_cell(tmp_path, {"train.checkpoint_every": 4})
        assert (made.flags, made.step) == (["nan"], 0)
