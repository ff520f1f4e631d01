"""An estimate of a sweep's duration, from cells that were measured on this machine.

The time of a cell consists of its steps, its evaluations, and the rest, such as checkpoints and records. A measured
cell gives the time of each. Its times apply to other cells of the same model with batches of similar size: the time of
steps is scaled by the tokens that they may generate or train on, and the time of evaluations by the number of samples
and by the most tokens per sample.
"""

from __future__ import annotations

import heapq
import math
import socket
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from evals.tasks import get_task
from harness.config.hashing import base_evaluation_hash
from harness.config.run_spec import RunSpec, recorded_spec
from harness.errors import RefusedError
from harness.records import CellRecord
from harness.records.cell import is_cell_directory_name
from harness.records.files import DamagedRecordError

Origin = Literal["finished cells", "a timed step"]

LIKE_BATCH_FACTOR = 4.0
"""If batches differ by more than this factor, they use the processor differently, and time is not proportional to
tokens.
"""
MOST_CELLS = 12
"""The most cells to average. If more fit, the newest are used."""


@dataclass(frozen=True)
class Pace:
    """The times of one measured cell."""

    spec: RunSpec
    step_s: float
    filled_frac: float
    """The tokens generated per step, as a fraction of the most that a step can generate."""
    sample_s: float
    """The time of one sample in an evaluation."""
    problems: int
    """The number of problems in each evaluation task."""
    rest_s: float
    """The cell's time outside training and evaluation."""

    def fits(self, spec: RunSpec) -> bool:
        """Return whether a cell with this spec does the same kind of work, in batches of about the same size.

        If the cell only evaluates, return whether the same model is evaluated in the same way.
        """
        if spec.checkpoint or self.spec.checkpoint:
            return spec.checkpoint is not None and _kind_of_evaluation(spec) == _kind_of_evaluation(self.spec)
        if _kind_of_work(spec) != _kind_of_work(self.spec):
            return False
        larger, smaller = sorted((batch_tokens(spec), batch_tokens(self.spec)), reverse=True)
        return larger <= LIKE_BATCH_FACTOR * smaller

    def cell_s(self, spec: RunSpec) -> float:
        """Return the estimated time of a cell with a spec that `fits`."""
        steps = self._steps(spec)
        step_s = self.step_s * batch_tokens(spec) / batch_tokens(self.spec)
        # The evaluation after the last step is the final one, so it is not counted here.
        along = (steps - 1) // spec.eval.every if spec.eval.every else 0
        evaluated_s = self._evaluation_s(spec, spec.eval.samples) + along * self._evaluation_s(
            spec, spec.eval.curve_samples
        )
        return steps * step_s + evaluated_s + self.rest_s

    def base_s(self, spec: RunSpec) -> float:
        """Return the time of one final evaluation, either of a trained cell or of the model before training."""
        return self._evaluation_s(spec, spec.eval.samples)

    def _steps(self, spec: RunSpec) -> int:
        if spec.budget.tokens is None:
            return spec.train.steps
        tokens_a_step = max(1.0, self.filled_frac * batch_tokens(spec))
        return min(spec.train.steps, math.ceil(spec.budget.tokens / tokens_a_step))

    def _evaluation_s(self, spec: RunSpec, samples: int) -> float:
        """Return the time of one evaluation with this number of samples per problem."""
        if spec.eval.is_greedy:
            samples = min(samples, 1)
        if (wanted := spec.eval.problems) is None:
            problems = len(spec.eval.tasks) * self.problems
        else:
            problems = sum(get_task(name).n_evaluated(wanted) or 0 for name in spec.eval.tasks)
        # Real lengths are unknown, so the time is assumed to be proportional to the longest completion.
        length = spec.eval.max_completion_tokens / self.spec.eval.max_completion_tokens
        return problems * samples * self.sample_s * length


def batch_tokens(spec: RunSpec) -> int:
    """Return the most tokens that a step trains on, in completions or in both sides of pairs."""
    if spec.pairs.type == "dataset":
        return 2 * spec.pairs.pairs_per_step * spec.pairs.max_tokens
    rollout = spec.rollout
    return rollout.prompts_per_step * rollout.samples_per_prompt * rollout.max_completion_tokens


def _kind_of_evaluation(spec: RunSpec) -> tuple[object, ...]:
    return spec.model.source, spec.model.dtype, spec.train.device, spec.rollout.engine, spec.rollout.dtype


def _kind_of_work(spec: RunSpec) -> tuple[object, ...]:
    train, model = spec.train, spec.model
    trained = (model.source, model.dtype, model.lora.type, train.device, train.activation_checkpointing)
    computed = (model.head_dtype, spec.rollout.dtype, train.optimizer.type)
    helped = (spec.teacher, spec.distils, tuple(sorted(spec.reward.gold_parts)), spec.reward.generator)
    learning = (type(spec.objective), spec.pairs.type, spec.rollout.engine, spec.optimizer_steps_per_rollout)
    return (*trained, *computed, *helped, *learning, spec.trainer.model_dump_json())


def pace_of(cell: CellRecord) -> Pace | None:
    """Return the times of a finished cell, or None if it had several starts or its records lack the times.

    Raises DamagedRecordError, and RefusedError for a cell of another version.
    """
    starts, timing = cell.read_starts(), cell.read_timing()
    steps_s = [row["total_s"] for row in timing if "total_s" in row]
    evaluations_s = [row["eval_s"] for row in timing if "eval_s" in row]
    scores = cell.read_scores()
    samples = [row.get("n_problems", 0) * row.get("n_samples", 0) for row in scores]
    # The modification times of files cannot be used, because copying a folder changes them.
    whole_s = timing[-1].get("elapsed_s") if timing else None
    if len(starts) != 1 or "owner" not in starts[0] or not sum(samples) or whole_s is None:
        return None
    spec = recorded_spec(cell)
    if not steps_s and not spec.checkpoint:
        return None
    return Pace(
        spec,
        step_s=statistics.fmean(steps_s) if steps_s else 0.0,
        filled_frac=(cell.generated_tokens or 0) / (len(steps_s) * batch_tokens(spec)) if steps_s else 0.0,
        sample_s=sum(evaluations_s) / sum(samples),
        problems=max(row["n_problems"] for row in scores),
        rest_s=max(0.0, whole_s - sum(steps_s) - sum(evaluations_s)),
    )


