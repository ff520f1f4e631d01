"""The value of a trial, its cost, the importance of knobs, and pruning.

Everything is computed from the records of a trial's cells. The cost is what its worker reported at its end, and before
that what the records show so far.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from harness.config.run_spec import recorded_spec
from harness.config.search import GENERATED_TOKENS
from harness.plan.search_plan import SearchPlan
from harness.records import CellRecord
from harness.run.health import DIVERGED
from harness.search.optuna_parts import without_experimental_warnings
from harness.search.study import SearchStudy

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial, Trial


def final_values(cells: Sequence[CellRecord], objectives: Sequence[str]) -> list[float] | str:
    """Return the mean of each objective over cells that differ in their seed, or the reason why there is none."""
    values = []
    for objective in objectives:
        by_seed = [final_value(cell, objective) for cell in cells]
        known = [value for value in by_seed if value is not None]
        if len(known) < len(by_seed):
            return f"{cells[by_seed.index(None)].path.name} has no final {objective}"
        values.append(fmean(known))
    return values


def final_value(cell: CellRecord, objective: str) -> float | None:
    """Return the value of an objective in a finished cell, or None if it is missing or not finite."""
    if objective == GENERATED_TOKENS:
        return float(_allowed_tokens(cell) if DIVERGED in cell.flags else cell.generated_tokens or 0)
    task, metric = _task_and_metric(objective)
    rows = [row for row in cell.read_scores() if row["final"] and row["task"] == task]
    return _finite(rows[-1]["metrics"].get(metric)) if rows else None


def _allowed_tokens(cell: CellRecord) -> int:
    """Return the most tokens that a cell could have generated in training.

    They are counted for a diverged cell, so that its early end is no advantage.
    """
    spec = recorded_spec(cell)
    rollout = spec.rollout
    most = spec.train.steps * rollout.prompts_per_step * rollout.samples_per_prompt * rollout.max_completion_tokens
    return most if spec.budget.tokens is None else min(most, spec.budget.tokens)


def curve(cell: CellRecord, objective: str) -> list[tuple[int, float]]:
    """Return the (step, value) of the evaluations during training so far."""
    task, metric = _task_and_metric(objective)
    return [
        (row["step"], value)
        for row in cell.read_scores()
        if not row["final"] and row["task"] == task and (value := _finite(row["metrics"].get(metric))) is not None
    ]


def seconds(cell: CellRecord) -> float:
    """Return the seconds spent on training and evaluating so far, over all starts of the cell."""
    # Each row is either of a step or of an evaluation, and contains the time of that one.
    return sum(row.get("total_s") or row.get("eval_s") or 0.0 for row in cell.read_timing())


def _task_and_metric(objective: str) -> tuple[str, str]:
    task, _, metric = objective.removeprefix("eval.final.").rpartition(".")
    return task, metric


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


_SPENT = "spent"


@dataclass(frozen=True)
class Spent:
    """The cost of the cells of one trial: tokens generated in training, and seconds of training and evaluating."""

    generated_tokens: int = 0
    seconds: float = 0.0


def spent_on(trial: FrozenTrial, folder: Path) -> Spent:
    """Return what a trial has used so far. folder: the folder of the search.

    A trial that shares another trial's cells counts as zero. So does, until it ends, a trial that runs on a machine
    with another folder.
    """
    if trial.user_attrs.get("same_as") is not None:
        return Spent()
    cells = _cells(trial, folder)
    # A pruned trial can be trained to the end later, without reporting this to Optuna, for which the trial has ended.
    may_go_on = trial.state.name == "PRUNED" and all(cell.path.exists() for cell in cells)
    if _SPENT in trial.user_attrs and not may_go_on:
        return Spent(**trial.user_attrs[_SPENT])
    return _recorded(cells)


def note_spent(trial: Trial, folder: Path) -> None:
    """Store in the study what a trial used, for workers with another folder. Call this when the trial ends."""
    trial.set_user_attr(_SPENT, asdict(_recorded(_cells(trial, folder))))


def _cells(trial: FrozenTrial | Trial, folder: Path) -> list[CellRecord]:
    return [CellRecord.at(folder / "cells" / name) for name in trial.user_attrs.get("cells", [])]


def _recorded(cells: Sequence[CellRecord]) -> Spent:
    """Return what these cells have used, according to their records."""
    return Spent(sum(cell.generated_tokens or 0 for cell in cells), sum(map(seconds, cells)))


FEWEST_TRIALS = 8
"""With fewer trials, a random forest sees little but noise."""


def importances(study: SearchStudy) -> tuple[list[dict[str, object]], str | None]:
    """Return fANOVA's shares (Hutter et al. 2014, ICML) for each objective, for the knobs that all trials have.

    The second value is the reason if there are none for some or all objectives, or None.
    """
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances
    from optuna.trial import TrialState

    complete = study.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if len(complete) < FEWEST_TRIALS:
        return [], f"{len(complete)} complete trials, {FEWEST_TRIALS} are needed"
    found, constant = [], []
    for place, metric in enumerate(study.plan.objectives):
        values = [trial.values[place] for trial in complete]
        # Without variance, there is nothing to attribute.
        if len(set(values)) == 1:
            constant.append(metric)
            continue

        def of_metric(trial: FrozenTrial, place: int = place) -> float:
            return float(trial.values[place])

        shares = get_param_importances(study.study, evaluator=FanovaImportanceEvaluator(seed=0), target=of_metric)
        found.append({"metric": metric, "shares": shares, "n_trials": len(complete)})
    return found, f"all complete trials have the same {' and the same '.join(constant)}" if constant else None


class Pruning:
    """The pruner of one trial.

    median and asha get the evaluations during training with the first seed, which all trials have. If a curve continued
    with another seed, the best value of its beginning would hide its end. wilcoxon gets the final score of each seed.
    """

    def __init__(self, trial: Trial, plan: SearchPlan) -> None:
        self._trial, self._plan = trial, plan
        self._objective = plan.objectives[0]
        self._kind = plan.search.pruner.type
        self._seen_bytes = 0
        self._reported: set[int] = set()
        self.is_taken = False
        self.reason: str | None = None

    def is_hopeless(self, cell: CellRecord) -> bool:
        """Return whether the pruner rejects the trial, given what the running cell has recorded since the last call."""
        scores = cell.path / "scores.jsonl"
        looks_at_it = self._kind in ("median", "asha") and cell.seed == self._plan.seeds[0]
        if not looks_at_it or self.reason is not None or not scores.exists():
            return self.reason is not None
        size = scores.stat().st_size
        if size == self._seen_bytes:
            return False
        self._seen_bytes = size
        return any(self._report(value, step) for step, value in curve(cell, self._objective))

    def seed_ended(self, cell: CellRecord, is_last: bool) -> None:
        """Report the final score of a finished cell to the pruner."""
        value = final_value(cell, self._objective)
        if self._kind == "wilcoxon" and value is not None:
            gives_up = self._report(value, cell.seed)
            # After the last seed, pruning saves nothing.
            if is_last and gives_up:
                self.reason = None

    def _report(self, value: float, step: int) -> bool:
        """Report a value to Optuna. Return whether the pruner rejects the trial."""
        if step in self._reported:
            return False
        self._reported.add(step)
        from optuna.exceptions import UpdateFinishedTrialError

        with without_experimental_warnings():
            try:
                # A value that was reported before a kill is not reported again.
                if step not in self._trial.study.get_trials()[self._trial.number].intermediate_values:
                    self._trial.report(value, step)
            except UpdateFinishedTrialError:
                self.is_taken, self.reason = True, "another worker, which took this one for dead, has ended the trial"
                return True
            if not self._trial.should_prune():
                return False
        what = f"seed {step}" if self._kind == "wilcoxon" else f"step {step}"
        self.reason = f"given up at {what} with {value:.3f} by the pruner ({self._kind})"
        return True
