"""Cells whose completions a judge grades: what is asked, remembered and counted, and what a judge that is away does."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from evals.grading import JudgeReply
from evals.shelves.judges.grading import read_judge
from harness.config.hashing import evaluation_hash, training_hash
from harness.errors import RefusedError
from harness.records import CellRecord
from harness.records.files import read_jsonl
from harness.sampling import remembered
from harness.shelves.judges.services import JudgeMessenger, Replies, judges_in
from tests.harness.run import bench
from tests.harness.run.small import run_cell, small_spec
from tests.harness.shelves.judges.judge_server import serving, write_judge
from tests.refusals import refuses

STEPS = {"train.steps": 2, "train.checkpoint_every": 2, "eval.problems": 4, "eval.every": 0, "eval.samples": 2}


def _says(question: str) -> str:
    """An honest judge: whether the completion's last number is the reference; of some numbers it says nothing."""
    reference, completion = re.findall(r"Reference: (.*)\nCompletion: (.*)\n", question, re.DOTALL)[0]
    last = (re.findall(r"-?\d+", completion) or ["none"])[-1]
    if last.endswith("7"):
        return "I cannot say."
    return f"Verdict: {'yes' if last == reference else 'no'}"


def _trained(folder: Path, home: Path, settings: dict[str, Any]) -> CellRecord:
    cell = CellRecord.at(folder)
    cell.path.mkdir(parents=True)
    with judges_in(home):
        run_cell(cell, small_spec({**STEPS, **settings}))
    return cell


@pytest.mark.slow
def test_a_second_cell_asks_nothing_and_steps_count_what_replies_cost(tmp_path: Path) -> None:
    with serving(_says) as server:
        judge = write_judge(tmp_path, address=server.address)
        both = {"reward.grader": judge, "eval.grader": judge}
        first = _trained(tmp_path / "a" / "x-s0-0123456789", tmp_path, both)
        asked = len(server.requests)
        assert asked == len(set(server.questions)), "equal questions are asked once"
        again = _trained(tmp_path / "b" / "x-s0-0123456789", tmp_path, both)
        assert len(server.requests) == asked
        # Another way to read the replies needs no new ones.
        lenient = write_judge(tmp_path, "lenient.yaml", address=server.address, right=["yes", "no"], wrong=["never"])
        _trained(tmp_path / "c" / "x-s0-0123456789", tmp_path, {"train.steps": 1, "reward.grader": lenient})
        assert len(server.requests) == asked
    rows = first.read_steps()
    assert again.read_steps() == rows
    assert again.digest == first.digest
    for row in rows:
        assert row["judge/prompt_tokens"] == 10 * row["judge/questions"] <= 160
        # Whatever is no verdict earns nothing, and the rest is what the rule says: the server is honest.
        assert row["judge/agreement_frac"] == 1
    assert sum(row["judge/rule_correct"] for row in rows) > 0
    sent = [[row["judge_requests"] for row in _timing(cell)] for cell in (first, again)]
    assert sent == [[row["judge/questions"] for row in rows], [0] * len(rows)]
    unscored = sum(row["reward/unscored"] for row in rows)
    assert unscored == sum(round(row["judge/undecided_frac"] * 16) for row in rows) > 0
    verdicts = [json.loads(row["verdicts"]) for row in _samples(first)]
    assert all(judge in said and "numeric" in said for said in verdicts)


def _timing(cell: CellRecord) -> list[dict[str, Any]]:
    return [row for row in read_jsonl(cell.path / "timing.jsonl") if "judge_requests" in row]


def _samples(cell: CellRecord) -> list[dict[str, Any]]:
    import pyarrow.parquet

    rows: list[dict[str, Any]] = pyarrow.parquet.read_table(cell.path / "evals.parquet").to_pylist()
    return rows


@pytest.mark.slow
def test_a_run_goes_on_without_a_judge_that_is_away_and_later_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    answers_left = 10_000

    def until_it_goes_away(question: str) -> str:
        nonlocal answers_left
        answers_left -= 1
        server.is_away = answers_left <= 0
        return _says(question)

    with serving(until_it_goes_away) as server:
        judge = write_judge(tmp_path, address=server.address, patience_s=0.2, concurrency=2)
        arms = {"judged": {"reward.grader": judge}, "ruled": {"reward.grader": "numeric"}}
        sweep = bench.write_sweep(tmp_path, arms, seeds=2)
        small = ["train.steps=4", "train.checkpoint_every=4", "eval.every=0", "eval.problems=4", "eval.samples=2"]

        def swept(home: Path) -> tuple[int, str]:
            home.mkdir(exist_ok=True)
            return bench.run_here(sweep, home, *(word for setting in small for word in ("--set", setting)))

        assert swept(tmp_path / "whole")[0] == 0
        before, answers_left = len(server.requests), 40
        code, said = swept(tmp_path / "home")
        assert code == 1
        assert "judged-s1" in said
        cells = bench.cells(tmp_path / "home").values()
        assert sorted(cell.state for cell in cells) == ["done", "done", "interrupted", "pending"]
        away = next(cell for cell in cells if cell.state == "interrupted")
        assert {path.name for path in away.checkpoints.iterdir()} == {"step-000000", "step-000002"}, (
            "whole steps are kept"
        )
        answered = set(server.questions[before : before + 40])
        before, answers_left, server.is_away = len(server.requests), 10_000, False
        assert swept(tmp_path / "home")[0] == 0
        assert not answered & set(server.questions[before:]), "what was answered before is not asked again"
    whole, gone_on = (bench.all_contents(tmp_path / name) for name in ("whole", "home"))
    assert gone_on == whole


