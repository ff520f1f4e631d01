from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from evals.sampler import SamplingParams
from evals.tasks import get_task
from harness.engines.torch.engine import TorchEngine
from harness.evaluate.conditions import Conditions, problems_digest
from harness.evaluate.evaluation import TaskEvaluation
from harness.evaluate.subject import find_subject
from harness.models.language_model import LanguageModel, load_model
from harness.sampling.sampler import EngineSampler


@pytest.fixture(scope="session")
def language_model() -> LanguageModel:
    return load_model("builtin:tiny")


@pytest.fixture
def sampler(language_model: LanguageModel) -> EngineSampler:
    engine = TorchEngine(
        language_model.model, language_model.pad_token_id, language_model.eos_token_ids, language_model.decode
    )
    return EngineSampler(language_model, engine, seed=0)


Make = Callable[..., TaskEvaluation]


@pytest.fixture
def evaluation() -> Make:
    """An evaluation of builtin:tiny on its own task."""

    def make(problems: int = 6, samples: int = 4, grader: str | None = None, **conditions: object) -> TaskEvaluation:
        task = get_task("arithmetic")
        given = {"template": task.template, "decoding": SamplingParams(32), "seed": 0} | conditions
        subject = find_subject("builtin:tiny", "torch", "cpu", "float32")
        rows = task.split("test").load()
        asked = Conditions(subject, task, problems_digest(rows), **given)  # type: ignore[arg-type]
        return TaskEvaluation(asked, rows[:problems], samples, [1, samples], grader)

    return make


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "runs"
