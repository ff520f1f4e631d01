"""What a home costs as it grows: plan, a run with nothing to do, report and mirror of 10, 100 and 1,000 cells.

    python benchmarks/growth.py --json --save
    python benchmarks/growth.py --save --cells 200 --steps 500 --verbs sync --mirror sqlite:////tmp/mirror.db
    python benchmarks/growth.py --save --cells 200 --steps 500 --verbs sync --mirror postgresql+psycopg://me@host/empty

One cell of the demo is trained. Its records are repeated, with noise, into the cells of a plan, through the writers
that training uses, so that every verb takes them for its own. Each verb then runs in a process of its own, start-up
included. Beside its seconds stand those that processors worked for it, which other work on the machine does not change.
With --mirror, --save keeps the outcome under the kind of the database.
"""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from outcome import arguments, bounds, finish
from pairs import note

from harness.plan import Plan, PlannedCell, make_plan
from harness.records.files import append_jsonl, write_json
from harness.run.evaluator import evaluation_document
from harness.run.question import make_cells, write_question

VERBS = {
    "plan": "the plan of 10,000 cells and, here, of those that are done",
    "report": "the report",
    "sync": "the mirror of all of it, into an empty database",
    "run": "a run that finds everything done, written and mirrored",
}
REQUIRED = {
    "plan_10000_s": 4.0,
    "report_1000_s": 30.0,
    "report_1000_peak_mb": 500.0,
    "sync_200_s": 120.0,
    "run_1000_s": 3.0,
}
NOWHERE = "http://127.0.0.1:9"
"""A server that is not there: nothing is mirrored."""
SWEEP, EVALUATIONS = "growth", 4
ARMS = 5
SLOTS = 2
VERB = """
import sys
from harness.cli import main
main()
"""
Row = dict[str, Any]


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--cells", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--steps", type=int, default=32, help="of each cell; the demo's have 31 to 45")
    parser.add_argument("--verbs", nargs="+", choices=VERBS, default=list(VERBS))
    parser.add_argument(
        "--mirror", help="where `sync` mirrors to instead of SQLite in the home, as MLFLOW_TRACKING_URI"
    )
    given = parser.parse_args()
    database = None if given.mirror is None else given.mirror.partition(":")[0].partition("+")[0]
    settings = vars(given) | {"mirror": database}  # an address has names and secrets in it
    outcome: dict[str, Any] = {"settings": settings, "required": bounds(at_most=REQUIRED)}
    lines: list[str] = []

    def measure(verb: str, n_cells: int, *words: str, mirror: str | None = None) -> None:
        spent = timed(verb, *words, mirror=mirror)
        outcome.update({f"{verb}_{n_cells}_{name}": value for name, value in spent._asdict().items()})
        lines.append(f"{verb} of {n_cells:,} cells: {spent.s:.1f} s ({spent.cpu_s:.1f} s CPU), {spent.peak_mb:.0f} MB")
        note(lines[-1])

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        if "plan" in given.verbs:
            measure("plan", 10_000, str(question(root, 10_000)), "--home", str(root / "none"))
        note("training one cell")
        first = train_one(root / "first")
        for n_cells in given.cells:
            home, sweep = root / f"home-{n_cells}", str(question(root, n_cells))
            note(f"writing {n_cells} cells")
            grow(make_plan(sweep), home, first, given.steps)
            # Makes what is not measured: the evaluation of the base model, and a report that is to be mirrored.
            timed("run", sweep, "--home", str(home), mirror=NOWHERE)
            for verb in VERBS:
                what = sweep if verb in ("plan", "run") else SWEEP
                if verb in given.verbs:
                    measure(verb, n_cells, what, "--home", str(home), mirror=given.mirror)
    finish("growth" if database is None else f"growth_{database}", outcome, lines, given)


def question(folder: Path, n_cells: int) -> Path:
    """A sweep file of so many cells of the demo, in `ARMS` arms."""
    arms = {f"arm_{index}": {"objective.scale_eps": 1e-6 * (index + 1)} for index in range(ARMS)}
    document = {
        "name": SWEEP,
        "question": "How does the time of each verb grow with the number of cells?",
        "profile": "tiny",
        "ablate": ["objective.scale_eps"],
        "base": {"algorithm": "grpo"},
        "arms": arms,
        "seeds": n_cells // ARMS,
        "compare": {"baseline": "arm_0", "metric": "eval.final.pass@1", "margin_pp": 1.0},
    }
    path = folder / f"{SWEEP}-{n_cells}.yaml"
    path.write_text(json.dumps(document))
    return path


