"""Detection of other packages with the names of ours, before one of them is imported instead."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from harness import OUR_PACKAGES
from harness.errors import RefusedError


def require_own_packages() -> None:
    """Raise RefusedError if Python finds another package under the name of one of ours.

    Otherwise a name that it lacks would show as an ImportError, and its code would run as ours. The check imports
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
