"""Verbs that inspect: `bench ls`, `bench show` and `bench diff`."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.console import print_json, print_pairs, print_table
from harness.cli.options import (
    PREFIX,
    HomeOption,
    JsonOption,
    PluginOption,
    UnusedHomeOption,
    find_objective,
    knob_text,
    title,
    use_plugins,
)
from harness.cli.verb import Verb, added
from harness.errors import BenchError, RefusedError, UnknownNameError
from harness.runs import home_folder
from harness.words import said

if TYPE_CHECKING:
    from harness.plugins import Kind

WIDTH = 80

KINDS = {
    "algorithms": ("algorithms.presets:PRESETS",),
    "rules": ("algorithms.rules:RULES",),
    "tasks": ("evals.tasks:TASKS", "evals.tasks:FAMILIES"),
    "templates": ("evals.prompts:TEMPLATES",),
    "graders": ("evals.graders:GRADERS",),
    "judges": ("evals.grading.asked_model:JUDGES",),
    "extractions": ("evals.grading.extract:EXTRACTIONS",),
    "metrics": ("evals.metrics:METRICS",),
    "dialects": ("algorithms.dialects:DIALECTS",),
    "rewards": ("harness.rewards.base:PARTS",),
    "engines": ("harness.config.engine:ENGINES",),
    "executors": ("harness.executors.base:EXECUTORS",),
    "services": ("harness.sampling.services:SERVICES",),
    "trainers": ("harness.config.trainer:TRAINERS",),
    "stages": ("harness.run.stages:STAGES",),
    "sections": ("reports.page.section:SECTIONS",),
    "figures": ("reports.figures:FIGURES", "reports.search.figures:SEARCH_FIGURES"),
    **{word: (place,) for verb in added(Verb) for word, place in verb.lists.items()},
}
"""The kinds of plug-ins that `bench ls <word>` lists, each as `module:NAME`."""


@dataclass(frozen=True)
class ListingLine:
    """A line of a listing."""

    name: str
    description: str
    origin: Path | None = None
    """The file of the plug-in that defines it; None for what is shipped."""
    facts: Mapping[str, object] = field(default_factory=dict)

    def as_json(self) -> dict[str, object]:
        origin = None if self.origin is None else str(self.origin)
        return {"name": self.name, **self.facts, "description": self.description, "from": origin}

    @property
    def text(self) -> str:
        return self.description + (f" (from {self.origin})" if self.origin else "")


def ls(
    what: Annotated[str, typer.Argument(help=said("cli.help_ls_what", kinds=", ".join(KINDS)))] = "sweeps",
    word: Annotated[str | None, typer.Argument(metavar="[WORD]", help=said("cli.help_ls_word"))] = None,
    plugin: PluginOption = None,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """List sweeps, algorithms, tasks, knobs and everything else. Plug-ins are included.

    Example: bench ls knobs clip
    """
    use_plugins(plugin)
    listings: dict[str, Callable[[], Iterator[ListingLine]]] = {
        "sweeps": _sweeps,
        "profiles": _profiles,
        **{kind: lambda: _things(what) for kind in KINDS},
        "knobs": _knobs,
        # The home is looked up only for this listing; the others need none.
        "runs": lambda: _runs(home_folder(home)),
    }
    if what not in listings:
        raise UnknownNameError("kind of thing", what, listings, "bench ls --help")
    wanted = (word or "").lower()
    listed = [one for one in listings[what]() if wanted in one.name.lower() or wanted in one.description.lower()]
    if json:
        print_json([one.as_json() for one in listed])
    elif not listed:
        typer.echo(f"no {what} with {word!r}" if word else f"no {what} yet", err=True)
    elif what == "knobs":
        for one in listed:
            _print_knob(one)
    else:
        print_table("", [what, ""], [[one.name, one.text] for one in listed])


def _kinds(word: str) -> Iterator[Kind[object]]:
    """Yield the kinds behind a word of `bench ls`."""
    for place in KINDS[word]:
        module, _, name = place.partition(":")
        # Imported on use, so that help and mistakes come at once.
        yield getattr(import_module(module), name)


def _things(word: str) -> Iterator[ListingLine]:
    """Yield everything of a kind, whether shipped or from a plug-in."""
    for kind in _kinds(word):
        for name in kind.names():
            source = kind.source(name)
            yield ListingLine(name, kind.summary(name), None if source is None else source.path)
        for form, meaning in kind.besides.items():
            yield ListingLine(form, meaning)


def _sweeps() -> Iterator[ListingLine]:
    from harness.plan.sweep_file import SHIPPED, load_sweep, shipped

    for name, path in shipped(SHIPPED).items():
        yield ListingLine(name, load_sweep(str(path))[0].question)


def _profiles() -> Iterator[ListingLine]:
    from evals.yaml_file import load_yaml
    from harness.plan.sweep_file import SHIPPED, shipped

    for name, path in shipped(SHIPPED / "profiles").items():
        yield ListingLine(name, str(load_yaml(path).get("description", "")))


def _knobs() -> Iterator[ListingLine]:
    from harness.config.knobs import knob_facts

    for name, knob in knob_facts().items():
        yield ListingLine(
            name, knob.description, facts={"type": knob.type, "default": knob.default, "range": knob.range}
        )


def _runs(home: Path) -> Iterator[ListingLine]:
    """Yield the sweeps and searches of a home; one that cannot be read shows its error."""
    from harness.records import read_sweep

    for path in sorted(home.glob("*/sweep.json")):
        try:
            sweep = read_sweep(path.parent)
        except BenchError as error:
            yield ListingLine(path.parent.name, str(error))
            continue
        done = sum(cell.state == "done" for cell in sweep.cells)
        yield ListingLine(sweep.name, f"{done}/{len(sweep.cells)} cells done; {sweep.question}")


def _print_knob(knob: ListingLine) -> None:
    """Print a knob's name, then its type and default, and its effect."""
    facts = knob.facts
    limits = f" ({facts['range']})" if facts["range"] else ""
    default = f"default {facts['default']}" if facts["default"] else "must be set"
    typer.echo(knob.name)
    for text in (f"{facts['type']}{limits}; {default}", *knob.text.split(" | ")):
        typer.echo(_wrapped(text, "    "))


