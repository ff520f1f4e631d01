"""The result of a search in sentences, for the top of its page and the last line of `bench tune`."""

from __future__ import annotations

from typing import get_args

from harness.records.study import ConfirmationRecord, StudyRecord, TrialRecord, TrialState
from harness.words import said
from reports.formats import count, points
from reports.page.headline import answer
from reports.page.verdict import Statement, verdict_sentence
from reports.report import ContrastRow
from reports.search.values import StudyObjective, complete_trials, objectives_of, options_text, short_knobs, value_text

CONFIRM_SEEDS = 6


def search_statements(study: StudyRecord) -> list[Statement]:
    """Return the top of the page: the best setting, and its confirmed verdict or the warning that it is unconfirmed."""
    confirmed = current_confirmation(study)
    found = [headline(study), None if confirmed is None else confirmed_statement(confirmed), warning(study)]
    return [statement for statement in found if statement is not None]


def search_sentence(study: StudyRecord) -> str:
    """Return one line with the best setting, its value, the trials by state, and the confirmation by fresh seeds."""
    best = study.best_trial
    if best is None:
        return said("reports.nothing_pick_from", sweep=study.sweep, count_states=count_states(study))
    parts = [f"{study.sweep}: {_picked(study, best)}", count_states(study)]
    confirmed = current_confirmation(study)
    if confirmed is not None:
        fresh = f"with {count(len(confirmed.seeds), 'fresh seed')}"
        score = "no score" if confirmed.confirmed_pp is None else f"{points(confirmed.confirmed_pp)}%"
        return f"{'; '.join([*parts, f'{fresh} {score}'])}. {answer([confirmed_contrast(confirmed)])}"
    if _is_picked_among_several(study):
        parts.append(f"not confirmed: {confirm_command(study)}")
    return "; ".join(parts) + "."


def headline(study: StudyRecord) -> Statement:
    """Return the statement on the best setting, the trials that it was picked from, and the sampler and pruner."""
    search = said(
        "reports.sampler_pruner_per_trial",
        options_text=options_text(study.sampler),
        options_text_2=options_text(study.pruner),
        n_seeds=count(len(study.seeds), "seed"),
        seeds=", ".join(map(str, study.seeds)),
    )
    best = study.best_trial
    if best is None:
        return Statement(
            "careful", said("reports.nothing_pick_from_headline", count_states=count_states(study)), [search]
        )
    details = [f"{count_states(study)}. {search}"]
    if best.flags:
        details.append(said("reports.best_trial_flagged_look", flags=", ".join(best.flags)))
    sentence = _picked(study, best)
    return Statement("best", f"{sentence[:1].upper()}{sentence[1:]}.", details)


def warning(study: StudyRecord) -> Statement | None:
    """Warn that a winner's score is biased, and say how to confirm it; None if there is nothing to confirm."""
    if not _is_picked_among_several(study) or current_confirmation(study) is not None:
        return None
    objective = objectives_of(study)[0]
    # Count pruned trials too: they also lost because of their scores.
    n = sum(trial.state in ("complete", "pruned") and trial.same_as is None for trial in study.trials)
    details = [
        said("reports.trains_default_fresh_seeds", confirm_command=confirm_command(study), confirm_seeds=CONFIRM_SEEDS)
    ]
    if study.confirmation is not None:
        earlier = study.confirmation.trial
        details.insert(0, said("reports.what_was_confirmed_trial", earlier=earlier, best=study.best))
    return Statement(
        "careful",
        said(
            "reports.not_yet_claim_best",
            n=n,
            words="upwards" if objective.maximize else "downwards",
            words_2="highest" if objective.maximize else "lowest",
        ),
        details,
    )


def confirmed_statement(confirmed: ConfirmationRecord) -> Statement:
    """Return the verdict of the paired comparison, and how far the scores of winner and default shrank."""
    fresh = count(len(confirmed.seeds), "fresh seed")
    shrank = said(
        "reports.picked_among_trial_scored",
        n_trials=count(confirmed.n_trials, "trial"),
        trial=confirmed.trial,
        scores=_scores(confirmed.search_pp, confirmed.confirmed_pp, f"{fresh} and fresh samples"),
    )
    control = (
        said("reports.default_was_not_complete")
        if confirmed.default_search_pp is None
        else said(
            "reports.as_control_default_which",
            scores=_scores(confirmed.default_search_pp, confirmed.default_confirmed_pp, "the same fresh seeds"),
        )
    )
    contrast = confirmed_contrast(confirmed)
    return Statement(
        contrast.verdict,
        f"With fresh seeds: {verdict_sentence(contrast)}",
        [shrank, control],
    )


