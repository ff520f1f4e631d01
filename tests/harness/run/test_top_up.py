"""A trained cell asked for under another evaluation: what is missing is drawn from its last checkpoint, and no more."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from harness.config.hashing import evaluation_hash, training_hash
from harness.config.run_spec import RunSpec
from harness.errors import RefusedError
from harness.models.start import StartingPoint
from harness.plan import PlannedCell
from harness.records import CellRecord
from harness.records.cell import EVALUATIONS
from harness.records.files import write_json
from harness.records.rows import ScoreRow
from harness.run.cell_job import run_cell
from harness.run.provenance import provenance
from harness.sampling import evaluation
from harness.sampling.sampler import EngineSampler
from tests.harness.run.small import small_spec
from tests.refusals import refuses

SMALL = {
    **{"train.device": "cpu", "model.dtype": "float32", "rollout.engine": "torch", "eval.problems": 5},
    **{"rollout.max_completion_tokens": 12, "eval.max_completion_tokens": 12},
}
OWN_TASK = """
name: sums
template: plain
grader: exact
extract: last_number
margin_pp: 1.0
splits: {test: {file: rows.jsonl}}
"""


def spec_with(settings: dict[str, Any] | None = None) -> RunSpec:
    return small_spec({**SMALL, **(settings or {})})


class Drawn:
    """What was drawn, sample by sample, and who is to be killed after how many calls."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.samples: list[tuple[str, int]] = []
        self.calls, self.killed_at = 0, 0
        real = EngineSampler.draw

        def draw(sampler: EngineSampler, draws: Any, params: Any, *more: Any) -> Any:
            self.calls += 1
            if self.calls == self.killed_at:
                raise KeyboardInterrupt
            self.samples += [(draw.example, draw.sample) for draw in draws]
            return real(sampler, draws, params, *more)

        patch.setattr(EngineSampler, "draw", draw)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Drawn:
    return Drawn(monkeypatch)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a cell that was evaluated with 4 samples of 5 problems."""
    home = tmp_path_factory.mktemp("trained")
    run(home, spec_with())
    return home


@pytest.fixture
def home(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "home"))


def record_of(home: Path, spec: RunSpec) -> CellRecord:
    return PlannedCell.of_arm("one", {0: spec})[0].record(home / "mine" / "cells")


def run(home: Path, spec: RunSpec) -> CellRecord:
    """As `bench run` does."""
    record = record_of(home, spec)
    record.evaluation_folder.mkdir(parents=True, exist_ok=True)
    write_json(record.evaluation_folder / "spec.json", spec.model_dump(mode="json"))
    run_cell(spec, home, record.path, StartingPoint(), lambda event: None, lambda: None)
    return record_of(home, spec)


def samples_of(cell: CellRecord) -> list[dict[str, Any]]:
    """Those of the final evaluation, without the number of the start."""
    table = cell.read_evals()
    assert table is not None
    rows = [{name: row[name] for name in row if name != "epoch"} for row in table.to_pylist() if row["final"]]
    return sorted(rows, key=lambda row: (row["task"], row["problem_id"], row["sample"]))


def final_scores(cell: CellRecord) -> list[ScoreRow]:
    return [row for row in cell.read_scores() if row["final"]]


def training_of(cell: CellRecord) -> dict[str, Any]:
    """All that a further evaluation must leave alone, by content and by time."""
    files = [path for path in cell.path.rglob("*") if path.is_file() and EVALUATIONS not in path.parts]
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files if path.name != "lease.json"}


@pytest.mark.slow
def test_a_topped_up_evaluation_is_that_which_had_all_samples_from_the_start(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drawn: Drawn
) -> None:
    """Bit for bit, over several chunks of problems and of samples; nothing of the training is touched."""
    monkeypatch.setattr(evaluation, "CHUNK_SAMPLES", 16)
    monkeypatch.setattr(evaluation, "BLOCK_SAMPLES", 8)
    more = spec_with({"eval.samples": 20})
    before = training_of(record_of(home, spec_with()))
    assert record_of(home, more).lacks == "evaluation"
    cell = run(home, more)
    assert (cell.state, cell.lacks, cell.evaluation) == ("done", None, evaluation_hash(more)[:10])
    assert training_of(cell) == before
    fresh = run(tmp_path / "fresh", more)
    assert len(samples_of(cell)) == 5 * 20 and samples_of(cell) == samples_of(fresh)
    assert final_scores(cell) == final_scores(fresh)
    assert cell.read_scores() == fresh.read_scores(), "the learning curve is shown beside it"
    drawn.samples.clear()
    assert samples_of(run(home, more)) == samples_of(fresh) and not drawn.samples
    run(home, spec_with({"eval.samples": 24}))
    assert set(drawn.samples) == {(row["problem_id"], n) for row in samples_of(cell) for n in range(16, 24)}


@pytest.mark.slow
def test_the_former_evaluation_stays(home: Path) -> None:
    first = record_of(home, spec_with())
    rows, scores = samples_of(first), first.read_scores()
    run(home, spec_with({"eval.samples": 6}))
    again = run(home, spec_with())
    assert again.evaluation is None and (samples_of(again), again.read_scores()) == (rows, scores)


@pytest.mark.slow
def test_what_is_there_is_enough_for_less(home: Path, drawn: Drawn) -> None:
    """Fewer samples, fewer problems, other k, another grader: no weights are needed."""
    own = record_of(home, spec_with())
    shutil.rmtree(own.checkpoints)
    settings: dict[str, Any] = {"eval.samples": 3, "eval.problems": 2, "eval.k": [3], "eval.grader": "exact"}
    cell = run(home, spec_with(settings))
    kept = [row for row in samples_of(own) if row["problem_id"] in {r["problem_id"] for r in samples_of(cell)}]
    assert [row["text"] for row in samples_of(cell)] == [row["text"] for row in kept if row["sample"] < 3]
    assert [(row["n_problems"], row["n_samples"]) for row in final_scores(cell)] == [(2, 3)]
    assert "pass@3" in final_scores(cell)[0]["metrics"] and not drawn.samples
    assert len(cell.read_scores()) == 1, "the curve was graded otherwise"


def test_other_decoding_shares_nothing(home: Path, drawn: Drawn) -> None:
    cell = run(home, spec_with({"eval.temperature": 0.7, "eval.samples": 2}))
    assert len(drawn.samples) == len(samples_of(cell)) == 5 * 2
    assert cell.lacks is None and len(cell.read_scores()) == 1


def test_another_task_is_drawn_alone(home: Path, tmp_path: Path, drawn: Drawn) -> None:
    rows = [{"problem": f"{n} + 1 =", "answer": str(n + 1)} for n in range(3)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "sums.yaml").write_text(OWN_TASK)
    both = spec_with({"eval.tasks": ["arithmetic", str(tmp_path / "sums.yaml")]})
    cell = run(home, both)
    assert len(drawn.samples) == 3 * 4
    assert [row["task"] for row in final_scores(cell)] == ["arithmetic", "sums"]
    assert {row["task"] for row in cell.read_problems() if row["split"] == "test"} == {"arithmetic", "sums"}


@pytest.mark.parametrize("lost", ["checkpoints", "digest"])
def test_without_its_own_checkpoint_a_cell_cannot_be_topped_up(home: Path, lost: str) -> None:
    own = record_of(home, spec_with())
    if lost == "digest":
        own.write_status("done", digest="0" * 40)
    else:
        shutil.rmtree(own.checkpoints)
    with refuses(RefusedError, "run.samples_missing"):
        run(home, spec_with({"eval.samples": 6}))
    assert record_of(home, spec_with()).state == "done", "what was measured stays so"


def test_a_cell_that_another_run_trained_meanwhile_is_evaluated(home: Path) -> None:
    """It was to be trained under this evaluation, and now is trained under another."""
    more = spec_with({"eval.samples": 6})
    run_cell(more, home, record_of(home, more).path, StartingPoint(), lambda event: None, lambda: None)
    assert record_of(home, more).lacks is None and record_of(home, more).spec["eval"]["samples"] == 6


@pytest.mark.slow
def test_a_kill_in_the_middle_loses_nothing(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "BLOCK_SAMPLES", 4)
    more, drawn = spec_with({"eval.samples": 16}), Drawn(monkeypatch)
    drawn.killed_at = 3
    with pytest.raises(KeyboardInterrupt):
        run(home, more)
    stopped = record_of(home, more)
    assert (stopped.lacks, stopped.state) == ("evaluation", "interrupted")
    cell = run(home, more)
    assert sorted(drawn.samples) == sorted({*drawn.samples}), "no sample was drawn twice"
    assert samples_of(cell) == samples_of(run(tmp_path / "fresh", more))
    starts = cell.read_starts()
    assert [start["epoch"] for start in starts] == [1, 1, 2], "of training, and twice of the evaluation"
    assert all(start["packages"] == provenance()["packages"] for start in starts)


@pytest.mark.slow
def test_an_interrupted_cell_goes_on_under_another_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it had drawn is put aside, not mixed in and not lost."""
    drawn = Drawn(monkeypatch)
    monkeypatch.setattr(evaluation, "CHUNK_SAMPLES", 8)
    drawn.killed_at = 4  # after the curve, and a part of the final evaluation
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, spec_with())
    assert record_of(tmp_path, spec_with()).lacks == "training"
    other = run(tmp_path, spec_with({"eval.temperature": 0.7, "eval.samples": 2}))
    fresh = run(tmp_path / "fresh", spec_with({"eval.temperature": 0.7, "eval.samples": 2}))
    assert other.evaluation is None and other.digest == fresh.digest
    assert samples_of(other) == samples_of(fresh) and final_scores(other) == final_scores(fresh)
    drawn.samples.clear()
    back = run(tmp_path, spec_with())
    assert back.evaluation is not None and len(drawn.samples) == 3 * 4
    assert samples_of(back) == samples_of(run(tmp_path / "fresh", spec_with()))
    assert [row["final"] for row in back.read_scores()] == [False, True]


@pytest.mark.slow
def test_watching_a_cell_changes_neither_its_weights_nor_its_hash(trained: Path, tmp_path: Path) -> None:
    unwatched = spec_with({"eval.every": 0})
    assert (training_hash(unwatched), evaluation_hash(unwatched)) == (
        training_hash(spec_with()),
        evaluation_hash(spec_with()),
    )
    one, other = record_of(trained, spec_with()), run(tmp_path, unwatched)
    assert one.digest == other.digest and samples_of(one) == samples_of(other)
