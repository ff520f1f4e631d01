"""From a screening to verdicts: the best of many arms against the baseline, on fresh seeds.

A screening ranks arms on a few seeds. The highest of many means are too high, since they were picked for their luck
too; fresh seeds bring fresh training and fresh evaluation samples, and no choice among them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.plan import Plan
from harness.plan.plan import plan_arms
from harness.plan.sweep_file import Screening, SweepFile
from harness.records import read_sweep

_ENDED = ("done", "failed", "invalid")


def best_arms(report: Mapping[str, Any]) -> list[str]:
    """The arms that a screening picks, from its report.json; none before every cell has ended, since later ones could
    change the ranks."""
    if any(cell["state"] not in _ENDED for cell in report["cells"]):
        return []
    return [str(arm) for arm in report["screening"][0]["best"]]


def confirming_plan(screened: Plan, screening: Screening, best: Sequence[str]) -> Plan:
    """The baseline and the best arms as a sweep of its own, with seeds that the screening did not have."""
    sweep, first = screened.sweep, max(screened.request.seed_list) + 1
    arms = {arm: sweep.all_arms[arm] for arm in (screened.baseline, *best)}
    confirming = SweepFile.model_validate(
        {
            "name": f"{sweep.name}-confirmed",
            "question": f"Do the best {len(best)} of {len(screened.arms)} arms of {sweep.name} beat "
            f"{screened.baseline}, on seeds that the screening did not have?",
            "profile": screened.profile,
            "plugins": list(sweep.plugins),
            "ablate": sweep.under_test,
            "co_changes": dict(sweep.co_changes),
            "base": sweep.base,
            "arms": arms,
            "seeds": list(range(first, first + screening.seeds)),
            "compare": sweep.compare.model_dump(exclude={"baseline"}) | {"baseline": screened.baseline},
            "allow_noop": sweep.allow_noop,
        }
    )
    return plan_arms(replace(screened.request, sweep=confirming, seeds=None, arms=()))


def record_confirmation(folder: Path, confirming: Plan, report: Mapping[str, Any]) -> None:
    """Keep the verdicts on fresh seeds with the screening, whose page leads with them. report: of the confirmation."""
    screening = read_sweep(folder)
    if screening.screening is None:
        raise ValueError(f"{folder}: is no screening")
    found = screening.screening.model_copy(
        update={"confirmed_in": confirming.sweep.name, "contrasts": list(report["contrasts"])}
    )
    screening.model_copy(update={"screening": found}).write()