@pytest.mark.slow
def test_a_judge_in_process_is_any_model(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"model": None, "source": "builtin:tiny", "text": "{completion}", "parse": r"(\d)\D*$"}
    numbers: dict[str, Any] = {"right": None, "wrong": None, "right_from": 5.0, "max_completion_tokens": 8}
    judge = write_judge(tmp_path, **settings, **numbers)
    first = _trained(tmp_path / "a" / "x-s0-0123456789", tmp_path, {"reward.grader": judge, "train.steps": 2})
    again = _trained(tmp_path / "b" / "x-s0-0123456789", tmp_path, {"reward.grader": judge, "train.steps": 2})
    assert first.read_steps() == again.read_steps()
    assert sum(row["judge/questions"] for row in first.read_steps()) > 0
    assert len(list((tmp_path / "cache" / "judges").glob("*/*.jsonl"))) == 1


def test_replies_of_other_processes_count_and_torn_lines_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = Replies(tmp_path / "r"), Replies(tmp_path / "r")
    assert one.missing(["a", "b", "a"]) == ["a", "b"]
    one.add(JudgeReply("a", "said a", 1, 2))
    assert other.missing(["a", "b"]) == ["b"] and other["a"].text == "said a"
    path = next((tmp_path / "r").glob("*.jsonl"))
    with path.open("a") as handle:
        handle.write('{"question": "b", "text": "to')
    assert other.missing(["b"]) == ["b"] and Replies(tmp_path / "r").missing(["a", "b"]) == ["b"]
    with path.open("a") as handle:
        handle.write('rn", "tokens": [1, 1]}\nno JSON at all\n')
    assert other.missing(["b"]) == [], "a line counts once it is whole"
    other.add(JudgeReply("c", "", 0, 0))
    assert one.missing(["c"]) == [], "each process writes a file of its own"
    monkeypatch.setattr(remembered, "MOST_BYTES", 10)
    monkeypatch.setattr(remembered, "_IN_USE_S", -1.0)
    Replies(tmp_path / "r").add(JudgeReply("d", "", 0, 0))
    assert Replies(tmp_path / "r").missing(["a", "d"]) == ["a"], "the oldest files go"


def test_the_hash_is_of_what_a_judge_says_and_not_of_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "moved").mkdir()

    def hashes(path: str) -> tuple[str, str]:
        spec = small_spec({"reward.grader": path, "eval.grader": path})
        return training_hash(spec), evaluation_hash(spec)

    here = hashes(write_judge(tmp_path, address="http://localhost:8000/v1"))
    assert hashes(write_judge(tmp_path / "moved", "other.yaml", address="https://host/v1", concurrency=1)) == here
    asked_otherwise = hashes(write_judge(tmp_path, "b.yaml", address="http://localhost:8000/v1", text="{completion}?"))
    assert not {*here} & {*asked_otherwise}
    in_process: dict[str, Any] = {"address": None, "model": None, "source": "builtin:tiny"}
    assert not {*here} & {*hashes(write_judge(tmp_path, "c.yaml", **in_process))}


@pytest.mark.slow
def test_a_missing_key_and_a_missing_model_are_told_before_anything_trains(tmp_path: Path) -> None:
    sweep = bench.write_sweep(tmp_path, {"judged": {"reward.grader": "keyed.yaml"}, "ruled": {}}, seeds=1)
    write_judge(tmp_path, "keyed.yaml", address="http://localhost:8000/v1", api_key_env="NO_SUCH_KEY")
    code, said = bench.run_here(sweep, tmp_path)
    assert code == 2
    assert "NO_SUCH_KEY" in said
    assert not any(cell.read_steps() for cell in bench.cells(tmp_path).values())
    absent = write_judge(tmp_path, "absent.yaml", address=None, model=None, source=f"path:{tmp_path}/absent")
    with refuses(RefusedError, "config.folder_without_config"):
        JudgeMessenger(tmp_path).require(read_judge(absent))