def confirmed_contrast(confirmed: ConfirmationRecord) -> ContrastRow:
    """Return the comparison of the best setting with the default, as in the report of the confirming sweep."""
    return ContrastRow.model_validate(confirmed.contrast)


def current_confirmation(study: StudyRecord) -> ConfirmationRecord | None:
    """Return the confirmation if it confirms the setting that is best now; otherwise None."""
    confirmed = study.confirmation
    if confirmed is None or study.best is None:
        return None
    # Two trials have the same setting if one repeats the other, or if both repeat a third.
    same = {study.best, study.trial(study.best).same_as}
    return confirmed if {confirmed.trial, study.trial(confirmed.trial).same_as} & (same - {None}) else None


def confirm_command(study: StudyRecord) -> str:
    return f"{study.command} --confirm {CONFIRM_SEEDS}"


def count_states(study: StudyRecord) -> str:
    """Count the trials by state: 20 trials: 16 complete, 3 pruned, 1 failed."""
    counts = {state: sum(trial.state == state for trial in study.trials) for state in get_args(TrialState)}
    states = ", ".join(f"{n} {state}" for state, n in counts.items() if n)
    return f"{count(len(study.trials), 'trial')}{f': {states}' if states else ''}"


def no_importance(study: StudyRecord) -> str | None:
    """Explain why the importance of knobs is missing and for which objective; None if it was not refused."""
    if study.importances_refused is None:
        return None
    shown = {found.metric for found in study.importances}
    missing = [objective.words for objective in objectives_of(study) if objective.metric not in shown]
    which = f" for {' and '.join(missing)}" if shown else ""
    return said("reports.no_importance_knobs", which=which, importances_refused=study.importances_refused)


def _setting(study: StudyRecord, trial: TrialRecord) -> str:
    """Return the knobs of a trial: learning_rate = 0.0012, temperature = 0.9."""
    short = short_knobs(study.knobs)
    return ", ".join(f"{short[knob]} = {value_text(value)}" for knob, value in trial.params.items())


def _picked(study: StudyRecord, best: TrialRecord) -> str:
    first, *others = objectives_of(study)
    n = len(complete_trials(study))
    values = f"{first.words} {first.text(first.of(best))}"
    if others:
        values += f" at {others[0].text(others[0].of(best))} {others[0].words}"
    picked = f"trial {best.number}, {'the only complete one' if n == 1 else f'the best of {n} complete'}"
    if others:
        picked += said("reports.on_on_front", name=first.name, n_front=count(len(study.front), "trial"))
        picked += f" ({', '.join(map(str, sorted(study.front)))})"
    if best.flags:
        picked += f", flagged ({', '.join(best.flags)})"
    where = " (the default)" if best.is_default else f"{_default_value(study, first)} with {_setting(study, best)}"
    return f"{picked}: {values}{where}"


def _default_value(study: StudyRecord, objective: StudyObjective) -> str:
    default = study.default_trial
    if default is None or default.state != "complete":
        return ""
    return f" (default {objective.text(objective.of(default))})"


def _is_picked_among_several(study: StudyRecord) -> bool:
    """Return whether the best of several trials beat the default, which is then a claim to confirm."""
    best = study.best_trial
    return best is not None and not best.is_default and len(complete_trials(study)) > 1


def _scores(search_pp: float, confirmed_pp: float | None, fresh: str) -> str:
    """Return a score in the search and with fresh seeds, and the change between them."""
    if confirmed_pp is None:
        return said("reports.search_no_score_was", search_pp=points(search_pp), fresh=fresh)
    shrinkage_pp = search_pp - confirmed_pp
    # Compare as written. Otherwise the sentence could report a shrinkage of 0.0 pp.
    if points(abs(shrinkage_pp)) == points(0.0):
        change = "stayed the same"
    else:
        change = f"{'shrank' if shrinkage_pp > 0 else 'grew'} by {points(abs(shrinkage_pp))} pp"
    return said(
        "reports.search", search_pp=points(search_pp), confirmed_pp=points(confirmed_pp), fresh=fresh, change=change
    )
