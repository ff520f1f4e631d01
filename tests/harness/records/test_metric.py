from __future__ import annotations

from pathlib import Path

import pytest

from evals.evaluate import scores
from evals.metrics import metric_facts
from evals.samples import SampleRow
from harness.records.scores import accuracy_names
from tests.reports.synthetic import write_sweep


@pytest.fixture(scope="module")
def recorded() -> list[str]:
    """Every metric of an evaluation with k of 1 and 2."""
    row = SampleRow(
        task="sums", problem_id="p", sample=0, text="", n_tokens=1, truncated=False, extracted="3", correct=True,
        reason="", verdicts="{}", reasons="{}", faulty_steps=None, turns=None,
    )  # fmt: skip
    return list(scores([row, row | {"sample": 1}], [1, 2]))


def test_all_accuracies_of_an_evaluation_are_named(recorded: list[str]) -> None:
    assert [name for name in recorded if metric_facts(name)["compares_arms"]] == accuracy_names([1, 2])


def test_a_sweep_says_by_which_metrics_its_arms_compare(tmp_path: Path) -> None:
    """Also by one of a plug-in that is not there when it is read."""
    facts = {"pass@1": metric_facts("pass@1"), "g_pass@2": metric_facts("pass@1"), "ece": metric_facts("mean_tokens")}
    sweep = write_sweep(tmp_path / "sweep", {"one": 0.0}, seeds=1, metrics=facts)
    assert [name for name in facts if sweep.compares_arms(name)] == ["pass@1", "g_pass@2"]
