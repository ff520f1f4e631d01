from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from evals.calibration import expected_calibration_error, reliability
from harness.engines.torch.engine import TorchEngine
from harness.models.language_model import LanguageModel, load_model
from harness.records.rows import EvaluationRow
from harness.run.evaluator import Evaluator
from harness.sampling.sampler import EngineSampler
from harness.sampling.store import SampleStore
from tests.harness.run.small import small_spec


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return load_model("builtin:tiny")


def evaluate(model: LanguageModel, samples: int, settings: dict[str, Any]) -> tuple[EvaluationRow, list[Any]]:
    """The row of scores and the rows of samples of a small evaluation."""
    spec = small_spec({"eval.problems": 6, "eval.k": [1], **settings})
    engine = TorchEngine(model.model, model.pad_token_id, model.eos_token_ids, model.decode)
    with TemporaryDirectory() as folder:
        store = SampleStore(Path(folder) / "evals.jsonl")
        ((row, rows),) = Evaluator(spec.eval, 0, lambda: EngineSampler(model, engine, 0)).run(samples, store)
        assert rows == store.rows()
        return row, rows


def test_a_stop_string_ends_a_completion(model: LanguageModel) -> None:
    free, stopped = (evaluate(model, 2, settings)[1] for settings in ({}, {"eval.stop": ["1"]}))
    assert any("1" in row["text"][:-1] for row in free)
    assert [row["text"] for row in stopped] == [
        text[: text.index("1") + 1] if "1" in text else text for text in (row["text"] for row in free)
    ]


def test_calibration_is_that_of_the_drawn_samples(model: LanguageModel) -> None:
    row, drawn = evaluate(model, 4, {})
    assert len(drawn) == 24
    assert row["reliability"] == reliability(drawn)
    assert row["metrics"]["ece"] == expected_calibration_error(row["reliability"]) > 0


@pytest.mark.parametrize(
    ("samples", "settings"), [(1, {}), (2, {"eval.temperature": 0.6}), (2, {"eval.top_p": 0.9}), (2, {"eval.top_k": 5})]
)
def test_calibration_is_none_where_samples_are_not_the_policys_own(
    model: LanguageModel, samples: int, settings: dict[str, Any]
) -> None:
    row, _ = evaluate(model, samples, settings)
    assert row["metrics"]["ece"] is None
    assert row["reliability"] is None
