"""`bench show`: one sweep, profile or algorithm, in full."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from harness.cli.console import print_json
from harness.cli.options import JsonOption, UnusedHomeOption
from harness.errors import RefusedError, nearest


def show(
    name: Annotated[str, typer.Argument(help="A shipped sweep, profile or algorithm, or a sweep file.")],
    home: UnusedHomeOption = None,
    json: JsonOption = False,
) -> None:
    """Show an algorithm's knobs and source, a profile, or a sweep, with defaults written out.

    Example: bench show grpo
    """
    from algorithms import active_knobs, describe, preset, presets
    from harness.plan.sweep_file import SHIPPED, load_sweep, shipped
    from harness.spec.yaml12 import load_yaml

    profiles = shipped(SHIPPED / "profiles")
    sweep_names = shipped(SHIPPED)
    if name in presets():
        document: dict[str, Any] = {"algorithm": name, "source": describe(name), "knobs": active_knobs(preset(name))}
    elif name in profiles:
        document = {"profile": name, **load_yaml(profiles[name])}
    elif name in sweep_names or name.endswith((".yaml", ".yml")):
        document = load_sweep(name)[0].model_dump(mode="json")
    else:
        known = [*presets(), *profiles, *sweep_names]
        raise RefusedError(
            f"{name!r} is no algorithm, profile or sweep{nearest(name, known)} Known: {', '.join(known)}."
        )
    if json:
        print_json(document)
    else:
        import yaml

        typer.echo(yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100).rstrip())
