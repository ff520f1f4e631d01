"""Cells that are not trained: their scores are a function of their spec. A search over them takes milliseconds."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from harness.config.run_spec import RunSpec
from harness.executors.local import Ended
from harness.plan.search_plan import SearchPlan, make_search_plan
from harness.records import CellRecord
from harness.records.files import append_jsonl
from harness.run.jobs import Job
from harness.run.sweep import Observer
from harness.search.run import SearchRun
from tests.harness.run.small import SETTINGS

Score = Callable[[RunSpec], float]
METRIC = "eval.final.arithmetic.pass@1"


def by_learning_rate(spec: RunSpec) -> float:
    """Best at 1e-3, better with more updates."""
    return 0.9 - 100 * abs(spec.train.learning_rate - 1e-3) + 0.01 * spec.train.updates_per_rollout


@dataclass
class FakePool:
    """Takes the place of a LocalPool; `ends`: state and reason of cells that do not end well, by arm."""

    workers: int = 1
    score: Score = by_learning_rate
    ends: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    trained: list[str] = field(default_factory=list)
    cancelled: set[str] = field(default_factory=set)

    def __enter__(self) -> FakePool:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def cancel(self, job: Job) -> None:
        self.cancelled.add(job.path)

    def run(self, jobs: Any, on_progress: Any, on_ended: Any) -> None:
        for job in jobs:
            on_ended(Ended(job, *self._do(job, on_progress)))

    def _do(self, job: Job, on_progress: Any) -> Any:
        if job.kind != "cell":
            return "done", None
        cell, spec = CellRecord.at(Path(job.path)), RunSpec.model_validate(job.spec)
        self.trained.append(cell.path.name)
        if cell.arm in self.ends:
            return self.ends[cell.arm]
        score = self.score(spec)
        for step in (2, 4):
            rows = [{"step": done, "generated_tokens": 250 * done} for done in (step - 1, step)]
            append_jsonl(cell.path / "steps.jsonl", rows)
            write_score(cell, step, score * step / 4, final=False)
            on_progress(job, {"phase": "training", "step": step, "steps": 4, "done_frac": step / 4})
            if job.path in self.cancelled:
                cell.write_status("interrupted", reason="interrupted; the next run continues it", step=step)
                return "interrupted", "cancelled"
        write_score(cell, 4, score, final=True)
        cell.write_status("done", step=4, steps=4, generated_tokens=1000, flags=[], digest=cell.path.name)
        return "done", None


def write_score(cell: CellRecord, step: int, score: float, *, final: bool) -> None:
    row = {"step": step, "final": final, "task": "arithmetic", "generated_tokens": 250 * step}
    row["metrics"] = {"pass@1": score, "mean_tokens": 20 + 10 * score}
    with (cell.path / "scores.jsonl").open("a") as handle:
        handle.write(json.dumps(row) + "\n")


KNOBS: dict[str, Any] = {
    "train.learning_rate": {"log": [1e-4, 1e-2]},
    "train.updates_per_rollout": {"categorical": [1, 2, 4]},
    "objective.rule.clip_high": {"float": [0.2, 0.4], "when": {"train.updates_per_rollout": [2, 4]}},
}


def write_search(folder: Path, search: Mapping[str, Any] | None = None, **fields: Any) -> Path:
    """A sweep file with a search on the small spec; `search`: keys besides, or instead of, KNOBS."""
    (folder / "small.yaml").write_text(yaml.safe_dump({k: v for k, v in SETTINGS.items() if k != "algorithm"}))
    document = {"name": "found", "question": "?", "profile": "small.yaml", "base": {"algorithm": "grpo"}}
    path = folder / "found.yaml"
    path.write_text(yaml.safe_dump(document | {"search": {"knobs": KNOBS} | dict(search or {})} | fields))
    return path


@dataclass
class Silent:
    """An observer that remembers how trials ended."""

    ends: dict[str, str] = field(default_factory=dict)
    lock: Any = field(default_factory=threading.Lock)

    remarks: list[str] = field(default_factory=list)

    def planned(self, total: int | None, done: int) -> None: ...

    def used(self, budget: Mapping[str, float]) -> None: ...

    def remark(self, sentence: str) -> None:
        self.remarks.append(sentence)

    def stage(self, name: str, event: dict[str, Any] | None) -> None: ...

    def progress(self, name: str, event: dict[str, Any]) -> None: ...

    def ended(self, name: str, state: str, reason: str | None) -> None:
        self.ends[name] = state


def search(
    monkeypatch: Any,
    path: Path,
    trials: int | None,
    pool: FakePool | None = None,
    observer: Observer | None = None,
    **options: Any,
) -> tuple[dict[str, Any], FakePool]:
    """Search with fake cells in the file's folder; gives study.json and the pool."""
    pool = pool or FakePool()
    monkeypatch.setattr("harness.search.run.LocalPool", lambda workers: pool)
    plan: SearchPlan = make_search_plan(str(path))
    options = {"workers": 1} | options
    run = SearchRun(plan, path.parent / "runs", "bench tune found", trials=trials, **options)
    return run.run(observer or Silent()), pool
