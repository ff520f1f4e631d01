from __future__ import annotations

from itertools import permutations
from statistics import mean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.calibration import BINS, expected_calibration_error, reliability
from harness.errors import InvalidError
from tests.refusals import refuses

Rows = list[dict[str, Any]]
ANSWERS = st.sampled_from(["1", "01", "2", "x+1", "x + 1", None])
SAMPLES = st.lists(st.tuples(ANSWERS, st.booleans()), min_size=2, max_size=9)
EVALUATIONS = st.lists(SAMPLES, min_size=1, max_size=5)


def rows_of(problems: list[list[tuple[str | None, bool]]]) -> Rows:
    return [
        {"problem_id": f"p{number}", "extracted": extracted, "correct": correct}
        for number, samples in enumerate(problems)
        for extracted, correct in samples
    ]


def ece(rows: Rows) -> float:
    return expected_calibration_error(reliability(rows))


def filled(rows: Rows) -> list[tuple[int, int, float | None, float | None]]:
    """(index, count, confidence, correct share) of the bins that hold samples."""
    return [
        (index, inside["count"], inside["confidence"], inside["correct_frac"])
        for index, inside in enumerate(reliability(rows))
        if inside["count"]
    ]


def test_a_small_evaluation_by_hand():
    # Confidences 2/3 (three times "6") and 0; one of the three is marked right.
    rows = rows_of([[("6", True), ("6", False), ("6", False), ("7", False)]])
    assert filled(rows) == [(0, 1, 0.0, 0.0), (6, 3, pytest.approx(2 / 3), pytest.approx(1 / 3))]
    assert ece(rows) == pytest.approx(3 / 4 * 1 / 3)


def test_bins_cover_the_unit_interval_and_an_edge_belongs_below():
    bins = reliability(rows_of([[*[("a", True)] * 4, *[(str(n), False) for n in range(7)]]]))
    assert [inside["low"] for inside in bins[1:]] == [inside["high"] for inside in bins[:-1]]
    assert (bins[0]["low"], bins[-1]["high"], len(bins)) == (0.0, 1.0, BINS)
    assert bins[2]["count"] == 4, "3 of 10 others lie in (0.2, 0.3]"
    assert bins[0]["count"] == 7


def test_a_policy_that_is_certain():
    assert ece(rows_of([[("6", True)] * 3, [("4", True)] * 3])) == 0
    assert ece(rows_of([[("5", False)] * 3, [("9", False)] * 3])) == 1


def test_a_policy_that_never_repeats_itself_is_calibrated_when_it_is_wrong():
    assert ece(rows_of([[(str(n), False) for n in range(5)]])) == 0


@given(st.lists(st.integers(1, 12), min_size=1, max_size=4).filter(lambda counts: sum(counts) > 1))
def test_answers_that_are_right_as_often_as_they_are_given(counts):
    """A problem for each sample, so that an answer given m times of n is right in m problems of n.

    Without the sample itself its confidence is (m - 1) / (n - 1), and the error of every answer (n - m) / (n (n - 1)):
    at most 1 / n, which vanishes with n.
    """
    n = sum(counts)
    given_answers = [answer for answer, count in enumerate(counts) for _ in range(count)]
    problems: list[list[tuple[str | None, bool]]]
    problems = [[(str(answer), answer == right) for answer in given_answers] for right in given_answers]
    expected = sum(m / n * (n - m) / (n * (n - 1)) for m in counts)
    assert ece(rows_of(problems)) <= expected + 1e-12
    assert expected <= 1 / n


@pytest.mark.slow
@given(EVALUATIONS)
def test_the_error_is_a_fraction_and_every_sample_is_in_its_bin(problems):
    bins = reliability(rows_of(problems))
    assert 0 <= expected_calibration_error(bins) <= 1
    assert sum(inside["count"] for inside in bins) == sum(map(len, problems))
    for inside in bins:
        assert (inside["confidence"] is None) == (inside["correct_frac"] is None) == (inside["count"] == 0)
        if inside["confidence"] is not None:
            assert inside["low"] - 1e-12 <= inside["confidence"] <= inside["high"] + 1e-12


@pytest.mark.slow
@given(EVALUATIONS, st.randoms())
def test_the_order_of_the_samples_does_not_matter(problems, random):
    rows = rows_of(problems)
    shuffled = rows.copy()
    random.shuffle(shuffled)
    assert ece(shuffled) == pytest.approx(ece(rows), abs=1e-12)


@given(SAMPLES)
def test_mean_confidence_is_the_share_of_pairs_that_agree(samples):
    """Pairs of different samples: so it estimates the sum of squared probabilities without bias."""
    answers = ["1" if extracted == "01" else extracted for extracted, _ in samples]
    agreement = mean(first == second for first, second in permutations(answers, 2))
    bins = filled(rows_of([samples]))
    total = sum(count * (confidence or 0.0) for _, count, confidence, _ in bins)
    assert total / len(samples) == pytest.approx(agreement)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("012", "12", True),
        ("1/2", "0.5", True),
        ("1,000", "1000", True),
        ("18 dollars", "18", True),
        ("\\frac{1}{2}", "1/2", True),
        ("x +  1", "x + 1", True),
        ("x+1", "1+x", False),
        ("12", "21", False),
        ("-1", "1", False),
        (None, None, True),
        (None, "0", False),
    ],
)
def test_which_answers_are_one(one, other, same):
    (first, *_) = filled(rows_of([[(one, False), (other, False)]]))
    assert first[0] == (BINS - 1 if same else 0)


def test_evaluations_without_frequencies_are_refused():
    with refuses(InvalidError, "evals.no_rows_for_confidence"):
        reliability([])
    with refuses(InvalidError, "evals.single_sample_for_confidence", problem="p1"):
        reliability(rows_of([[("1", True)] * 2, [("1", True)]]))
    with refuses(InvalidError, "evals.bins_without_sample"):
        expected_calibration_error([])
