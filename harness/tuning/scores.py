"""What a trial is worth, from the records of its cells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from harness.records import CellRecord
from harness.run.health import DIVERGED
from harness.spec.recorded import recorded_spec
from harness.spec.search import GENERATED_TOKENS


def final_values(cells: Sequence[CellRecord], objectives: Sequence[str]) -> list[float] | str:
    """Of each objective the mean over the cells, which differ in their seed; or why there is none."""
    values = []
    for objective in objectives:
        by_seed = [final_value(cell, objective) for cell in cells]
        known = [value for value in by_seed if value is not None]
        if len(known) < len(by_seed):
            return f"{cells[by_seed.index(None)].path.name} has no final {objective}"
        values.append(fmean(known))
    return values


def final_value(cell: CellRecord, objective: str) -> float | None:
    """eval.final.<task>.<metric> or generated_tokens of a finished cell; None where it is not there or not finite."""
    if objective == GENERATED_TOKENS:
        return float(_allowed_tokens(cell) if DIVERGED in cell.flags else cell.generated_tokens)
    task, metric = _task_and_metric(objective)
    rows = [row for row in cell.read_scores() if row["final"] and row["task"] == task]
    return _finite(rows[-1]["metrics"].get(metric)) if rows else None


def _allowed_tokens(cell: CellRecord) -> int:
    """What a cell could have generated in training. One that diverged counts with it: breaking off is no thrift."""
    spec = recorded_spec(cell)
    rollout = spec.rollout
    most = spec.train.steps * rollout.prompts_per_step * rollout.samples_per_prompt * rollout.max_completion_tokens
    return most if spec.budget.tokens is None else min(most, spec.budget.tokens)


def curve(cell: CellRecord, objective: str) -> list[tuple[int, float]]:
    """(step, value) of the evaluations along training so far."""
    task, metric = _task_and_metric(objective)
    return [
        (row["step"], value)
        for row in cell.read_scores()
        if not row["final"] and row["task"] == task and (value := _finite(row["metrics"].get(metric))) is not None
    ]


def seconds(cell: CellRecord) -> float:
    """That training and evaluating took so far, over all processes that had a part in it."""
    return sum(row.get("total_s") or row.get("eval_s") or 0.0 for row in cell.read_timing())


def _task_and_metric(objective: str) -> tuple[str, str]:
    task, _, metric = objective.removeprefix("eval.final.").rpartition(".")
    return task, metric


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
