"""A verdict on tuned arms holds for their bests, or is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.records.sweep import TunedArm, Tuning
from reports.measure.tuning import best_difference
from reports.page import write_report
from reports.page.verdict import statements
from reports.statistics import compare_paired
from tests.frozen import frozen
from tests.reports.synthetic import write_sweep

BASELINE = [80.1, 79.8, 80.3, 80.0, 79.9, 80.2]
NOTHING = {"short_pp": 0.0, "short_sd_pp": 0.0}


def arm(short_pp: float, short_sd_pp: float, **changes: Any) -> TunedArm:
    return TunedArm.model_validate(
        {
            "digest": "", "trial": 1, "values": {"train.learning_rate": 1e-4}, "search_pp": 81.0, "default_pp": 70.0,
            "complete": 7, "generated_tokens": 5000, "at_end": [], "short_pp": short_pp, "short_sd_pp": short_sd_pp,
        }
        | changes
    )  # fmt: skip


def tuning(**arms: TunedArm) -> Tuning:
    return Tuning(knobs=["train.learning_rate"], trials=8, seeds=[10**6], searches={}, arms=arms)


def of_bests(effect_pp: float, treatment: TunedArm, baseline: TunedArm, margin_pp: float = 1.0) -> tuple[Any, Any]:
    found = compare_paired(
        [score + effect_pp + 0.1 * i for i, score in enumerate(BASELINE)], BASELINE, margin=margin_pp
    )
    return found, best_difference(found, treatment, baseline, tuning(), margin_pp)


def test_searches_that_left_nothing_open_change_nothing() -> None:
    found, bests = of_bests(0.5, arm(0, 0), arm(0, 0))
    assert (bests.low_pp, bests.difference_pp, bests.high_pp) == pytest.approx(
        (found.low, found.difference, found.high)
    )
    assert found.verdict == "better" and bests.settles


@pytest.mark.parametrize(
    ("effect_pp", "margin_pp", "verdict", "treatment", "baseline", "settles"),
    [
        (0.5, 0.1, "better", (0.0, 0.1), (0.0, 0.1), True),
        (0.5, 0.1, "better", (0.0, 0.1), (0.8, 0.1), False),  # the baseline's search left more open
        (0.5, 0.1, "better", (0.8, 0.1), (0.0, 0.1), True),
        (0.5, 0.1, "better", (0.3, 0.6), (0.3, 0.1), False),  # how much is not known well enough
        (-1.0, 0.1, "worse", (0.9, 0.1), (0.0, 0.1), False),
        (-1.0, 0.1, "worse", (0.1, 0.1), (0.1, 0.1), True),
        (-0.25, 1.0, "equivalent", (0.1, 0.2), (0.1, 0.2), True),
        (-0.25, 1.0, "equivalent", (0.1, 0.6), (0.1, 0.6), False),
    ],
)
def test_what_a_search_left_open_can_undo_a_verdict(
    effect_pp: float, margin_pp: float, verdict: str, treatment: tuple[float, float], baseline: tuple[float, float],
    settles: bool,
) -> None:  # fmt: skip
    found, bests = of_bests(effect_pp, arm(*treatment), arm(*baseline), margin_pp)
    assert (found.verdict, bests.settles) == (verdict, settles)


@pytest.mark.slow
def test_the_page_says_what_was_found_what_it_cost_and_why_there_is_no_verdict(tmp_path: Path) -> None:
    found = tuning(base=arm(0.1, 0.1), up=arm(0.2, 9.0, at_end=["train.learning_rate"]))
    sweep = write_sweep(tmp_path / "records", {"base": 0.0, "up": 8.0}, tuning=json.loads(found.model_dump_json()))
    report: Any = write_report(sweep, tmp_path / "report")
    (contrast,) = report.contrasts
    assert contrast.low_pp > 0 and contrast.verdict == "inconclusive"
    rows = {row.arm: row for row in report.tuning}
    assert rows["up"].verdict_tokens == sum(c.generated_tokens or 0 for c in sweep.cells if c.arm == "up") > 0
    assert rows["up"].generated_tokens == 5000
    (statement,) = statements(report)
    table = (tmp_path / "report" / "report.md").read_text().partition("## Each arm at its best")[2].partition("##")[0]
    frozen("reports/tuning", "\n".join([statement.sentence, *statement.details, table]))
