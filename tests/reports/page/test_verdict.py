from __future__ import annotations

import re
from typing import Any

import pytest

from harness.words import said
from reports.measure import Analysis, analyse
from reports.page.document import report_document
from reports.page.tables import arm_table, flips_note, result_table, slope_note
from reports.page.validity import ValidityCheck, validity_checks
from reports.page.verdict import seed_sentence, statements, verdict_details, verdict_sentence
from reports.report import ContrastRow, Flip, Missing, ProblemRanges, Report
from tests.frozen import frozen
from tests.reports.rewriting import changed
from tests.reports.synthetic import Changes, write_sweep

pytestmark = pytest.mark.usefixtures("plain_report")

WRONG_STEP = "right answer, wrong step"
TOKENS = "Tokens, arm / baseline"


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    changes = {("base", seed): {"score": 0.5 + seed / 100, "generated_tokens": 200_000} for seed in range(4)}
    changes |= {
        ("up", seed): {"score": 0.53 + seed / 100 + seed % 2 / 100, "generated_tokens": 201_000} for seed in range(4)
    }
    return report_document(analyse(write_sweep(folder, {"base": 0.0, "up": 3.0}, seeds=4, changes=changes)))


SENTENCES: list[dict[str, Any]] = [
    {},
    {"verdict": "worse"},
    {"verdict": "equivalent"},
    {"verdict": "inconclusive"},
    {"verdict": "identical"},
    {"n_contrasts": 2},
    {"token_ratios": [1.3] * 4, "equal_tokens": False},
    {"token_ratios": [0.7] * 4, "equal_tokens": False},
    {"token_ratios": [0.0] * 4, "equal_tokens": False},
    {"token_ratios": [0.996, 1.002, 1.0, 1.0]},
    {"token_ratios": [1 / 3, 3.0, 1.0, 1.0], "equal_tokens": False},
    {"token_ratios": [], "token_ratio": 1.3, "equal_tokens": False},
    {"token_ratio": None, "equal_tokens": None},
    {"missing": [{"seed": 4, "reason": "base failed"}]},
    {"verdict": "inconclusive", "low_pp": None, "note": "at the floor", "noise_low_pp": None},
    {"verdict": "no_test", "n_pairs": 0},
    {"verdict": "no_test", "n_pairs": 1, "noise_low_pp": -1.0, "noise_high_pp": 7.0},
    {"verdict": "no_test", "noise_low_pp": None, "token_ratios": [1.3] * 4, "equal_tokens": False},
]
HOLM = {"level": 0.975, "n_contrasts": 2, "p_holm": 0.04, "correlation_low": None}


def test_the_sentences_and_their_details(report):
    """One of each kind, to be read; the first has every number of the verdict box."""
    (row,) = report.contrasts
    lines = [verdict_sentence(changed(row, **changes)) for changes in SENTENCES]
    missing = [Missing(seed=4, reason="base failed")]
    left: list[dict[str, Any]] = [
        {"n_pairs": 0, "verdict": "no_test", "difference_pp": None},
        {"n_pairs": 2, "verdict": "no_test", "low_pp": None, "high_pp": None},
        {"n_pairs": 3},
    ]
    more = {"missing": missing, "warnings": ["watch out"], "verdict": "equivalent", "p_holm": 0.3}
    lines += verdict_details(changed(row, **more))
    for some in left:
        lines += verdict_details(changed(row, flagged_seeds=[0, 2], without_flagged=changed(row, **some)))[:1]
    lines += verdict_details(changed(row, verdict="inconclusive", **HOLM))
    flagged = changed(report, contrasts=[changed(row, flagged_seeds=[2])])
    frozen("reports/verdict", "\n".join([*lines, seed_sentence(report), seed_sentence(flagged)]))


def test_many_correlations_are_counted_and_few_have_their_interval(report, tmp_path):
    row = changed(report.contrasts[0], correlation=0.5, correlation_low=0.1, correlation_high=0.8)
    analysis = analyse(write_sweep(tmp_path, {"base": 0.0, "up": 3.0}, seeds=1))

    def shown(*rows: ContrastRow) -> str:
        return check(analysis, changed(report, contrasts=[*rows]), "Pairing ρ").value

    assert re.findall(r"\d\.\d", shown(row, row)) == ["0.5", "0.1", "0.8"] * 2
    counted = re.findall(r"(\d+) of (\d+)", shown(row, row, row, changed(row, correlation_low=-0.1)))
    assert counted == [("3", "4")]
    assert shown(changed(row, correlation_low=None)) == "–"


