"""`bench ls`: what there is to choose from."""

from __future__ import annotations

from collections.abc import Sequence
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
    rules = "rules"
    tasks = "tasks"
    templates = "templates"
    graders = "graders"
    metrics = "metrics"
    knobs = "knobs"
    rewards = "rewards"
    engines = "engines"
    figures = "figures"
    runs = "runs"


def ls(
    what: Annotated[Listing, typer.Argument(help="What to list.")] = Listing.sweeps,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """List sweeps, algorithms, rules, tasks, templates, graders, metrics, rewards, engines, figures, knobs and more.

    Example: bench ls algorithms
    """
    rows = {
        Listing.sweeps: _sweeps,
        Listing.profiles: _profiles,
        Listing.algorithms: _algorithms,
        Listing.rules: _rules,
        Listing.tasks: _tasks,
        Listing.templates: _templates,
        Listing.graders: _graders,
        Listing.metrics: _metrics,
        Listing.knobs: _knobs,
        Listing.rewards: _rewards,
        Listing.engines: _engines,
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


def _rules() -> list[tuple[str, str]]:
    from algorithms import RULES

    return [(name, (rule.__doc__ or "").partition("\n")[0]) for name, rule in RULES.all().items()]


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


def _templates() -> list[tuple[str, str]]:
    from textwrap import shorten

    from evals.prompts import TEMPLATES

    return [
        (name, f"{'a chat' if one.chat else 'plain text'}: {shorten(f'{one.system or str()} {one.text}', 90)}")
        for name, one in TEMPLATES.all().items()
    ]


def _graders() -> list[tuple[str, str]]:
    from evals.grading import GRADERS

    return [(name, grader.meaning) for name, grader in GRADERS.all().items()]


def _metrics() -> list[tuple[str, str]]:
    from evals.metrics import METRICS

    return [
        (name, f"{one.unit}{f', {one.better} is better' if one.better else ''}: {one.meaning}")
        for name, one in METRICS.all().items()
    ]


def _knobs() -> list[tuple[str, str]]:
    from harness.config.knobs import descriptions

    return list(descriptions().items())


def _rewards() -> list[tuple[str, str]]:
    from harness.rewards.base import nameable_parts

    listed = [(name, part.summary()) for name, part in nameable_parts().items()]
    return [*listed, ("module:function", "a function of your own: (group, context) -> list of numbers")]


def _engines() -> list[tuple[str, str]]:
    from harness.config.engine import ENGINES

    return [
        (name, f"{engine.description}; on {', '.join(engine.devices)}" + _default_on(engine.default_on))
        for name, engine in ENGINES.all().items()
    ]


def _default_on(devices: Sequence[str]) -> str:
    return f" (the default on {' and '.join(devices)})" if devices else ""


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
