"""examples/sums: a task, a template and a metric of one's own, and a language model that learns on a CPU."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evals.metrics import METRICS, Samples
from evals.prompts import get_template
from evals.tasks import get_task
from harness import plugins
from tests.harness.cli.conftest import Bench, bench

__all__ = ["bench"]

SHOT = "31 + 42"
EXAMPLE = Path(__file__).parents[2] / "examples/sums"


@pytest.fixture(autouse=True)
def sums() -> Iterator[None]:
    plugins.use(["sums"], [EXAMPLE])
    yield
    plugins.use([], [])


def test_the_sums_are_right_and_no_split_gives_another_away() -> None:
    task = get_task("two_digit_sums")
    splits = {name: source.load() for name, source in task.splits.items()}
    ids = {name: {problem.id for problem in problems} for name, problems in splits.items()}
    assert not ids["train"] & ids["test"] and SHOT not in ids["train"] | ids["test"]
    assert (len(ids["train"]), len(ids["test"])) == (4096, 512)
    for problem in splits["test"]:
        a, b = map(int, problem.id.split(" + "))
        assert problem.problem == f"{a} + {b} =" and problem.answer == str(a + b)
    first = splits["test"][0]
    assert get_template(task.template).ask(first) == f"{SHOT} = 73\n{first.problem}"


def test_the_first_number_counts_whatever_follows() -> None:
    texts = {" 55": True, " 55\n12 + 13 = 25": True, " 54, no: 55": False, " I cannot": False}
    sample = {"task": "two_digit_sums", "problem_id": "12 + 43", "correct": False}
    rows: list[Any] = [sample | {"text": text} for text in texts]
    metric = METRICS.find("first_number_right")
    for row, right in zip(rows, texts.values(), strict=True):
        assert metric.value(Samples([[row]]), None) == float(right)
    assert metric.value(Samples([rows]), None) == 0.5
    assert metric.compares_arms
    another_task: Any = sample | {"task": "gsm8k", "problem_id": "gsm8k-test-00040", "text": " 55"}
    assert metric.value(Samples([[another_task]]), None) is None


def test_its_sweep_plans(bench: Bench, tmp_path: Path) -> None:
    """With the built-in model in the place of the language model, which is not at hand everywhere."""
    for file in EXAMPLE.glob("*.*"):
        shutil.copy(file, tmp_path)
    plan = bench("plan", "std_norm_sums.yaml", "--set", "model.source=builtin:tiny", "--json")
    assert plan.code == 0, plan.err
    assert plan.document["gate"]["ok"] and len(plan.document["cells"]) == 24
