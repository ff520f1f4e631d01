"""What a measurement was made on."""

from __future__ import annotations

import platform
from importlib.metadata import version
from pathlib import Path


def machine(threads: int) -> str:
    """One line: processor, threads and versions."""
    return f"{_processor()}, {threads} thread(s), Python {platform.python_version()}, torch {version('torch')}"


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    names = [line for line in cpuinfo.read_text().splitlines() if "model name" in line] if cpuinfo.exists() else []
    return names[0].split(":")[1].strip() if names else platform.processor()
