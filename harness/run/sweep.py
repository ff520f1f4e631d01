"""A sweep's run: what is missing is done, stage by stage, and the question is written beside the records."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from evals.metrics import metric_facts, metrics_for
from harness.config.run_spec import RunSpec
from harness.errors import BenchError, RefusedError
from harness.executors.local import Ended, LocalPool
from harness.plan import Plan, PlannedCell
from harness.plan.gate import values_that_differ
from harness.records import CellRecord
from harness.records.files import read_json, write_json
from harness.records.sweep import SCHEMA
from harness.run.inputs import contamination, contamination_sentence, data_sources, record_sources, require_inputs
from harness.run.jobs import Job, JobKind, is_disk_full
from harness.run.stages import (
    base_path,
    best_of_n_path,
    input_jobs,
    input_paths,
    input_remarks,
    require_enough,
    source_of_start,
    spec_as_json,
    stage_job,
)


class Observer(Protocol):
    """Is told how a run goes; cells are named by `<arm>-s<seed>`."""

    def planned(self, total: int | None, done: int) -> None:
        """total: None where a budget, and no number, ends the run."""

    def used(self, budget: Mapping[str, float]) -> None:
        """budget: each bound in words -> the share of it that is used, above 1 where it was overrun."""

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
    retry_invalid: bool = False

    @property
    def folder(self) -> Path:
        return self.plan.folder(self.home)

    def missing(self) -> list[PlannedCell]:
        """The cells that this run would start, seed by seed so that pairs are complete early.

        An invalid one is started again only if asked for: what could not be measured once needs a look first.
        """
        ended = {"done"} if self.retry_invalid else {"done", "invalid"}
        cells = [cell for cell in self.plan.cells if self.plan.record(cell, self.home).state not in ended]
        return sorted(cells, key=lambda cell: cell.seed)

    def run(self, observer: Observer, while_running: Callable[[], Any] = lambda: None) -> None:
        """Do everything that is missing. `while_running` is called once, when the records exist.

        Raises GateError and RefusedError before any cell started, StoppedError when the disk is full. A cell that fails
        does not stop the others: its state says so.
        """
        self.plan.require_answerable()
        missing = self.missing()
        remarks = require_inputs(self.plan) if missing else []
        self.make_cells(missing)
        self.write_question()
        while_running()
        observer.planned(len(self.plan.cells), len(self.plan.cells) - len(missing))
        if missing:
            record_sources(self.plan, self.home / "cache")
            overlaps = contamination(self.plan, self.home / "cache")
            for sentence in [*remarks, *map(contamination_sentence, overlaps)]:
                observer.remark(sentence)
        bases = self._base_jobs()
        if missing or bases:
            with LocalPool(min(self.workers, max(1, len(missing)))) as pool:
                specs = {cell.arm: cell.spec for cell in missing}
                run_stages(pool, [*specs.values()], bases, self.home, observer)
                pool.run(
                    [self._cell_job(cell) for cell in missing],
                    lambda job, event: observer.progress(_name(job), event),
                    lambda ended: self._cell_ended(ended, observer),
                )
        self.write_question()

    def _cell_job(self, cell: PlannedCell) -> Job:
        return stage_job("cell", self.plan.record(cell, self.home).path, cell.spec, self.home)

    def _base_jobs(self) -> dict[Path, Job]:
        """Evaluations of the start that are not there yet: before training, if all arms start from the same model under
        the same evaluation; and by best-of-n of each reward model."""
        kinds: list[tuple[JobKind, Path, RunSpec]] = []
        if len({base_path(spec, self.home) for spec in self.plan.arms.values()}) == 1:
            kinds.append(("base", base_path(self.plan.first_spec, self.home), self.plan.first_spec))
        kinds += [("best_of_n", path, self.plan.arms[arm]) for arm, path in self._best_of_n_paths().items()]
        return {path: stage_job(kind, path, spec, self.home) for kind, path, spec in kinds if not path.exists()}

    def _best_of_n_paths(self) -> dict[str, Path]:
        return {
            arm: best_of_n_path(spec, self.home)
            for arm, spec in self.plan.arms.items()
            if "reward_model" in input_paths(spec, self.home)
        }

    def _cell_ended(self, ended: Ended, observer: Observer) -> None:
        cell = CellRecord.at(Path(ended.job.path))
        if ended.state in ("refused", "failed"):
            if ended.output:
                with cell.log.open("a", encoding="utf-8") as handle:
                    handle.write(ended.output)
            cell.write_status("failed", reason=ended.reason)
        if ended.state == "invalid":
            cell.write_status("invalid", reason=ended.reason)
        observer.ended(_name(ended.job), "failed" if ended.state == "refused" else ended.state, ended.reason)
        if ended.state == "interrupted":
            raise StoppedError(f"{_name(ended.job)}: {ended.reason}.")

    def make_cells(self, cells: Sequence[PlannedCell]) -> None:
        """The folder, spec and pending status of cells that are to be run. Raises RefusedError as `write_question`."""
        with self._writable():
            for cell in cells:
                record = self.plan.record(cell, self.home)
                record.path.mkdir(parents=True, exist_ok=True)
                write_json(record.path / "spec.json", spec_as_json(cell.spec))
                if record.state not in ("running", "done"):  # another `bench run` may have been quicker
                    record.write_status("pending", steps=cell.spec.train.steps)

    def write_question(self) -> None:
        """sweep.json. Raises RefusedError where it cannot be written."""
        with self._writable():
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.home / "cache").mkdir(exist_ok=True)
            write_json(self.folder / "sweep.json", self._question())

    @contextmanager
    def _writable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if is_disk_full(error):
                raise
            raise RefusedError(
                f"{error.filename or self.folder}: cannot be written ({os.strerror(error.errno or 0)}). Make it "
                "writable, or choose another place with --home DIR or BENCH_HOME."
            ) from error

    def _question(self) -> dict[str, Any]:
        plan, spec = self.plan, self.plan.first_spec
        base = base_path(spec, self.home)
        values = values_that_differ(plan.arms)
        return {
            "schema": SCHEMA,
            "search": plan.sweep.search is not None,
            "name": plan.sweep.name,
            "question": plan.sweep.question,
            "profile": plan.profile,
            "arms": list(plan.arms),
            "grid": {arm: plan.sweep.all_arms[arm] for arm in plan.arms} if plan.sweep.grid else None,
            "baseline": plan.baseline,
            "metric": plan.metric,
            "margin_pp": plan.margin_pp,
            "alpha": plan.sweep.compare.alpha,
            "new_problems": plan.sweep.compare.new_problems,
            "seeds": plan.sweep.seed_list,
            "ablate": list(plan.sweep.search.knobs if plan.sweep.search else plan.sweep.ablate),
            "co_changes": plan.sweep.co_changes,
            "varied": {arm: {knob: by_arm[arm] for knob, by_arm in values.items()} for arm in plan.arms},
            "cells": [
                {"arm": cell.arm, "seed": cell.seed, "hash": cell.hash, "dir": cell.directory} for cell in plan.cells
            ],
            "command": self.command,
            "tasks": plan.task_names,
            "k": list(spec.eval.k),
            "metrics": {name: metric_facts(name) for name in metrics_for(spec.eval.k)},
            "gate": {"ok": plan.gate.ok, "differs": plan.gate.differs},
            "warnings": plan.warnings,
            "budget_tokens": spec.budget.tokens,
            "contamination": contamination(plan, self.home / "cache"),
            "data": data_sources(plan, self.home / "cache"),
            "base_scores": read_json(base) if base.exists() else None,
            "best_of_n": {arm: read_json(path) for arm, path in self._best_of_n_paths().items() if path.exists()},
        }


def run_stages(
    pool: LocalPool,
    specs: Sequence[RunSpec],
    bases: Mapping[Path, Job],
    home: Path,
    observer: Observer,
    try_loading: bool = True,
) -> None:
    """What cells share: the model that loads, the starting point made of it, what is made of that one for cells to read
    (see `harness.run.stages`), and its evaluations. specs: of one cell of each arm. try_loading: see first whether the
    model can be loaded. Raises RefusedError and StoppedError."""

    def refuse(ended: Ended) -> None:
        observer.stage(_stage(ended.job), None)
        if ended.state == "refused":
            raise RefusedError(ended.reason)
        if ended.state != "done":
            raise StoppedError(f"{ended.job.kind}: {ended.reason}\n{ended.output}".rstrip())

    def show(job: Job, event: dict[str, Any]) -> None:
        if remark := event.pop("remark", None):
            observer.remark(remark)
        observer.stage(_stage(job), event)

    loads: dict[tuple[object, ...], Job] = {}
    prepared: dict[str, Job] = {}
    evaluated = [RunSpec.model_validate(job.spec) for job in bases.values()]
    for spec in [*specs, *evaluated]:
        model, start = spec.model.source, source_of_start(spec, home)
        loads.setdefault(_what_may_be_refused(spec), Job("load", "", spec_as_json(spec), model))
        folder = start.removeprefix("path:")
        if start != model and not Path(folder).exists():
            prepared.setdefault(start, Job("prepare", folder, spec_as_json(spec), model))
    pool.run([*loads.values()] if try_loading else [], show, refuse)
    pool.run([*prepared.values()], show, refuse)
    inputs = {job.path: job for spec in [*specs, *evaluated] for job in input_jobs(spec, home)}
    pool.run([*inputs.values()], show, refuse)
    for sentence in dict.fromkeys(remark for spec in specs for remark in input_remarks(spec, home)):
        observer.remark(sentence)
    for spec in specs:
        require_enough(spec, home)
    pool.run([*bases.values()], show, refuse)


def _what_may_be_refused(spec: RunSpec) -> tuple[object, ...]:
    """What the `load` job looks at: specs that are alike in it are tried once."""
    rollout, train = spec.rollout, spec.train
    drawing = (rollout.engine, rollout.vllm_memory_frac, rollout.max_completion_tokens, rollout.temperature)
    prompts = (spec.task, spec.eval, spec.pairs.type)
    return spec.model, drawing, prompts, train.device, train.activation_checkpointing


def _stage(job: Job) -> str:
    return job.kind.replace("_", " ")


def _name(job: Job) -> str:
    cell = CellRecord.at(Path(job.path))
    return f"{cell.arm}-s{cell.seed}"
