"""A small sweep on disk, and a look at what MLflow holds of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.records import CellRecord, cell_directory_name
from harness.records.cell import STARTS_FILE
from harness.records.files import append_jsonl, read_json, write_json
from harness.records.schema import SCHEMA

SPEC = {
    "model": {"source": "builtin:tiny"},
    "task": {"train": "sums"},
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
            **{"schema": SCHEMA, "kind": "sweep", "ablate": [], "metrics": {}},
            **{"asks": "", "contrasts": [], "evaluation": None, "held_out": {}},
            "name": self.name,
            "question": "Does it help?",
            "profile": "tiny",
            "arms": list(arms),
            "baseline": arms[0],
            "metric": "eval.final.pass@1",
            "margin_pp": 1.0,
            "alpha": 0.05,
            "seeds": list(range(n_seeds)),
            "varied": {
                arm: {"objective.scale": scale} for arm, scale in zip(arms, (None, "none", "none"), strict=False)
            },
            "data": [{"task": "sums", "split": "train", "origin": "local", "digest": "0123"}],
            "command": f"bench run {self.name}",
            "tasks": ["arithmetic"],
            "k": [1],
            "gate": {"ok": True, "differs": []},
            "warnings": [],
            "budget_tokens": None,
            "cells": [{"arm": c.arm, "seed": c.seed, "hash": c.hash, "dir": c.path.name} for c in cells],
        }
        write_json(self.path / "sweep.json", document)

    def change(self, **fields: Any) -> None:
        """Fields of the question."""
        path = self.path / "sweep.json"
        write_json(path, read_json(path) | fields)

    def start(self, arm: str, seed: int = 0) -> CellRecord:
        cell = self.cell(arm, seed)
        cell.path.mkdir(parents=True)
        write_json(cell.path / "spec.json", SPEC)
        cell.write_status("pending")
        begin(cell)
        return cell

    def report(self, verdict: str = "worse", difference_pp: float = -2.0) -> None:
        """The files that a report has, as far as the mirror reads them."""
        folder = self.path / "report"
        for name in ("figures", "data"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / "figures" / "forest.svg").write_text("<svg/>")
        (folder / "data" / "forest.csv").write_text("arm,difference\nb,-2\n")
        (folder / "data" / "steps.parquet").write_bytes(b"PAR1")
        links = '<a href="data/forest.csv">csv</a> <a href="samples.html">samples</a> <a href="#top">top</a>'
        (folder / "first_samples.html").write_text('<a href="samples.html">all</a>')
        (folder / "index.html").write_text(f"<p>{verdict}</p> {links}")
        (folder / "report.md").write_text(
            f"# {self.name}\n\n**{verdict}**: b\n\n## Effects\n\n![x](figures/forest.png)\n"
        )
        contrast = {"arm": "b", "verdict": verdict, "difference_pp": difference_pp, "low_pp": -3.0, "high_pp": -1.0}
        arms = [{"arm": "a", "mean_pp": 50.0}, {"arm": "b", "mean_pp": 50.0 + difference_pp}]
        contrasts = [contrast | {"p": 0.01, "p_holm": 0.02}]
        write_json(folder / "report.json", {"contrasts": contrasts, "interactions": [], "arms": arms})


FIRST_S = datetime(2026, 1, 1, tzinfo=UTC).timestamp()


def begin(cell: CellRecord, from_step: int = 0) -> None:
    """A start, an hour after the one before."""
    epoch = len(cell.read_starts()) + 1
    time = datetime.fromtimestamp(FIRST_S + 3600 * (epoch - 1), UTC).isoformat()
    append_jsonl(cell.path / STARTS_FILE, [{"epoch": epoch, "from_step": from_step, "time": time, "commit": "c0ffee"}])


def train(cell: CellRecord, first: int, last: int, offset: float = 0.0) -> None:
    """Rounds `first` to `last`, whose reward is the round plus `offset`."""
    steps, epoch = range(first, last + 1), len(cell.read_starts())
    rewards = ({"step": step, "reward/mean": step + offset, "len/correct": None, "epoch": epoch} for step in steps)
    append_jsonl(cell.path / "timing.jsonl", ({"step": s, "total_s": 0.5 + offset, "epoch": epoch} for s in steps))
    append_jsonl(cell.path / "steps.jsonl", rewards)


def evaluate(cell: CellRecord, step: int, final: bool = False, took_s: float = 2.0) -> None:
    """An evaluation after a round, with a score of 0.5."""
    row = {"step": step, "final": final, "task": "sums", "generated_tokens": 9, "epoch": len(cell.read_starts())}
    append_jsonl(cell.scores, [row | {"metrics": {"pass@1": 0.5, "mean_tokens": None}}])
    append_jsonl(cell.path / "timing.jsonl", [{"step": step, "eval_s": took_s, "epoch": row["epoch"]}])


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
        return [(step, value) for step, value, _ in self.timed_curve(child, key)]

    def timed_curve(self, child: str, key: str) -> list[tuple[int, float, float]]:
        """(step, value, seconds since the first start)."""
        from mlflow import MlflowClient

        run_id = self.children()[child].info.run_id
        history = MlflowClient(tracking_uri=self.uri).get_metric_history(run_id, key)
        return sorted((point.step, point.value, point.timestamp / 1000 - FIRST_S) for point in history)

    def artifacts(self, run: Any) -> set[str]:
        from mlflow import MlflowClient

        return {item.path for item in MlflowClient(tracking_uri=self.uri).list_artifacts(run.info.run_id)}
