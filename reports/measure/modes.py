"""Thinking modes and budgets, if a sweep evaluates a task in several: accuracy, and the tokens spent."""

from __future__ import annotations

import re

from reports.measure import Analysis, derived
from reports.measure.measurements import mean_of
from reports.report import ModeScore
from reports.statistics import MIN_PAIRS, t_interval

_MODE = re.compile(r"(direct|think)([0-9]*):")
"""The prefix of a task in a mode; see `evals.tasks.modes`."""


@derived
def mode_scores(analysis: Analysis) -> list[ModeScore]:
    """Score each arm in each mode, by task and arm. Direct answers come first, then thinking by budget, unlimited last.

    Tasks that are evaluated in a single mode are left out.
    """
    sweep = analysis.sweep
    tasks = [task for task in sweep.tasks if any(_MODE.match(other) and _own(other) == task for other in sweep.tasks)]
    found = []
    for task in tasks:
        asked = sorted((one for one in sweep.tasks if _own(one) == task), key=_place)
        for arm in sweep.arms:
            found += [score for one in asked if (score := _score(analysis, arm, one)) is not None]
    return found


def _own(task: str) -> str:
    return _MODE.sub("", task, count=1)


def _place(task: str) -> float:
    """Return the sort key of a mode: direct first, then thinking by budget, and thinking without a budget last."""
    mode, budget = _parts(task)
    return 0 if mode == "direct" else float("inf") if budget is None else budget


def _parts(task: str) -> tuple[str, int | None]:
    found = _MODE.match(task)
    if found is None:
        return "think", None
    return found[1], int(found[2]) if found[2] else None


def _score(analysis: Analysis, arm: str, task: str) -> ModeScore | None:
    measured = [one.on_task(task) for one in analysis.measurements[arm]]
    scores = [one.score_pp for one in measured if one.score_pp is not None]
    mean = mean_of(scores)
    if mean is None:
        return None
    low, high = t_interval(scores, analysis.sweep.alpha) if len(scores) >= MIN_PAIRS else (None, None)
    spent = mean_of(one.final_value("mean_tokens") for one in measured)
    mode, budget = _parts(task)
    return ModeScore(
        arm=arm,
        task=_own(task),
        asked=task,
        mode=mode,
        budget_tokens=budget,
        n=len(scores),
        mean_pp=mean,
        level=1 - analysis.sweep.alpha,
        low_pp=low,
        high_pp=high,
        tokens=spent,
    )
