"""From a screening to verdicts: the best of many arms are compared with the baseline on fresh seeds.

A screening ranks arms on a few seeds. The best of many means are partly luck, because they were selected. Fresh seeds
give new training runs and new evaluation samples, in which nothing is selected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from harness.plan import Plan
from harness.plan.plan import plan_arms
from harness.plan.sweep_file import Screening, SweepFile
from harness.records import read_sweep
from harness.records.files import DamagedRecordError

_ENDED = ("done", "failed", "invalid")


def best_arms(ranked: Sequence[str], states: Iterable[str]) -> Sequence[str]:
    """Return the arms that a screening selects, or [] until every cell has ended, because ranks could still change.

    ranked: the arms that the screening's report ranks first.
    states: the states of its cells.
    """
    return ranked if all(state in _ENDED for state in states) else []


def confirmation_name(screening: str) -> str:
    """Return the name of the sweep that confirms the best arms of a screening. The sweep's folder has the same name."""
    return f"{screening}-confirmed"


def confirming_plan(screened: Plan, screening: Screening, best: Sequence[str], home: Path) -> Plan:
    """Return the plan of a sweep of the baseline and the best arms, with seeds that the screening did not use."""
    sweep = screened.sweep
    arms = {arm: sweep.all_arms[arm] for arm in (screened.baseline, *best)}
    confirming = SweepFile.model_validate(
        {
            "name": confirmation_name(sweep.name),
            "question": f"Do the best {len(best)} of {len(screened.arms)} arms of {sweep.name} beat "
            f"{screened.baseline}, on seeds that the screening did not have?",
            "profile": screened.profile,
            "plugins": list(sweep.plugins),
            "ablate": sweep.under_test,
            "co_changes": dict(sweep.co_changes),
            "base": sweep.base,
            "arms": arms,
            "seeds": _fresh_seeds(screened, screening.seeds, set(arms), home),
            "compare": sweep.compare.model_dump(exclude={"baseline"}) | {"baseline": screened.baseline},
            "allow_noop": sweep.allow_noop,
        }
    )
    return plan_arms(replace(screened.request, sweep=confirming, seeds=None, arms=()))


def _fresh_seeds(screened: Plan, count: int, arms: set[str], home: Path) -> list[int]:
    """Return seeds above those of the screening.

    If an earlier confirmation of the same arms has enough seeds that the screening did not use, its seeds are returned.
    """
    used = screened.request.seed_list
    try:
        earlier = read_sweep(home / confirmation_name(screened.sweep.name))
    except (FileNotFoundError, DamagedRecordError):
        # The run will write a new sweep.json.
        pass
    else:
        # Reusing these seeds continues the earlier confirmation instead of training all its cells again.
        if {*earlier.arms} == arms and len(earlier.seeds) >= count and not {*earlier.seeds} & {*used}:
            return earlier.seeds
    return list(range(max(used) + 1, max(used) + 1 + count))


def record_confirmation(folder: Path, confirming: Plan, contrasts: Sequence[Mapping[str, object]]) -> None:
    """Store the verdicts on fresh seeds in the screening's record, whose page shows them first.

    contrasts: the contrasts in the confirmation's report.json.
    """
    screening = read_sweep(folder)
    if screening.screening is None:
        raise ValueError(f"{folder}: is no screening")
    found = screening.screening.model_copy(
        update={
            "seeds": len(confirming.request.seed_list),
            "confirmed_in": confirming.sweep.name,
            "contrasts": list(contrasts),
        }
    )
    screening.model_copy(update={"screening": found}).write()
