"""Which engine draws completions.

Rollouts of a model with adapters: from a plain copy whose weights are those of the base plus the adapters' product.

Merging in place and back again drifts by rounding; here the base is never written, and each merge begins from it.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from harness.config.rollout import RolloutSpec
from harness.config.run_spec import engine_on
from harness.engines.base import Completions, Engine, GenerationCost, OnFinished, SamplingParams
from harness.engines.parity import weight_version
from harness.engines.torch.engine import TorchEngine
from harness.errors import RefusedError
from harness.models.language_model import LanguageModel
from harness.models.lora import adapted_layers, has_adapters, remove_adapters

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def make_engine(rollout: RolloutSpec, language_model: LanguageModel, sampler: PreTrainedModel | None = None) -> Engine:
    """The engine of a spec over a model of the same architecture; without `sampler`, over the language model's own.

    Raises RefusedError if the engine is not installed or cannot run here.
    """
    model = language_model.model if sampler is None else sampler
    if has_adapters(model):
        merged = merged_copy(model)
        return MergedEngine(merged, make_engine(rollout, language_model, merged.model))
    if engine_on(str(model.device), rollout.engine) == "vllm":
        if model.device.index:
            raise RefusedError(
                f"train.device is {model.device}, and vLLM takes the first GPU that it sees. Set the environment's "
                f"CUDA_VISIBLE_DEVICES={model.device.index} and --set train.device=cuda, or --set rollout.engine=torch."
            )
        from harness.engines.vllm import VllmEngine, require_temperature

        require_temperature(rollout.temperature)
        return VllmEngine(
            model,
            language_model.pad_token_id,
            language_model.eos_token_ids,
            language_model.decode,
            rollout.vllm_memory_frac,
        )
    return TorchEngine(model, language_model.pad_token_id, language_model.eos_token_ids, language_model.decode)


class MergedWeights:
    """A plain model beside an adapted one. What is not adapted is shared, since training never writes to it."""

    def __init__(self, adapted: PreTrainedModel) -> None:
        # No reference to the adapted model itself: it is the key under which this is kept.
        self._layers = adapted_layers(adapted)
        self._sources = nn.ParameterList(
            weight for layer in self._layers for weight in (layer.base.weight, layer.A, layer.B)
        )
        merged = {id(layer.base.weight) for layer in self._layers}
        self.model: PreTrainedModel = copy.deepcopy(
            adapted, {id(weight): weight for weight in adapted.parameters() if id(weight) not in merged}
        )
        remove_adapters(self.model)
        self._version: int | None = None

    @torch.no_grad()
    def refresh(self) -> None:
        """Merge again if an adapter or its base has been written since the last time."""
        version = weight_version(self._sources)
        if version == self._version:
            return
        for layer in self._layers:
            self.model.get_submodule(layer.name).weight.copy_(layer.merged_weight())
        self._version = version


_merged: WeakKeyDictionary[PreTrainedModel, MergedWeights] = WeakKeyDictionary()


def merged_copy(adapted: PreTrainedModel) -> MergedWeights:
    """The merged copy of an adapted model: one for all engines over it."""
    if adapted not in _merged:
        _merged[adapted] = MergedWeights(adapted)
    return _merged[adapted]


class MergedEngine:
    """Engine (see `harness.engines.base`) over a merged copy, which it refreshes before it draws."""

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
        started_s = time.perf_counter()
        self._weights.refresh()
        if self._weights.model.device.type == "cuda":
            torch.cuda.synchronize(self._weights.model.device)
        merge = GenerationCost(sync_s=time.perf_counter() - started_s)
        drawn = self._engine.generate(prompts, keys, params, on_finished)
        return replace(drawn, cost=merge + drawn.cost)
