"""A sweep's run: what is missing is done, stage by stage, and the question is written beside the records."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from harness.errors import BenchError, RefusedError
from harness.executors.local import Ended, LocalPool
from harness.models.source import parse_source
from harness.plan import Plan, PlannedCell
from harness.plan.gate import values_that_differ
from harness.records import CellRecord
from harness.records.files import read_json, write_json
from harness.run.inputs import contamination, contamination_sentence, require_inputs
from harness.run.jobs import Job, is_disk_full
from harness.run.pass_rates import read_correct_counts
from harness.run.prompt_pool import training_prompts
from harness.spec.hashing import base_evaluation_hash, pass_rates_hash, starting_point_hash
from harness.spec.run_spec import RunSpec

# Never started again by itself: what could not be measured once needs a look first.
_NOT_AGAIN = ("done", "invalid")


class Observer(Protocol):
    """Is told how a run goes; cells are named by `<arm>-s<seed>`."""

    def planned(self, total: int, done: int) -> None: ...
    def remark(self, sentence: str) -> None: ...
    def stage(self, name: str, event: dict[str, Any] | None) -> None:
        """Progress of what cells share, e.g. the cold start; None: it has ended."""

    def progress(self, name: str, event: dict[str, Any]) -> None: ...
    def ended(self, name: str, state: str, reason: str | None) -> None: ...


class StoppedError(BenchError):
    """The run stopped before all cells were done, for a reason that would hit every other cell too."""


@dataclass(frozen=True)
class SweepRun:
    """One `bench run` of a plan. `home` holds all sweeps, the mirror's database and the cache."""

    plan: Plan
    home: Path
    command: str
    workers: int

    @property
    def folder(self) -> Path:
        return self.plan.folder(self.home)

    def missing(self) -> list[PlannedCell]:
        """The cells that this run would start, seed by seed so that pairs are complete early."""
        cells = [cell for cell in self.plan.cells if self.plan.record(cell, self.home).state not in _NOT_AGAIN]
        return sorted(cells, key=lambda cell: cell.seed)

    def run(self, observer: Observer, while_running: Callable[[], Any] = lambda: None) -> None:
        """Do everything that is missing. `while_running` is called once, when the records exist.

        Raises GateError and RefusedError before any cell started, StoppedError when the disk is full. A cell that fails
        does not stop the others: its state says so.
        """
        self.plan.require_answerable()
        missing = self.missing()
        remarks = require_inputs(self.plan) if missing else []
        self._write_question(missing)
        while_running()
        observer.planned(len(self.plan.cells), len(self.plan.cells) - len(missing))
        if missing:
            overlaps = contamination(self.plan, self.home / "cache")
            for sentence in [*remarks, *map(contamination_sentence, overlaps)]:
                observer.remark(sentence)
        bases = self._base_jobs()
        if missing or bases:
            with LocalPool(self.workers) as pool:
                self._stages(pool, missing, bases, observer)
                pool.run(
                    [self._cell_job(cell) for cell in missing],
                    lambda job, event: observer.progress(_name(job), event),
                    lambda ended: self._cell_ended(ended, observer),
                )
        self._write_question([])

    def _stages(self, pool: LocalPool, missing: list[PlannedCell], bases: dict[Path, Job], observer: Observer) -> None:
        """What cells share: the model that loads, the starting point made of it, that one's pass rates on the training
        problems and its evaluation."""

        def refuse(ended: Ended) -> None:
            observer.stage(_stage(ended.job), None)
            if ended.state == "refused":
                raise RefusedError(ended.reason)
            if ended.state != "done":
                raise StoppedError(f"{ended.job.kind}: {ended.reason}\n{ended.output}".rstrip())

        def show(job: Job, event: dict[str, Any]) -> None:
            observer.stage(_stage(job), event)

        loads: dict[str, Job] = {}
        prepared: dict[str, Job] = {}
        for spec in [cell.spec for cell in missing] or [self.plan.first_spec]:
            model, start = spec.model.source, _source(spec, self.home)
            loads.setdefault(model, Job("load", "", _as_json(spec), model))
            folder = start.removeprefix("path:")
            if start != model and not Path(folder).exists():
                prepared.setdefault(start, Job("prepare", folder, _as_json(spec), model))
        pool.run([*loads.values()], show, refuse)
        pool.run([*prepared.values()], show, refuse)
        filtered = {cell.arm: cell.spec for cell in missing if cell.spec.task.filter.type != "none"}
        rates = {arm: self._pass_rates_path(spec) for arm, spec in filtered.items()}
        measured = {
            path: Job("pass_rates", str(path), _as_json(filtered[arm]), _source(filtered[arm], self.home))
            for arm, path in rates.items()
            if not path.exists()
        }
        pool.run([*measured.values()], show, refuse)
        for arm, path in rates.items():
            # Refuses here, rather than cell by cell, if too few prompts are left.
            training_prompts(filtered[arm], read_correct_counts(path))
        pool.run([*bases.values()], show, refuse)

    def _cell_job(self, cell: PlannedCell) -> Job:
        spec, path = cell.spec, self.plan.record(cell, self.home).path
        rates = str(self._pass_rates_path(spec)) if spec.task.filter.type != "none" else None
        return Job("cell", str(path), _as_json(spec), _source(spec, self.home), rates)

    def _pass_rates_path(self, spec: RunSpec) -> Path:
        return self.home / "cache" / f"pass-rates-{pass_rates_hash(spec)[:16]}.json"

    def _base_jobs(self) -> dict[Path, Job]:
        """The evaluation before training, if all arms start from the same model under the same evaluation."""
        paths = {self._base_path(spec) for spec in self.plan.arms.values()}
        if len(paths) > 1:
            return {}
        spec = self.plan.first_spec
        (path,) = paths
        return {} if path.exists() else {path: Job("base", str(path), _as_json(spec), _source(spec, self.home))}

    def _base_path(self, spec: RunSpec) -> Path:
        return self.home / "cache" / f"base-{base_evaluation_hash(spec)[:16]}.json"

    def _cell_ended(self, ended: Ended, observer: Observer) -> None:
        cell = CellRecord.at(Path(ended.job.path))
        if ended.state in ("refused", "failed"):
            if ended.output:
                with cell.log.open("a", encoding="utf-8") as handle:
                    handle.write(ended.output)
            cell.write_status("failed", reason=ended.reason)
        observer.ended(_name(ended.job), "failed" if ended.state == "refused" else ended.state, ended.reason)
        if ended.state == "interrupted":
            raise StoppedError(f"{_name(ended.job)}: {ended.reason}.")

    def _write_question(self, missing: list[PlannedCell]) -> None:
        """sweep.json, and for each cell to be run its folder, spec and pending status."""
        try:
            for cell in missing:
                record = self.plan.record(cell, self.home)
                record.path.mkdir(parents=True, exist_ok=True)
                write_json(record.path / "spec.json", _as_json(cell.spec))
                if record.state not in ("running", "done"):  # another `bench run` may have been quicker
                    record.write_status("pending", steps=cell.spec.train.steps)
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.home / "cache").mkdir(exist_ok=True)
            write_json(self.folder / "sweep.json", self._question())
        except OSError as error:
            if is_disk_full(error):
                raise
            raise RefusedError(
                f"{error.filename or self.folder}: cannot be written ({os.strerror(error.errno or 0)}). Make it "
                "writable, or choose another place with --home DIR or BENCH_HOME."
            ) from error

    def _question(self) -> dict[str, Any]:
        plan, spec = self.plan, self.plan.first_spec
        base = self._base_path(spec)
        values = values_that_differ(plan.arms)
        return {
            "name": plan.sweep.name,
            "question": plan.sweep.question,
            "profile": plan.profile,
            "arms": list(plan.arms),
            "baseline": plan.baseline,
            "metric": plan.metric,
            "margin_pp": plan.margin_pp,
            "alpha": plan.sweep.compare.alpha,
            "seeds": plan.sweep.seed_list,
            "ablate": list(plan.sweep.ablate),
            "co_changes": plan.sweep.co_changes,
            "varied": {arm: {knob: by_arm[arm] for knob, by_arm in values.items()} for arm in plan.arms},
            "cells": [
                {"arm": cell.arm, "seed": cell.seed, "hash": cell.hash, "dir": cell.directory} for cell in plan.cells
            ],
            "command": self.command,
            "tasks": plan.task_names,
            "k": list(spec.eval.k),
            "gate": {"ok": plan.gate.ok, "differs": plan.gate.differs},
            "warnings": plan.warnings,
            "budget_tokens": spec.budget.tokens,
            "contamination": contamination(plan, self.home / "cache"),
            "base_scores": read_json(base) if base.exists() else None,
        }


def _source(spec: RunSpec, home: Path) -> str:
    """`model.source` of the weights that reinforcement learning starts from.

    After a cold start, and for a GGUF (which takes half a minute to dequantise), that is a folder in the cache.
    """
    if spec.model.cold_start.type == "none" and parse_source(spec.model.source).kind != "gguf":
        return spec.model.source
    return f"path:{(home / 'cache' / f'start-{starting_point_hash(spec)[:16]}').resolve()}"


def _as_json(spec: RunSpec) -> dict[str, Any]:
    return dict(json.loads(spec.model_dump_json()))


def _stage(job: Job) -> str:
    return job.kind.replace("_", " ")


def _name(job: Job) -> str:
    cell = CellRecord.at(Path(job.path))
    return f"{cell.arm}-s{cell.seed}"
