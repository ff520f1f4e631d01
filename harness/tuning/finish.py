"""Pruned trials that are trained to the end after all: to see what the pruner missed, or to keep the weights."""

from __future__ import annotations

from collections.abc import Sequence

from harness.errors import RefusedError
from harness.plan import Plan
from harness.tuning.records import STATES, arm_name
from harness.tuning.study import SearchStudy


def finish_plan(study: SearchStudy, numbers: Sequence[int]) -> Plan:
    """The plan of these trials' cells, which go on from their checkpoints. Raises RefusedError for trials that were not
    pruned."""
    trials = {trial.number: trial for trial in study.trials()}
    pruned = [number for number, trial in trials.items() if STATES[trial.state.name] == "pruned"]
    for number in numbers:
        if number not in pruned:
            state = STATES[trials[number].state.name] if number in trials else "not there"
            known = f"pruned are {', '.join(map(str, pruned))}" if pruned else "no trial was pruned"
            raise RefusedError(
                f"--finish names trial {number}, which is {state}: only pruned ones stopped early; {known}."
            )
    return study.plan.plan({arm_name(number): dict(trials[number].params) for number in numbers})
