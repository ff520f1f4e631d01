"""Completions for the shell: names of sweeps and of runs, and sweep files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from typer import Context

import sweeps
from harness.runs import home_folder


def run_names(context: Context) -> list[str]:
    """Return the names of the sweeps in the home. Typer drops those that do not match the typed text."""
    return sorted(path.parent.name for path in home_folder(context.params.get("home")).glob("*/sweep.json"))


def sweep_names(context: Context, incomplete: str) -> list[str]:
    """Return sweep files and the names of shipped sweeps and of sweeps that were run."""
    # This repeats `shipped` of harness.plan.sweep_file, whose imports would take a second at every TAB.
    shipped = {path.stem for path in Path(sweeps.__file__).parent.glob("*.yaml") if not path.stem.startswith("probe")}
    return [*_files(incomplete), *sorted({*shipped, *run_names(context)})]


def _files(incomplete: str) -> Iterator[str]:
    """Yield the folders and YAML files in the folder of an incomplete path."""
    folder, slash, _ = incomplete.rpartition("/")
    for path in sorted(Path(folder or slash or ".").glob("[!.]*")):
        if path.is_dir():
            yield f"{folder}{slash}{path.name}/"
        elif path.suffix in (".yaml", ".yml"):
            yield f"{folder}{slash}{path.name}"