def finished_paces(home: Path, specs: Sequence[RunSpec]) -> list[Pace]:
    """Return the paces of the newest cells in a home that ran on this machine and fit at least one of the specs.

    Cells whose records are unreadable or of another version are skipped.
    """
    folders = [path for path in home.glob("*/cells/*") if is_cell_directory_name(path.name)]
    newest_first = sorted(folders, key=lambda path: path.stat().st_mtime, reverse=True)
    paces = (pace for path in newest_first if (pace := _pace_here(CellRecord.at(path))) is not None)
    return list(islice((pace for pace in paces if any(map(pace.fits, specs))), MOST_CELLS))


def _pace_here(cell: CellRecord) -> Pace | None:
    """Return the pace of a cell that finished on this machine and is readable, or None for any other cell."""
    try:
        hosts = [start["owner"]["host"] if "owner" in start else None for start in cell.read_starts()]
        was_here = cell.state == "done" and all(host == socket.gethostname() for host in hosts)
        return pace_of(cell) if was_here else None
    except (RefusedError, DamagedRecordError):
        return None


@dataclass(frozen=True)
class ExpectedTime:
    """The estimated time of all cells that are still to be run, `at_once` at a time."""

    seconds: float
    cells: int
    at_once: int
    origin: Origin | None
    """The source of the estimate."""
    measured: int
    """The number of cells or steps that the estimate is based on."""

    def as_json(self) -> dict[str, object]:
        return {
            "seconds": self.seconds,
            "cells": self.cells,
            "at_once": self.at_once,
            "from": self.origin,
            "measured": self.measured,
        }


def expected_time(
    specs: Sequence[RunSpec],
    home: Path,
    at_once: int,
    measure: Callable[[RunSpec], Pace] | None = None,
    only_evaluated: Sequence[RunSpec] = (),
) -> ExpectedTime | None:
    """Return the time that these cells will take, each on the first free slot, or None if nothing was measured.

    specs: the specs of the cells to be run, in their order.
    measure: times a step of a cell that fits no finished cell.
    only_evaluated: the specs of trained cells. All their samples are counted, even if some exist already.
    """
    cells = [*specs, *only_evaluated]
    if not cells:
        return ExpectedTime(0.0, 0, at_once, None, 0)
    paces = finished_paces(home, cells)
    finished = len(paces)
    if measure is not None:
        for spec in cells:
            if spec.checkpoint is None and not any(pace.fits(spec) for pace in paces):
                paces.append(measure(spec))
    seconds = [_mean_s(spec, paces, Pace.cell_s) for spec in specs]
    seconds += [_mean_s(spec, paces, Pace.base_s) for spec in only_evaluated]
    if None in seconds:
        return None
    timed = len(paces) - finished
    total_s = 0.0
    if cells[0].checkpoint is None:
        # There is one evaluation before training for each starting model. The seed is set to 0, so that all seeds of a
        # starting model count once.
        starts = {base_evaluation_hash(spec.model_copy(update={"seed": 0})): spec for spec in cells}
        total_s = sum(statistics.fmean(pace.base_s(spec) for pace in _best(spec, paces)) for spec in starts.values())
    total_s += _in_slots([each for each in seconds if each is not None], at_once)
    origin: Origin = "a timed step" if timed else "finished cells"
    return ExpectedTime(total_s, len(cells), at_once, origin, timed or finished)


def _mean_s(spec: RunSpec, paces: Sequence[Pace], time_s: Callable[[Pace, RunSpec], float]) -> float | None:
    """Return the mean time over the paces that fit best, or None if no pace fits."""
    best = _best(spec, paces)
    return statistics.fmean(time_s(pace, spec) for pace in best) if best else None


def _best(spec: RunSpec, paces: Sequence[Pace]) -> list[Pace]:
    """Return the paces that fit: those with the same objective, or all of them if there are none."""
    fitting = [pace for pace in paces if pace.fits(spec)]
    return [pace for pace in fitting if pace.spec.objective == spec.objective] or fitting


def _in_slots(seconds: Sequence[float], slots: int) -> float:
    """Return the time at which the last job ends, if each starts as soon as a slot is free."""
    free_at_s = [0.0] * slots
    for each in seconds:
        # The first entry of the heap is the slot that becomes free first.
        heapq.heapreplace(free_at_s, free_at_s[0] + each)
    return max(free_at_s)


def in_words(expected: ExpectedTime | None, duration: Callable[[float], str]) -> str:
    """Return the estimate in words, to end a sentence."""
    if expected is None:
        return "unknown, no cell like these has finished on this machine; --time trains one step to find out"
    if not expected.cells:
        return "none, every cell is done"
    source = f"{expected.measured} finished cell{'s' if expected.measured > 1 else ''} of this machine"
    if expected.origin == "a timed step":
        source = f"{expected.measured} timed step{'s' if expected.measured > 1 else ''}"
    cells = f"{expected.cells} cell{'s' if expected.cells > 1 else ''}, {expected.at_once} at once"
    return f"about {duration(expected.seconds)} for {cells} (from {source}; the report not counted)"
