from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import RefusedError
from reports.page.requirements import RELATIONS, judge, parse_requirement
from reports.report import BestDifference, ContrastRow
from tests.frozen import frozen
from tests.refusals import refuses
from tests.reports.rewriting import changed

BETTER = "no_std better than group_std"
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

    for relation in ("better than", "equivalent to", "not worse than"):
        assert not judged(f"no_std {relation} group_std").holds
    for relation in ("worse than", "not worse than"):
        assert not judged(f"group_std {relation} no_std").holds
    assert "-1.4, +2.0" in judged(BETTER).why
    far = changed(tuned, low_pp=1.1, high_pp=2.9, verdict="better", bests=bests(0.1, 3.0))
    settled = changed(tuned, verdict="better", bests=bests(0.1, 0.9))
    for text, row, holds in (
        (BETTER, far, True),
        ("no_std not equivalent to group_std", far, False),
        (BETTER, settled, True),
        ("group_std worse than no_std", settled, True),
        ("no_std not worse than group_std", changed(tuned, verdict="identical"), True),
    ):
        assert judged(text, row).holds is holds


@given(st.floats(-5, 5), st.floats(0, 5), st.floats(0.1, 3))
def test_not_worse_rules_out_a_loss_as_large_as_the_margin_and_turns_into_not_better(low, width, margin):
    rows = [changed(ROW, low_pp=low, high_pp=low + width, margin_pp=margin, verdict="inconclusive")]

    def holds(relation: str, arm: str = "no_std", other: str = "group_std") -> bool:
        return judge(parse_requirement(f"{arm} {relation} than {other}"), rows).holds

    assert holds("not worse") == (low > -margin)
    assert holds("not equivalent") == (low > margin or low + width < -margin)
    turned = {
        "not worse": "not better",
        "better": "worse",
        "equivalent": "equivalent",
        "not equivalent": "not equivalent",
    }
    for relation, opposite in turned.items():
        assert holds(relation) == holds(opposite, "group_std", "no_std")


def test_the_sentences_name_the_interval_and_the_margin_that_decided():
    texts = ("no_std not worse than group_std", "group_std better than batch_std", "flat not worse than group_std")
    found = [judge(parse_requirement(text), ROWS) for text in texts]
    frozen("reports/requirements", "\n".join(one.sentence for one in found))
    assert (found[1].low_pp, found[1].high_pp) == (-0.9, 2.0)


def test_nothing_holds_at_an_interim_look():
    found = judge(parse_requirement("no_std equivalent to group_std"), ROWS, "Unfinished sweep.")
    assert (found.holds, found.why) == (False, "Unfinished sweep")


@pytest.mark.parametrize(
    ("text", "code", "fields"),
    [
        ("no_std", "requirement_malformed", {}),
        ("no_std better group_std", "requirement_malformed", {}),
        ("no_std not wrose than group_std", "unknown_relation", {"relation": "not wrose"}),
        ("no_std not identical to group_std", "unknown_relation", {"relation": "not identical"}),
        ("no_sdt better than group_std", "requirement_of_unknown_arm", {"name": "no_sdt"}),
        ("no_std better than batch_std", "requirement_not_compared", {"arm": "no_std", "baseline": "batch_std"}),
    ],
)
def test_what_cannot_be_judged_is_refused_with_the_remedy(text, code, fields):
    with refuses(RefusedError, f"reports.{code}", **fields):
        judge(parse_requirement(text), ROWS)


def test_every_relation_is_tried_here():
    assert set(RELATIONS) == {"better", "worse", "equivalent", "not worse", "not better", "not equivalent"}
