"""The objectives and knobs of a search, and how they and their values are written."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.records.study import RangeRecord, StudyRecord, TrialRecord
from reports.formats import MISSING, number, points, tokens

_FRACTION = re.compile(r"(pass|maj|avg|best|cons)@\w+|pass\^\w+|\w+_frac")
_COUNT = re.compile(r"\w*tokens")


@dataclass(frozen=True)
class StudyObjective:
    """One of the objectives of a study."""

    index: int
    """Its index in the values of a trial."""
    metric: str
    maximize: bool

    @property
    def name(self) -> str:
        """The metric in words: `eval.final.arithmetic.pass@1` -> `pass@1`, `generated_tokens` -> `generated tokens`."""
        return self._last.replace("_", " ")

    @property
    def words(self) -> str:
        """The name and the task: `final pass@1 of arithmetic`."""
        task = self.metric.removesuffix(self._last).removeprefix("eval.final").strip(".")
        return f"final {self.name} of {task}" if task else self.name

    @property
    def unit(self) -> str:
        """The unit, to append to `words`; "" for counts."""
        return " (%)" if self.is_fraction else ""

    @property
    def label(self) -> str:
        return self.words + self.unit

    @property
    def is_fraction(self) -> bool:
        """True if values are in [0, 1]. They are shown in percent."""
        return _FRACTION.fullmatch(self._last) is not None

    @property
    def wish(self) -> str:
        return "higher is better" if self.maximize else "lower is better"

    @property
    def _last(self) -> str:
        return self.metric.rpartition(".")[2]

    def shown(self, value: float) -> float:
        """Return the value in the unit of the label."""
        return 100 * value if self.is_fraction else value

    def text(self, value: float | None) -> str:
        """Format a value: 78.1%, 120k."""
        if value is None:
            return MISSING
        if self.is_fraction:
            return f"{points(100 * value)}%"
        return tokens(value) if _COUNT.fullmatch(self._last) else number(value)

    def of(self, trial: TrialRecord) -> float | None:
        """Return the recorded value of a trial, or None if it has none."""
        return None if trial.values is None else trial.values[self.index]

    def better(self, value: float, other: float) -> bool:
        return value > other if self.maximize else value < other


def objectives_of(study: StudyRecord) -> list[StudyObjective]:
    return [
        StudyObjective(index, objective.metric, objective.direction == "maximize")
        for index, objective in enumerate(study.objectives)
    ]


def complete_trials(study: StudyRecord) -> Sequence[TrialRecord]:
    """Return the complete trials, by number.

    A pruned trial may have a value too, but from partial training, so it does not count.
    """
    return sorted((trial for trial in study.trials if trial.state == "complete"), key=lambda trial: trial.number)


VALUE_DIGITS = 4


def short_knobs(names: Iterable[str]) -> dict[str, str]:
    """Return the shortest unique ending of each dotted name: `train.learning_rate` -> `learning_rate`."""
    all_names = [*names]
    return {name: _shortest_ending(name, [other for other in all_names if other != name]) for name in all_names}


def value_text(value: object) -> str:
    """Format the value of a knob: floats with four digits, strings unchanged, anything else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return number(value, VALUE_DIGITS)
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def param_text(params: Mapping[str, object], knob: str) -> str:
    """Format the value of a trial's knob, or a dash if the trial does not have it."""
    return value_text(params[knob]) if knob in params else MISSING


def range_text(knob: RangeRecord) -> str:
    """Format the range of a knob: `0.0001 to 0.003 on a log scale`, `one of 1, 2, 4`."""
    if knob.kind == "categorical":
        return f"one of {', '.join(map(value_text, knob.choices or []))}"
    scale = {"log": " on a log scale", "int": ", whole numbers", "float": ""}[knob.kind]
    step = "" if knob.step is None else f", in steps of {number(knob.step, VALUE_DIGITS)}"
    return f"{number(knob.low, VALUE_DIGITS)} to {number(knob.high, VALUE_DIGITS)}{scale}{step}"


def condition_text(knob: RangeRecord) -> str:
    """Format the condition under which a knob is sampled: `train.updates_per_rollout is 2 or 4`, `always`."""
    conditions = [f"{other} is {' or '.join(map(value_text, values))}" for other, values in knob.when.items()]
    return " and ".join(conditions) or "always"


def options_text(plugin: Mapping[str, object]) -> str:
    """Format a plug-in with its options: {"type": "tpe", "seed": 0} -> tpe (seed 0)."""
    options = ", ".join(f"{name} {value_text(value)}" for name, value in plugin.items() if name != "type")
    name = str(plugin.get("type", MISSING))
    return f"{name} ({options})" if options else name


def _shortest_ending(name: str, others: list[str]) -> str:
    parts = name.split(".")
    for start in reversed(range(len(parts))):
        ending = ".".join(parts[start:])
        if not any(other == ending or other.endswith(f".{ending}") for other in others):
            return ending
    return name
