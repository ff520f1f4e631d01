"""Completions of the starting weights with tokens and verdicts, which a reward model learns from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from evals.graders import grade
from evals.sampler import SamplingParams
from evals.tasks import get_task
from harness.engines.base import Completions
from harness.engines.torch.engine import TorchEngine
from harness.models.language_model import LanguageModel
from harness.random_keys import random_key
from harness.sampling import evaluation
from harness.sampling.conditions import Conditions
from harness.sampling.store import SampleStore
from harness.shelves.learned.stages.reward_model import draw_graded
from harness.training.batch import Batch
from tests.harness.run.small import small_spec
from tests.harness.shelves.learned.conftest import engine_of

PROBLEMS = get_task("arithmetic").split("train").load()[:5]
SAMPLES = 3


class Dying(TorchEngine):
    """Is killed at a call."""

    calls_left = 10

    def generate(self, *arguments: object, **settings: object) -> Completions:
        self.calls_left -= 1
        if self.calls_left < 0:
            raise KeyboardInterrupt
        return super().generate(*arguments, **settings)  # type: ignore[arg-type]


def drawn_by(model: LanguageModel, file: Path, told: list[int], calls: int = 10) -> Batch:
    engine = Dying(model.model, model.pad_token_id, model.eos_token_ids, model.decode)
    engine.calls_left = calls
    store = SampleStore(file, keeps_tokens=True)
    store.mend()
    return draw_graded(PROBLEMS, SAMPLES, Conditions.of_training(small_spec()), model, engine, store, told.append)


def test_rows_hold_what_was_drawn_and_its_verdict(tiny: LanguageModel, tmp_path: Path) -> None:
    drawn = drawn_by(tiny, tmp_path / "samples.jsonl", [])
    assert len(drawn) == 5 * SAMPLES
    engine = engine_of(tiny)
    for row, prompt in enumerate(drawn.sequences.prompts):
        problem, sample = PROBLEMS[row // SAMPLES], row % SAMPLES
        tokens = drawn.sequences.completions[row, : drawn.sequences.lengths[row]].tolist()
        assert tiny.decode(prompt) == problem.problem
        key = torch.tensor([[random_key(0, "rollout", 0, problem.id, sample)]])
        alone = engine.generate([tiny.encode(problem.problem)], key, SamplingParams(32))
        assert tokens == alone.tokens[0, : alone.lengths[0]].tolist()
        attempt = drawn.attempts[row]
        assert (attempt.problem, attempt.sample, attempt.text) == (problem, sample, tiny.decode(tokens))
        assert attempt.verdict == grade(attempt.text, problem.answer, "numeric", "hash")
        assert bool(drawn.correct[row]) == attempt.verdict.correct


def test_chunks_are_drawn_apart_and_a_kill_loses_one(
    tiny: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    whole = drawn_by(tiny, tmp_path / "whole.jsonl", told)
    assert told == [5]
    monkeypatch.setattr(evaluation, "CHUNK_SAMPLES", 2 * SAMPLES + 1)
    told.clear()
    file = tmp_path / "samples.jsonl"
    with pytest.raises(KeyboardInterrupt):
        drawn_by(tiny, file, told, calls=2)
    with file.open("a") as handle:
        handle.write('{"task": "torn')
    joined = drawn_by(tiny, file, told, calls=1)
    assert told == [2, 4, 2, 4, 5]
    assert torch.equal(joined.correct, whole.correct)
    assert [one.verdict for one in joined.attempts] == [one.verdict for one in whole.attempts]
    assert joined.sequences.prompts == whole.sequences.prompts
    assert torch.equal(joined.sequences.completions, whole.sequences.completions)
    assert torch.equal(joined.sequences.lengths, whole.sequences.lengths)