def test_the_table_has_a_row_per_arm_best_first(report):
    table = result_table(report)
    assert [len(row) for row in table.rows] == [len(table.columns)] * 2
    assert table.columns[2] == WRONG_STEP
    assert table.rows[0][2] == "3%" and table.rows[0][4:] == ["0.001", "4", "better"]
    assert table.rows[1][0] == "base" and table.rows[1][2:] == ["3%", "baseline", "", "4", ""]
    numbers = [re.findall(r"[-+]?\d+\.\d", cell) for cell in (table.rows[0][3], table.rows[1][1])]
    assert numbers == [["+3.5", "+2.6", "+4.4"], ["51.5", "49.4", "53.6"]]


def test_right_answers_by_wrong_steps_stand_beside_accuracy_where_a_task_checks_steps(report):
    arms = [changed(arm, faulty_steps_frac=None) for arm in report.arms]
    unchecked = result_table(changed(report, arms=arms))
    assert WRONG_STEP not in (*unchecked.columns, *arm_table(arms).columns)
    assert WRONG_STEP in arm_table(report.arms).columns
    one = result_table(changed(report, arms=[arms[0], changed(report.arms[1], faulty_steps_frac=0.25)]))
    assert {row[0]: row[2] for row in one.rows} == {arms[0].arm: "–", arms[1].arm: "25%"}


def test_one_arm_has_nothing_to_compare(tmp_path):
    report = report_document(analyse(write_sweep(tmp_path, {"only": 0.0}, seeds=1)))
    assert [one.verdict for one in statements(report)] == ["no_test"]
    assert len(result_table(report).rows) == 1


def test_equal_scores_share_a_rank_and_an_arm_without_one_comes_last(tmp_path):
    arms = {"base": 0.0, "same": 0.0, "absent": 0.0, "low": 0.0}
    changes: dict[tuple[str, int], dict[str, object]]
    changes = {("base", 0): {"score": 0.5}, ("same", 0): {"score": 0.5}, ("low", 0): {"score": 0.25}}
    changes[("absent", 0)] = {"state": "failed"}
    report = report_document(analyse(write_sweep(tmp_path, arms, seeds=1, changes=changes)))
    assert {arm.arm: arm.rank for arm in report.arms} == {"base": 1, "same": 1, "low": 3, "absent": None}
    assert [row[0] for row in result_table(report).rows] == ["base", "same", "low", "absent"]


def test_a_p_after_holm_below_alpha_that_the_interval_does_not_bear_out_is_explained(report):
    (row,) = report.contrasts
    (detail,) = verdict_details(changed(row, verdict="inconclusive", **HOLM))
    assert verdict_details(changed(row, verdict="equivalent", **HOLM))[0] == detail
    for change in ({"p_holm": 0.051}, {"p_holm": None}, {"verdict": "better"}):
        assert verdict_details(changed(row, **{"verdict": "inconclusive", **HOLM, **change})) == []


@pytest.mark.slow
@pytest.mark.parametrize(("margin_pp", "verdict"), [(0.1, "inconclusive"), (10.0, "equivalent")])
def test_such_a_contrast_says_so_in_the_report(tmp_path, margin_pp, verdict):
    """A strong arm first lets the second, whose p lies between alpha / 2 and alpha, pass after Holm."""
    gains = {"base": [0.0] * 4, "strong": [0.2, 0.203, 0.197, 0.2], "weak": [0.01, 0.03, 0.02, 0.009]}
    changes: Changes = {
        (arm, seed): {"score": 0.5 + seed / 100 + gain} for arm, of in gains.items() for seed, gain in enumerate(of)
    }
    sweep = write_sweep(tmp_path, dict.fromkeys(gains, 0.0), seeds=4, changes=changes, margin_pp=margin_pp)
    rows: list[Any] = report_document(analyse(sweep)).contrasts
    strong, weak = rows
    assert (strong.verdict, weak.verdict) == ("better", verdict)
    assert 0.025 < weak.p_holm < 0.05 and weak.low_pp < 0
    assert not any("Holm" in detail for detail in verdict_details(strong))
    assert any("Holm" in detail for detail in verdict_details(weak))


