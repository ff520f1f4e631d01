"""`bench doctor`: what this machine can do, and what stands in the way."""

from __future__ import annotations

import os
import shutil
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from harness.cli.console import print_json, print_table
from harness.cli.options import HomeOption, JsonOption, home_folder
from harness.errors import RefusedError

LOW_DISK_GB = 2.0


def doctor(home: HomeOption = None, json: JsonOption = False) -> None:
    """Check versions, devices, data, disk and the runs folder. Exits 2 if something a run needs is missing.

    Example: bench doctor
    """
    checks = [*_versions(), _device(), *_folders(home_folder(home)), *_data()]
    if json:
        print_json([{"check": name, "ok": ok, "found": found} for name, ok, found in checks])
    else:
        print_table(
            "", ["check", "", "found"], [[name, "ok" if ok else "PROBLEM", found] for name, ok, found in checks]
        )
    problems = [f"{name}: {found}" for name, ok, found in checks if not ok]
    if problems:
        raise RefusedError("; ".join(problems))


Check = tuple[str, bool, str]


def _versions() -> list[Check]:
    checks: list[Check] = [("python", sys.version_info >= (3, 11), sys.version.split()[0])]
    for package in ("torch", "transformers", "mlflow", "math-verify", "datasets"):
        try:
            checks.append((package, True, metadata.version(package)))
        except metadata.PackageNotFoundError:
            checks.append((package, False, "not installed; install the checkout again: pip install -e ."))
    vllm = "installed" if find_spec("vllm") else "not installed (optional)"
    return [*checks, ("vllm", True, vllm)]


def _device() -> Check:
    import torch

    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        return "device", True, f"{torch.cuda.get_device_name(0)}, {free / 1e9:.0f} of {total / 1e9:.0f} GB free"
    return "device", True, f"CPU, {os.cpu_count()} cores"


def _folders(home: Path) -> list[Check]:
    existing = next(path for path in [home.absolute(), *home.absolute().parents] if path.exists())
    free_gb = shutil.disk_usage(existing).free / 1e9
    return [
        ("runs folder", existing.is_dir() and os.access(existing, os.W_OK), f"{home.absolute()}"),
        ("free disk", free_gb > LOW_DISK_GB, f"{free_gb:.0f} GB"),
    ]


def _data() -> list[Check]:
    checks: list[Check] = []
    for variable, use in (("BENCH_DATA", "local problems; else the hub"), ("BENCH_MODELS", "local models in tests")):
        value: Any = os.environ.get(variable)
        checks.append((variable, not value or Path(value).is_dir(), value or f"not set ({use})"))
    return checks
