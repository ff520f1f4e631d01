"""`bench show`: one sweep, profile or algorithm, in full."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from harness.cli.console import print_json
from harness.cli.objectives import find_objective, shown, title
from harness.cli.options import JsonOption, UnusedHomeOption
from harness.errors import RefusedError, nearest


def show(
    name: Annotated[str, typer.Argument(help="A shipped sweep, profile or algorithm, or a sweep file.")],
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override an algorithm's knob; repeatable."),
    ] = None,
    home: UnusedHomeOption = None,
    json: JsonOption = False,
) -> None:
    """Show an algorithm's knobs, formula, source and traps, a profile, or a sweep, with defaults written out.

    Example: bench show grpo --set objective.aggregation=constant_length
    """
    from algorithms import presets
    from harness.config.yaml_file import load_yaml
    from harness.plan.sweep_file import SHIPPED, load_sweep, shipped

    if name in presets():
        document = _algorithm(name, set_ or [])
        if json:
            print_json(document)
        else:
            _print_algorithm(name, document)
        return
    profiles = shipped(SHIPPED / "profiles")
    sweep_names = shipped(SHIPPED)
    if name in profiles:
        document = {"profile": name, **load_yaml(profiles[name])}
    elif name in sweep_names or name.endswith((".yaml", ".yml")):
        sweep = load_sweep(name)[0]
        # What a search does not read must not stand in its file, even with the value that it has anyway.
        document = sweep.model_dump(mode="json", by_alias=True, exclude_unset=sweep.search is not None)
    else:
        known = [*presets(), *profiles, *sweep_names]
        raise RefusedError(
            f"{name!r} is no algorithm, profile or sweep{nearest(name, known)} Known: {', '.join(known)}."
        )
    if set_:
        raise RefusedError(f"--set {set_[0]}: only an algorithm's knobs can be set here, and {name} is none.")
    if json:
        print_json(document)
    else:
        import yaml

        typer.echo(yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100).rstrip())


def _algorithm(name: str, settings: Sequence[str]) -> dict[str, Any]:
    from algorithms import active_knobs, describe, formula

    preset, objective = describe(name), find_objective(name, settings)
    return {
        "algorithm": title(name, settings),
        "summary": preset.summary,
        "source": preset.source,
        "knobs": active_knobs(objective),
        "formula": formula(objective),
        "about": preset.about,
        "implementations": preset.implementations,
        "traps": preset.traps,
        "companions": dict(preset.companions),
    }


def _print_algorithm(name: str, document: dict[str, Any]) -> None:
    typer.echo(document["algorithm"])
    typer.echo("\nknobs (objective.*)")
    _print_pairs({knob: shown(value) for knob, value in document["knobs"].items()})
    typer.echo("\nformula")
    _print_pairs(document["formula"])
    typer.echo(f"\n{name}: {document['summary']}")
    for heading in ("source", "about", "implementations", "traps"):
        if document[heading]:
            typer.echo(f"\n{heading}: {document[heading]}")
    if document["companions"]:
        typer.echo("\ncompanions: settings outside the objective that the paper also uses; not applied")
        _print_pairs({knob: shown(value) for knob, value in document["companions"].items()})


def _print_pairs(pairs: Mapping[str, str]) -> None:
    width = max(map(len, pairs))
    for name, text in pairs.items():
        typer.echo(f"  {name.ljust(width)}  {text}")
