from __future__ import annotations

import pytest

from harness.records.study import StudyRecord
from reports.search.sentences import (
    confirmed_statement,
    current_confirmation,
    headline,
    no_importance,
    search_sentence,
    warning,
)
from tests.reports.search.studies import ACCURACY, CONTRAST, TOKENS, Changes, confirmation, study_document, write_study

FAILED: Changes = {
    number: {"state": "failed", "values": None, "reason": "broke", "intermediate": []} for number in range(5)
}


def confirmed(tmp_path, **changes: object) -> StudyRecord:
    return write_study(tmp_path, study_document(20, confirmation=confirmation(7, **changes)))


def test_the_best_and_what_it_was_picked_among(tmp_path):
    study = write_study(tmp_path, study_document(20))
    statement = headline(study)
    assert statement.sentence.startswith(
        "Trial 7, the best of 13 complete: final pass@1 of arithmetic 79.6% (default 70.0%) with learning_rate = "
    )
    assert "updates_per_rollout = 2, clip_high = " in statement.sentence
    assert statement.details == [
        "20 trials: 13 complete, 6 pruned, 1 failed. Sampler tpe (n_startup_trials 5), pruner median, 1 seed per trial"
        " (0)."
    ]
    assert search_sentence(study).startswith("tune_grpo: trial 7, the best of 13 complete: ")
    assert search_sentence(study).endswith("; not confirmed: bench tune tune_grpo --confirm 6.")
    assert "\n" not in search_sentence(study)


@pytest.mark.parametrize(
    ("objective", "biased"), [(ACCURACY, "biased upwards. It was picked because it came out highest"),
                              (TOKENS | {}, "biased downwards. It was picked because it came out lowest")],
)  # fmt: skip
def test_the_winner_of_many_is_biased(tmp_path, objective, biased):
    statement = warning(write_study(tmp_path, study_document(20, objectives=1) | {"objectives": [objective]}))
    assert statement is not None
    assert f"the best of 19 trials is {biased}" in statement.sentence
    assert "bench tune tune_grpo --confirm 6 trains it and the default with 6 fresh seeds" in statement.details[0]


def test_one_trial_was_not_picked(tmp_path):
    study = write_study(tmp_path, study_document(1))
    assert warning(study) is None
    assert search_sentence(study) == (
        "tune_grpo: trial 0, the only complete one: final pass@1 of arithmetic 70.0% (the default); 1 trial: 1"
        " complete."
    )


@pytest.mark.parametrize("trials", [0, 5])
def test_nothing_to_pick_from(tmp_path, trials):
    study = write_study(tmp_path, study_document(trials, changes=FAILED))
    counted = "5 trials: 5 failed" if trials else "0 trials"
    assert headline(study).sentence == f"Nothing to pick from: {counted}."
    assert search_sentence(study) == f"tune_grpo: nothing to pick from, {counted}."
    assert warning(study) is None


def test_two_objectives(tmp_path):
    study = write_study(tmp_path, study_document(40, objectives=2))
    assert (
        "trial 7, the best of 34 complete on pass@1, of 6 trials on the front (4, 6, 7, 20, 25, 34): final pass@1 of"
        " arithmetic 79.6% at 219k generated tokens (default 70.0%)"
    ) in search_sentence(study)


def test_a_flagged_winner_says_so(tmp_path):
    study = write_study(tmp_path, study_document(20, changes={7: {"flags": ["nan"]}}))
    assert "The best trial is flagged (nan)" in headline(study).details[1]
    assert "trial 7, the best of 13 complete, flagged (nan): final pass@1" in search_sentence(study)


def test_the_objective_without_importances_is_named(tmp_path):
    document = study_document(40, objectives=2, importances_refused="all complete trials have the same tokens")
    assert no_importance(write_study(tmp_path, study_document(40))) is None
    document["importances"] = document["importances"][:1]
    assert no_importance(write_study(tmp_path, document)) == (
        "No importance of knobs for generated tokens: all complete trials have the same tokens."
    )
    document["importances"] = []
    assert no_importance(write_study(tmp_path, document)) == (
        "No importance of knobs: all complete trials have the same tokens."
    )


def test_confirmed(tmp_path):
    study = confirmed(tmp_path)
    assert study.confirmation is not None and current_confirmation(study) == study.confirmation
    statement = confirmed_statement(study.confirmation)
    assert (statement.verdict, warning(study)) == ("better", None)
    assert statement.sentence.startswith("With fresh seeds: best is better than default: +4.8 pp pass@1, 95% interval")
    assert statement.details == [
        "Picked among 20 trials, trial 7 scored 78.1% in the search and 74.3% with 6 fresh seeds and fresh samples: it"
        " shrank by 3.8 pp.",
        "As a control, the default, which nobody picked, scored 70.0% in the search and 69.5% with the same fresh"
        " seeds: it shrank by 0.5 pp.",
    ]
    assert search_sentence(study).endswith("; with 6 fresh seeds 74.3%. best beats default by +4.8 pp [+2.1, +7.5].")


def test_confirmed_without_a_control_and_without_shrinking(tmp_path):
    changes = {"confirmed_pp": 79.1, "default_search_pp": None}
    study = confirmed(tmp_path, **changes)
    assert study.confirmation is not None
    details = confirmed_statement(study.confirmation).details
    assert details[0].endswith("it grew by 1.0 pp.")
    assert details[1] == "The default was not a complete trial, so there is no control."
    study = confirmed(tmp_path, confirmed_pp=78.06)
    assert study.confirmation is not None
    assert confirmed_statement(study.confirmation).details[0].endswith("it stayed the same.")


def test_confirmed_without_a_score(tmp_path):
    contrast = CONTRAST | {"verdict": "no_test", "n_pairs": 0, "difference_pp": None}
    study = confirmed(tmp_path, confirmed_pp=None, shrinkage_pp=None, default_confirmed_pp=None, contrast=contrast)
    assert study.confirmation is not None
    statement = confirmed_statement(study.confirmation)
    assert statement.details[0].endswith(
        "78.1% in the search; with 6 fresh seeds and fresh samples no score was measured."
    )
    assert "no test, no seed has a score in both arms" in statement.sentence
    assert "; with 6 fresh seeds no score. best could not be tested: no seed" in search_sentence(study)


def test_a_default_that_won_makes_no_claim(tmp_path):
    study = write_study(tmp_path, study_document(20, changes={7: {"is_default": True}}))
    assert warning(study) is None
    assert search_sentence(study).endswith("79.6% (the default); 20 trials: 13 complete, 6 pruned, 1 failed.")


def test_a_confirmation_of_an_earlier_winner_confirms_nothing(tmp_path):
    study = write_study(tmp_path, study_document(20, confirmation=confirmation(6)))
    statement = warning(study)
    assert current_confirmation(study) is None and statement is not None
    assert statement.details[0] == "What was confirmed is trial 6; trial 7 has come out ahead since then."
    # The same setting under another number is confirmed.
    document = study_document(20, changes={7: {"same_as": 6}}, confirmation=confirmation(6))
    assert current_confirmation(write_study(tmp_path, document)) is not None
