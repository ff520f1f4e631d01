"""The engines that are held to the contract of `harness.engines.base`: torch in .venv, vLLM in .venv-vllm, and in both
the one that docs/extending.md shows."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

from harness.config.rollout import RolloutSpec
from harness.engines.base import Engine, make_engine
from harness.engines.vllm import engine as vllm_engine
from harness.models.language_model import LanguageModel, load_model
from harness.shelves.engine_contract import with_wide_heads
from tests.examples.extending.engine import PlainEngine

HAS_VLLM = importlib.util.find_spec("vllm") is not None
ENGINE = "vllm" if HAS_VLLM else "torch"


@pytest.fixture(scope="package", autouse=True)
def small_cache() -> Iterator[None]:
    """vLLM's, which takes its memory at once. Enough for the models of these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vllm_engine, "CPU_CACHE_BYTES", 128 * 2**20)
        yield


@pytest.fixture(scope="package")
def language_model() -> LanguageModel:
    tiny = load_model("builtin:tiny")
    return with_wide_heads(tiny) if HAS_VLLM else tiny


@pytest.fixture(scope="package", params=[ENGINE, pytest.param("example", marks=pytest.mark.slow)])
def engine(request: pytest.FixtureRequest, language_model: LanguageModel) -> Engine:
    if request.param == "example":
        return PlainEngine(language_model, language_model.model)
    return make_engine(RolloutSpec(engine=request.param, max_completion_tokens=40), language_model)
