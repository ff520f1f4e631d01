from __future__ import annotations

import pytest

from reports.analysis import analyse
from reports.document import report_document
from reports.validity import Check, validity_checks
from tests.reports.synthetic import write_sweep


@pytest.mark.parametrize(
    ("base", "up", "expected"),
    [
        (200_000, 202_000, Check("Tokens, arm / baseline", "1.010", ok=True)),
        (200_000, 260_000, Check("Tokens, arm / baseline", "1.300", ok=False)),
        (200_000, 0, Check("Tokens, arm / baseline", "0.000", ok=False)),
        (0, 200_000, Check("Tokens, arm / baseline", "–", ok=False)),
        (0, 0, Check("Tokens", "none generated in training by any arm", ok=True)),
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
    expected = Check("Tokens, arm / baseline", "0.500 to 2.000", ok=False)
    assert expected in validity_checks(analysis, report_document(analysis))


@pytest.mark.parametrize(
    ("fractions", "written"),
    [
        ([0.0031, 0.42], "0.3% to 42.0%"),
        ([0.0, 1.0], "0.0% to 100.0%"),
        ([0.12, 0.1204], "12.0%"),
        ([None, 0.5], "50.0%"),
        ([None, None], "–"),
    ],
)
def test_both_ends_of_a_range_of_fractions_have_one_decimal(tmp_path, fractions, written):
    analysis = analyse(write_sweep(tmp_path, {"base": 0.0, "up": 1.0}, seeds=1))
    report = report_document(analysis)
    for arm, fraction in zip(report["arms"], fractions, strict=True):
        arm |= {"truncated_frac": fraction, "grader_disagreement_frac": fraction}
    checks = {check.label: check.value for check in validity_checks(analysis, report)}
    assert checks["Truncated"] == f"{written} of final samples"
    if fractions != [None, None]:
        assert checks["Graders disagree"] == f"{written} of final samples"
