"""The records of a search in addition to its cells: sweep.json, with each trial's setting as an arm, and study.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.plan import Plan
from harness.plan.search_plan import DEFAULT
from harness.records import CellRecord
from harness.records.files import write_json
from harness.records.schema import SCHEMA
from harness.records.study import STUDY, ConfirmationRecord
from harness.search.study import SearchStudy, earlier_document
from harness.search.trials import final_values, importances, spent_on

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

STATES = {"RUNNING": "running", "COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}
"""Maps Optuna's name of a trial's state to bench's."""


def arm_name(number: int) -> str:
    return f"trial_{number}"


def write_study(
    study: SearchStudy, command: str, budget: Mapping[str, object], with_importances: bool = False
) -> dict[str, object]:
    """Rewrite study.json and return it. An existing confirmation is kept. with_importances: takes a second."""
    path = study.folder / STUDY
    search = study.plan.search
    trials = study.trials()
    shares, refused = importances(study) if with_importances else ([], "the search goes on")
    earlier = earlier_document(path)
    document = {
        "schema": SCHEMA,
        "study_id": study.id,
        "sweep": study.plan.sweep.name,
        "question": study.plan.sweep.question,
        "profile": study.plan.profile,
        "command": command,
        "seeds": study.plan.seeds,
        "objectives": [
            {"metric": metric, "direction": direction.name.lower()}
            for metric, direction in zip(study.plan.objectives, study.study.directions, strict=True)
        ],
        "knobs": {
            knob: {
                "kind": searched.kind,
                "low": None if searched.choices else searched.bounds[0],
                "high": None if searched.choices else searched.bounds[1],
                "step": searched.step,
                "choices": list(searched.choices) or None,
                "when": searched.when,
            }
            for knob, searched in search.knobs.items()
        },
        "sampler": {"type": search.sampler.type, "seed": search.sampler.seed, **search.sampler.options},
        "pruner": {"type": search.pruner.type, **search.pruner.options},
        "budget": dict(budget),
        "trials": [_trial(trial, study) for trial in trials],
        "best": best_number(study),
        "front": front(study),
        "importances": shares,
        "importances_refused": refused,
        # The confirmation is written by another command, and must be kept.
        "confirmation": earlier.get("confirmation"),
    }
    write_json(path, document)
    return document


def _trial(trial: FrozenTrial, study: SearchStudy) -> dict[str, object]:
    attributes = trial.user_attrs
    records = [CellRecord.at(study.folder / "cells" / name) for name in attributes.get("cells", [])]
    spent = spent_on(trial, study.folder)
    values = list(trial.values) if trial.state.name == "COMPLETE" else None
    # `--finish` trained the trial to the end. Optuna is not told, because for Optuna the trial has ended.
    if trial.state.name == "PRUNED" and records and all(record.state == "done" for record in records):
        finished = final_values(records, study.plan.objectives)  # see `harness.search.confirm`
        values = None if isinstance(finished, str) else finished
    return {
        "number": trial.number,
        "state": STATES[trial.state.name],
        "params": dict(trial.params),
        "values": values,
        "hash": attributes.get("hash"),
        "reason": attributes.get("reason"),
        "is_default": study.is_default(trial),
        "flags": sorted({flag for record in records for flag in record.flags}),
        "intermediate": [[step, value] for step, value in sorted(trial.intermediate_values.items())],
        "duration_s": spent.seconds if records else None,
        "generated_tokens": spent.generated_tokens,
        "cells": [record.path.name for record in records],
        "same_as": attributes.get("same_as"),
    }


def front(study: SearchStudy) -> list[int]:
    """Return the number of the best complete trial, or those on the Pareto front. Repeated settings count once."""
    if len(study.plan.objectives) == 1:
        best = best_number(study)
        return [] if best is None else [best]
    return sorted(trial.number for trial in study.study.best_trials if trial.user_attrs.get("same_as") is None)


def best_number(study: SearchStudy) -> int | None:
    """Return the complete trial with the best first objective, or None if there is none.

    Ties are broken by fewer tokens, if they are an objective, and then by the lower number.
    """
    complete = [trial for trial in study.trials() if trial.state.name == "COMPLETE"]
    return max(complete, key=_merit).number if complete else None


def _merit(trial: FrozenTrial) -> tuple[float, ...]:
    """Return the sort key of trials: accuracy first, then fewer tokens, then the lower number."""
    accuracy, *tokens = trial.values
    return (accuracy, *(-few for few in tokens), -trial.number)


def write_confirmation(folder: Path, confirmation: ConfirmationRecord) -> None:
    path = folder / STUDY
    write_json(path, earlier_document(path) | {"confirmation": asdict(confirmation)})


def settings_of(trials: Sequence[FrozenTrial]) -> dict[str, dict[str, object]]:
    """Return the distinct settings that have cells, by the arm of the first trial with the setting."""
    return {
        arm_name(trial.number): dict(trial.params)
        for trial in trials
        if trial.user_attrs.get("cells") and trial.user_attrs.get("same_as") is None
    }


def plan_of_trials(study: SearchStudy) -> Plan:
    """Return a plan with the trials' settings and the default as arms.

    The default has cells only if a trial has its values.
    """
    plan = study.plan.plan({DEFAULT: {}, **settings_of(study.trials())})
    return replace(plan, cells=[cell for cell in plan.cells if cell.arm != DEFAULT])
