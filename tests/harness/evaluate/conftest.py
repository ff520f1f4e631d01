from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from evals.sampler import SamplingParams
from evals.tasks import get_task
from harness.engines.torch.engine import TorchEngine
from harness.evaluate.evaluation import TaskEvaluation
from harness.models.language_model import LanguageModel, load_model
from harness.plan.subject import find_subject
from harness.sampling.conditions import Conditions
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
        given = {"template": task.template, "params": SamplingParams(32), "seed": 0} | conditions
        subject = find_subject("builtin:tiny", "torch", "cpu", "float32")
        asked = Conditions(task, grader=grader or task.require_grader(), **given)  # type: ignore[arg-type]
        return TaskEvaluation(subject, asked, task.split("test").load()[:problems], samples, [1, samples])

    return make


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "runs"
