from __future__ import annotations

from typing import Any

import pytest

from reports.measure import analyse
from reports.page.document import report_document
from reports.page.tables import arm_table, result_table
from reports.page.validity import ValidityCheck, validity_checks
from reports.page.verdict import SEED_SENTENCE, seed_sentence, statements, verdict_details, verdict_sentence
from reports.report import ContrastRow, Missing
from tests.reports.rewriting import changed
from tests.reports.synthetic import Changes, write_sweep

pytestmark = pytest.mark.usefixtures("plain_report")

WITHIN = "within 5% in every pair"


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    changes = {("base", seed): {"score": 0.5 + seed / 100, "generated_tokens": 200_000} for seed in range(4)}
    changes |= {
        ("up", seed): {"score": 0.53 + seed / 100 + seed % 2 / 100, "generated_tokens": 201_000} for seed in range(4)
    }
    return report_document(analyse(write_sweep(folder, {"base": 0.0, "up": 3.0}, seeds=4, changes=changes)))


def test_the_sentence_holds_every_number_of_the_verdict_box(report):
    (statement,) = statements(report)
    assert statement.sign == "▲"
    assert statement.sentence == (
        "up is better than base: +3.5 pp pass@1, 95% interval [+2.6, +4.4], p = 0.001, n = 4 pairs,"
        " at equal tokens (within 0.5%); detectable effect 1.2 pp."
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"verdict": "worse"}, "up is worse than base"),
        ({"verdict": "equivalent"}, "up is equivalent to base within 1 pp"),
        ({"verdict": "inconclusive"}, "up against base is inconclusive"),
        ({"verdict": "identical"}, "the final weights of all n = 4 pairs are equal, at equal tokens"),
        ({"n_contrasts": 2}, "p = 0.001 after Holm"),
        ({"token_ratios": [1.3] * 4, "equal_tokens": False}, "NOT at equal tokens (30.0% more than base)"),
        ({"token_ratios": [0.7] * 4, "equal_tokens": False}, "NOT at equal tokens (30.0% fewer than base)"),
        ({"token_ratios": [0.0] * 4, "equal_tokens": False}, "NOT at equal tokens (100.0% fewer than base)"),
        ({"token_ratios": [0.996, 1.002, 1.0, 1.0]}, "at equal tokens (within 0.4%)"),
        (
            {"token_ratios": [1 / 3, 3.0, 1.0, 1.0], "equal_tokens": False},
            "NOT at equal tokens (pairs from 66.7% fewer to 200.0% more than base)",
        ),
        (
            {"token_ratios": [], "token_ratio": 1.3, "equal_tokens": False},
            "NOT at equal tokens (30.0% more than base)",
        ),
        ({"token_ratio": None, "equal_tokens": None}, "tokens not compared: base generated none"),
        ({"missing": [{"seed": 4, "reason": "base failed"}]}, "n = 4 of 5 pairs"),
        (
            {"verdict": "inconclusive", "low_pp": None, "note": "at the floor", "noise_low_pp": None},
            "is inconclusive: +3.5 pp pass@1; at the floor; n = 4 pairs, at equal tokens",
        ),
        ({"verdict": "no_test", "n_pairs": 0}, "no seed has a score in both arms"),
        (
            {"verdict": "no_test", "n_pairs": 1, "noise_low_pp": -1.0, "noise_high_pp": 7.0},
            "[-1.0, +7.0] from evaluation noise alone, which does not include training variance; n = 1 pair,"
            " at equal tokens (within 0.5%).",
        ),
        (
            {"verdict": "no_test", "noise_low_pp": None, "token_ratios": [1.3] * 4, "equal_tokens": False},
            "NOT at equal",
        ),
    ],
)
def test_sentences_of_other_verdicts(report, changes, words):
    assert words in verdict_sentence(changed(report.contrasts[0], **changes))


