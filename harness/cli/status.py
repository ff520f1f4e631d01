"""`bench status`: the state of each cell of a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypedDict

from harness.cli.console import print_json, print_table, print_text
from harness.cli.options import HomeOption, JsonOption, RunArgument
from harness.runs import home_folder, run_folder

if TYPE_CHECKING:
    from harness.records import CellRecord, CellState, SweepRecord


class CellNow(TypedDict):
    """A cell and its state, as `--json` of several verbs shows it."""

    arm: str
    seed: int
    hash: str
    state: CellState
    reason: str | None


class StatusCell(CellNow):
    """A cell as `--json` shows it."""

    lacks: str | None
    step: int
    steps: int | None
    """The steps to take; None if unknown."""
    digest: str | None
    path: str
    flags: list[str]


class SearchRow(TypedDict):
    """An arm's search: the number of ended trials, and the best setting once all have ended."""

    arm: str
    search: str
    ended: int
    trials: int
    best: str | None


def status(sweep: RunArgument, home: HomeOption = None, json: JsonOption = False) -> None:
    """Show the state of every cell of a sweep that you have run.

    Example: bench status std_norm
    """
    from harness.records import read_sweep
    from harness.records.files import DamagedRecordError

    def row(cell: CellRecord) -> StatusCell:
        """Return the row of a cell; a fault in its steps makes it `damaged`."""
        now = cell.read_status()
        step = now.get("step", 0)
        try:
            # status.json states the step only once the cell is done; until then, its rows are counted.
            step = step if cell.own.is_done or now["state"] == "damaged" else len(cell.read_steps())
        except DamagedRecordError as error:
            now = {**now, "state": "damaged", "reason": str(error)}
        return {
            "arm": cell.arm,
            "seed": cell.seed,
            "hash": cell.hash,
            "state": now["state"],
            "lacks": cell.lacks,
            "step": step,
            "steps": now.get("steps"),
            "digest": now.get("digest"),
            "path": str(cell.path),
            "reason": now.get("reason"),
            "flags": now.get("flags", []),
        }

    record = read_sweep(run_folder(sweep, home_folder(home)))
    cells = [row(cell) for cell in record.cells]
    searches = _searches(record)
    if json:
        others = [row(cell) for cell in record.other_cells]
        print_json({"sweep": record.name, "cells": cells, "other_cells": others, "searches": searches})
        return
    if searches:
        rows = [[one["search"], f"{one['ended']}/{one['trials']}", one["best"] or ""] for one in searches]
        print_table("", ["search", "trials", "best setting"], rows)
        print()
    table = [
        [
            cell["arm"],
            str(cell["seed"]),
            cell["state"],
            _steps(
                cell, budget_frac := _budget_frac(recorded, cell["state"], record.budget_tokens), record.is_imported
            ),
            "; ".join(_remarks(cell, budget_frac)),
        ]
        for cell, recorded in zip(cells, record.cells, strict=True)
    ]
    print_table(record.name, ["arm", "seed", "state", "step", "remarks"], table)
    if record.other_cells:
        print_text(
            f"{len(record.other_cells)} cells of other versions of this question lie beside them, never mixed in."
        )


def states_of(records: Sequence[CellRecord]) -> list[CellNow]:
    """Return the cells with their states."""
    return [
        {"arm": cell.arm, "seed": cell.seed, "hash": cell.hash, "state": now["state"], "reason": now.get("reason")}
        for cell in records
        for now in [cell.read_status()]
    ]


def _searches(record: SweepRecord) -> list[SearchRow]:
    """Return a row for each arm that is tuned first."""
    from harness.plan.tuning import ended_trials, in_words

    tuning = record.tuning
    if tuning is None:
        return []
    return [
        {
            "arm": arm,
            "search": name,
            "ended": tuning.trials
            if arm in tuning.arms
            else len(ended_trials(record.path.parent / name, tuning.trials)),
            "trials": tuning.trials,
            "best": in_words(tuning.arms[arm].values) if arm in tuning.arms else None,
        }
        for arm, name in tuning.searches.items()
    ]


def _budget_frac(cell: CellRecord, state: str, budget_tokens: int | None) -> float:
    """Return the used fraction of the token budget; 0 without a budget, and for a damaged cell."""
    return (cell.generated_tokens or 0) / budget_tokens if budget_tokens and state != "damaged" else 0.0


def _is_ended_by_budget(cell: StatusCell, budget_frac: float) -> bool:
    """Return whether training stopped before its last step because the token budget was reached."""
    return cell["state"] == "done" and budget_frac >= 1 and cell["step"] < (cell["steps"] or 0)


def _steps(cell: StatusCell, budget_frac: float, is_imported: bool) -> str:
    """Return a cell's progress in words."""
    step, steps = cell["step"], cell["steps"]
    if steps == 0:
        return "unknown" if is_imported else "none, only evaluates"
    if _is_ended_by_budget(cell, budget_frac):
        return f"{step} of at most {steps}"
    if steps and cell["state"] != "done" and budget_frac > step / steps:
        return f"{step} ({budget_frac:.0%} of the token budget)"
    return f"{step}/{steps or '?'}"


def _remarks(cell: StatusCell, budget_frac: float) -> list[str]:
    ended = ["token budget reached"] if _is_ended_by_budget(cell, budget_frac) else []
    trained = ["trained, lacks its evaluation"] if cell["lacks"] == "evaluation" else []
    return [*ended, *trained, *cell["flags"], *([cell["reason"]] if cell["reason"] else [])]
