"""The adapters in examples/trainers, as modules."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

EXAMPLES = Path(__file__).parents[2] / "examples" / "trainers"


def load(name: str) -> ModuleType:
    """The adapter in that folder, of which nothing runs."""
    spec = importlib.util.spec_from_file_location(f"adapter_{name}", EXAMPLES / name / "train.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
