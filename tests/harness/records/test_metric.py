from __future__ import annotations

import pytest

from evals.evaluate import SampleRow, scores
from harness.records.scores import accuracy_names, is_accuracy


@pytest.fixture(scope="module")
def recorded() -> list[str]:
    """Every metric of an evaluation with k of 1 and 2."""
    row = SampleRow(
        task="sums", problem_id="p", sample=0, text="", n_tokens=1, truncated=False, extracted="3", correct=True,
        reason="", verdicts="{}", faulty_steps=None,
    )  # fmt: skip
    return list(scores([row, row | {"sample": 1}], [1, 2]))


def test_all_accuracies_of_an_evaluation_are_named(recorded: list[str]) -> None:
    assert [name for name in recorded if is_accuracy(name)] == accuracy_names([1, 2])


@pytest.mark.parametrize("name", ["truncated_frac", "unparsed_frac", "faulty_steps_frac", "mean_tokens", "ece"])
def test_a_metric_of_which_less_is_better_is_no_accuracy(name: str) -> None:
    assert not is_accuracy(name)
