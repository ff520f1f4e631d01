from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from evals.graders import grade
from harness.config.run_spec import RunSpec
from harness.engines.base import Completions, OnFinished, SamplingParams
from harness.engines.torch.engine import TorchEngine
from harness.models.language_model import LanguageModel, load_model
from harness.random_keys import random_key
from harness.records.files import read_jsonl
from harness.run.prompts import candidates, read_correct_counts
from harness.sampling import evaluation
from tests.harness.run.small import small_spec
from tests.harness.run.stages_here import make_stage

SAMPLES = 4
FILTER = {"task.filter": {"type": "pass_rate", "samples": SAMPLES, "problems": 12}}


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return load_model("builtin:tiny")


class Counting(TorchEngine):
    """Counts the prompts that it is given; can be told to fail at a call."""

    def __init__(self, model: LanguageModel, fail_at: int | None = None) -> None:
        super().__init__(model.model, model.pad_token_id, model.eos_token_ids, model.decode)
        self.prompts: list[int] = []
        self._fail_at = fail_at

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        keys: torch.Tensor,
        params: SamplingParams,
        on_finished: OnFinished | None = None,
    ) -> Completions:
        if len(self.prompts) == self._fail_at:
            raise KeyboardInterrupt
        self.prompts.append(len(prompts))
        return super().generate(prompts, keys, params, on_finished)


def measure(path: Path, model: LanguageModel, spec: RunSpec, engine: Counting | None = None) -> dict[str, int]:
    make_stage("pass_rates", path, spec, model, engine or Counting(model))
    return read_correct_counts(path)


@pytest.mark.slow
def test_counts_what_is_correct_of_samples_drawn_as_in_training(tmp_path: Path, model: LanguageModel) -> None:
    """Each problem by itself, each sample by itself: the noise depends on neither batch nor seed."""
    settings = {"rollout.temperature": 0.7, "rollout.max_completion_tokens": 16}
    counts = measure(tmp_path / "rates.json", model, small_spec(FILTER | settings, seed=3))
    engine = Counting(model)
    expected = {}
    for problem in candidates(small_spec(FILTER)):
        expected[problem.id] = 0
        for sample in range(SAMPLES):
            drawn = engine.generate(
                [model.encode(problem.problem)],
                torch.tensor([[random_key(0, "rollout", 0, problem.id, sample)]]),
                SamplingParams(16, temperature=0.7),
            )
            text = model.decode(drawn.tokens[0, : drawn.lengths[0]].tolist())
            expected[problem.id] += grade(text, problem.answer, "numeric", "hash").correct
    assert counts == expected
    assert len(counts) == 12
    assert len(set(counts.values())) > 2


def test_goes_on_after_a_kill_as_if_unbroken(
    tmp_path: Path, model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks of 5 problems; the last has 2."""
    monkeypatch.setattr(evaluation, "CHUNK_SAMPLES", 5 * SAMPLES)
    spec = small_spec(FILTER)
    unbroken, path = measure(tmp_path / "unbroken.json", model, spec), tmp_path / "rates.json"
    with pytest.raises(KeyboardInterrupt):
        measure(path, model, spec, Counting(model, fail_at=1))
    assert not path.exists()
    partial = tmp_path / "rates.samples.jsonl"
    assert len(read_jsonl(partial)) == 5 * SAMPLES
    with partial.open("a") as handle:
        handle.write('{"problem_id": "1+')  # torn by the kill
    with pytest.raises(KeyboardInterrupt):
        measure(path, model, spec, Counting(model, fail_at=1))
    engine = Counting(model)
    assert measure(path, model, spec, engine) == unbroken
    assert engine.prompts == [2]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["rates.json", "unbroken.json"]
