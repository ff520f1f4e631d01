"""The tuning of arms: one search for each arm, all with the same budget, and their results.

An arm's search is like any other search. It starts from the arm's settings and is stored in a separate folder,
`<sweep>-tune-<arm>`. Its seeds are larger than those of any verdict, so that no seed is used both to choose settings
and to compare arms. Its result is written to sweep.json and stays there. So further seeds, or a copy of the folder
elsewhere, do not repeat the search.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from harness.config.search import Tune
from harness.errors import GateError, RefusedError
from harness.plan.plan import Plan, plan_arms
from harness.plan.request import SweepRequest
from harness.plan.search_plan import SearchPlan
from harness.plan.sweep_file import SweepFile
from harness.records import read_sweep
from harness.records.files import DamagedRecordError
from harness.records.study import STUDY, TrialRecord, read_study
from harness.records.sweep import TunedArm, Tuning


def search_name(sweep: str, arm: str) -> str:
    """Return the name of the search that tunes an arm. The search's folder has the same name."""
    return f"{sweep}-tune-{arm}"


def arm_searches(request: SweepRequest) -> dict[str, SearchPlan]:
    """Return the search of each requested arm, or {} if the sweep has no `tune`.

    Raises RefusedError or GateError, naming the arm, if its search is not valid.
    """
    tune = request.sweep.tune
    arms = [arm for arm in request.sweep.all_arms if not request.arms or arm in request.arms]
    return {} if tune is None else {arm: _arm_search(request, tune, arm) for arm in arms}


def _arm_search(request: SweepRequest, tune: Tune, arm: str) -> SearchPlan:
    """Return the search of one arm. Raises as `arm_searches`."""
    sweep = request.sweep
    search = tune.search(sweep.compare.metric)
    of_arm = SweepFile.model_validate(
        {
            "name": search_name(sweep.name, arm),
            "question": f"Which {', '.join(tune.per_arm)} is best for {arm} of {sweep.name}?",
            "profile": request.profile,
            "plugins": list(sweep.plugins),
            "base": sweep.base,
            "arms": {arm: sweep.all_arms[arm]},
            "search": search,
            "seeds": tune.seed_list,
        }
    )
    plan = SearchPlan(replace(request, sweep=of_arm, seeds=None, arms=(), tuned={}), search)
    try:
        plan.require_searchable()
    except (RefusedError, GateError) as error:
        raise type(error)(f"arm {arm}: {error}") from None
    return plan


def digest(plan: SearchPlan) -> str:
    """Return a digest of an arm's search and of the settings from which it starts.

    It does not cover the evaluation, because more samples in the verdict do not require another search.
    """
    departs_from = plan.spec({}, plan.seeds[0]).model_dump(mode="json", exclude={"eval"})
    asked = {
        "knobs": {knob: searched.model_dump(mode="json") for knob, searched in plan.search.knobs.items()},
        "objectives": plan.objectives,
        "trials": plan.search.budget.trials,
        "seeds": plan.seeds,
        "base": departs_from,
    }
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]


def searches_begun(plan: Plan, home: Path) -> list[str]:
    begun = [arm for arm, search in arm_searches(plan.request).items() if (search.folder(home) / STUDY).exists()]
    return list(dict.fromkeys([*plan.request.tuned, *begun]))


def with_known_tuning(plan: Plan, home: Path) -> Plan:
    """Return the plan with the results of earlier searches for its arms, and with warnings about the tuning."""
    if plan.sweep.tune is None:
        return plan
    searches = arm_searches(plan.request)
    try:
        earlier = read_sweep(plan.folder(home)).tuning
    except (FileNotFoundError, DamagedRecordError):  # the run will write it anew
        earlier = None
    known = {} if earlier is None else earlier.arms
    # The result of an arm that is not requested now is kept. That of a requested arm is kept if its search is
    # unchanged.
    found = {arm: one for arm, one in known.items() if arm not in searches or digest(searches[arm]) == one.digest}
    return with_tuning(plan, found)


def with_tuning(plan: Plan, found: Mapping[str, TunedArm]) -> Plan:
    """Return the plan with these results of its arms' searches."""
    planned = plan_arms(replace(plan.request, tuned=dict(found)))
    return replace(planned, warnings=[*planned.warnings, *_warnings(planned)])


def _warnings(plan: Plan) -> Iterator[str]:
    outside = [arm for arm, search in arm_searches(plan.request).items() if search.default_values() is None]
    if outside:
        yield (
            f"arms {', '.join(outside)}: the untuned setting lies outside tune.per_arm, so no trial has it, and the "
            "best trial may be worse. Widen the range to include it."
        )
    for arm in plan.arms:
        if arm in plan.request.tuned:
            yield from end_warnings(arm, plan.request.tuned[arm])


def end_warnings(arm: str, tuned: TunedArm) -> list[str]:
    """Return warnings about knobs whose best value is the lowest or highest one that was tried."""
    return [
        f"arm {arm}: the best {knob}, {tuned.values[knob]:.4g}, is at the end of what was tried, so a better one may "
        "lie beyond. Widen its range in tune.per_arm, or raise tune.trials."
        for knob in tuned.at_end
    ]


def in_words(values: Mapping[str, object]) -> str:
    """Return values in the form `train.learning_rate=0.0004217, rollout.temperature=1.1`."""
    return ", ".join(
        f"{knob}={value:.4g}" if isinstance(value, float) else f"{knob}={value}" for knob, value in values.items()
    )


def tuning_record(request: SweepRequest) -> Tuning | None:
    """Return the entry `tuning` of sweep.json, or None if the sweep has no `tune`."""
    tune = request.sweep.tune
    if tune is None:
        return None
    return Tuning(
        knobs=list(tune.per_arm),
        ranges={knob: searched.model_dump(mode="json", exclude_unset=True) for knob, searched in tune.per_arm.items()},
        trials=tune.trials,
        seeds=tune.seed_list,
        searches={arm: search_name(request.sweep.name, arm) for arm in request.arms or request.sweep.all_arms},
        arms=dict(request.tuned),
    )


def ended_trials(folder: Path, most: int) -> list[TrialRecord]:
    """Return the trials of a search that have ended, among its first `most`; [] if it has not begun.

    Trials that `bench tune` added later are not counted, so that each arm has the same number.
    """
    try:
        trials = read_study(folder).trials
    except FileNotFoundError:
        return []
    return [trial for trial in trials if trial.number < most and trial.state != "running"]
