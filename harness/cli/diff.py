"""`bench diff`: the knobs in which two algorithms differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from harness.cli.console import print_json, print_table
from harness.cli.objectives import PREFIX, find_objective, shown, title
from harness.cli.options import JsonOption, UnusedHomeOption


def diff(
    first: Annotated[str, typer.Argument(help="An algorithm, see `bench ls algorithms`.")],
    second: Annotated[str, typer.Argument(help="Another one, or the same with --set.")],
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a knob of the second one; repeatable."),
    ] = None,
    home: UnusedHomeOption = None,
    json: JsonOption = False,
) -> None:
    """Show only the knobs in which two algorithms differ, and which of them need a second optimiser step to act.

    Between a preference algorithm and one of policy gradients these are all knobs of both.

    Example: bench diff grpo dr_grpo
    """
    from algorithms import Objective, active_knobs, differences_that_cannot_act
    from harness.plan.gate import ABSENT

    a, b = find_objective(first, []), find_objective(second, set_ or [])
    knobs_a, knobs_b = active_knobs(a), active_knobs(b)
    pairs = {
        knob: (knobs_a.get(knob, ABSENT), knobs_b.get(knob, ABSENT)) for knob in dict.fromkeys([*knobs_a, *knobs_b])
    }
    differs = {knob: pair for knob, pair in pairs.items() if pair[0] != pair[1]}
    inert: dict[str, str] = {}
    if isinstance(a, Objective) and isinstance(b, Objective):
        inert = differences_that_cannot_act(a, b, 1)
    document: dict[str, Any] = {
        "first": first,
        "second": title(second, set_ or []),
        "differs": [{"knob": f"{PREFIX}{knob}", "first": pair[0], "second": pair[1]} for knob, pair in differs.items()],
        "cannot_act_in_one_step": {f"{PREFIX}{knob}": reason for knob, reason in inert.items()},
    }
    if json:
        print_json(document)
    elif not differs:
        typer.echo(f"{first} and {document['second']} are the same: all knobs are equal")
    else:
        rows = [[row["knob"], shown(row["first"]), shown(row["second"])] for row in document["differs"]]
        print_table("", ["knob", first, document["second"]], rows)
        for reason, knobs in _by_reason(document["cannot_act_in_one_step"]).items():
            typer.echo(f"cannot act: {', '.join(knobs)}: {reason}")


def _by_reason(reasons: Mapping[str, str]) -> dict[str, list[str]]:
    grouped: dict[str, list[str]] = {}
    for knob, reason in reasons.items():
        grouped.setdefault(reason, []).append(knob)
    return grouped
