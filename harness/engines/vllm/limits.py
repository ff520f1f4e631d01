"""Limits of vLLM's abilities and memory. This module does not import vllm, because plans use it."""

from __future__ import annotations

CPU_CACHE_BYTES = 2 * 2**30
"""Size of vLLM's key-value cache on a CPU, allocated at its start. On CUDA, `rollout.vllm_memory_frac` sets it."""
SLEEPS_ABOVE_BYTES = 3 * 10**9
"""On CUDA, vLLM sleeps between calls if the weights are larger than this, 1.5 billion weights in bfloat16.

For a smaller model, the memory is not worth the time.
"""
COLDEST, HOTTEST = 0.01, 2.0
"""vLLM silently raises temperatures below COLDEST, except 0, and refuses temperatures above HOTTEST."""


def temperature_refusal(temperature: float) -> str | None:
    """Return the reason why vLLM cannot sample at this temperature, or None if it can."""
    if temperature == 0 or COLDEST <= temperature <= HOTTEST:
        return None
    return (
        f"temperature is {temperature}: vLLM samples at temperatures from {COLDEST} to {HOTTEST:g}, and greedily at 0. "
        "Choose one of these, or use --set rollout.engine=torch."
    )


def sleeps_between_calls(device: str, weights_bytes: int) -> bool:
    """Return whether vLLM frees its memory between calls. device: the device type, such as "cuda"."""
    return device == "cuda" and weights_bytes > SLEEPS_ABOVE_BYTES
