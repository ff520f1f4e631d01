"""The record of a search: its knobs, all trials, the best trial, and the confirmation of that trial on fresh seeds.

The search writes study.json from Optuna's storage. Readers of study.json do not need Optuna.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from harness.records.files import DamagedRecordError
from harness.records.schema import require_schema

STUDY = "study.json"

TrialState: TypeAlias = Literal["complete", "pruned", "failed", "running"]


@dataclass(frozen=True)
class ObjectiveRecord:
    metric: str
    direction: Literal["maximize", "minimize"]


@dataclass(frozen=True)
class RangeRecord:
    """The range of a searched knob: `choices` if it is categorical, otherwise `low` to `high`."""

    kind: Literal["float", "int", "log", "categorical"]
    low: float | None
    high: float | None
    step: float | None
    choices: list[object] | None
    when: dict[str, list[object]]
    """The condition for sampling this knob: the allowed values of other knobs."""


@dataclass(frozen=True)
class TrialRecord:
    """One set of knob values that was trained and scored."""

    number: int
    state: TrialState
    params: dict[str, object]
    """The sampled knobs."""
    values: list[float] | None
    """One score per objective; None if the trial was not scored."""
    hash: str | None
    """The hash of the cell; None if the trial failed before it had a cell."""
    reason: str | None
    is_default: bool
    flags: list[str]
    intermediate: list[tuple[int, float | None]]
    """Pairs (step, value of the first objective)."""
    duration_s: float | None
    generated_tokens: int | None
    cells: list[str]
    same_as: int | None
    """The number of an earlier trial with the same settings, whose cells this trial shares."""


@dataclass(frozen=True)
class ImportanceRecord:
    """The fraction of a metric's variance over `n_trials` trials that fANOVA assigns to each knob.

    The fractions sum to 1.
    """

    metric: str
    shares: dict[str, float]
    n_trials: int


@dataclass(frozen=True)
class BudgetRecord:
    """The bounds of the search. A bound that is not set is None."""

    trials: int | None
    tokens: int | None
    hours: float | None


@dataclass(frozen=True)
class ConfirmationRecord:
    """The comparison of the best setting with the default on fresh seeds. Scores are in percent.

    The scores on fresh seeds are None if no cell of that arm was evaluated.
    """

    sweep: str
    trial: int
    seeds: list[int]
    metric: str
    contrast: dict[str, object]
    """A row of `contrasts` in report.json."""
    search_pp: float
    """The score of the best trial in the search."""
    confirmed_pp: float | None
    """The score of the best trial's settings on fresh seeds."""
    shrinkage_pp: float | None
    """How much lower the score of the best settings is on fresh seeds than in the search."""
    default_search_pp: float | None
    """The score of the default settings in the search; None if they were not a trial."""
    default_confirmed_pp: float | None
    """The score of the default settings on fresh seeds."""
    n_trials: int
    """The number of trials from which the best was chosen."""


@dataclass(frozen=True)
class StudyRecord:
    sweep: str
    question: str
    profile: str
    command: str
    seeds: list[int]
    objectives: list[ObjectiveRecord]
    knobs: dict[str, RangeRecord]
    sampler: dict[str, object]
    pruner: dict[str, object]
    budget: BudgetRecord
    trials: list[TrialRecord]
    best: int | None
    """The number of the best complete trial. With two objectives, it is the trial on the Pareto front with the best
    first objective.
    """
    front: list[int]
    importances: list[ImportanceRecord]
    importances_refused: str | None
    confirmation: ConfirmationRecord | None

    def trial(self, number: int) -> TrialRecord:
        """Return the trial with this number; raise KeyError if it does not exist."""
        for trial in self.trials:
            if trial.number == number:
                return trial
        raise KeyError(number)

    @property
    def best_trial(self) -> TrialRecord | None:
        return None if self.best is None else self.trial(self.best)

    @property
    def default_trial(self) -> TrialRecord | None:
        """The trial of the unsearched settings, preferably a complete one; None if they were not a trial."""
        defaults = [trial for trial in self.trials if trial.is_default]
        return next((trial for trial in defaults if trial.state == "complete"), defaults[0] if defaults else None)


def read_study(sweep: Path) -> StudyRecord:
    """Return the study.json in a sweep's folder, `runs/<sweep>`.

    Raises FileNotFoundError if the folder contains no search. Raises DamagedRecordError, with the file and the fault,
    if a field is missing or has the wrong type. Also raises as `require_schema`.
    """
    import pydantic

    path = sweep / STUDY
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise _damaged(path, str(error)) from None
    if not isinstance(raw, dict):
        raise _damaged(path, "it holds no study")
    require_schema(path, raw)
    try:
        # The document is validated as JSON. In strict mode this accepts a list of two as a pair, but converts nothing
        # else.
        study = pydantic.TypeAdapter(StudyRecord).validate_json(json.dumps(raw, allow_nan=False), strict=True)
    except pydantic.ValidationError as error:
        faults = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()]
        raise _damaged(path, "; ".join(faults)) from None
    except ValueError:  # json.dumps refuses NaN and infinities
        raise _damaged(path, "a number is not finite") from None
    if contradictions := _contradictions(study):
        raise _damaged(path, "; ".join(contradictions))
    return study


def _damaged(path: Path, fault: str) -> DamagedRecordError:
    return DamagedRecordError("records.study_damaged", path=path, fault=fault)


def _contradictions(study: StudyRecord) -> list[str]:
    """Describe the contradictions between fields that are each valid."""
    numbers = [trial.number for trial in study.trials]
    scored = {trial.number for trial in study.trials if trial.state == "complete" and trial.values is not None}
    faults = []
    if len(set(numbers)) < len(numbers):
        faults.append("trials: a number is given twice")
    if len(study.objectives) not in (1, 2):
        faults.append(f"objectives: {len(study.objectives)}, where one or two are read")
    for trial in study.trials:
        place = f"trial {trial.number}"
        if trial.values is not None and len(trial.values) != len(study.objectives):
            faults.append(f"{place}: {len(trial.values)} values of {len(study.objectives)} objectives")
        if trial.state == "complete" and trial.values is None:
            faults.append(f"{place}: complete without values")
        if trial.same_as is not None and trial.same_as not in numbers:
            faults.append(f"{place}: the same as {trial.same_as}, which is not a trial")
        if unknown := sorted(trial.params.keys() - study.knobs.keys()):
            faults.append(f"{place}: {', '.join(unknown)} not among the knobs")
    # Only a complete trial with values can be the best or on the front.
    picked = [*study.front, *([] if study.best is None else [study.best])]
    if absent := sorted(set(picked) - scored):
        faults.append(f"best or front: {', '.join(map(str, absent))} not among the complete trials")
    if study.confirmation is not None and study.confirmation.trial not in numbers:
        faults.append(f"confirmation: there is no trial {study.confirmation.trial}")
    if study.confirmation is not None and "verdict" not in study.confirmation.contrast:
        faults.append("confirmation.contrast: lacks its verdict")
    for name, knob in study.knobs.items():
        bounds = [knob.choices] if knob.kind == "categorical" else [knob.low, knob.high]
        if not all(bound is not None for bound in bounds):
            faults.append(f"knobs.{name}: a {knob.kind} range without its bounds")
    return faults
