"""At which level a look is judged, from the looks that the records count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.records import SweepRecord, read_sweep
from harness.records.looks import Evaluation, Look, PlannedLooks
from reports.measure import analyse
from reports.measure.contrasts import compare_arms
from reports.measure.looks import looking
from reports.measure.measurements import read_measurements
from reports.page.document import report_document
from reports.page.tables import contrast_table, result_table
from reports.page.verdict import statements
from reports.statistics import Verdict
from tests.reports.synthetic import write_sweep

U: Verdict = "inconclusive"
SIXTEEN = Evaluation(samples=16)
ARMS = {"base": 0.0, "up": 0.2}


def look(n: int, evaluation: Evaluation = SIXTEEN, *, planned: bool = False, question: str = "this") -> Look:
    return Look(question=question, seeds=list(range(n)), evaluation=evaluation, planned=planned)


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> SweepRecord:
    return write_sweep(tmp_path_factory.mktemp("sweep"), ARMS, seeds=6, asks="this", evaluation={"samples": 16})


def alpha(record: SweepRecord, looks: list[Look], n: int, **changed: Any) -> float:
    return looking(record.model_copy(update={"looks": looks, "seeds": list(range(n)), **changed}), 1).alpha


@pytest.mark.slow
def test_the_first_look_has_all_of_alpha_and_each_further_one_half_of_what_remains(record: SweepRecord) -> None:
    assert alpha(record, [], 12) == alpha(record, [look(12)], 12) == 0.05
    second = alpha(record, [look(12)], 24)
    assert 0.0125 < second < 0.025
    assert alpha(record, [look(12), look(24)], 24) == second
    # What was seen first is no longer the only look, and counts at its share.
    assert alpha(record, [look(12), look(24)], 12) == 0.025
    assert alpha(record, [look(12), look(24)], 48) < second


def test_more_samples_are_a_further_look_by_bonferroni_and_another_question_is_none(record: SweepRecord) -> None:
    assert alpha(record, [look(12)], 12, evaluation=Evaluation(samples=64)) == 0.0125
    assert alpha(record, [look(12, question="another")], 24) == 0.05


def test_other_arms_or_tasks_with_a_contrast_of_this_question_evade_no_look(record: SweepRecord) -> None:
    """Asked with fewer arms, or with more tasks, it is another question about the same numbers."""
    now = {"contrasts": ["up"]}
    both = look(12, question="two arms").model_copy(update={"contrasts": ["up", "down"], "planned": True})
    other = both.model_copy(update={"contrasts": ["down", "sideways"]})
    assert alpha(record, [other], 24, **now) == 0.05
    second = alpha(record, [both], 24, **now)
    assert 0.0125 / 2 < second < 0.025 / 2
    # The same seeds, evaluated alike, show nothing new, but the arms that are left were chosen.
    assert alpha(record, [both], 12, **now) == 0.025
    assert alpha(record, [look(12), both], 12, **now) == 0.05


@pytest.mark.slow
def test_a_design_shares_all_of_alpha_among_its_looks_and_looks_beyond_it_cost_half(record: SweepRecord) -> None:
    plan = PlannedLooks(question="this", looks=[6, 12, 24], seeds=[*range(24)], evaluation=SIXTEEN, looks_before=0)
    first = alpha(record, [], 6, designs=[plan])
    assert 0.004 < first < 0.01
    assert alpha(record, [look(6, planned=True)], 12, designs=[plan]) < 0.05
    beyond = [look(6, planned=True), look(12, planned=True), look(24, planned=True)]
    assert alpha(record, beyond, 6, designs=[plan]) == pytest.approx(first)
    assert 0.0125 < alpha(record, beyond, 48, designs=[plan]) < 0.025
    # Fixed only after a look, it has a quarter.
    late = plan.model_copy(update={"looks_before": 1})
    assert alpha(record, [look(8)], 6, designs=[late]) == pytest.approx(first / 4)


def test_the_verdict_stands_at_the_level_of_its_look(record: SweepRecord) -> None:
    measured = read_measurements(record)
    (once,) = compare_arms(record, measured)
    again = record.model_copy(update={"looks": [look(4)]})
    (twice,) = compare_arms(again, measured)
    assert once.comparison is not None and twice.comparison is not None
    assert once.comparison.alpha == 0.05
    assert twice.comparison.alpha == looking(again, 1).alpha < 0.025
    assert twice.comparison.low < once.comparison.low


def test_p_values_say_that_they_count_one_look(record: SweepRecord) -> None:
    """Intervals and verdicts stand at the boundary of the look, but p and Holm's p do not."""
    first, second = (analyse(record.model_copy(update={"looks": looks})) for looks in ([], [look(4)]))
    once, twice = report_document(first), report_document(second)
    assert once.contrasts[0].p_holm == twice.contrasts[0].p_holm
    for report, end in ((once, ""), (twice, "look 2.")):
        tables = [result_table(report), contrast_table(report.contrasts)]
        assert [table.note[-7:] for table in tables if table is not None] == [end] * 2
    assert "(one look)" in statements(twice)[0].sentence and "(one look)" not in statements(once)[0].sentence


@pytest.mark.parametrize(
    ("state", "verdict", "counts"),
    [("done", U, True), ("failed", U, True), ("pending", U, False), ("done", "no_test", False)],
)
def test_a_look_is_counted_once_when_a_complete_plan_with_a_test_is_shown(
    tmp_path: Path, state: str, verdict: Verdict, counts: bool
) -> None:
    record = write_sweep(tmp_path / "mine", ARMS, seeds=4, changes={("up", 2): {"state": state}})
    record.record_look({"up": verdict})
    record.record_look({"up": verdict})
    assert [one.verdicts for one in read_sweep(record.path).looks] == [{"up": verdict}] * counts