def _in_lines(document: Mapping[str, object]) -> str:
    """Return `key: text`, one entry a line, for all texts that are not empty; further lines of a text are indented."""
    entries = (f"{key}: {text}".splitlines() for key, text in document.items() if text)
    return "\n".join(
        _wrapped(first) + "".join(f"\n{_wrapped(line, '  ')}" for line in more) for first, *more in entries
    )


def _wrapped(text: str, indent: str = "") -> str:
    width = min(WIDTH, shutil.get_terminal_size().columns)
    return textwrap.fill(text, width, initial_indent=indent, subsequent_indent=f"{indent}  ", break_on_hyphens=False)


def show(
    name: Annotated[
        str,
        typer.Argument(help=said("cli.help_show_name")),
    ],
    as_: Annotated[
        str | None,
        typer.Option("--as", metavar="TRAINER", help=said("cli.help_show_as")),
    ] = None,
    from_: Annotated[
        str | None,
        typer.Option("--from", metavar="TRAINER", help=said("cli.help_show_from")),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help=said("cli.help_show_set")),
    ] = None,
    plugin: PluginOption = None,
    home: UnusedHomeOption = None,
    json: JsonOption = False,
) -> None:
    """Show one algorithm, sweep, profile, knob or other thing in full. Sweeps are shown with all their defaults.

    Example: bench show grpo --set objective.aggregation=constant_length
    """
    from algorithms import presets

    use_plugins(plugin)
    if as_ is not None or from_ is not None:
        from harness.cli.dialects import show_elsewhere

        show_elsewhere(name, as_, from_, set_ or [], json)
        return
    if name in presets():
        _show_algorithm(name, set_ or [], json)
        return
    if set_:
        raise RefusedError("cli.set_on_non_algorithm", setting=set_[0], name=name)
    if (settings := _settings_of_file(name)) is not None:
        if json:
            print_json(settings)
        else:
            import yaml

            typer.echo(yaml.safe_dump(settings, sort_keys=False, allow_unicode=True, width=100).rstrip())
        return
    found = _things_named(name)
    if json:
        print_json(found)
    else:
        typer.echo("\n\n".join(map(_in_lines, found)))


def _settings_of_file(name: str) -> dict[str, object] | None:
    """Return a profile, sweep or judge with its defaults, or the contract of trainers; None for another name."""
    from evals.grading.asked_model import judge_in
    from harness.plan.profile import read_profile
    from harness.plan.sweep_file import SHIPPED, load_sweep, shipped

    profiles = shipped(SHIPPED / "profiles")
    if name == "trainer":
        return import_module("harness.trainers.contract").contract_document()  # type: ignore[no-any-return]
    if name in profiles:
        return {"profile": name, **read_profile(profiles[name])}
    if (judge := judge_in(name)) is not None:
        return {"judge": name, **judge.file.model_dump(mode="json")}
    if name in shipped(SHIPPED) or name.endswith((".yaml", ".yml")):
        sweep = load_sweep(name)[0]
        # A search's file must not contain fields that it does not read, not even with their defaults.
        return sweep.model_dump(mode="json", by_alias=True, exclude_unset=sweep.search is not None)
    return None


