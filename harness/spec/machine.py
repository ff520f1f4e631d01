"""What a spec may leave to the machine (`auto`), and what it then means. No torch here."""

from __future__ import annotations

from typing import Literal

from harness.spec.run_spec import RunSpec


def device_kind(device: str, cuda_is_there: bool) -> str:
    """`train.device` with auto settled: cuda where there is one."""
    if device == "auto":
        return "cuda" if cuda_is_there else "cpu"
    return device


def dtype_on(device: str, dtype: str) -> Literal["float32", "bfloat16"]:
    """`model.dtype` with auto settled: bfloat16 on CUDA, float32 on a CPU."""
    if dtype == "auto":
        return "bfloat16" if device.startswith("cuda") else "float32"
    return "float32" if dtype == "float32" else "bfloat16"


def engine_on(device: str, engine: str) -> Literal["torch", "vllm"]:
    """`rollout.engine` with auto settled: vllm on CUDA, torch on a CPU."""
    if engine == "auto":
        return "vllm" if device.startswith("cuda") else "torch"
    return "torch" if engine == "torch" else "vllm"


def settled(spec: RunSpec, cuda_is_there: bool) -> RunSpec:
    """The spec with nothing left to the machine, so that one hash never means the numbers of two kinds of device."""
    device = device_kind(spec.train.device, cuda_is_there)
    return spec.model_copy(
        update={
            "train": spec.train.model_copy(update={"device": device}),
            "model": spec.model.model_copy(update={"dtype": dtype_on(device, spec.model.dtype)}),
            "rollout": spec.rollout.model_copy(update={"engine": engine_on(device, spec.rollout.engine)}),
        }
    )