def test_details_name_missing_pairs_flags_and_warnings(report):
    contrast = changed(
        report.contrasts[0],
        missing=[Missing(seed=4, reason="base failed")],
        flagged_seeds=[2],
        without_flagged=changed(report.contrasts[0], n_pairs=3),
        warnings=["watch out"],
        verdict="equivalent",
        p_holm=0.3,
    )
    details = verdict_details(contrast)
    assert details[0] == "Seed 4 has no pair: base failed."
    assert details[1].startswith("Without the flagged seeds (2): +3.5 pp") and details[1].endswith("n = 3.")
    assert details[2] == "Equivalence: two one-sided tests at 2.5%, which is conservative."
    assert details[3] == "watch out."


@pytest.mark.parametrize(
    ("left", "words"),
    [
        ({"n_pairs": 0, "verdict": "no_test", "difference_pp": None}, "(0, 2): no pair is left."),
        (
            {"n_pairs": 2, "verdict": "no_test", "low_pp": None, "high_pp": None},
            "(0, 2): +3.5 pp, no test below 3 seeds, n = 2.",
        ),
        ({"n_pairs": 3}, "(0, 2): +3.5 pp [+2.6, +4.4], better, n = 3."),
    ],
)
def test_without_flagged_seeds_as_many_words_as_pairs_are_left(report, left, words):
    (contrast,) = report.contrasts
    detail, *_ = verdict_details(changed(contrast, flagged_seeds=[0, 2], without_flagged=changed(contrast, **left)))
    assert detail == f"Without the flagged seeds {words}"


def test_a_flagged_cell_brings_what_a_collapse_does_to_the_interval(report):
    assert seed_sentence(report) == SEED_SENTENCE
    flagged = changed(report, contrasts=[changed(row, flagged_seeds=[2]) for row in report.contrasts])
    assert "only about 65%, 48% and 64% of sweeps" in seed_sentence(flagged)


def test_many_correlations_are_counted_and_few_have_their_interval(report, tmp_path):
    row = changed(report.contrasts[0], correlation=0.5, correlation_low=0.1, correlation_high=0.8)
    analysis = analyse(write_sweep(tmp_path, {"base": 0.0, "up": 3.0}, seeds=1))

    def shown(rows: list[ContrastRow]) -> str:
        checks = validity_checks(analysis, changed(report, contrasts=rows))
        return next(check.value for check in checks if check.label == "Pairing ρ")

    assert shown([row] * 2) == "0.5 [0.1, 0.8]; 0.5 [0.1, 0.8] (95% intervals)"
    assert shown([row] * 3 + [changed(row, correlation_low=-0.1)]) == "clearly not 0 in 3 of 4 contrasts"
    assert shown([changed(row, correlation_low=None)]) == "–"


def test_an_arm_without_a_pair_does_not_make_tokens_unequal(tmp_path):
    tokens = {"generated_tokens": 200_000}
    changes: Changes = {("base", 0): tokens, ("up", 0): tokens, ("broken", 0): {"state": "failed"}}
    sweep = write_sweep(tmp_path / "one", {"base": 0.0, "up": 1.0, "broken": 0.0}, seeds=1, changes=changes)
    analysis = analyse(sweep)
    report = report_document(analysis)
    assert result_table(report).title.endswith("at equal tokens (200k generated)")
    assert ValidityCheck("Tokens, arm / baseline", "1.000", True, WITHIN) in validity_checks(analysis, report)
    nothing = write_sweep(tmp_path / "none", {"base": 0.0, "broken": 0.0}, seeds=1, changes=changes)
    assert result_table(report_document(analyse(nothing))).title == "pass@1 of arithmetic"


def test_the_table_has_a_row_per_arm_best_first(report):
    table = result_table(report)
    assert table.title == "pass@1 of arithmetic at equal tokens (200k generated)"
    assert [len(row) for row in table.rows] == [len(table.columns)] * 2
    assert table.columns[2] == "right answer, wrong step"
    assert table.rows[0][2:] == ["3%", "+3.5 [+2.6, +4.4]", "0.001", "4", "better"]
    assert table.rows[1] == ["base", "51.5 [49.4, 53.6]", "3%", "baseline", "", "4", ""]


def test_right_answers_by_wrong_steps_stand_beside_accuracy_where_a_task_checks_steps(report):
    arms = [changed(arm, faulty_steps_frac=None) for arm in report.arms]
    unchecked = result_table(changed(report, arms=arms))
    assert "right answer, wrong step" not in (*unchecked.columns, *arm_table(arms).columns)
    assert "right answer, wrong step" in arm_table(report.arms).columns
    one = result_table(changed(report, arms=[arms[0], changed(report.arms[1], faulty_steps_frac=0.25)]))
    assert {row[0]: row[2] for row in one.rows} == {arms[0].arm: "–", arms[1].arm: "25%"}


