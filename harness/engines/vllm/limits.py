"""Limits of vLLM: what it can do and how much memory it takes; without vLLM, since plans ask."""

from __future__ import annotations

CPU_CACHE_BYTES = 2 * 2**30
"""vLLM's cache of keys and values on a CPU, which it takes at once. On CUDA it takes `rollout.vllm_memory_frac`."""
SLEEPS_ABOVE_BYTES = 3 * 10**9
"""vLLM sleeps between calls on CUDA for a model with larger weights than this: 1.5 billion in bfloat16. For a smaller
model the memory is not worth the time.
"""
COLDEST, HOTTEST = 0.01, 2.0
"""vLLM silently raises a temperature below the first, unless it is 0, and refuses one above the second."""


def temperature_refusal(temperature: float) -> str | None:
    """Return why vLLM does not sample at this temperature, or None if it does."""
    if temperature == 0 or COLDEST <= temperature <= HOTTEST:
        return None
    return (
        f"temperature is {temperature}: vLLM samples at temperatures from {COLDEST} to {HOTTEST:g}, and greedily at 0. "
        "Choose one of these, or use --set rollout.engine=torch."
    )


def sleeps_between_calls(device: str, weights_bytes: int) -> bool:
    """Return whether vLLM gives its memory back between calls; device: its type."""
    return device == "cuda" and weights_bytes > SLEEPS_ABOVE_BYTES
