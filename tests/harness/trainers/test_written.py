"""Rows that a program writes are checked as they come; what it wrote in earlier starts counts as far as it stands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import BenchError
from harness.records.files import write_json
from harness.trainers.contract import Budget, Done, ProgramConfig
from harness.trainers.written import (
    Announced,
    ContractError,
    Lines,
    Metrics,
    MetricsRow,
    ProgramTotals,
    WrittenRollouts,
    folder_of,
)
from tests.refusals import refuses

START = Done(step=0, generated_tokens=0, trained_tokens=0)


def write(folder: Path, *rows: Any, name: str = "metrics.jsonl") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("a", encoding="utf-8", errors="surrogateescape") as file:
        file.writelines((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)


def row(step: int, tokens: int = 0, **metrics: Any) -> dict[str, Any]:
    return {"step": step, "generated_tokens": tokens, **metrics}


@settings(max_examples=30)
@given(cuts=st.lists(st.integers(0, 60), max_size=6))
def test_lines_are_read_once_wherever_a_write_was_cut(
    cuts: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("lines") / "rows.jsonl"
    rows = [{"step": step, "ü": "é" * step} for step in range(1, 4)]
    content = "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in rows).encode()
    lines, read, begin = Lines(path), [], 0
    for end in [*sorted(cuts), len(content)]:
        with path.open("ab") as file:
            file.write(content[begin:end])
        begin = max(begin, end)
        read += [found for _, found in lines.read()]
    assert read == rows


def test_names_are_mapped_and_other_metrics_keep_theirs_apart(tmp_path: Path) -> None:
    write(tmp_path, row(1, 5, acc=0.5, kl=None, epoch=0.1))
    (step,) = Metrics(tmp_path, START, {"reward/mean": "acc"}).read()
    assert step == MetricsRow(1, 5, 0, {"reward/mean": 0.5, "program/kl": None, "program/epoch": 0.1})
    metrics = Metrics(tmp_path, START, {"reward/mean": "acb"})
    assert [*metrics.read()] != []
    assert "acb" in str(metrics.told_missing())
    assert metrics.told_missing() is None, "it is told once"


@pytest.mark.parametrize(
    ("rows", "code", "line"),
    [
        ([row(1, 9), row(2, 4)], "count_falls", 2),
        ([{"step": 1}], "count_malformed", 1),
        ([row(1, kl="low")], "metric_not_a_number", 1),
        (["{"], "line_not_json", 1),
        (["\udcff"], "line_not_json", 1),
        (["[1]"], "line_not_an_object", 1),
        ([row(1), {"step": 2, "checkpoint": "c"}], "checkpoint_of_another_step", 2),
        ([row(1), {"step": 1, "checkpoint": "../c"}], "checkpoint_outside_folder", 2),
        ([row(1), {"step": 1, "checkpoint": "c"}], "checkpoint_missing", 2),
        ([row(1, checkpoint="c")], "announcement_malformed", 1),
    ],
)
def test_a_breach_is_named_with_its_line(rows: list[Any], code: str, line: int, tmp_path: Path) -> None:
    write(tmp_path / "out", *rows)
    with refuses(ContractError, f"trainers.{code}", place=f"metrics.jsonl, line {line}"):
        [*Metrics(tmp_path / "out", START, {}).read()]


@pytest.mark.parametrize("then", [1, 3])
def test_steps_go_up_by_one(then: int, tmp_path: Path) -> None:
    write(tmp_path, row(1), row(then))
    with pytest.raises(ContractError) as refused:
        [*Metrics(tmp_path, START, {}).read()]
    assert f"step 1 to {then}, " in str(refused.value)


def test_a_budget_of_trained_tokens_needs_their_count(tmp_path: Path) -> None:
    write(tmp_path, row(1))
    with refuses(ContractError, "trainers.count_malformed", count="trained_tokens", given="None"):
        [*Metrics(tmp_path, START, {}, counts_trained=True).read()]


@pytest.mark.parametrize(
    ("metrics", "names"), [({"loss": float("nan")}, {}), ({"g": float("inf")}, {"grad_norm": "g"})]
)
def test_a_loss_that_is_not_finite_is_divergence_and_other_metrics_are_not(
    metrics: dict[str, Any], names: dict[str, str], tmp_path: Path
) -> None:
    write(tmp_path, row(1, entropy=float("nan")), row(2, **metrics))
    fine, broken = Metrics(tmp_path, START, names).read()
    assert isinstance(fine, MetricsRow) and fine.not_finite is None and fine.columns == {"program/entropy": None}
    assert isinstance(broken, MetricsRow) and str(broken.not_finite).endswith("step 2")


def test_completions_are_numbered_by_prompt_and_wait_for_their_step(tmp_path: Path) -> None:
    drawn = {"text": "x", "correct": True, "reward": 1}
    for step, problem in ((1, "a"), (1, "a"), (1, "b"), (2, "a")):
        write(tmp_path, {"step": step, "problem_id": problem, **drawn}, name="rollouts.jsonl")
    rollouts = WrittenRollouts(tmp_path)
    assert [(one["problem_id"], one["sample"]) for one in rollouts.of_step(1)] == [("a", 0), ("a", 1), ("b", 0)]
    assert [one["step"] for one in rollouts.of_step(2)] == [2]
    write(tmp_path, {"step": 2, "problem_id": "a", **drawn}, name="rollouts.jsonl")
    with refuses(ContractError, "trainers.completion_too_late", place="rollouts.jsonl, line 5", step=2):
        rollouts.of_step(3)
    write(tmp_path, {"step": 3, "problem_id": "a", "text": "x"}, name="rollouts.jsonl")
    with refuses(ContractError, "trainers.completion_lacks_field", place="rollouts.jsonl, line 6", field="correct"):
        rollouts.of_step(3)


def start(program: Path, epoch: int, done: Done, *rows: Any) -> None:
    folder = folder_of(program, epoch)
    about: dict[str, Any] = {"model": "m", "prompts": "p", "device": "cpu", "seed": 0, "budget": Budget(steps=9)}
    config = ProgramConfig(**about, output=str(folder), done=done, checkpoint_every=1, evaluate_every=0)
    for one in rows:
        if isinstance(one, dict) and "checkpoint" in one:
            (folder / one["checkpoint"]).mkdir(parents=True)
    write(folder, *rows)
    write_json(folder / "config.json", config.model_dump(mode="json"))


def test_a_later_start_replaces_the_steps_that_it_began_anew(tmp_path: Path) -> None:
    announced = [{"step": step, "checkpoint": name} for step, name in ((2, "c"), (3, "d"))]
    start(tmp_path, 1, START, row(1, 1), row(2, 2), announced[0], row(3, 3), announced[1])
    resumed = Done(step=2, generated_tokens=2, trained_tokens=0)
    start(tmp_path, 3, resumed, row(3, 30), row(3, 31), row(4, 40))  # a breach: what follows does not count
    written = ProgramTotals.by(tmp_path, {}, False, lambda epoch, step: epoch < 3 and step > 2)
    assert {step: one.generated_tokens for step, (one, _) in written.steps.items()} == {1: 1, 2: 2, 3: 30}
    assert written.checkpoints == {2: folder_of(tmp_path, 1).resolve() / "c"}
    assert written.diverged is None


def test_divergence_is_remembered_so_that_no_start_draws_again_until_it_is_finite(tmp_path: Path) -> None:
    start(tmp_path, 1, START, row(1), {"step": 1, "checkpoint": "c"}, row(2, loss=float("nan")))
    diverged = ProgramTotals.by(tmp_path, {}, False, lambda epoch, step: False).diverged
    assert diverged is not None and "nan" in diverged and diverged.endswith("step 2")


@pytest.mark.parametrize(
    ("changed", "code"),
    [({"contract": 2, "new": 1}, "trainers.newer_contract"), ({"done": None}, "trainers.config_damaged")],
)
def test_a_start_of_a_newer_bench_is_refused(tmp_path: Path, changed: dict[str, Any], code: str) -> None:
    start(tmp_path, 1, START, row(1))
    path = folder_of(tmp_path, 1) / "config.json"
    write_json(path, json.loads(path.read_text()) | changed)
    with refuses(BenchError, code, path="config.json"):
        ProgramTotals.by(tmp_path, {}, False, lambda epoch, step: False)


def test_a_checkpoint_is_announced_by_its_folder(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    write(tmp_path, row(1), {"step": 1, "checkpoint": "c"})
    assert [*Metrics(tmp_path, START, {}).read()][1] == Announced(1, tmp_path.resolve() / "c")
