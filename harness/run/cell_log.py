"""What a cell records while it runs, in the order that makes a kill harmless: a checkpoint is written only after the
rows of its steps, and a resume cuts the rows that came after it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from harness.records import CellRecord
from harness.records.files import append_jsonl, keep_jsonl, read_jsonl, write_atomic
from harness.records.rollouts import write_rollouts

Row = dict[str, Any]


@dataclass
class CellLog:
    """Writes a cell's records. Rollout rows are held until the next checkpoint, then written as one parquet file."""

    cell: CellRecord
    _rollouts: list[Row] = field(default_factory=list)

    def cut_after(self, step: int) -> None:
        """Drop everything recorded after a step, and torn ends. Samples of a final evaluation stay, to be gone on with;
        its scores go, as they are made from the samples again."""
        for name in ("steps.jsonl", "timing.jsonl", "scores.jsonl", "evals.jsonl"):
            keep_jsonl(self.cell.path / name, lambda row: bool(row["step"] <= step))
        keep_jsonl(self.cell.path / "scores.jsonl", lambda row: not row["final"])
        for path in self.cell.rollouts.glob("*.parquet"):
            if int(path.stem.split("-")[1]) > step:
                path.unlink()

    def step(self, row: Row, rollouts: list[Row]) -> None:
        append_jsonl(self.cell.path / "steps.jsonl", [row])
        self._rollouts += rollouts

    def timing(self, row: Row) -> None:
        """Wall-clock of a step's phases, or of an evaluation after it: rows of their own for one step."""
        append_jsonl(self.cell.path / "timing.jsonl", [row])

    def evaluated(self, rows: list[Row]) -> None:
        append_jsonl(self.cell.path / "evals.jsonl", rows)

    def scored(self, row: Row) -> None:
        append_jsonl(self.cell.path / "scores.jsonl", [row])

    def earlier_samples(self) -> list[Row]:
        return read_jsonl(self.cell.path / "evals.jsonl")

    def flush_rollouts(self) -> None:
        """Write the held rollout rows to rollouts/<first>-<last>.parquet."""
        if not self._rollouts:
            return
        self.cell.rollouts.mkdir(exist_ok=True)
        first, last = self._rollouts[0]["step"], self._rollouts[-1]["step"]
        rows = self._rollouts
        write_atomic(self.cell.rollouts / f"{first:06d}-{last:06d}.parquet", lambda aside: write_rollouts(aside, rows))
        self._rollouts = []

    def compact_evaluations(self) -> None:
        """evals.jsonl -> evals.parquet. The first stays until the cell is done: until then a resume goes on with it."""
        import pyarrow
        import pyarrow.parquet

        table = pyarrow.Table.from_pylist(self.earlier_samples())
        write_atomic(
            self.cell.path / "evals.parquet",
            lambda aside: pyarrow.parquet.write_table(table, aside, compression="zstd"),
        )

    def drop_samples(self) -> None:
        """Remove evals.jsonl, which evals.parquet replaces."""
        (self.cell.path / "evals.jsonl").unlink()

    def note(self, message: str) -> None:
        """A line of log.txt."""
        with self.cell.log.open("a", encoding="utf-8") as handle:
            handle.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {message}\n")
