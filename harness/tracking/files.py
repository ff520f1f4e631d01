"""What the file system tells of a record."""

from __future__ import annotations

from pathlib import Path


def file_fingerprint(path: Path) -> tuple[int, int] | None:
    """Time of change and size: another one after every write. None without the file."""
    if not path.exists():
        return None
    stat = path.stat()
    return stat.st_mtime_ns, stat.st_size


def modified_ms(path: Path) -> int | None:
    """Time of change in Unix milliseconds, MLflow's unit. None without the file."""
    return path.stat().st_mtime_ns // 1_000_000 if path.exists() else None
