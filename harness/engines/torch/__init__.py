"""The torch engine: draws from the trainer's own modules, so that there is no second copy of the weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.config.engine import DrawingLoad, EngineBackend, EngineMemory
from harness.config.rollout import RolloutSpec

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from harness.engines.base import Engine
    from harness.models.language_model import LanguageModel

MAX_ROWS = 1024
"""Samples decoded together. More cost memory and gain little once the matrix products are large enough."""
CACHE_BYTES_CPU = 4 * 2**30
"""Keys and values of the samples decoded together, on a CPU; on CUDA they are bounded by a share of its memory."""
ARENAS_CPU = 2
"""A shrinking batch is copied from one to another."""
LEAST_COLUMNS = 64
"""The first bucket of columns."""
EAGER_ROOM_TOKENS = 8
"""Run eagerly, a batch has room for so many more tokens: few, as rows leave and attention is faster on dense memory."""


@dataclass(frozen=True)
class BatchShapes:
    """Which shapes batches have, and how often the host looks at what was drawn.

    bucketed: sizes are those of a geometric ladder, not exact. look_every_tokens: after so many tokens the host learns
    which samples have ended.
    """

    bucketed: bool
    look_every_tokens: int

    @property
    def shares_prefixes(self) -> bool:
        """Whether samples with the same tokens so far share a row: the host must look at every token to part them."""
        return not self.bucketed and self.look_every_tokens == 1

    def rows(self, needed: int) -> int:
        """Rows of a batch that needs so many."""
        return _bucket(needed) if self.bucketed else needed

    def rows_within(self, limit: int) -> int:
        """The most rows of a batch that has no more than so many."""
        return next(rows for rows in range(limit, 0, -1) if self.rows(rows) <= limit)

    def columns(self, used: int, most: int) -> int:
        """Columns of a batch's cache with so many in use, of which there will be `most`."""
        if self.bucketed:
            return _bucket(most, LEAST_COLUMNS)
        return min(most, used + max(EAGER_ROOM_TOKENS, self.look_every_tokens))

    def read_columns(self, used: int, columns: int) -> int:
        """How many of a batch's columns attention reads."""
        return min(_bucket(used, LEAST_COLUMNS), columns) if self.bucketed else used


EAGER = BatchShapes(bucketed=False, look_every_tokens=1)
GRAPHS = BatchShapes(bucketed=True, look_every_tokens=16)


def _bucket(size: int, least: int = 1) -> int:
    """The smallest of a power of two and the middle of two that is at least `size` and `least`, a power of two."""
    power = max(least, 1 << (size - 1).bit_length())
    middle = power * 3 // 4
    return middle if power > max(least, 2) and size <= middle else power


def _make(language_model: LanguageModel, model: PreTrainedModel, rollout: RolloutSpec) -> Engine:
    from harness.engines.torch.engine import TorchEngine

    return TorchEngine(model, language_model.pad_token_id, language_model.eos_token_ids, language_model.decode)


def _memory(load: DrawingLoad) -> EngineMemory:
    """Keys and values of the largest batch, and the logits of one step. On CUDA they are kept from call to call, at the
    size of their bucket, once: smaller batches lie in the same memory."""
    on_cpu = load.device == "cpu"
    most = CACHE_BYTES_CPU if on_cpu else math.inf
    parts = {"kv_cache": max(_batch_bytes(load, samples, tokens, most) for samples, tokens in load.batches)}
    return EngineMemory(drawing_bytes=parts) if on_cpu else EngineMemory(parts)


def _batch_bytes(load: DrawingLoad, samples: int, tokens: int, most_cache_bytes: float) -> float:
    if load.device == "cpu":
        a_row = ARENAS_CPU * tokens * load.cache_bytes_per_token
        rows = max(1, min(MAX_ROWS, samples, ARENAS_CPU * most_cache_bytes // a_row))
    else:
        a_row = GRAPHS.columns(tokens, tokens) * load.cache_bytes_per_token
        rows = GRAPHS.rows(min(MAX_ROWS, samples))
    return rows * (a_row + load.logits_bytes_per_sample)


TORCH = EngineBackend(
    name="torch",
    title="the torch engine",
    description="samples from the trainer's own modules: no copy of the weights, and the trainer's rounding",
    make=_make,
    default_on=("cpu",),
    memory=_memory,
)
