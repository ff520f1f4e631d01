"""Cells that are not trained: their scores are a function of their spec. A search over them takes milliseconds."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.config.hashing import evaluation_hash
from harness.config.run_spec import RunSpec
from harness.executors.base import Ended, Job, JobState, Progress
from harness.executors.local import LOCAL
from harness.executors.slots import Slot
from harness.plan.filing import under_evaluation
from harness.plan.search_plan import SearchPlan, make_search_plan
from harness.records import CellRecord
from harness.records.cell import EVALUATION_FILE, STARTS_FILE
from harness.records.files import append_jsonl, write_json
from harness.run.loop import Observer
from harness.search.run import SearchRun
from reports.measure import analyse
from reports.page.document import report_document
from tests.harness.run.small import SETTINGS

Score = Callable[[RunSpec], float]
METRIC = "eval.final.arithmetic.pass@1"


def by_learning_rate(spec: RunSpec) -> float:
    """Best at 1e-3, better with more updates."""
    return 0.9 - 100 * abs(spec.train.learning_rate - 1e-3) + 0.01 * spec.train.updates_per_rollout


@dataclass
class FakeCells:
    """An executor whose cells take no time; `ends`: state and reason of cells that do not end well, by arm."""

    slots: int = 1
    score: Score = by_learning_rate
    ends: Mapping[str, tuple[JobState, str]] = field(default_factory=dict)
    home: Path = Path()
    trained: list[str] = field(default_factory=list)
    evaluated: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    _steps: dict[Job, Iterator[Progress | Ended]] = field(default_factory=dict)
    _cancelled: set[Job] = field(default_factory=set)

    def start(self, job: Job) -> None:
        self._steps[job] = self._do(job)

    def wait(self, timeout_s: float) -> list[Progress | Ended]:
        """One event of each job, so that who cancels one is heard before it goes on."""
        if not self._steps:
            time.sleep(0.01)
        events = [next(steps) for steps in self._steps.values()]
        for event in events:
            if isinstance(event, Ended):
                del self._steps[event.job]
        return events

    def cancel(self, job: Job) -> None:
        self._cancelled.add(job)
        self.cancelled.append(Path(job.path).name)

    def kill(self, job: Job) -> None: ...
    def close(self) -> None: ...

    def _do(self, job: Job) -> Iterator[Progress | Ended]:
        if job.kind != "cell":
            yield Ended(job, *self.stage(job))
            return
        cell = under_evaluation(CellRecord.at(self.home / job.path), evaluation_hash(job.spec))
        self.begun(cell)
        if cell.lacks == "evaluation":
            self.evaluated.append(cell.path.name)
            self._finish(cell, job.spec)
            yield Ended(job, "done", None)
            return
        self.trained.append(cell.path.name)
        if cell.arm in self.ends:
            yield Ended(job, *self.ends[cell.arm])
            return
        score = self.score(job.spec)
        for step in (2, 4):
            rows = [{"step": done, "generated_tokens": 250 * done} for done in (step - 1, step)]
            append_jsonl(cell.path / "steps.jsonl", rows)
            write_score(cell, step, score * step / 4, final=False)
            yield Progress(job, {"phase": "training", "step": step, "steps": 4, "done_frac": step / 4})
            if job in self._cancelled:
                cell.write_status("interrupted", reason="interrupted; the next run continues it", step=step)
                yield Ended(job, "interrupted", "cancelled")
                return
        self._finish(cell, job.spec)
        yield Ended(job, "done", None)

    def _finish(self, cell: CellRecord, spec: RunSpec) -> None:
        write_score(cell, 4, self.score(spec), final=True)
        write_json(cell.evaluation_folder / EVALUATION_FILE, {"hash": evaluation_hash(spec), "tasks": {}})
        cell.write_status("done", step=4, steps=4, generated_tokens=1000, flags=[], digest=cell.path.name)
        self.done(cell, spec)

    def stage(self, job: Job) -> tuple[JobState, str | None]:
        if job.kind == "base":
            write_json(self.home / job.path, [])
        return "done", None

    def begun(self, cell: CellRecord) -> None: ...

    def done(self, cell: CellRecord, spec: RunSpec) -> None: ...


def write_score(cell: CellRecord, step: int, score: float, *, final: bool) -> None:
    row = {"step": step, "final": final, "task": "arithmetic", "generated_tokens": 250 * step}
    row["metrics"] = {"pass@1": score, "mean_tokens": 20 + 10 * score}
    append_jsonl(cell.scores, [row])


class Recording(FakeCells):
    """Cells with all that a report reads."""

    def done(self, cell: CellRecord, spec: RunSpec) -> None:
        append_jsonl(cell.evaluation_folder / STARTS_FILE, [{"epoch": 0, "from_step": 0}])
        scores = [json.loads(line) for line in cell.scores.read_text().splitlines()]
        more = {"n_problems": 8, "n_samples": 4, "reliability": None}
        cell.scores.write_text("".join(json.dumps(row | more) + "\n" for row in scores))

    def stand_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Be the executor of the command line, without MLflow."""

        def make(slots: Sequence[Slot], home: Path, worker_module: str) -> Recording:
            self.slots, self.home = len(slots), home
            return self

        monkeypatch.setattr("harness.cli.executor.ChosenExecutor.kind", replace(LOCAL, make=make))
        monkeypatch.setattr("harness.tracking.MirrorThread", lambda mirror: contextlib.nullcontext())


def without_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have reports computed and not drawn, which takes seconds each."""
    monkeypatch.setattr("reports.page.write_report", lambda sweep, *_: report_document(analyse(sweep)))
    monkeypatch.setattr("reports.search.render_search_figures", lambda study: [])


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

    def stage(self, name: str, event: Any | None) -> None: ...

    def progress(self, name: str, event: Any) -> None: ...

    def elsewhere(self, fractions: Mapping[str, float]) -> None: ...

    def ended(self, name: str, state: str, reason: str | None) -> None:
        self.ends[name] = state


def search(
    path: Path,
    trials: int | None,
    executor: FakeCells | None = None,
    observer: Observer | None = None,
    **options: Any,
) -> tuple[dict[str, Any], FakeCells]:
    """Search with fake cells in the file's folder; gives study.json and the executor."""
    cells = executor or FakeCells()
    run = search_run(path, trials, cells, **options)
    return run.run(observer or Silent()), cells


def search_run(path: Path, trials: int | None, cells: FakeCells, **options: Any) -> SearchRun:
    plan: SearchPlan = make_search_plan(str(path))
    options = {"workers": 1} | options
    cells.home = options.pop("home", path.parent / "runs")

    def opened(slots: int) -> FakeCells:
        cells.slots = slots
        return cells

    return SearchRun(plan, cells.home, "bench tune found", open_executor=opened, trials=trials, **options)
