"""When a trial is given up: what it is told of a running cell, and what its pruner says to that."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from harness.plan.search_plan import SearchPlan
from harness.records import CellRecord
from harness.tuning.optuna_parts import without_experimental_warnings
from harness.tuning.scores import curve, final_value

if TYPE_CHECKING:
    from optuna.trial import Trial


class Pruning:
    """The pruner of one trial. `reason`: why it is given up; None while it is not. `is_taken`: it was ended elsewhere.

    median and asha are told the evaluations along the training of the first seed, which all trials have: a curve that
    went on with another seed would hide its end behind the best of its beginning. wilcoxon is told the final score of
    each seed.
    """

    def __init__(self, trial: Trial, plan: SearchPlan, lock: threading.RLock) -> None:
        self._trial, self._plan, self._lock = trial, plan, lock
        self._objective = plan.objectives[0]
        self._kind = plan.search.pruner.type
        self._seen_bytes = 0
        self._reported: set[int] = set()
        self.is_taken = False
        self.reason: str | None = None

    def is_hopeless(self, cell: CellRecord) -> bool:
        """Whether the pruner gives the trial up, after what the running cell has recorded since it was last asked."""
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
        """After a cell is done."""
        value = final_value(cell, self._objective)
        if self._kind == "wilcoxon" and value is not None:
            gives_up = self._report(value, cell.seed)
            if is_last and gives_up:  # there is nothing left to be saved
                self.reason = None

    def _report(self, value: float, step: int) -> bool:
        if step in self._reported:
            return False
        self._reported.add(step)
        from optuna.exceptions import UpdateFinishedTrialError

        with self._lock, without_experimental_warnings():
            try:
                if step not in self._told_before():
                    self._trial.report(value, step)
            except UpdateFinishedTrialError:
                self.is_taken, self.reason = True, "another worker, which took this one for dead, has ended the trial"
                return True
            if not self._trial.should_prune():
                return False
        what = f"seed {step}" if self._kind == "wilcoxon" else f"step {step}"
        self.reason = f"given up at {what} with {value:.3f} by the pruner ({self._kind})"
        return True

    def _told_before(self) -> dict[int, float]:
        """What the trial was told before a kill."""
        return self._trial.study.get_trials()[self._trial.number].intermediate_values
