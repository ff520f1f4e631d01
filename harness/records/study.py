"""The record of a search: what was searched, every trial, the best and what became of it with fresh seeds.

Whoever runs the search writes study.json from its storage; readers need no Optuna.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

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
    """What a knob was drawn from: `choices` if categorical, else `low` to `high`. `when`: other knobs and the values of
    theirs with which this one is drawn at all."""

    kind: Literal["float", "int", "log", "categorical"]
    low: float | None
    high: float | None
    step: float | None
    choices: list[object] | None
    when: dict[str, list[object]]


@dataclass(frozen=True)
class TrialRecord:
    """One setting, trained and scored. `params`: the knobs that were drawn. `values`: one per objective, None without a
    score. `hash`: None if it failed before it had a cell. `intermediate`: pairs (step, value of the first objective).
    `same_as`: an earlier trial of the same setting, whose cells this one shares."""

    number: int
    state: TrialState
    params: dict[str, Any]
    values: list[float] | None
    hash: str | None
    reason: str | None
    is_default: bool
    flags: list[str]
    intermediate: list[tuple[int, float | None]]
    duration_s: float | None
    generated_tokens: int | None
    cells: list[str]
    same_as: int | None


@dataclass(frozen=True)
class ImportanceRecord:
    """fANOVA's share of each knob in the variance of a metric over `n_trials` trials; shares sum to 1."""

    metric: str
    shares: dict[str, float]
    n_trials: int


@dataclass(frozen=True)
class BudgetRecord:
    """Where the search ends; None: no such bound."""

    trials: int | None
    tokens: int | None
    hours: float | None


@dataclass(frozen=True)
class ConfirmationRecord:
    """The best setting against the default with fresh seeds. `contrast`: a row of `contrasts` of report.json.

    Scores in percent: of the winner in the search, with fresh seeds, and by how much it shrank; of the default in the
    search (None if it was no trial) and with fresh seeds. With fresh seeds None, where no cell of an arm was measured.
    `n_trials`: among how many the winner was picked.
    """

    sweep: str
    trial: int
    seeds: list[int]
    metric: str
    contrast: dict[str, Any]
    search_pp: float
    confirmed_pp: float | None
    shrinkage_pp: float | None
    default_search_pp: float | None
    default_confirmed_pp: float | None
    n_trials: int


@dataclass(frozen=True)
class StudyRecord:
    """study.json. `best`: the number of the best complete trial, with two objectives that of the front which is best on
    the first; `front`: the numbers on the Pareto front."""

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
    front: list[int]
    importances: list[ImportanceRecord]
    importances_refused: str | None
    confirmation: ConfirmationRecord | None

    def trial(self, number: int) -> TrialRecord:
        """Raises KeyError if there is none of this number."""
        for trial in self.trials:
            if trial.number == number:
                return trial
        raise KeyError(number)

    @property
    def best_trial(self) -> TrialRecord | None:
        return None if self.best is None else self.trial(self.best)

    @property
    def default_trial(self) -> TrialRecord | None:
        """The trial of the settings as they are without a search, a complete one if there is one; else None."""
        defaults = [trial for trial in self.trials if trial.is_default]
        return next((trial for trial in defaults if trial.state == "complete"), defaults[0] if defaults else None)


def read_study(sweep: Path) -> StudyRecord:
    """The study.json in a folder `runs/<sweep>`.

    Raises FileNotFoundError if nothing was searched there, DamagedRecordError, with the file and its fault, if a field
    is missing or holds something else, and as `require_schema`.
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
        # As JSON, in which a list of two may stand for a pair although nothing else is converted.
        study = pydantic.TypeAdapter(StudyRecord).validate_json(json.dumps(raw, allow_nan=False), strict=True)
    except pydantic.ValidationError as error:
        faults = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()]
        raise _damaged(path, "; ".join(faults)) from None
    except ValueError:  # of json.dumps
        raise _damaged(path, "a number is not finite") from None
    if contradictions := _contradictions(study):
        raise _damaged(path, "; ".join(contradictions))
    return study


def _damaged(path: Path, fault: str) -> DamagedRecordError:
    return DamagedRecordError(f"{path}: is damaged: {fault}. `bench tune` writes it anew from the study's storage.")


def _contradictions(study: StudyRecord) -> list[str]:
    """Fields that are valid by themselves but contradict one another."""
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
