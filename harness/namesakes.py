"""Detects other packages with the names of bench's own, before they are imported by mistake."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from harness import OUR_PACKAGES
from harness.errors import RefusedError


def require_own_packages() -> None:
    """Raise RefusedError if Python would import another package under the name of one of bench's own.

    Otherwise that package's code would run, and a name missing in it would cause an ImportError. The check imports
    nothing.
    """
    ours = Path(__file__).resolve().parents[1]
    for name in OUR_PACKAGES:
        # find_spec locates a top-level package without running its code.
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None or Path(spec.origin).resolve().parent == ours / name:
            continue
        found = Path(spec.origin)
        stranger = found.parent if found.name == "__init__.py" else found
        if stranger.parent.resolve() in _folders_of("PYTHONPATH"):
            remedy = "Take its folder out of PYTHONPATH, or rename it."
        elif stranger.parent.resolve() == Path.cwd():
            remedy = "Run from another folder, rename it, or set PYTHONSAFEPATH=1 (python -P)."
        else:
            remedy = "Uninstall it, or install bench in an environment of its own."
        raise RefusedError(
            "bench.package_shadowed", shadowing=stranger, package=name, own_path=ours / name, remedy=remedy
        )


def _folders_of(variable: str) -> list[Path]:
    return [Path(folder).resolve() for folder in os.environ.get(variable, "").split(os.pathsep) if folder]
