"""`bench replay`: other objectives on the rollouts of a run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli.console import print_json, print_table
from harness.cli.options import HomeOption, JsonOption, TrustOption, words
from harness.cli.verb import Verb
from harness.errors import RefusedError, few, nearest, note
from harness.runs import home_folder, run_folder, sweeps_holding, use_recorded_plugins

if TYPE_CHECKING:
    from harness.records import CellRecord


def replay(
    run: Annotated[
        str, typer.Argument(help="A sweep that was run, <sweep>/<arm> for one arm of it, or the folder of a cell.")
    ],
    algorithms: Annotated[
        str, typer.Option("--algorithms", metavar="A,B", help="Policy-gradient algorithms (see `bench ls algorithms`).")
    ],
    steps: Annotated[
        str | None, typer.Option("--steps", metavar="1,5-9", help="Only these steps; default: all that are stored.")
    ] = None,
    trust_code: TrustOption = False,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Show what other algorithms would do with a run's rollouts.

    The tables give the weights of tokens, what is clipped, and shares of the gradient. The first row is the arm's own
    objective. No model is loaded or trained. The cells of an arm are pooled.

    Example: bench replay std_norm/group_std --algorithms grpo,cispo,dr_grpo --steps 1-10
    """
    names, chosen = words("--algorithms", algorithms), _chosen_steps(steps)
    cells = _cells(run, home_folder(home))
    note("reading the rollouts")
    from harness.shelves.replay.arm import replay_arm

    documents = [replay_arm(some, names, chosen) for some in cells]
    if json:
        print_json({"arms": documents})
    else:
        for document in documents:
            _print_replay(document)


def _chosen_steps(given: str | None) -> list[range] | None:
    """Parse --steps into ranges, which stay lazy: their ends may be far beyond what is stored."""
    if given is None:
        return None
    chosen = []
    for part in words("--steps", given):
        match = re.fullmatch(r"([1-9]\d{0,17})(?:-([1-9]\d{0,17}))?", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise RefusedError(
                f"--steps is {given!r}, but {part!r} is neither a step nor a range of steps: write, e.g., 1,5-9."
            )
        chosen.append(range(int(match[1]), int(match[2] or match[1]) + 1))
    return chosen


def _cells(given: str, home: Path) -> list[list[CellRecord]]:
    """Return the cells with rollouts, arm by arm. Raises RefusedError for what is neither a run nor a cell."""
    from harness.records import CellRecord, read_sweep
    from harness.records.cell import is_cell_directory_name

    path = Path(given)
    if is_cell_directory_name(path.resolve().name) and (path / "spec.json").is_file():
        use_recorded_plugins(sweeps_holding([path]))
        return [[CellRecord.at(path.resolve())]]
    name, _, arm = given.partition("/") if not given.endswith((".yaml", ".yml")) else (given, "", "")
    sweep = read_sweep(run_folder(name, home))
    use_recorded_plugins([sweep.path])
    if arm and arm not in sweep.arms:
        raise RefusedError(
            f"{given!r}: the sweep {sweep.name} has no arm {arm!r}{nearest(arm, sweep.arms)} Its arms: "
            f"{few(sweep.arms)}."
        )
    arms = [arm] if arm else sweep.arms
    found = [[cell for cell in sweep.cells if cell.arm == name and cell.rollout_files()] for name in arms]
    if not any(found):
        raise RefusedError(
            f"{given!r}: no rollouts are stored. They are written with each checkpoint of a cell that draws "
            "completions: let `bench run` train it further."
        )
    return [some for some in found if some]


def _print_replay(document: dict[str, Any]) -> None:
    rows = document["algorithms"]
    steps = document["steps"]
    print(
        f"\n{document['arm']}: {len(document['cells'])} cells, {len(steps)} steps ({steps[0]} to {steps[-1]}), "
        f"{document['epochs']} x {document['updates_per_rollout']} optimiser steps each"
    )
    print_table(
        "weight of a token: -d loss / d log-prob, over the tokens in the loss",
        ["algorithm", "mean", "mean size", "5 %", "median", "95 %", "clipped", "masked"],
        [
            [
                row["algorithm"],
                *(_three_figures(row[f"weight_{what}"]) for what in ("mean", "abs_mean", "p5", "p50", "p95")),
                _percent(row["clipped_frac"]),
                _percent(row["masked_frac"]),
            ]
            for row in rows
        ],
    )
    headings = {
        "length_tokens": "completion tokens",
        "correct": "answers",
        "pass_rate": "share of the prompt's completions that are right",
    }
    for kind, heading in headings.items():
        bins = document["token_share"][kind]
        print()
        print_table(
            f"share of the gradient (summed sizes of weights) by {heading}",
            ["", *(name.replace("_", " ") for name in bins)],
            [
                ["all tokens", *map(_percent, bins.values())],
                *([row["algorithm"], *(_percent(_gradient_share(row, kind, name)) for name in bins)] for row in rows),
            ],
        )
    for row in rows:
        for remark in row["remarks"]:
            print(f"{row['algorithm']}: {remark}")
    if document["as_trained"]:
        print(f"the arm's own objective is left out: {document['as_trained']}")
    guessed = max((row["guessed_frac"] for row in rows), default=0.0)
    if guessed:
        print(
            f"up to {_percent(guessed)} of tokens are taken at ratio 1, since their log-probs at later optimiser steps "
            "are not recorded"
        )


def _gradient_share(row: dict[str, Any], kind: str, name: str) -> float | None:
    return None if row["gradient_share"] is None else row["gradient_share"][kind][name]


def _three_figures(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _percent(frac: float | None) -> str:
    return "-" if frac is None else f"{100 * frac:.1f}%"


VERB = Verb("Understand", replay)