class Spent(NamedTuple):
    """Seconds by the clock, seconds of all processors, and the most memory that the process of a verb and those that
    help it have resident at one time, in MB. Pages that they share are counted once (PSS)."""

    s: float
    cpu_s: float
    peak_mb: float


def timed(*words: str, mirror: str | None = None) -> Spent:
    """Run a verb. mirror: see --mirror."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | ({} if mirror is None else {"MLFLOW_TRACKING_URI": mirror})
    started_s, worked_s = time.perf_counter(), cpu_of_children_s()
    process = subprocess.Popen(
        [sys.executable, "-c", VERB, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment
    )
    peak_kib = 0
    while process.poll() is None:
        peak_kib = max(peak_kib, sum(map(resident_kib, family(process.pid))))
        time.sleep(0.1)
    seconds = time.perf_counter() - started_s
    if process.returncode:
        assert process.stderr is not None
        raise SystemExit(f"bench {' '.join(words)} failed:\n{process.stderr.read().decode()}")
    return Spent(seconds, cpu_of_children_s() - worked_s, peak_kib * 1024 / 1e6)


def cpu_of_children_s() -> float:
    """User and system seconds of the child processes that have ended, and of their children."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def family(pid: int) -> Iterator[int]:
    """The process and those that any of its threads began, and so on."""
    yield pid
    children: list[str] = []
    for task in Path("/proc").glob(f"{pid}/task/*/children"):
        try:
            children += task.read_text().split()
        except OSError:
            continue
    for child in children:
        yield from family(int(child))


