"""The torch engine: samples with the trainer's own modules, without a second copy of the weights."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from harness.config.engine import DrawingLoad, EngineBackend, EngineMemory
from harness.config.rollout import RolloutSpec
from harness.engines.torch.sizes import ARENAS_CPU, CACHE_BYTES_CPU, LEAST_COLUMNS, MAX_ROWS, bucket

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from harness.engines.base import Engine
    from harness.models.language_model import LanguageModel


def _make(language_model: LanguageModel, model: PreTrainedModel, rollout: RolloutSpec) -> Engine:
    from harness.engines.torch.engine import TorchEngine

    return TorchEngine(model, language_model.pad_token_id, language_model.eos_token_ids, language_model.decode)


def _memory(load: DrawingLoad) -> EngineMemory:
    """Estimate the memory of the largest batch's keys and values, and of the logits of one step.

    On CUDA this memory is kept between calls, at the size of the largest batch's bucket. Smaller batches reuse it.
    """
    on_cpu = load.device == "cpu"
    most = CACHE_BYTES_CPU if on_cpu else math.inf
    parts = {"kv_cache": max(_batch_bytes(load, samples, tokens, most) for samples, tokens in load.batches)}
    return EngineMemory(drawing_bytes=parts) if on_cpu else EngineMemory(parts)


def _batch_bytes(load: DrawingLoad, samples: int, tokens: int, most_cache_bytes: float) -> float:
    if load.device == "cpu":
        # A CPU has two arenas, because a batch that grows is copied from one to the other.
        a_row = ARENAS_CPU * tokens * load.cache_bytes_per_token
        rows = max(1, min(MAX_ROWS, samples, ARENAS_CPU * most_cache_bytes // a_row))
    else:
        a_row = bucket(tokens, LEAST_COLUMNS) * load.cache_bytes_per_token
        rows = bucket(min(MAX_ROWS, samples))
    return rows * (a_row + load.logits_bytes_per_sample)


TORCH = EngineBackend(
    name="torch",
    title="the torch engine",
    description="samples from the trainer's own modules: no copy of the weights, and the trainer's rounding",
    make=_make,
    default_on=("cpu",),
    head_dtypes=("model", "float32"),
    memory=_memory,
)
