"""The tables on the page of a search."""

from __future__ import annotations

from harness.records.study import BudgetRecord, StudyRecord, TrialRecord
from harness.words import said
from reports.formats import Table, count, seconds, tokens
from reports.search.values import (
    StudyObjective,
    condition_text,
    objectives_of,
    options_text,
    param_text,
    range_text,
    short_knobs,
)


def best_table(study: StudyRecord) -> Table | None:
    """Return the best setting next to the default, knob by knob; None if there is no best setting."""
    best, default = study.best_trial, study.default_trial
    if best is None:
        return None
    compared = default if default is not None and default.number != best.number else None
    columns = ["", f"best (trial {best.number})"]
    shown = [best]
    if compared is not None:
        columns.append(f"default (trial {compared.number})")
        shown.append(compared)
    rows = [[name, *(param_text(trial.params, name) for trial in shown)] for name in study.knobs]
    rows += [[one.words, *(one.text(one.of(trial)) for trial in shown)] for one in objectives_of(study)]
    rows += [
        ["generated tokens in training", *(tokens(trial.generated_tokens) for trial in shown)],
        ["training time", *(seconds(trial.duration_s) for trial in shown)],
    ]
    if best.is_default:
        note = said("reports.best_default_itself")
    else:
        note = said("reports.default_was_not_trial") if compared is None else ""
    return Table("Best setting" + (" against the default" if compared is not None else ""), columns, rows, note)


def trials_table(study: StudyRecord) -> Table:
    """Return all trials by number, with the reason if a trial has no value."""
    objectives, short = objectives_of(study), short_knobs(study.knobs)
    columns = ["trial", "state", *(one.name for one in objectives), *short.values(), "time", "tokens", "reason"]
    rows = [
        [
            str(trial.number),
            _state(study, trial),
            *(one.text(one.of(trial)) for one in objectives),
            *(param_text(trial.params, name) for name in study.knobs),
            seconds(trial.duration_s),
            tokens(trial.generated_tokens),
            _reason(trial),
        ]
        for trial in sorted(study.trials, key=lambda trial: trial.number)
    ]
    return Table("All trials", columns, rows)


def knobs_table(study: StudyRecord) -> Table:
    """Return the knobs with their ranges and the conditions under which they are sampled."""
    rows = [[name, knob.kind, range_text(knob), condition_text(knob)] for name, knob in study.knobs.items()]
    return Table("What was searched", ["knob", "kind", "range", "drawn when"], rows)


def provenance_table(study: StudyRecord) -> Table:
    """Return the settings of the search."""
    rows = [
        ["command", study.command],
        ["profile", study.profile],
        ["objective" if len(study.objectives) == 1 else "objectives", "; ".join(map(_wish, objectives_of(study)))],
        ["sampler", options_text(study.sampler)],
        ["pruner", options_text(study.pruner)],
        ["seeds of each trial", ", ".join(map(str, study.seeds))],
        ["budget", _budget(study.budget)],
        ["spent", _spent(study)],
    ]
    return Table("Provenance", ["", "this search"], rows)


def _state(study: StudyRecord, trial: TrialRecord) -> str:
    marks = [
        *(["best"] if trial.number == study.best else []),
        *(["on the front"] if len(study.objectives) > 1 and trial.number in study.front else []),
        *(["default"] if trial.is_default else []),
        *([f"same setting as {trial.same_as}"] if trial.same_as is not None else []),
    ]
    return ", ".join([trial.state, *marks])


def _reason(trial: TrialRecord) -> str:
    flags = f"flags: {', '.join(trial.flags)}" if trial.flags else ""
    return "; ".join(text for text in (trial.reason or "", flags) if text)


def _wish(objective: StudyObjective) -> str:
    return f"{objective.metric} ({objective.wish})"


def _budget(budget: BudgetRecord) -> str:
    bounds = [
        *([] if budget.trials is None else [count(budget.trials, "trial")]),
        *([] if budget.tokens is None else [f"{tokens(budget.tokens)} tokens"]),
        *([] if budget.hours is None else [f"{budget.hours:g} hours"]),
    ]
    return ", ".join(bounds) or "no bound"


def _spent(study: StudyRecord) -> str:
    """Return the tokens and time of all trials except repeated settings, which trained nothing."""
    own = [trial for trial in study.trials if trial.same_as is None]
    generated = sum(trial.generated_tokens or 0 for trial in own)
    return said(
        "reports.generated_tokens_trials",
        generated=tokens(generated),
        own=seconds(sum(trial.duration_s or 0.0 for trial in own)),
    )
