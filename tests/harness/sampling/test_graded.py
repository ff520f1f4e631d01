from __future__ import annotations

import pytest
import torch

from evals.grading import grade
from evals.tasks import get_task
from harness.engines.torch.engine import TorchEngine
from harness.models.language_model import LanguageModel, load_model
from harness.sampling import graded as graded_samples
from harness.sampling.graded import Conditions, GradedSamples, draw_graded
from tests.harness.run.small import small_spec

PROBLEMS = get_task("arithmetic").split("train").load()[:5]
SAMPLES = 3


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return load_model("builtin:tiny")


def drawn_by(model: LanguageModel, told: list[int]) -> GradedSamples:
    engine = TorchEngine(model.model, model.pad_token_id, model.eos_token_ids, model.decode)
    return draw_graded(PROBLEMS, SAMPLES, Conditions.of_training(small_spec()), model, engine, told.append)


def test_rows_hold_what_was_drawn_and_its_verdict(model: LanguageModel) -> None:
    drawn = drawn_by(model, [])
    assert drawn.correct.shape == (5, SAMPLES)
    for row, prompt in enumerate(drawn.sequences.prompts):
        problem = PROBLEMS[row // SAMPLES]
        tokens = drawn.sequences.completions[row, : drawn.sequences.lengths[row]].tolist()
        assert model.decode(prompt) == problem.problem
        assert (model.tokenizer.eos_token_id in tokens) == (len(tokens) < 32 or tokens[-1] == 1)
        assert drawn.verdicts[row] == grade(model.decode(tokens), problem.answer, "numeric", "hash")
        assert bool(drawn.correct[row // SAMPLES, row % SAMPLES]) == drawn.verdicts[row].correct


def test_chunks_are_drawn_apart_and_joined(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    whole = drawn_by(model, told)
    assert told == [5]
    monkeypatch.setattr(graded_samples, "CHUNK_SAMPLES", 2 * SAMPLES + 1)
    told.clear()
    joined = drawn_by(model, told)
    assert told == [2, 4, 5]
    assert joined.verdicts == whole.verdicts
    assert joined.sequences.prompts == whole.sequences.prompts
    assert torch.equal(joined.sequences.completions, whole.sequences.completions)
    assert torch.equal(joined.sequences.lengths, whole.sequences.lengths)
