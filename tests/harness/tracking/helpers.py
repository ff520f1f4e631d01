"""A small sweep on disk, and a look at what MLflow holds of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.records import CellRecord, cell_directory_name
from harness.records.files import append_jsonl, write_json

SPEC = {
    "model": {"source": "builtin:tiny"},
    "objective": {"scale": None, "rule": {"clip_low": 0.2}},
    "eval": {"k": [1, 2]},
}


@dataclass
class DiskSweep:
    """Writes records as the harness does."""

    home: Path
    name: str = "std_norm"

    @property
    def path(self) -> Path:
        return self.home / self.name

    def cell(self, arm: str, seed: int = 0) -> CellRecord:
        semantic_hash = arm.encode().hex().ljust(20, str(seed))  # a resolved spec knows its seed
        return CellRecord(self.path / "cells" / cell_directory_name(arm, seed, semantic_hash), arm, seed, semantic_hash)

    def ask(self, arms: tuple[str, ...] = ("a", "b"), n_seeds: int = 1) -> None:
        cells = [self.cell(arm, seed) for arm in arms for seed in range(n_seeds)]
        (self.path / "cells").mkdir(parents=True, exist_ok=True)
        document = {
            "name": self.name,
            "question": "Does it help?",
            "profile": "tiny",
            "arms": list(arms),
            "baseline": arms[0],
            "metric": "eval.final.pass@1",
            "margin_pp": 1.0,
            "alpha": 0.05,
            "seeds": list(range(n_seeds)),
            "varied": {},
            "command": f"bench run {self.name}",
            "tasks": ["arithmetic"],
            "k": [1],
            "gate": {"ok": True, "differs": []},
            "warnings": [],
            "budget_tokens": None,
            "cells": [{"arm": c.arm, "seed": c.seed, "hash": c.hash, "dir": c.path.name} for c in cells],
        }
        write_json(self.path / "sweep.json", document)

    def start(self, arm: str, seed: int = 0) -> CellRecord:
        cell = self.cell(arm, seed)
        cell.path.mkdir(parents=True)
        write_json(cell.path / "spec.json", SPEC)
        cell.write_status("pending")
        return cell


def train(cell: CellRecord, first: int, last: int, offset: float = 0.0) -> None:
    """Rounds `first` to `last`, whose reward is the round plus `offset`."""
    steps = range(first, last + 1)
    rewards = ({"step": step, "reward/mean": step + offset, "len/correct": None} for step in steps)
    append_jsonl(cell.path / "steps.jsonl", rewards)
    append_jsonl(cell.path / "timing.jsonl", ({"step": step, "total_s": 0.5 + offset} for step in steps))


@dataclass
class Reader:
    """Reads MLflow's side of a sweep."""

    uri: str
    name: str = "std_norm"

    def runs(self, deleted: bool = False) -> list[Any]:
        from mlflow import MlflowClient
        from mlflow.entities import ViewType

        client = MlflowClient(tracking_uri=self.uri)
        experiment = client.get_experiment_by_name(self.name)
        view = ViewType.DELETED_ONLY if deleted else ViewType.ACTIVE_ONLY
        return list(client.search_runs([experiment.experiment_id], run_view_type=view))

    def parents(self) -> list[Any]:
        return [run for run in self.runs() if "bench.question_id" in run.data.tags]

    def children(self) -> dict[str, Any]:
        """By arm and seed; fails if a cell has two runs."""
        runs = [run for run in self.runs() if "bench.cell" in run.data.tags]
        by_name = {f"{run.data.tags['arm']}-s{run.data.tags['seed']}": run for run in runs}
        assert len(by_name) == len(runs), "a cell has more than one run"
        return by_name

    def curve(self, child: str, key: str) -> list[tuple[int, float]]:
        from mlflow import MlflowClient

        run_id = self.children()[child].info.run_id
        history = MlflowClient(tracking_uri=self.uri).get_metric_history(run_id, key)
        return sorted((point.step, point.value) for point in history)

    def artifacts(self, run: Any) -> set[str]:
        from mlflow import MlflowClient

        return {item.path for item in MlflowClient(tracking_uri=self.uri).list_artifacts(run.info.run_id)}
