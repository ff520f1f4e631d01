from __future__ import annotations

import math
from itertools import combinations
from pathlib import Path
from statistics import fmean

import pytest
import torch

from harness.models.language_model import LanguageModel
from harness.records.files import read_json
from harness.run.evaluator import Evaluator
from harness.sampling.sampler import EngineSampler
from harness.sampling.store import SampleStore
from harness.shelves.learned.reward_model import RewardModel
from harness.training.sequences import Sequences
from tests.harness.run.small import small_spec
from tests.harness.run.stages_here import make_stage
from tests.harness.shelves.learned.conftest import engine_of

SETTINGS = {"eval.samples": 6, "eval.k": [1, 2], "eval.temperature": 0.8, "eval.max_completion_tokens": 28}


class Recording(RewardModel):
    """Random scores, remembered."""

    def scores(self, sequences: Sequences) -> torch.Tensor:
        torch.nn.init.normal_(self.head.weight, generator=torch.Generator().manual_seed(0))
        self.given = super().scores(sequences)
        return self.given


def test_the_best_of_the_samples_of_the_base_evaluation(
    tmp_path: Path, tiny: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the records of the evaluator, subset by subset."""
    spec = small_spec(SETTINGS, seed=2)
    engine = engine_of(tiny)
    proxy = Recording(tiny)
    monkeypatch.setattr(RewardModel, "load", lambda folder, start: proxy)
    make_stage("best_of_n", tmp_path / "best.json", spec, tiny, engine)
    rows = read_json(tmp_path / "best.json")

    store = SampleStore(tmp_path / "evals.jsonl")
    ((base, _),) = Evaluator(spec.eval, spec.seed, lambda: EngineSampler(tiny, engine, spec.seed)).run(6, store)
    correct = [float(record["correct"]) for record in store.rows()]
    scores = proxy.given.tolist()
    assert len(scores) == len(correct) == 8 * 6
    assert 0 < sum(correct) < 48
    assert [row["n"] for row in rows] == [1, 2, 4]
    assert rows[0]["correct"] == pytest.approx(base["metrics"]["avg@n"])
    assert rows[0]["kl_nats"] == 0
    for row in rows:
        best_scores, best_correct = [], []
        for start in range(0, 48, 6):
            for subset in combinations(range(start, start + 6), row["n"]):
                top = max(scores[sample] for sample in subset)
                best_scores.append(top)
                best_correct.append(fmean(correct[sample] for sample in subset if scores[sample] == top))
        assert row["proxy"] == pytest.approx(fmean(best_scores), abs=1e-6)
        assert row["correct"] == pytest.approx(fmean(best_correct))
        assert row["kl_nats"] == pytest.approx(math.log(row["n"]) - 1 + 1 / row["n"])
