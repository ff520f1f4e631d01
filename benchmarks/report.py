"""Seconds and memory of a report over 100 cells x 500 steps x 2,000 evaluation rows. Required: 15 s, 1 GB on 2 cores.

    python benchmarks/report.py --json --save

One small cell is trained; its records are repeated, with noise, into a sweep of 10 arms and 10 seeds. `bench report`
then runs over it in a process of its own, start-up included.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from outcome import arguments, bounds, finish
from pairs import note

REQUIRED = {"seconds": 15.0, "peak_gb": 1.0}
VERB = """
import os, resource
from harness.cli import main
try:
    main()
finally:
    own, largest = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    print(own + ((os.cpu_count() or 1) - 1) * largest)
"""
SWEEP, EVALUATIONS = "std_norm", 10
SETTINGS = ("budget.tokens=null", "train.steps=20", "eval.every=10", "eval.problems=125")


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--arms", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--evaluation-rows", type=int, default=2_000, help="of each cell's final evaluation")
    parser.add_argument("--repetitions", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        note("training one cell")
        settings = [word for setting in SETTINGS for word in ("--set", setting)]
        bench(home, "run", SWEEP, "--seeds", "1", "--arms", "group_std", *settings)
        note("repeating its records")
        repeat(home / SWEEP, given.arms, given.seeds, given.steps, given.evaluation_rows)
        seconds, peaks_gb = [], []
        for _ in range(given.repetitions):
            started_s = time.perf_counter()
            printed = bench(home, "report", SWEEP)
            seconds.append(time.perf_counter() - started_s)
            peaks_gb.append(float(printed.splitlines()[-1]) * 1024 / 1e9)
            note(f"{seconds[-1]:.1f} s, {peaks_gb[-1]:.2f} GB")
        page_mb = (home / SWEEP / "report" / "index.html").stat().st_size / 1e6
    outcome = {
        "settings": vars(given),
        "seconds": statistics.median(seconds),
        "all_seconds": seconds,
        "peak_gb": max(peaks_gb),
        "page_mb": page_mb,
        "required": bounds(at_most=REQUIRED),
    }
    lines = [f"{outcome['seconds']:.1f} s, {outcome['peak_gb']:.2f} GB, page of {page_mb:.1f} MB"]
    finish("report", outcome, lines, given)


def bench(home: Path, *words: str) -> str:
    """What a verb prints, and on a last line a bound on its resident memory in KiB: its own at most, and for each
    process beside it that of the largest."""
    environment = os.environ | {"OMP_NUM_THREADS": "2"}
    command = [sys.executable, "-c", VERB, *words, "--home", str(home)]
    return subprocess.run(
        command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, text=True
    ).stdout


def repeat(folder: Path, arms: int, seeds: int, steps: int, evaluation_rows: int) -> None:
    """Make the sweep in `folder`, which has one cell, one of many cells with longer records."""
    question = json.loads((folder / "sweep.json").read_text())
    (first,) = (folder / "cells").iterdir()
    names = [f"arm_{index}" for index in range(arms)]
    rng = random.Random(0)
    rollouts = longer_rollouts(first, steps)
    cells: list[dict[str, Any]] = []
    for arm, name in enumerate(names):
        for seed in range(seeds):
            cell = {"arm": name, "seed": seed, "hash": f"{len(cells):040x}"}
            cell["dir"] = f"{name}-s{seed}-{len(cells):010x}"
            cells.append(cell)
            write_cell(first, folder / "cells" / str(cell["dir"]), steps, evaluation_rows, 0.02 * arm, rng)
            link_all(rollouts, folder / "cells" / str(cell["dir"]))
    question |= {
        "arms": names,
        "baseline": names[0],
        "seeds": list(range(seeds)),
        "varied": {name: {"objective.scale_eps": index} for index, name in enumerate(names)},
        "cells": cells,
    }
    (folder / "sweep.json").write_text(json.dumps(question))


def write_cell(first: Path, cell: Path, steps: int, evaluation_rows: int, effect: float, rng: random.Random) -> None:
    """A copy of a cell's records, as long as asked for, its score raised by `effect` and noise."""
    cell.mkdir()
    shift = effect + rng.gauss(0, 0.02)
    for name in ("spec.json", "starts.jsonl"):
        (cell / name).write_text((first / name).read_text())
    status = json.loads((first / "status.json").read_text())
    tokens_a_step = status["generated_tokens"] // status["step"]
    status |= {"step": steps, "steps": steps, "generated_tokens": steps * tokens_a_step, "digest": cell.name}
    (cell / "status.json").write_text(json.dumps(status))
    for name in ("steps.jsonl", "timing.jsonl"):
        rows = read_rows(first / name)
        longer = [
            {key: noisy(value, rng) for key, value in rows[index % len(rows)].items()}
            | {"step": index + 1, "generated_tokens": (index + 1) * tokens_a_step}
            for index in range(steps)
        ]
        write_rows(cell / name, longer)
    *_, curve, final = read_rows(first / "scores.jsonl")
    at = [steps * (index + 1) // EVALUATIONS for index in range(EVALUATIONS)]
    scores = [shifted(curve, shift * step / steps) | {"step": step} for step in at] + [
        shifted(final, shift) | {"step": steps}
    ]
    write_rows(cell / "scores.jsonl", [row | {"generated_tokens": row["step"] * tokens_a_step} for row in scores])
    write_evals(first, cell, evaluation_rows, steps, shift, rng)


def write_evals(first: Path, cell: Path, rows: int, steps: int, shift: float, rng: random.Random) -> None:
    import pyarrow
    import pyarrow.compute as pc
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(first / "evals.parquet")
    final = table.filter(table["final"]).slice(0, rows)
    if len(final) < rows:
        raise SystemExit(f"the trained cell has {len(final)} evaluation rows, {rows} are wanted: raise eval.problems")
    correct = [right or rng.random() < shift for right in final["correct"].to_pylist()]
    final = final.set_column(final.schema.get_field_index("correct"), "correct", pyarrow.array(correct))
    step = pc.add(pc.multiply(final["step"], 0), steps)
    pyarrow.parquet.write_table(
        final.set_column(final.schema.get_field_index("step"), "step", step), cell / "evals.parquet", compression="zstd"
    )


def longer_rollouts(first: Path, steps: int) -> list[Path]:
    """Files of per-step records over all steps, made of those of one cell; to be linked into every cell."""
    import pyarrow.compute as pc
    import pyarrow.parquet

    made = []
    for path in sorted(first.glob("*/*.parquet")):
        table = pyarrow.parquet.read_table(path)
        if "step" not in table.column_names or not len(table):
            continue
        span = json.loads((first / "status.json").read_text())["step"]
        low, high = pc.min(table["step"]).as_py(), pc.max(table["step"]).as_py()
        for start in range(0, steps, span):
            name = f"{path.parent.name}/{low + start:06d}-{high + start:06d}.parquet"
            target = first.parent.parent / "longer" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            column = pc.add(table["step"], start)
            pyarrow.parquet.write_table(
                table.set_column(table.schema.get_field_index("step"), "step", column), target, compression="zstd"
            )
            made.append(target)
    return made


def link_all(files: list[Path], cell: Path) -> None:
    for file in files:
        folder = cell / file.parent.name
        folder.mkdir(exist_ok=True)
        os.link(file, folder / file.name)


def shifted(row: dict[str, Any], shift: float) -> dict[str, Any]:
    """A row of scores.jsonl with other accuracies."""
    metrics = {
        key: min(1.0, max(0.0, value + shift)) if "@" in key or "^" in key else value
        for key, value in row["metrics"].items()
    }
    return row | {"metrics": metrics}


def noisy(value: Any, rng: random.Random) -> Any:
    return value * (1 + rng.gauss(0, 0.05)) if isinstance(value, float) else value


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
