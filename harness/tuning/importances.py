"""How much of the spread of trials each knob accounts for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.tuning.study import SearchStudy

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

FEWEST_TRIALS = 8
"""With fewer a forest of trees sees little but noise."""


def importances(study: SearchStudy) -> tuple[list[dict[str, Any]], str | None]:
    """fANOVA's shares (Hutter et al. 2014, ICML) for each objective, of the knobs that all trials have; and why
    there are none, of any objective or of some."""
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances
    from optuna.trial import TrialState

    complete = study.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if len(complete) < FEWEST_TRIALS:
        return [], f"{len(complete)} complete trials, {FEWEST_TRIALS} are needed"
    found, constant = [], []
    for place, metric in enumerate(study.plan.objectives):
        values = [trial.values[place] for trial in complete]
        if len(set(values)) == 1:
            constant.append(metric)
            continue

        def of_metric(trial: FrozenTrial, place: int = place) -> float:
            return float(trial.values[place])

        shares = get_param_importances(study.study, evaluator=FanovaImportanceEvaluator(seed=0), target=of_metric)
        found.append({"metric": metric, "shares": shares, "n_trials": len(complete)})
    return found, f"all complete trials have the same {' and the same '.join(constant)}" if constant else None
