"""Cells in which a model at an address compares completions."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from harness.config.hashing import training_hash
from harness.errors import RefusedError
from harness.records.files import read_jsonl
from tests.harness.run import bench
from tests.harness.run.small import small_spec
from tests.harness.shelves.judges.judge_server import PAIR_JUDGE, serving, write_judge

COMPARED = {"algorithm": "brpo", "reward.parts": {"correct": 0.0, "pairwise": 1.0}}


def honest(question: str) -> str:
    """Full marks for a completion that ends with the sum of the problem's digits."""
    problem, first, second = re.findall(r"Problem: (.*)\nA: (.*)\nB: (.*)\nScores", question, re.DOTALL)[0]
    right = sum(map(int, re.findall(r"\d+", problem)))
    scores = [10 if re.findall(r"\d+", text)[-1:] == [str(right)] else 0 for text in (first, second)]
    return f"Scores: {scores[0]}, {scores[1]}"


@pytest.mark.slow
def test_what_it_prefers_is_the_reward_and_a_cell_made_anew_asks_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with serving(honest) as server:
        judge = write_judge(tmp_path, **{**PAIR_JUDGE, "address": server.address})
        sweep = bench.write_sweep(tmp_path, {"judged": {**COMPARED, "reward.pairwise.judge": judge}}, seeds=1)
        words = [word for one in ("train.steps=3", "eval.every=0", "eval.samples=2") for word in ("--set", one)]
        code, stderr = bench.run_here(sweep, home, *words)
        assert code == 0, stderr
        (cell,) = bench.cells(home).values()
        asked, rows, digest = len(server.requests), cell.read_steps(), cell.digest
        assert asked == len({*server.questions}) == sum(row["judge/questions"] for row in rows) > 0
        assert [row["judge/flip_frac"] for row in rows] == [0] * 3
        assert {row["judge/right_frac"] for row in rows} <= {1, None} and any(row["judge/right_frac"] for row in rows)
        assert all(row["judge/prompt_tokens"] == 10 * row["judge/questions"] for row in rows)
        timing = read_jsonl(cell.path / "timing.jsonl")
        assert sum(row.get("judge_requests", 0) for row in timing) == asked
        assert not [*(home / "cache").glob("judge-*")], "no judge is trained"
        shutil.rmtree(cell.path)
        code, stderr = bench.run_here(sweep, home, *words)
        assert code == 0, stderr
        (cell,) = bench.cells(home).values()
        assert len(server.requests) == asked and (cell.read_steps(), cell.digest) == (rows, digest)


def test_the_hash_is_of_what_the_judge_says_and_not_of_where(tmp_path: Path) -> None:
    def hash_with(name: str, **settings: Any) -> str:
        judge = write_judge(tmp_path, name, **{**PAIR_JUDGE, "address": "http://localhost:1/v1", **settings})
        return training_hash(small_spec({**COMPARED, "reward.pairwise.judge": judge}))

    here, there = hash_with("here.yaml"), hash_with("there.yaml", address="http://localhost:2/v1")
    other = hash_with("other.yaml", model="another")
    assert here == there != other != training_hash(small_spec(COMPARED))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"reward.pairwise.steps": 5}, "steps=5"),
        ({"reward.pairwise.judge": "nowhere.yaml"}, "nowhere.yaml"),
        ({"reward.parts": {"correct": 1.0}}, "pairwise.judge="),
        ({"rollout.samples_per_prompt": 1}, "rollout.samples_per_prompt"),
        ({"train.processes": 2}, "train.processes=2"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_trains(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    at: dict[str, Any] = {"address": "http://localhost:1/v1"}
    if "train.processes" in changes:  # a model in process cannot serve several
        at = {"model": None, "source": "builtin:tiny"}
    judge = write_judge(tmp_path, **{**PAIR_JUDGE, **at})
    with pytest.raises(RefusedError) as refused:
        small_spec({**COMPARED, "reward.pairwise.judge": judge, **changes})
    assert named in str(refused.value)
