"""`bench replay`: other objectives on the rollouts of a run."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.console import print_json, print_table
from harness.cli.options import HomeOption, JsonOption, TrustOption, words
from harness.cli.verb import Verb
from harness.errors import RefusedError, few, nearest, note
from harness.runs import home_folder, run_folder, sweeps_holding, use_recorded_plugins
from harness.words import said

if TYPE_CHECKING:
    from harness.records import CellRecord
    from harness.shelves.replay.arm import AlgorithmReplay, ArmReplay


def replay(
    run: Annotated[str, typer.Argument(help=said("shelves.replay.help_replay_run"))],
    algorithms: Annotated[
        str, typer.Option("--algorithms", metavar="A,B", help=said("shelves.replay.help_replay_algorithms"))
    ],
    steps: Annotated[
        str | None, typer.Option("--steps", metavar="1,5-9", help=said("shelves.replay.help_replay_steps"))
    ] = None,
    trust_code: TrustOption = False,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Show what other algorithms would do with a run's rollouts.

    The tables show the weights of tokens, which tokens are clipped, and shares of the gradient. The first row is the
    arm's own objective. The cells of an arm are pooled. No model is loaded or trained.

    Example: bench replay std_norm/group_std --algorithms grpo,cispo,dr_grpo --steps 1-10
    """
    names, chosen = words("--algorithms", algorithms), _chosen_steps(steps)
    cells = _cells(run, home_folder(home))
    note("reading the rollouts")
    from harness.shelves.replay.arm import replay_arm

    replays = [replay_arm(some, names, chosen) for some in cells]
    if json:
        print_json({"arms": [one.to_json() for one in replays]})
    else:
        for one in replays:
            _print_replay(one)


def _chosen_steps(given: str | None) -> list[range] | None:
    """Parse --steps into ranges, which stay lazy: their ends may be far beyond what is stored."""
    if given is None:
        return None
    chosen = []
    for part in words("--steps", given):
        match = re.fullmatch(r"([1-9]\d{0,17})(?:-([1-9]\d{0,17}))?", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise RefusedError("shelves.replay.steps_malformed", given=given, part=part)
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
            "shelves.replay.no_arm",
            given=given,
            sweep=sweep.name,
            arm=arm,
            nearest=nearest(arm, sweep.arms),
            arms=few(sweep.arms),
        )
    arms = [arm] if arm else sweep.arms
    found = [[cell for cell in sweep.cells if cell.arm == name and cell.rollout_files()] for name in arms]
    if not any(found):
        raise RefusedError("shelves.replay.no_rollouts_of_arm", given=given)
    return [some for some in found if some]


def _print_replay(replay: ArmReplay) -> None:
    rows, steps = replay.algorithms, replay.steps
    print(
        f"\n{replay.arm}: {len(replay.cells)} cells, {len(steps)} steps ({steps[0]} to {steps[-1]}), "
        f"{replay.epochs} x {replay.updates_per_rollout} optimiser steps each"
    )
    print_table(
        "weight of a token: -d loss / d log-prob, over the tokens in the loss",
        ["algorithm", "mean", "mean size", "5 %", "median", "95 %", "clipped", "masked"],
        [
            [
                row.algorithm,
                _three_figures(row.weights.weight_mean),
                _three_figures(row.weights.weight_abs_mean),
                _three_figures(row.weights.weight_p5),
                _three_figures(row.weights.weight_p50),
                _three_figures(row.weights.weight_p95),
                _percent(row.weights.clipped_frac),
                _percent(row.weights.masked_frac),
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
        bins = replay.token_share[kind]
        print()
        print_table(
            f"share of the gradient (summed sizes of weights) by {heading}",
            ["", *(name.replace("_", " ") for name in bins)],
            [
                ["all tokens", *map(_percent, bins.values())],
                *([row.algorithm, *(_percent(share) for share in _gradient_shares(row, kind, bins))] for row in rows),
            ],
        )
    for row in rows:
        for remark in row.remarks:
            print(f"{row.algorithm}: {remark}")
    if replay.as_trained:
        print(f"the arm's own objective is left out: {replay.as_trained}")
    guessed = max((row.weights.guessed_frac for row in rows), default=0.0)
    if guessed:
        print(
            f"up to {_percent(guessed)} of tokens are taken at ratio 1, since their log-probs at later optimiser steps "
            "are not recorded"
        )


def _gradient_shares(row: AlgorithmReplay, kind: str, bins: Iterable[str]) -> list[float | None]:
    shares = row.weights.gradient_share
    return [None if shares is None else shares[kind][name] for name in bins]


def _three_figures(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _percent(frac: float | None) -> str:
    return "-" if frac is None else f"{100 * frac:.1f}%"


VERB = Verb("Understand", replay)
