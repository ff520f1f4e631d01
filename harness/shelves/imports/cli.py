"""`bench import`: results of other programs, as records like those of `bench run`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.console import print_json, print_text
from harness.cli.options import HomeOption, JsonOption, PluginOption, use_plugins, words
from harness.cli.report import list_runs
from harness.cli.verb import Reader, Verb
from harness.errors import RefusedError, few, note
from harness.runs import home_folder
from harness.words import said

if TYPE_CHECKING:
    from harness.records import SweepRecord


def import_(
    name: Annotated[str, typer.Argument(help=said("shelves.imports.help_import_name"))],
    sources: Annotated[
        list[str],
        typer.Argument(help=said("shelves.imports.help_import_sources")),
    ],
    format_: Annotated[
        str | None,
        typer.Option("--format", metavar="F", help=said("shelves.imports.help_import_format")),
    ] = None,
    runs: Annotated[
        str | None,
        typer.Option("--runs", metavar="PATTERN", help=said("shelves.imports.help_import_runs")),
    ] = None,
    arm: Annotated[str | None, typer.Option("--arm", metavar="A", help=said("shelves.imports.help_import_arm"))] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", min=0, help=said("shelves.imports.help_import_seed"))
    ] = None,
    configs: Annotated[
        str | None,
        typer.Option("--configs", metavar="PATTERN", help=said("shelves.imports.help_import_configs")),
    ] = None,
    ablate: Annotated[
        str | None, typer.Option("--ablate", metavar="A,B", help=said("shelves.imports.help_import_ablate"))
    ] = None,
    co_change: Annotated[
        list[str] | None,
        typer.Option("--co-change", metavar="KNOB=WHY", help=said("shelves.imports.help_import_co_change")),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option("--baseline", metavar="ARM", help=said("shelves.imports.help_import_baseline"))
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option("--metric", metavar="M", help=said("shelves.imports.help_import_metric")),
    ] = None,
    margin_pp: Annotated[
        float, typer.Option("--margin-pp", metavar="PP", min=0, help=said("shelves.imports.help_import_margin_pp"))
    ] = 1.0,
    question: Annotated[
        str | None, typer.Option("--question", metavar="Q", help=said("shelves.imports.help_import_question"))
    ] = None,
    plugin: PluginOption = None,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Make records of results that another tool made.

    Reports, verdicts and comparisons read these records like those of runs. What the sources do not say stays unknown:
    tokens, sampling noise and, if there are no settings, the gate. Running the same command again replaces the records
    by what the sources contain now.

    Example: bench import ours 'runs/{arm}/seed{seed}/trainer_state.json' 'evals/{arm}/seed{seed}/...'
    """
    from harness.shelves.imports.records import QUESTION, Request, import_sweep

    use_plugins(plugin)
    if Path(name).name != name or name.startswith("."):
        raise RefusedError("shelves.imports.not_a_folder_name", name=name)
    given = [("--format", format_), ("--runs", runs), ("--arm", arm), ("--seed", seed), ("--configs", configs)]
    given += [("--ablate", ablate), ("--baseline", baseline), ("--metric", metric), ("--question", question)]
    options = [word for option, value in given if value is not None for word in (option, str(value))]
    options += [word for one in co_change or [] for word in ("--co-change", one)]
    request = Request(
        name=name,
        sources=sources,
        command=shlex.join(["bench", "import", name, *sources, *options]),
        format=format_,
        runs=runs,
        arm=arm,
        seed=seed,
        configs=configs,
        question=question or QUESTION,
        baseline=baseline,
        metric=metric,
        margin_pp=margin_pp,
        ablate=[] if ablate is None else words("--ablate", ablate),
        co_changes=dict(map(_reason, co_change or [])),
    )
    folder = home_folder(home)
    sweep = import_sweep(folder / name, request)
    list_runs(folder)
    _show(sweep, json)


def _reason(given: str) -> tuple[str, str]:
    knob, equals, why = given.partition("=")
    if not equals or not knob.strip() or not why.strip():
        raise RefusedError("shelves.imports.co_change_without_reason", given=given)
    return knob.strip(), why.strip()


def _show(sweep: SweepRecord, json: bool) -> None:
    gate = {True: "ok", None: "unknown, since not all settings are known"}.get(sweep.gate.ok, "refused")
    if json:
        print_json(
            {
                "sweep": sweep.name,
                "path": str(sweep.path),
                "arms": sweep.arms,
                "seeds": sweep.seeds,
                "cells": len(sweep.cells),
                "tasks": sweep.tasks,
                "metric": sweep.metric,
                "unit": "problem" if sweep.checkpoint is not None else "seed",
                "gate": {"ok": sweep.gate.ok, "differs": sweep.gate.differs},
                "problems": {task: matching.as_row() for task, matching in sweep.matching.items()},
            }
        )
        return
    for warning in sweep.warnings:
        note(f"warning: {warning}")
    print_text(f"{sweep.name}: {len(sweep.cells)} cells, arms {few(sweep.arms)}; {_replicated(sweep)}")
    print_text(f"compared: {sweep.metric}, against {sweep.baseline}; gate: {gate}")
    for task, matching in sweep.matching.items():
        print_text(f"{task}: {matching.sentence}")
    print_text(f"records: {sweep.path}; `bench report {sweep.name}` writes the page")


def _replicated(sweep: SweepRecord) -> str:
    if sweep.checkpoint is not None:
        return "no seeds, so each arm is one model and problems are what is replicated"
    if len(sweep.seeds) < 2:
        return "one run per arm, so no difference can be tested"
    return f"seeds {few(list(map(str, sweep.seeds)))}"


def _read(given: str, folder: Path, metric: str | None) -> SweepRecord:
    from harness.shelves.imports.records import Request, import_sweep

    return import_sweep(folder, Request(folder.name, [given], metric=metric))


VERB = Verb("Ask", import_, {"formats": "harness.shelves.imports.base:FORMATS"})
READER = Reader(_read)
