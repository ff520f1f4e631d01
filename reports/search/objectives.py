"""What a search optimises, and how its values are written."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from harness.records.study import StudyRecord, TrialRecord
from reports.formats import MISSING, number, points, tokens

_FRACTION = re.compile(r"(pass|maj|avg|best|cons)@\w+|pass\^\w+|\w+_frac")
_COUNT = re.compile(r"\w*tokens")


@dataclass(frozen=True)
class Objective:
    """One of a study's objectives; `index` is its place in the values of trials."""

    index: int
    metric: str
    maximize: bool

    @property
    def name(self) -> str:
        """`eval.final.arithmetic.pass@1` -> `pass@1`, `generated_tokens` -> `generated tokens`."""
        return self._last.replace("_", " ")

    @property
    def words(self) -> str:
        """Name and task: `final pass@1 of arithmetic`."""
        task = self.metric.removesuffix(self._last).removeprefix("eval.final").strip(".")
        return f"final {self.name} of {task}" if task else self.name

    @property
    def unit(self) -> str:
        """To be put behind words; counts have none."""
        return " (%)" if self.is_fraction else ""

    @property
    def label(self) -> str:
        return self.words + self.unit

    @property
    def is_fraction(self) -> bool:
        """Whether values lie in [0, 1] and are shown in percent."""
        return _FRACTION.fullmatch(self._last) is not None

    @property
    def wish(self) -> str:
        return "higher is better" if self.maximize else "lower is better"

    @property
    def _last(self) -> str:
        return self.metric.rpartition(".")[2]

    def shown(self, value: float) -> float:
        """The value in the unit of the label."""
        return 100 * value if self.is_fraction else value

    def text(self, value: float | None) -> str:
        """78.1%, 120k."""
        if value is None:
            return MISSING
        if self.is_fraction:
            return f"{points(100 * value)}%"
        return tokens(value) if _COUNT.fullmatch(self._last) else number(value)

    def of(self, trial: TrialRecord) -> float | None:
        """The value of a trial as recorded; None without one."""
        return None if trial.values is None else trial.values[self.index]

    def better(self, value: float, other: float) -> bool:
        return value > other if self.maximize else value < other


def objectives_of(study: StudyRecord) -> list[Objective]:
    return [
        Objective(index, objective.metric, objective.direction == "maximize")
        for index, objective in enumerate(study.objectives)
    ]


def complete_trials(study: StudyRecord) -> Sequence[TrialRecord]:
    """Those whose values count, by number: a pruned trial's value, if it has one, is of half a training."""
    return sorted((trial for trial in study.trials if trial.state == "complete"), key=lambda trial: trial.number)
