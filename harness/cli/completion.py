"""Completions for the shell: names of sweeps and of runs, and sweep files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from typer import Context

import sweeps
from harness.runs import home_folder


def run_names(context: Context, incomplete: str) -> list[str]:
    """Return the names of the sweeps in the home that begin like this."""
    home = home_folder(context.params.get("home"))
    return sorted(path.parent.name for path in home.glob("*/sweep.json") if path.parent.name.startswith(incomplete))


def sweep_names(context: Context, incomplete: str) -> list[str]:
    """Return sweep files, shipped sweeps and sweeps that were run, as far as they begin like this."""
    # As `shipped` of harness.plan.sweep_file, whose imports would take a second at every TAB.
    shipped = {path.stem for path in Path(sweeps.__file__).parent.glob("*.yaml") if not path.stem.startswith("probe")}
    named = {name for name in shipped if name.startswith(incomplete)} | {*run_names(context, incomplete)}
    return [*_files(incomplete), *sorted(named)]


def _files(incomplete: str) -> Iterator[str]:
    """Yield the folders and YAML files that the path may become."""
    folder, slash, start = incomplete.rpartition("/")
    for path in sorted(Path(folder or slash or ".").glob("*")):
        if path.name.startswith(start) and not path.name.startswith("."):
            if path.is_dir():
                yield f"{folder}{slash}{path.name}/"
            elif path.suffix in (".yaml", ".yml"):
                yield f"{folder}{slash}{path.name}"
