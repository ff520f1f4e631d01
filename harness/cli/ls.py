"""`bench ls`: what there is to choose from."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.console import print_json, print_table
from harness.cli.options import HomeOption, JsonOption, home_folder


class Listing(StrEnum):
    """What can be listed."""

    sweeps = "sweeps"
    profiles = "profiles"
    algorithms = "algorithms"
    tasks = "tasks"
    knobs = "knobs"
    figures = "figures"
    runs = "runs"


def ls(
    what: Annotated[Listing, typer.Argument(help="What to list.")] = Listing.sweeps,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """List shipped sweeps, profiles, algorithms, tasks, knobs, figures of reports, or the runs so far.

    Example: bench ls algorithms
    """
    rows = {
        Listing.sweeps: _sweeps,
        Listing.profiles: _profiles,
        Listing.algorithms: _algorithms,
        Listing.tasks: _tasks,
        Listing.knobs: _knobs,
        Listing.figures: _figures,
    }
    listed = _runs(home_folder(home)) if what is Listing.runs else rows[what]()
    if json:
        print_json([{"name": name, "description": description} for name, description in listed])
    elif listed:
        print_table("", [what.value, ""], [list(row) for row in listed])
    else:
        typer.echo(f"no {what.value} yet", err=True)


def _sweeps() -> list[tuple[str, str]]:
    from harness.plan.sweep_file import SHIPPED, load_sweep, shipped

    return [(name, load_sweep(str(path))[0].question) for name, path in shipped(SHIPPED).items()]


def _profiles() -> list[tuple[str, str]]:
    from harness.config.yaml_file import load_yaml
    from harness.plan.sweep_file import SHIPPED, shipped

    return [(name, str(load_yaml(path).get("description", ""))) for name, path in shipped(SHIPPED / "profiles").items()]


def _algorithms() -> list[tuple[str, str]]:
    from algorithms import describe, presets

    return [
        *((name, describe(name).summary) for name in presets("policy_gradient")),
        *((name, f"from pairs: {describe(name).summary}") for name in presets("preference")),
    ]


def _tasks() -> list[tuple[str, str]]:
    from evals.tasks import GYM_TASKS, get_task, task_names

    return [
        *(
            (name, f"grader {get_task(name).grader}; splits {', '.join(get_task(name).splits)}")
            for name in task_names()
        ),
        (
            GYM_TASKS,
            "any task of reasoning-gym; needs pip install -e '.[reasoning-gym]'; grader own; splits train, test",
        ),
    ]


def _knobs() -> list[tuple[str, str]]:
    from harness.config.knobs import DESCRIPTIONS

    return list(DESCRIPTIONS.items())


def _figures() -> list[tuple[str, str]]:
    from reports.figures import FIGURES, in_reading_order
    from reports.search.figures import SEARCH_FIGURES

    return [
        *((figure.name, f"{figure.group}: {figure.title}") for figure in in_reading_order(FIGURES)),
        *((figure.name, f"Search: {figure.title}") for figure in in_reading_order(SEARCH_FIGURES)),
    ]


def _runs(home: Path) -> list[tuple[str, str]]:
    from harness.records import read_sweep

    sweeps = [read_sweep(path.parent) for path in sorted(home.glob("*/sweep.json"))]
    return [
        (s.name, f"{sum(c.state == 'done' for c in s.cells)}/{len(s.cells)} cells done; {s.question}") for s in sweeps
    ]
