"""An evaluation on vLLM, as `bench eval --engine vllm` makes it, on the tiny model with wide heads."""

from __future__ import annotations

from pathlib import Path

import pytest

from evals.sampler import SamplingParams
from evals.tasks import get_task
from harness.engines.base import make_engine
from harness.evaluate.evaluation import TaskEvaluation
from harness.models.language_model import LanguageModel
from harness.models.start import StartingPoint
from harness.plan.subject import Subject, find_subject
from harness.run.checkpoint_cell import load_as_it_is
from harness.sampling.conditions import Conditions
from harness.sampling.sampler import EngineSampler
from harness.sampling.store import SAMPLES_FILE, SampleStore
from tests.harness.evaluate.test_evaluation import Counting, Killed

pytest.importorskip("vllm", reason="needs vLLM: make test-vllm")


def evaluation(subject: Subject) -> TaskEvaluation:
    task = get_task("arithmetic")
    conditions = Conditions(task, task.template, SamplingParams(32), task.require_grader(), seed=0)
    return TaskEvaluation(subject, conditions, task.split("test").load()[:6], 2, [1, 2])


def sampler(subject: Subject, dies_after: int | None = None) -> Counting:
    model = load_as_it_is(subject.spec, StartingPoint())
    return Counting(EngineSampler(model, make_engine(subject.spec.rollout, model), seed=0), dies_after)


def test_a_killed_evaluation_goes_on_with_what_is_missing(tmp_path: Path, language_model: LanguageModel) -> None:
    language_model.save(tmp_path / "model")
    subject = find_subject(str(tmp_path / "model"), "vllm", "cpu", "float32")
    asked = evaluation(subject)
    dying = sampler(subject, dies_after=5)
    with pytest.raises(Killed):
        asked.run(tmp_path / "broken", lambda: dying)  # type: ignore[arg-type, return-value]
    again = sampler(subject)
    broken = asked.run(tmp_path / "broken", lambda: again)  # type: ignore[arg-type, return-value]
    assert len(dying.drawn) == 5
    assert len(again.drawn) == 7
    whole = sampler(subject)
    unbroken = asked.run(tmp_path / "whole", lambda: whole)  # type: ignore[arg-type, return-value]
    assert broken["metrics"] == unbroken["metrics"]
    texts = [
        sorted(
            (row["problem_id"], row["sample"], row["text"])
            for row in SampleStore(asked.folder(tmp_path / home) / SAMPLES_FILE).rows()
        )
        for home in ("broken", "whole")
    ]
    assert texts[0] == texts[1] and len(texts[0]) == 12
    assert broken["metrics"]["avg@n"] > 0
