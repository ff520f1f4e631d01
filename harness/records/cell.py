"""The folder of one cell: where each record lies, and how to read it. Layout: design section 5."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from harness.records.files import read_json, read_jsonl, write_json
from harness.records.lease import is_leased
from harness.records.rollouts import read_rollouts

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.compute

CellState = Literal["pending", "running", "done", "failed", "invalid", "interrupted"]
_DIRECTORY = re.compile(r"(?P<arm>.+)-s(?P<seed>\d+)-(?P<hash>[0-9a-f]{10})")


def cell_directory_name(arm: str, seed: int, semantic_hash: str) -> str:
    return f"{arm}-s{seed}-{semantic_hash[:10]}"


def is_cell_directory_name(name: str) -> bool:
    return _DIRECTORY.fullmatch(name) is not None


@dataclass(frozen=True)
class CellRecord:
    """One cell on disk; `arm`, `seed` and `hash` are its identity. Attributes that change are read anew each time."""

    path: Path
    arm: str
    seed: int
    hash: str

    @classmethod
    def at(cls, path: Path) -> CellRecord:
        """The cell in a folder named `<arm>-s<seed>-<hash10>`; ValueError for any other name."""
        match = _DIRECTORY.fullmatch(path.name)
        if match is None:
            raise ValueError(f"{path} is not a cell: cells are named <arm>-s<seed>-<hash10>.")
        return cls(path, match["arm"], int(match["seed"]), match["hash"])

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def rollouts(self) -> Path:
        return self.path / "rollouts"

    @property
    def log(self) -> Path:
        return self.path / "log.txt"

    def read_status(self) -> dict[str, Any]:
        """status.json, or that of a cell that never started. `state` is `running` exactly while the lease is alive."""
        path = self.path / "status.json"
        status: dict[str, Any] = read_json(path) if path.exists() else {"state": "pending"}
        if is_leased(self.path):
            status |= {"state": "running", "reason": None}
        return status

    def write_status(self, state: CellState, **fields: Any) -> None:
        """Replace status.json, keeping earlier fields that are not given."""
        path = self.path / "status.json"
        earlier = read_json(path) if path.exists() else {}
        write_json(path, earlier | {"state": state, "reason": None} | fields)

    @property
    def state(self) -> CellState:
        state: CellState = self.read_status()["state"]
        return state

    @property
    def reason(self) -> str | None:
        return self.read_status().get("reason")

    @property
    def flags(self) -> list[str]:
        return list(self.read_status().get("flags", []))

    @property
    def digest(self) -> str | None:
        """blake2b of the final weights of a finished cell."""
        return self.read_status().get("digest")

    @property
    def step(self) -> int:
        return int(self.read_status().get("step", 0))

    @property
    def steps(self) -> int | None:
        return self.read_status().get("steps")

    @property
    def generated_tokens(self) -> int:
        return int(self.read_status().get("generated_tokens", 0))

    @property
    def spec(self) -> dict[str, Any]:
        return dict(read_json(self.path / "spec.json"))

    @property
    def provenance(self) -> dict[str, Any]:
        return dict(read_json(self.path / "provenance.json"))

    def read_steps(self) -> list[dict[str, Any]]:
        return read_jsonl(self.path / "steps.jsonl")

    def read_timing(self) -> list[dict[str, Any]]:
        return read_jsonl(self.path / "timing.jsonl")

    def read_scores(self) -> list[dict[str, Any]]:
        return read_jsonl(self.path / "scores.jsonl")

    def read_rollouts(self, columns: Sequence[str], most_files: int | None = None) -> pyarrow.Table | None:
        """Columns of the completions drawn in training, see `harness.records.rollouts`; None if none are recorded."""
        return read_rollouts(self.rollouts, columns, most_files)

    def read_evals(
        self, columns: Sequence[str] | None = None, where: pyarrow.compute.Expression | None = None
    ) -> pyarrow.Table | None:
        """Every graded sample of a finished cell's evaluations, a row each; None before the cell is done.

        columns: to read, those of them that were recorded; all by default. where: which rows to keep.
        """
        import pyarrow.parquet

        path = self.path / "evals.parquet"
        if not path.exists():
            return None
        if columns is not None:
            recorded = set(pyarrow.parquet.read_schema(path).names)
            columns = [name for name in columns if name in recorded]
        return pyarrow.parquet.read_table(path, columns=columns, filters=where)
