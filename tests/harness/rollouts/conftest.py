"""The engines that keep the contract of `harness.rollouts.engine`. A new one joins by its name here."""

from __future__ import annotations

import pytest

from harness.models.language_model import LanguageModel, load_model
from harness.rollouts.engine import Engine
from harness.rollouts.torch_engine import TorchEngine


@pytest.fixture(scope="package")
def language_model() -> LanguageModel:
    return load_model("builtin:tiny")


@pytest.fixture(scope="package", params=["torch"])
def engine(request: pytest.FixtureRequest, language_model: LanguageModel) -> Engine:
    assert request.param == "torch"
    return TorchEngine(
        language_model.model, language_model.pad_token_id, language_model.eos_token_ids, language_model.decode
    )
