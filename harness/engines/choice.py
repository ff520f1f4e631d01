"""Makes the engine that a spec names, lets any engine draw from a model with adapters, and lets the processes of a cell
draw together."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from harness.config.engine import ENGINES, engine_on
from harness.config.rollout import RolloutSpec
from harness.engines.base import Completions, Engine, GenerationCost, OnFinished, SamplingParams
from harness.errors import RefusedError
from harness.processes import Processes, by_all

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from harness.models.language_model import LanguageModel
    from harness.models.lora import MergedWeights


def make_engine(rollout: RolloutSpec, language_model: LanguageModel, sampler: PreTrainedModel | None = None) -> Engine:
    """The engine of a spec over a model of the same architecture; without `sampler`, over the language model's own.

    Raises RefusedError if the engine is not installed, cannot run here, or cannot draw as the spec says.
    """
    from harness.models.lora import has_adapters, merged_copy

    model = language_model.model if sampler is None else sampler
    if has_adapters(model):
        merged = merged_copy(model)
        engine: Engine = MergedEngine(merged, _engine_of(rollout, language_model, merged.model))
    else:
        engine = _engine_of(rollout, language_model, model)
    return engine if Processes.here().size == 1 else SharedEngine(engine)


def _engine_of(rollout: RolloutSpec, language_model: LanguageModel, model: PreTrainedModel) -> Engine:
    backend = ENGINES.find(engine_on(str(model.device), rollout.engine))
    if model.device.type not in backend.devices:
        raise RefusedError(
            f"rollout.engine={backend.name} runs on {' and '.join(backend.devices)}, but the model is on "
            f"{model.device}. Set train.device, or another engine (`bench ls engines`)."
        )
    if refusal := backend.refusal(rollout, str(model.device)):
        raise RefusedError(refusal)
    engine: Engine = backend.make(language_model, model, rollout)
    return engine


class SharedEngine:
    """Engine (see `harness.engines.base`) of a cell's processes, each of which draws for some of the prompts with an
    engine of its own. The noise is the sample's, so who draws it changes rounding alone."""

    def __init__(self, engine: Engine) -> None:
        """engine: that of this process, over the same weights as those of the others."""
        self._engine = engine
        Processes.here().share(self)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        keys: Tensor,
        params: SamplingParams,
        on_finished: OnFinished | None = None,
    ) -> Completions:
        """on_finished is called once all are drawn."""
        drawn = self._draw(prompts, keys, params)
        if on_finished is not None:
            ends = zip(drawn.tokens.tolist(), drawn.lengths.tolist(), drawn.truncated.tolist(), strict=True)
            for row, (tokens, length, truncated) in enumerate(ends):
                on_finished(row, tokens[:length], truncated)
        return drawn

    @by_all
    def _draw(self, prompts: Sequence[Sequence[int]], keys: Tensor, params: SamplingParams) -> Completions:
        processes = Processes.here()
        first, end = (len(prompts) * rank // processes.size for rank in (processes.rank, processes.rank + 1))
        # Without prompts there is nothing to draw, and without any at all the engine says what is wrong.
        own = None
        if first < end or not prompts:
            own = self._engine.generate(prompts[first:end], keys[first:end], params)
        return Completions.joined([part for part in processes.everyones(own) if part is not None])


class MergedEngine:
    """Engine (see `harness.engines.base`) over the merged copy of a model with adapters, which it refreshes before it
    draws."""

    def __init__(self, weights: MergedWeights, engine: Engine) -> None:
        """engine: over weights.model."""
        self._weights, self._engine = weights, engine

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        keys: Tensor,
        params: SamplingParams,
        on_finished: OnFinished | None = None,
    ) -> Completions:
        import torch

        started_s = time.perf_counter()
        self._weights.refresh()
        if self._weights.model.device.type == "cuda":
            torch.cuda.synchronize(self._weights.model.device)
        merge = GenerationCost(sync_s=time.perf_counter() - started_s)
        drawn = self._engine.generate(prompts, keys, params, on_finished)
        return replace(drawn, cost=merge + drawn.cost)
