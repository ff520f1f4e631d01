"""From a search to a claim: the best setting is compared with the default on fresh seeds.

The winner of many trials is biased upwards, because it was selected by its score, including luck. Fresh seeds give new
training runs and new evaluation samples, in which nothing is selected.

Pruned trials can also be trained to the end here, to see what the pruner missed, or to keep the weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from harness.errors import RefusedError
from harness.plan import Plan
from harness.plan.plan import plan_arms
from harness.plan.search_plan import DEFAULT, SearchPlan
from harness.plan.sweep_file import SweepFile
from harness.records.study import ConfirmationRecord, StudyRecord
from harness.search.records import STATES, arm_name
from harness.search.study import SearchStudy

BEST = "best"
_SCORED = ("complete", "pruned")


@dataclass(frozen=True)
class Winner:
    """The trial to confirm, with its values and score from study.json."""

    number: int
    params: dict[str, object]
    n_trials: int
    """The number of settings from which it was selected. Pruned ones count, because their scores were compared too."""
    score: float
    default_score: float | None

    @classmethod
    def of(cls, study: StudyRecord) -> Winner:
        """Return the winner of a study. Raises RefusedError if no trial is complete or the default is the best."""
        best = study.best_trial
        if best is None or best.values is None:
            raise RefusedError("search.no_complete_trial", sweep=study.sweep)
        complete = [trial for trial in study.trials if trial.state == "complete"]
        if best.is_default:
            raise RefusedError("search.default_is_best", sweep=study.sweep, trial=best.number, n_trials=len(complete))
        defaults = (trial.values[0] for trial in complete if trial.is_default and trial.values is not None)
        return cls(
            number=best.number,
            params=best.params,
            n_trials=sum(trial.state in _SCORED and trial.same_as is None for trial in study.trials),
            score=best.values[0],
            default_score=next(defaults, None),
        )


def confirmation_plan(plan: SearchPlan, winner: Winner, seeds: int) -> Plan:
    """Return a plan with the best setting and the default as two arms, on `seeds` seeds that no trial used."""
    first = max(plan.seeds) + 1
    sweep = SweepFile.model_validate(
        {
            "name": plan.confirmation_name,
            "question": f"Does the best of {winner.n_trials} trials of {plan.sweep.name} (trial {winner.number}) beat "
            "the default, with seeds that no trial had?",
            "profile": plan.profile,
            "ablate": list(plan.search.knobs),
            "base": plan.sweep.base,
            "plugins": list(plan.sweep.plugins),
            "arms": {DEFAULT: {}, BEST: winner.params},
            "seeds": list(range(first, first + seeds)),
            "compare": {
                "baseline": DEFAULT,
                "metric": plan.objectives[0],
                "margin_pp": plan.sweep.compare.margin_pp,
                "alpha": plan.sweep.compare.alpha,
                "new_problems": plan.sweep.compare.new_problems,
            },
        }
    )
    return plan_arms(replace(plan.request, sweep=sweep, seeds=None))


def confirmation(
    plan: Plan, winner: Winner, contrast: dict[str, object], means_pp: Mapping[str, float | None]
) -> ConfirmationRecord:
    """Return the entry for study.json: the comparison, and how much of the winner's score was luck.

    contrast: the contrast in the confirming sweep.
    means_pp: the mean score of each arm in that sweep.
    """
    confirmed = means_pp.get(BEST)
    return ConfirmationRecord(
        sweep=plan.sweep.name,
        trial=winner.number,
        seeds=plan.request.seed_list,
        metric=plan.metric,
        contrast=contrast,
        search_pp=100 * winner.score,
        confirmed_pp=confirmed,
        shrinkage_pp=None if confirmed is None else 100 * winner.score - confirmed,
        default_search_pp=None if winner.default_score is None else 100 * winner.default_score,
        default_confirmed_pp=means_pp.get(DEFAULT),
        n_trials=winner.n_trials,
    )


def finish_plan(study: SearchStudy, numbers: Sequence[int]) -> Plan:
    """Return a plan of these trials' cells, which continue from their checkpoints.

    Raises RefusedError for a trial that was not pruned.
    """
    trials = {trial.number: trial for trial in study.trials()}
    pruned = [number for number, trial in trials.items() if STATES[trial.state.name] == "pruned"]
    for number in numbers:
        if number not in pruned:
            state = STATES[trials[number].state.name] if number in trials else "not there"
            known = f"pruned are {', '.join(map(str, pruned))}" if pruned else "no trial was pruned"
            raise RefusedError("search.trial_not_pruned", trial=number, state=state, known=known)
    return study.plan.plan({arm_name(number): dict(trials[number].params) for number in numbers})
