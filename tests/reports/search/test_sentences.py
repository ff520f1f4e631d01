from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
from tests.frozen import frozen
from tests.reports.search.studies import ACCURACY, CONTRAST, TOKENS, Changes, confirmation, study_document, write_study

FAILED: Changes = {
    number: {"state": "failed", "values": None, "reason": "broke", "intermediate": []} for number in range(5)
}
NO_SCORE: Mapping[str, Any] = {
    "confirmed_pp": None,
    "shrinkage_pp": None,
    "default_confirmed_pp": None,
    "contrast": CONTRAST | {"verdict": "no_test", "n_pairs": 0, "difference_pp": None},
}
STUDIES: Mapping[str, Mapping[str, Any]] = {
    "twenty trials": study_document(20),
    "fewest tokens": study_document(20) | {"objectives": [TOKENS]},
    "one trial": study_document(1),
    "one trial, not the default": study_document(1, changes={0: {"is_default": False}}),
    "no trial": study_document(0),
    "all failed": study_document(5, changes=FAILED),
    "two objectives": study_document(40, objectives=2),
    "a flagged winner": study_document(20, changes={7: {"flags": ["nan"]}}),
    "a default that won": study_document(20, changes={7: {"is_default": True}}),
    "confirmed": study_document(20, confirmation=confirmation(7)),
    "confirmed without a control": study_document(
        20, confirmation=confirmation(7, confirmed_pp=79.1, default_search_pp=None)
    ),
    "confirmed at the same score": study_document(20, confirmation=confirmation(7, confirmed_pp=78.06)),
    "confirmed without a score": study_document(20, confirmation=confirmation(7, **NO_SCORE)),
    "an earlier winner confirmed": study_document(20, confirmation=confirmation(6)),
}


def said(study: StudyRecord) -> list[str]:
    found = [search_sentence(study), headline(study).sentence, *headline(study).details]
    of_best = warning(study)
    if study.confirmation is not None:
        of_best = confirmed_statement(study.confirmation) if of_best is None else of_best
    return [*found, *([] if of_best is None else [of_best.sentence, *of_best.details])]


def test_the_sentences(tmp_path: Path) -> None:
    """What a search says of its best trial, whether it is confirmed, and the warning where it is not."""
    lines = []
    for name, document in STUDIES.items():
        lines += [f"# {name}", *said(write_study(tmp_path, document))]
    assert not any("\n" in line for line in lines)
    frozen("reports/search", "\n".join(lines))


@pytest.mark.parametrize(
    ("name", "is_warned"),
    [
        *((name, True) for name in ("twenty trials", "two objectives", "a flagged winner")),
        *(
            (name, False)
            for name in ("one trial", "one trial, not the default", "no trial", "all failed", "a default that won")
        ),
    ],
)
def test_a_winner_that_was_picked_and_not_confirmed_is_warned_of(tmp_path: Path, name: str, is_warned: bool) -> None:
    assert (warning(write_study(tmp_path, STUDIES[name])) is not None) == is_warned


@pytest.mark.parametrize(("objective", "way"), [(ACCURACY, "upwards"), (TOKENS, "downwards")])
def test_the_winner_of_many_is_biased(tmp_path: Path, objective: dict[str, str], way: str) -> None:
    statement = warning(write_study(tmp_path, study_document(20) | {"objectives": [objective]}))
    assert statement is not None and way in statement.sentence


def test_the_objective_without_importances_is_named(tmp_path: Path) -> None:
    document = study_document(40, objectives=2, importances_refused="all complete trials have the same tokens")
    assert no_importance(write_study(tmp_path, study_document(40))) is None
    for left in (1, 0):
        document["importances"] = document["importances"][:left]
        found = no_importance(write_study(tmp_path, document))
        assert found is not None and document["importances_refused"] in found
        assert ("for generated" in found) == (left == 1)


def test_a_confirmation_of_an_earlier_winner_confirms_nothing(tmp_path: Path) -> None:
    cases: list[tuple[int, Changes, bool]] = [(7, {}, True), (6, {}, False), (6, {7: {"same_as": 6}}, True)]
    for best, changes, is_current in cases:
        document = study_document(20, changes=changes, confirmation=confirmation(best))
        study = write_study(tmp_path, document)
        assert current_confirmation(study) == (study.confirmation if is_current else None)
        assert (warning(study) is None) == is_current
