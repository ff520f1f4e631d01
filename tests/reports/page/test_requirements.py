from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import RefusedError
from reports.page.requirements import RELATIONS, judge, parse_requirement
from reports.report import BestDifference, ContrastRow
from tests.reports.rewriting import changed

ROW = ContrastRow(
    arm="no_std", baseline="group_std", low_pp=-0.5, high_pp=0.8, margin_pp=1.0, level=0.975, verdict="equivalent"
)
OTHER = changed(ROW, arm="batch_std", verdict="inconclusive", low_pp=-2.0, high_pp=0.9)
SAME = changed(ROW, arm="same", verdict="identical", low_pp=0.0, high_pp=0.0)
UNKNOWN = changed(ROW, arm="flat", verdict="inconclusive", low_pp=None, high_pp=None, note="no spread")
FAR = changed(ROW, arm="far", verdict="better", low_pp=1.1, high_pp=2.0)
ROWS = [ROW, OTHER, SAME, UNKNOWN, FAR]


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("no_std not worse than group_std", True),
        ("no_std is not worse than group_std", True),
        ("no_std not better than group_std", True),
        ("no_std equivalent to group_std", True),
        ("no_std not equivalent to group_std", False),
        ("no_std better than group_std", False),
        ("no_std worse than group_std", False),
        ("batch_std not worse than group_std", False),
        ("batch_std not better than group_std", True),
        ("batch_std inconclusive against group_std", True),
        ("group_std not better than batch_std", False),
        ("group_std not worse than batch_std", True),
        ("same identical to group_std", True),
        ("same not worse than group_std", True),
        ("same better than group_std", False),
        ("no_std identical to group_std", False),
        ("flat not worse than group_std", False),
        ("flat equivalent to group_std", False),
        ("flat not equivalent to group_std", False),
        ("same not equivalent to group_std", False),
        ("far not equivalent to group_std", True),
        ("group_std not equivalent to far", True),
    ],
)
def test_what_a_verdict_is_required_to_be(text, holds):
    assert judge(parse_requirement(text), ROWS).holds is holds


def bests(low_pp: float, high_pp: float) -> BestDifference:
    return BestDifference(trials=12, difference_pp=(low_pp + high_pp) / 2, low_pp=low_pp, high_pp=high_pp)


def test_arms_that_were_tuned_must_be_so_related_at_their_bests_too():
    """A verdict that the search alone may have made is inconclusive, and nothing is required of it with success."""
    tuned = changed(ROW, low_pp=0.2, high_pp=0.8, verdict="inconclusive", bests=bests(-1.4, 2.0))

    def judged(text: str, row=tuned):
        return judge(parse_requirement(text), [row])

    for text in ("no_std better than group_std", "no_std equivalent to group_std", "no_std not worse than group_std"):
        assert not judged(text).holds
    assert not judged("group_std worse than no_std").holds
    assert not judged("group_std not worse than no_std").holds
    assert judged("no_std better than group_std").why == (
        "the 97.5% interval between the arms' bests [-1.4, +2.0] pp does not lie above 0"
    )
    far = changed(tuned, low_pp=1.1, high_pp=2.9, verdict="better", bests=bests(0.1, 3.0))
    assert judged("no_std better than group_std", far).holds
    assert not judged("no_std not equivalent to group_std", far).holds
    settled = changed(tuned, verdict="better", bests=bests(0.1, 0.9))
    assert judged("no_std better than group_std", settled).holds
    assert judged("group_std worse than no_std", settled).holds
    assert judged("no_std not worse than group_std", changed(tuned, verdict="identical")).holds


@given(st.floats(-5, 5), st.floats(0, 5), st.floats(0.1, 3))
def test_not_worse_rules_out_a_loss_as_large_as_the_margin_and_turns_into_not_better(low, width, margin):
    rows = [changed(ROW, low_pp=low, high_pp=low + width, margin_pp=margin, verdict="inconclusive")]

    def holds(text: str) -> bool:
        return judge(parse_requirement(text), rows).holds

    assert holds("no_std not worse than group_std") == (low > -margin)
    assert holds("no_std not equivalent to group_std") == (low > margin or low + width < -margin)
    turned = {
        "not worse": "not better",
        "better": "worse",
        "equivalent": "equivalent",
        "not equivalent": "not equivalent",
    }
    for relation, opposite in turned.items():
        assert holds(f"no_std {relation} than group_std") == holds(f"group_std {opposite} than no_std")


def test_the_interval_and_the_margin_that_decided_are_said():
    assert judge(parse_requirement("no_std not worse than group_std"), ROWS).sentence == (
        "holds: no_std not worse than group_std: the 97.5% interval [-0.5, +0.8] pp lies above -1 pp."
    )
    turned = judge(parse_requirement("group_std better than batch_std"), ROWS)
    assert turned.sentence.endswith("the 97.5% interval [-0.9, +2.0] pp does not lie above 0.")
    assert (turned.low_pp, turned.high_pp) == (-0.9, 2.0)
    flat = judge(parse_requirement("flat not worse than group_std"), ROWS)
    assert flat.sentence.endswith("there is no interval to judge by: no spread.")


def test_nothing_holds_at_an_interim_look():
    found = judge(
        parse_requirement("no_std equivalent to group_std"), ROWS, "Unfinished sweep: 3 of 4 cells have ended."
    )
    assert (found.holds, found.why) == (False, "Unfinished sweep: 3 of 4 cells have ended")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("no_std", "must be ARM RELATION"),
        ("no_std better group_std", "must be ARM RELATION"),
        ("no_std not wrose than group_std", "did you mean not worse"),
        ("no_std not identical to group_std", "unknown relation"),
        ("no_sdt better than group_std", "unknown arm 'no_sdt'; did you mean no_std"),
        ("no_std better than batch_std", "does not compare no_std with batch_std; it compares no_std with group_std"),
    ],
)
def test_what_cannot_be_judged_is_refused_with_the_remedy(text, told):
    with pytest.raises(RefusedError, match="--require") as refused:
        judge(parse_requirement(text), ROWS)
    assert told in str(refused.value)


def test_every_relation_is_tried_here():
    assert set(RELATIONS) == {"better", "worse", "equivalent", "not worse", "not better", "not equivalent"}