def resident_kib(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def train_one(home: Path) -> Path:
    """The folder of a cell of the demo, trained."""
    words = ["run", "std_norm", "--seeds", "1", "--arms", "group_std", "--home", str(home)]
    subprocess.run([sys.executable, "-c", VERB, *words], check=True, capture_output=True)
    (cell,) = (home / "std_norm" / "cells").iterdir()
    return cell


def grow(plan: Plan, home: Path, first: Path, steps: int) -> None:
    """Write the records of all cells of a plan, as if they had run one after another on `SLOTS` slots."""
    rng = random.Random(0)
    make_cells(plan, plan.cells, home)
    write_question(plan, home, f"bench run {SWEEP}")
    rows = {name: read_rows(first / f"{name}.jsonl") for name in ("steps", "timing", "scores", "problems", "starts")}
    began, took_s = (
        datetime.fromisoformat(rows["starts"][0]["time"]),
        sum(row.get("total_s", 0.0) for row in rows["timing"]),
    )
    for index, cell in enumerate(plan.cells):
        after = timedelta(seconds=index // SLOTS * steps * took_s / len(rows["steps"]))
        begun = [start | {"time": (began + after).isoformat(timespec="seconds")} for start in rows["starts"]]
        write_cell(plan, home, cell, first, rows | {"starts": begun}, steps, rng)


def write_cell(
    plan: Plan, home: Path, cell: PlannedCell, first: Path, rows: dict[str, list[Row]], steps: int, rng: random.Random
) -> None:
    """The records of a planned cell, made of those of a cell that was trained, as long as asked for."""
    record = plan.record(cell, home)
    shift = 0.01 * rng.gauss(0, 1)
    write_json(record.path / "evaluation.json", document_of(plan, cell))
    append_jsonl(record.path / "starts.jsonl", rows["starts"])
    append_jsonl(record.path / "problems.jsonl", rows["problems"])
    tokens_a_step = rows["steps"][-1]["generated_tokens"] // len(rows["steps"])

    def repeated(name: str) -> Iterator[Row]:
        trained = [row for row in rows[name] if "eval_s" not in row]
        for index in range(steps):
            row = {key: noisy(value, rng) for key, value in trained[index % len(trained)].items()}
            yield (
                row
                | {"step": index + 1}
                | ({"generated_tokens": (index + 1) * tokens_a_step} if name == "steps" else {})
            )

    append_jsonl(record.path / "steps.jsonl", repeated("steps"))
    ((timed_final),) = [row for row in rows["timing"] if "eval_s" in row][-1:]
    *_, curve, final = rows["scores"]
    at = [steps * (index + 1) // EVALUATIONS for index in range(EVALUATIONS - 1)]
    timing = [*repeated("timing")]
    for step in (*at, steps):
        timing.append(timed_final | {"step": step})
    timing.sort(key=lambda row: int(row["step"]))
    append_jsonl(record.path / "timing.jsonl", timing)
    scores = [shifted(curve, shift * step / steps) | {"step": step} for step in at]
    scores.append(shifted(final, shift) | {"step": steps})
    append_jsonl(
        record.path / "scores.jsonl", (row | {"generated_tokens": row["step"] * tokens_a_step} for row in scores)
    )
    write_evals(first, record.evals, steps, rng)
    link_all(longer_rollouts(first, steps, home), record.rollouts)
    record.write_status(
        "done",
        step=steps,
        generated_tokens=steps * tokens_a_step,
        flags=[],
        digest=f"{cell.hash:.32}",
        records=record.count_finished(),
    )


_DOCUMENTS: dict[str, Any] = {}


def document_of(plan: Plan, cell: PlannedCell) -> Any:
    """evaluation.json: that of the first cell of its seed, whatever the arm."""
    key = f"{plan.sweep.name} {cell.seed}"
    if key not in _DOCUMENTS:
        _DOCUMENTS[key] = evaluation_document(cell.spec)
    return _DOCUMENTS[key]


@cache
def _evals(first: Path) -> Any:
    import pyarrow.parquet

    return pyarrow.parquet.read_table(first / "evals.parquet")


def write_evals(first: Path, path: Path, steps: int, rng: random.Random) -> None:
    """The samples of the trained cell's evaluations, with some other verdicts."""
    import pyarrow
    import pyarrow.compute as pc
    import pyarrow.parquet

    table = _evals(first)
    correct = [right if rng.random() < 0.9 else not right for right in table["correct"].to_pylist()]
    last = pc.max(table["step"]).as_py()
    at = pc.divide(pc.multiply(table["step"], steps), last)
    for name, column in (("correct", pyarrow.array(correct)), ("step", at)):
        table = table.set_column(table.schema.get_field_index(name), name, column)
    pyarrow.parquet.write_table(table, path, compression="zstd")


@cache
def longer_rollouts(first: Path, steps: int, home: Path) -> list[Path]:
    """Files of the completions of training over so many steps, made of those of one cell; to be linked into every
    cell."""
    import pyarrow.compute as pc
    import pyarrow.parquet

    from harness.records.rollouts import file_of, stand_of

    made = []
    files = sorted((first / "rollouts").glob("*.parquet"))
    span = max(stand[1] for file in files if (stand := stand_of(file)))
    for start in range(0, steps, span):
        for file in files:
            table = pyarrow.parquet.read_table(file)
            column = pc.add(table["step"], start)
            table = table.set_column(table.schema.get_field_index("step"), "step", column)
            table = table.filter(pc.less_equal(table["step"], steps))
            if len(table):
                low, high = pc.min(table["step"]).as_py(), pc.max(table["step"]).as_py()
                target = home / "longer" / file_of(low, high, 1)
                target.parent.mkdir(parents=True, exist_ok=True)
                pyarrow.parquet.write_table(table, target, compression="zstd")
                made.append(target)
    return made


def link_all(files: list[Path], folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for file in files:
        os.link(file, folder / file.name)


def shifted(row: Row, shift: float) -> Row:
    """A row of scores.jsonl with other accuracies."""
    metrics = {
        key: min(1.0, max(0.0, value + shift)) if "@" in key or "^" in key else value
        for key, value in row["metrics"].items()
    }
    return row | {"metrics": metrics}


def noisy(value: Any, rng: random.Random) -> Any:
    return value * (1 + rng.gauss(0, 0.05)) if isinstance(value, float) else value


def read_rows(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()]


if __name__ == "__main__":
    main()