@pytest.mark.parametrize(
    ("base", "up", "value", "ok"),
    [
        ([200_000], [202_000], "1.010", True),
        ([200_000], [260_000], "1.300", False),
        ([200_000], [0], "0.000", False),
        ([0], [200_000], "–", False),
        ([0], [0], None, True),
        ([100_000, 400_000], [200_000, 200_000], "0.500 to 2.000", False),  # of every pair, not of the means
    ],
)
def test_tokens(tmp_path, base, up, value, ok):
    arms = {"base": base, "up": up, "broken": [0] * len(up)}  # an arm without a pair does not make tokens unequal
    changes: Changes = {
        (arm, seed): {"generated_tokens": n} | ({"state": "failed"} if arm == "broken" else {})
        for arm, of in arms.items()
        for seed, n in enumerate(of)
    }
    analysis = analyse(write_sweep(tmp_path, dict.fromkeys(arms, 0.0), seeds=len(base), changes=changes))
    found = check(analysis, report_document(analysis), "Tokens" if value is None else TOKENS)
    assert found.ok is ok and value in (None, found.value)


def check(analysis: Analysis, report: Report, label: str) -> ValidityCheck:
    (found,) = (one for one in validity_checks(analysis, report) if one.label == label)
    return found


@pytest.mark.parametrize(
    ("fractions", "written"),
    [
        ([0.0031, 0.42], "0.3% to 42.0%"),
        ([0.0, 1.0], "0.0% to 100.0%"),
        ([0.12, 0.1204], "12.0%"),
        ([None, 0.5], "50.0%"),
        ([0.0003, 0.0], "0.0% to <0.1%"),
        ([None, None], None),
    ],
)
def test_both_ends_of_a_range_of_fractions_have_one_decimal(tmp_path, fractions, written):
    analysis = analyse(write_sweep(tmp_path, {"base": 0.0, "up": 1.0}, seeds=1))
    report = report_document(analysis)
    arms = [
        changed(arm, truncated_frac=fraction, grader_disagreement_frac=fraction)
        for arm, fraction in zip(report.arms, fractions, strict=True)
    ]
    report = changed(report, arms=arms)
    checks = {check.label: check.value for check in validity_checks(analysis, report)}
    for label in ("Truncated", "Graders disagree"):
        assert checks.get(label, "").partition(" of ")[0] == (written or "")


def test_pairs_that_move_apart_and_what_exceeds_its_limit_are_amber(report, tmp_path):
    analysis = analyse(write_sweep(tmp_path, {"base": 0.0, "up": 3.0}, seeds=1))
    apart = {"correlation": -0.7, "correlation_low": -0.9, "correlation_high": -0.2, "variance_ratio": 1.69}
    rows = [changed(row, **apart) for row in report.contrasts]
    arms = [changed(row, truncated_frac=0.06, grader_disagreement_frac=0.02) for row in report.arms]
    checks = {check.label: check for check in validity_checks(analysis, changed(report, contrasts=rows, arms=arms))}
    assert not checks["Pairing ρ"].ok and "1.3 ×" in checks["Pairing ρ"].value
    assert not checks["Truncated"].ok and "5%" in checks["Truncated"].limit
    assert checks["Graders disagree"].ok and checks["Settings"].ok


@pytest.mark.parametrize(("steps", "warned"), [([31, 32], 32), ([31, 100], None), ([None, None], None)])
def test_a_slope_per_100_steps_of_shorter_runs_is_called_an_extrapolation(report, steps, warned):
    cells = [changed(cell, step=step) for cell, step in zip(report.cells, steps, strict=False)]
    note = "" if warned is None else said("reports.slope_extrapolates", steps=warned)
    assert slope_note(changed(report, cells=cells)) == arm_table(report.arms, note).note == note
    unfinished = [changed(cell, state="running") for cell in cells]
    assert slope_note(changed(report, cells=unfinished)) == ""


@pytest.mark.parametrize(("beyond", "how_much"), [(True, "part"), (False, "some or all"), (None, "some or all")])
def test_a_flip_that_chance_explains_is_not_called_part_chance(report, beyond, how_much):
    ranges = [] if beyond is None else [ProblemRanges(task="t", n_problems=200, p=0.2, beyond_chance=beyond, widest=[])]
    flip = Flip(
        arm="up",
        baseline="base",
        task="t",
        problem_id="p",
        baseline_frac=0.4,
        arm_frac=0.5,
        n_seeds=4,
        difference_pp=10,
    )
    note = flips_note(changed(report, flips=[flip], problem_ranges=ranges), is_imported=False)
    assert f"; {how_much} of each change" in note and ("200" in note) == bool(ranges)
    assert flips_note(changed(report, flips=[]), is_imported=False) == ""