def _things_named(name: str) -> list[dict[str, object]]:
    """Return a knob, or everything of that name of all kinds; raise UnknownNameError if there is nothing."""
    from harness.plan.sweep_file import SHIPPED, shipped

    knobs = {knob.name: knob for knob in _knobs()}
    if name in knobs:
        return [{"knob": name, **knobs[name].facts, "description": knobs[name].description, "exists": _exists(name)}]
    kinds = [kind for word in KINDS for kind in _kinds(word)]
    found: list[dict[str, object]] = [
        {
            kind.noun: name,
            "description": kind.summary(name),
            "about": kind.about(name),
            "from": None if source is None else str(source.path),
        }
        for kind in kinds
        if name in kind.names()
        for source in [kind.source(name)]
    ]
    if not found:
        known = [
            *shipped(SHIPPED),
            *shipped(SHIPPED / "profiles"),
            *knobs,
            *(one for kind in kinds for one in kind.names()),
        ]
        raise UnknownNameError("name", name, known, "bench ls WHAT")
    return found


def _exists(name: str) -> str | None:
    """Return at which values of another knob this one exists; None if it always does."""
    from harness.config.knobs import knob_at

    knob = knob_at(name)
    if knob is None or knob.selector is None:
        return None
    if knob.exists_at:
        return f"with {knob.selector}={' or '.join(map(str, knob.exists_at))}"
    return f"with some settings of {knob.selector} only"


def _show_algorithm(name: str, settings: Sequence[str], json: bool) -> None:
    """Print an algorithm, moved by --set."""
    from algorithms import active_knobs, describe, formula

    preset, objective = describe(name), find_objective(name, settings)
    knobs, companions = active_knobs(objective), dict(preset.companions)
    texts = {"about": preset.about, "implementations": preset.implementations, "traps": preset.traps}
    if json:
        first = {"algorithm": title(name, settings), "summary": preset.summary, "source": preset.source}
        print_json({**first, "knobs": knobs, "formula": formula(objective), **texts, "companions": companions})
        return
    typer.echo(title(name, settings))
    print_pairs("\nknobs (objective.*)", {knob: knob_text(value) for knob, value in knobs.items()})
    print_pairs("\nformula", formula(objective))
    typer.echo(f"\n{name}: {preset.summary}")
    for heading, text in {"source": preset.source, **texts}.items():
        if text:
            typer.echo(f"\n{heading}: {text}")
    heading = "\ncompanions: settings outside the objective that the paper also uses; not applied"
    print_pairs(heading, {knob: knob_text(value) for knob, value in companions.items()})


def diff(
    first: Annotated[str, typer.Argument(help=said("cli.help_diff_first"))],
    second: Annotated[str, typer.Argument(help=said("cli.help_diff_second"))],
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help=said("cli.help_diff_set")),
    ] = None,
    plugin: PluginOption = None,
    home: UnusedHomeOption = None,
    json: JsonOption = False,
) -> None:
    """Show the knobs in which two algorithms differ. Knobs without effect in the first optimiser step are marked.

    A preference algorithm and a policy-gradient algorithm have no knobs in common, so all knobs of both are shown.

    Example: bench diff grpo dr_grpo
    """
    from algorithms import Objective, active_knobs, differences_that_cannot_act
    from harness.plan.gate import differing

    use_plugins(plugin)
    a, b = find_objective(first, []), find_objective(second, set_ or [])
    differs = differing(active_knobs(a), active_knobs(b))
    inert: dict[str, str] = {}
    # `differences_that_cannot_act` compares policy-gradient objectives only.
    if isinstance(a, Objective) and isinstance(b, Objective):
        inert = differences_that_cannot_act(a, b, 1)
    other = title(second, set_ or [])
    if json:
        rows = [{"knob": f"{PREFIX}{knob}", "first": one, "second": two} for knob, (one, two) in differs.items()]
        reasons = {f"{PREFIX}{knob}": reason for knob, reason in inert.items()}
        print_json({"first": first, "second": other, "differs": rows, "cannot_act_in_one_step": reasons})
    elif not differs:
        typer.echo(f"{first} and {other} are the same: all knobs are equal")
    else:
        table = [[f"{PREFIX}{knob}", knob_text(one), knob_text(two)] for knob, (one, two) in differs.items()]
        print_table("", ["knob", first, other], table)
        for reason in dict.fromkeys(inert.values()):
            knobs = [f"{PREFIX}{knob}" for knob in inert if inert[knob] == reason]
            typer.echo(f"cannot act: {', '.join(knobs)}: {reason}")
