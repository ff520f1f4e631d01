from __future__ import annotations

from collections import Counter

import pytest

from evals import get_task, task_names
from evals.graders import applicable_graders
from tests.evals.grading.quality import DECIDING, EXTRACTION, FAMILIES, load, measure

TASKS = {"gsm8k": "gsm8k", "math": "math500", "math500": "math500", "aime24": "aime", "aime25": "aime"}


def test_there_are_enough_triples_and_most_forms_are_wrong_answers_too():
    triples = [triple for family in FAMILIES for triple in load(family)]
    assert len(triples) >= 300
    assert sum(not triple["correct"] for triple in triples) >= 0.4 * len(triples)
    seen = Counter((triple["completion"], triple["answer"]) for triple in triples)
    assert seen.most_common(1)[0][1] == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_the_graders_that_apply_are_those_written_down(family):
    for triple in load(family):
        assert sorted(applicable_graders(triple["answer"])) == sorted(triple["graders"]), triple


@pytest.mark.parametrize("family", FAMILIES)
def test_the_deciding_grader_accepts_nothing_wrong_and_nearly_all_that_is_right(family, capsys):
    measured = measure(family)
    with capsys.disabled():
        for grader, quality in measured.items():
            print(f"\n{family:8} {grader:8} {quality}", end="")
    decides = measured[DECIDING[family]]
    assert decides.false_positives == []
    assert decides.recall >= 0.99, decides.false_negatives


@pytest.mark.parametrize("family", FAMILIES)
def test_no_grader_that_compares_accepts_what_is_wrong(family):
    assert [triple for quality in measure(family).values() for triple in quality.false_positives] == []


@pytest.mark.parametrize("name", sorted(set(TASKS) & set(task_names())))
def test_the_shipped_tasks_use_what_was_measured(name):
    task = get_task(name)
    assert (task.grader, task.extract) == (DECIDING[TASKS[name]], EXTRACTION)
