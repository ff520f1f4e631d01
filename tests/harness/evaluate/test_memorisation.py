"""The probe for statements known by heart, through an engine."""

from __future__ import annotations

import json
from pathlib import Path

from evals.tasks import get_task
from evals.tasks.base import Problem
from harness.plan.subject import find_subject
from harness.sampling.sampler import EngineSampler
from harness.sampling.store import ignore_progress
from harness.shelves.memorisation.cli import MemorisationProbe
from tests.harness.evaluate.test_evaluation import Counting


def test_completions_are_kept_with_what_they_should_have_been(home: Path, sampler: EngineSampler) -> None:
    subject = find_subject("builtin:tiny", "torch", "cpu", "float32")
    problems = [
        Problem("long", "1 + 2 + 3 + 4 + 5 + 6 + 7 = what", "28"),
        Problem("short", "1 + 2", "3"),
    ]
    counting = Counting(sampler)
    task, probe = get_task("arithmetic"), MemorisationProbe()
    document = probe.run(subject, task, problems, home, lambda: counting, ignore_progress, 24)  # type: ignore[arg-type, return-value]
    assert (document["problems"], document["skipped"], document["given_frac"]) == (1, 1, 0.6)
    assert counting.drawn == [("long", 0)]
    kept = json.loads(Path(str(document["path"])).read_text())
    (completion,) = kept["completions"]
    assert completion["given"] + completion["rest"] == problems[0].problem
    again = probe.run(subject, task, problems, home, lambda: counting, ignore_progress, 24)  # type: ignore[arg-type, return-value]
    assert again == document
    assert len(counting.drawn) == 1
