"""`bench status`: where the cells of a sweep are."""

from __future__ import annotations

from typing import Any

from harness.cli.console import print_json, print_table
from harness.cli.options import HomeOption, JsonOption, RunArgument, home_folder, run_folder


def status(sweep: RunArgument, home: HomeOption = None, json: JsonOption = False) -> None:
    """Show the state of every cell of a sweep that was run.

    Example: bench status std_norm
    """
    from harness.records import CellRecord, read_sweep

    def row(cell: CellRecord) -> dict[str, Any]:
        now = cell.read_status()
        return {
            "arm": cell.arm,
            "seed": cell.seed,
            "hash": cell.hash,
            "state": now["state"],
            "step": now.get("step", 0) if now["state"] == "done" else len(cell.read_steps()),
            "steps": now.get("steps"),
            "digest": now.get("digest"),
            "path": str(cell.path),
            "reason": now.get("reason"),
            "flags": now.get("flags", []),
        }

    record = read_sweep(run_folder(sweep, home_folder(home)))
    cells = [row(cell) for cell in record.cells]
    if json:
        print_json({"sweep": record.name, "cells": cells, "other_cells": [row(cell) for cell in record.other_cells]})
        return
    table = [
        [
            cell["arm"],
            str(cell["seed"]),
            cell["state"],
            f"{cell['step']}/{cell['steps'] or '?'}",
            "; ".join([*cell["flags"], *([cell["reason"]] if cell["reason"] else [])]),
        ]
        for cell in cells
    ]
    print_table(record.name, ["arm", "seed", "state", "step", "remarks"], table)
    if record.other_cells:
        print(f"{len(record.other_cells)} cells of other versions of this question lie beside them, never mixed in.")
