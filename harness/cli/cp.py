"""`bench cp`: a copy of a shipped sweep, probe or profile, to edit."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.console import print_json
from harness.cli.options import JsonOption, UnusedHomeOption
from harness.errors import RefusedError, nearest


def cp(
    name: Annotated[str, typer.Argument(help="Name of a shipped sweep, probe or profile.")],
    target: Annotated[Path, typer.Argument(help="Folder or file to copy to.")] = Path(),
    home: UnusedHomeOption = None,
    json: JsonOption = False,
) -> None:
    """Copy a shipped sweep, probe or profile to a file of your own. Never overwrites.

    Example: bench cp std_norm my_question.yaml
    """
    from harness.plan.sweep_file import SHIPPED, load_sweep, shipped, shipped_probes

    sweeps, probes = shipped(SHIPPED), shipped_probes()
    known = {**shipped(SHIPPED / "profiles"), **sweeps, **probes}
    if name not in known:
        raise RefusedError(
            f"{name!r} is no shipped sweep, probe or profile{nearest(name, known)} Known: {', '.join(known)}."
        )
    path = target / f"{name}.yaml" if target.is_dir() else target
    if path.exists():
        raise RefusedError(f"{path} exists already and is left alone. Give another name.")
    try:
        shutil.copyfile(known[name], path)
    except OSError as error:
        raise RefusedError(f"{path}: cannot be written ({error.strerror}).") from None
    if json:
        print_json({"path": str(path)})
    else:
        verbs = {**dict.fromkeys(sweeps, "run"), **dict.fromkeys(probes, "probe")}
        if name in sweeps and load_sweep(name)[0].search is not None:
            verbs[name] = "tune"
        use = f"bench {verbs[name]} {path}" if name in verbs else f"bench run SWEEP --profile {path}"
        typer.echo(f"wrote {path}; use it with `{use}`")