def test_one_arm_has_nothing_to_compare(tmp_path):
    report = report_document(analyse(write_sweep(tmp_path, {"only": 0.0}, seeds=1)))
    assert [one.sentence for one in statements(report)] == ["One arm, only: nothing to compare."]
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
    numbers = {"level": 0.975, "n_contrasts": 2, "p_holm": 0.04, "correlation_low": None}
    contrast = changed(report.contrasts[0], verdict="inconclusive", **numbers)
    (detail,) = verdict_details(contrast)
    assert detail.startswith("p is below 0.05 after Holm") and "the verdict follows the interval" in detail
    assert verdict_details(changed(contrast, verdict="equivalent"))[0] == detail
    for change in ({"p_holm": 0.051}, {"p_holm": None}, {"verdict": "better"}):
        assert verdict_details(changed(contrast, **change)) == []


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
    assert any(detail.startswith("p is below 0.05 after Holm") for detail in verdict_details(weak))


@pytest.mark.parametrize(
    ("base", "up", "expected"),
    [
        (200_000, 202_000, ValidityCheck("Tokens, arm / baseline", "1.010", True, WITHIN)),
        (200_000, 260_000, ValidityCheck("Tokens, arm / baseline", "1.300", False, WITHIN)),
        (200_000, 0, ValidityCheck("Tokens, arm / baseline", "0.000", False, WITHIN)),
        (0, 200_000, ValidityCheck("Tokens, arm / baseline", "–", False, WITHIN)),
        (0, 0, ValidityCheck("Tokens", "none generated in training by any arm", ok=True)),
    ],
)
def test_tokens(tmp_path, base, up, expected):
    changes = {("base", 0): {"generated_tokens": base}, ("up", 0): {"generated_tokens": up}}
    analysis = analyse(write_sweep(tmp_path, {"base": 0.0, "up": 1.0}, seeds=1, changes=changes))
    assert expected in validity_checks(analysis, report_document(analysis))


def test_tokens_are_of_every_pair(tmp_path):
    changes = {("up", seed): {"generated_tokens": 200_000} for seed in range(2)}
    changes |= {("base", seed): {"generated_tokens": tokens} for seed, tokens in enumerate((100_000, 400_000))}
    analysis = analyse(write_sweep(tmp_path, {"base": 0.0, "up": 1.0}, seeds=2, changes=changes))
    expected = ValidityCheck("Tokens, arm / baseline", "0.500 to 2.000", False, WITHIN)
    assert expected in validity_checks(analysis, report_document(analysis))


@pytest.mark.parametrize(
    ("fractions", "written"),
    [
        ([0.0031, 0.42], "0.3% to 42.0%"),
        ([0.0, 1.0], "0.0% to 100.0%"),
        ([0.12, 0.1204], "12.0%"),
        ([None, 0.5], "50.0%"),
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
        assert checks.get(label) == (None if written is None else f"{written} of final samples")


def test_pairs_that_move_apart_and_what_exceeds_its_limit_are_amber(report, tmp_path):
    analysis = analyse(write_sweep(tmp_path, {"base": 0.0, "up": 3.0}, seeds=1))
    apart = {"correlation": -0.7, "correlation_low": -0.9, "correlation_high": -0.2, "variance_ratio": 1.69}
    rows = [changed(row, **apart) for row in report.contrasts]
    arms = [changed(row, truncated_frac=0.06, grader_disagreement_frac=0.02) for row in report.arms]
    checks = {check.label: check for check in validity_checks(analysis, changed(report, contrasts=rows, arms=arms))}
    assert not checks["Pairing ρ"].ok and checks["Pairing ρ"].value.endswith("wider than unpaired, up 1.3 ×")
    assert not checks["Truncated"].ok and checks["Truncated"].limit == "at most 5%"
    assert checks["Graders disagree"].ok and checks["Gate"].value.startswith("ok: arms differ in")
