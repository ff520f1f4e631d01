"""Resolve the settings that a spec leaves to the machine (`auto`): device, engine and precision. No torch here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from harness.config.engine import ENGINES, engine_on
from harness.config.run_spec import RunSpec
from harness.errors import RefusedError


def device_kind(device: str, on_gpu: Callable[[], bool]) -> str:
    """Return the device, with `auto` resolved to cuda if there is a GPU and to cpu otherwise.

    on_gpu: returns whether there is a GPU; called only for `auto`.
    """
    if device == "auto":
        return "cuda" if on_gpu() else "cpu"
    return device


def dtype_on(device: str, dtype: str) -> Literal["float32", "bfloat16"]:
    """Return the dtype, with `auto` resolved to bfloat16 on CUDA and float32 on a CPU."""
    if dtype == "auto":
        return "bfloat16" if device.startswith("cuda") else "float32"
    return "float32" if dtype == "float32" else "bfloat16"


def resolved_for_machine(spec: RunSpec, on_gpu: Callable[[], bool]) -> RunSpec:
    """Return the spec with every `auto` resolved for this machine.

    This keeps one hash from standing for the numbers of two kinds of device. A sampling dtype that equals the model's
    becomes `trainer`, so that two hashes never stand for the same numbers. Raises RefusedError if the machine's engine
    does not support the precision.
    """
    device = device_kind(spec.train.device, on_gpu)
    engine, dtype = engine_on(device, spec.rollout.engine), dtype_on(device, spec.model.dtype)
    # In a float32 model the head is in float32 anyway.
    head: Literal["model", "float32"] = "model" if dtype == "float32" else spec.model.head_dtype
    if head not in ENGINES.find(engine).head_dtypes:
        raise RefusedError("config.head_dtype_not_offered", head_dtype=head, engine=engine)
    return spec.model_copy(
        update={
            "train": spec.train.model_copy(update={"device": device}),
            "model": spec.model.model_copy(update={"dtype": dtype, "head_dtype": head}),
            "rollout": spec.rollout.model_copy(
                update={"engine": engine, "dtype": "trainer" if spec.rollout.dtype == dtype else spec.rollout.dtype}
            ),
        }
    )
