"""The built-in model, loaded once for all files of the folder."""

from __future__ import annotations

import pytest

from harness.engines.torch.engine import TorchEngine
from harness.models.language_model import LanguageModel, load_model


@pytest.fixture(scope="package")
def tiny() -> LanguageModel:
    return load_model("builtin:tiny")


def engine_of(model: LanguageModel) -> TorchEngine:
    return TorchEngine(model.model, model.pad_token_id, model.eos_token_ids, model.decode)
