"""Calibration: is an answer correct as often as the policy gives it? An answer's frequency is its confidence."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from evals.grading.numeric import canonical_answer
from evals.metrics import mean
from harness.errors import InvalidError

BINS = 10


class ReliabilityBin(TypedDict):
    """The samples whose confidence is in (low, high]; the first bin also contains 0."""

    low: float
    high: float
    count: int
    confidence: float | None
    """The mean confidence; None in an empty bin."""
    correct_frac: float | None
    """The share of correct samples; None in an empty bin."""


def reliability(rows: Sequence[Mapping[str, Any]]) -> list[ReliabilityBin]:
    """Return the reliability diagram of one task's samples: ten bins of confidence of equal width, in ascending order.

    rows: `problem_id`, `extracted` and `correct` of each sample (see `SampleRow`). The samples must come from the
    policy itself (temperature 1, no top-p or top-k), at least two per problem.

    The confidence of a sample is the share of the *other* samples of its problem that give the same answer. This is an
    unbiased estimate of the policy's probability of that answer; including the sample itself would bias it upwards. It
    is noisy: with few samples per problem, the diagram is flatter than the diagonal even for a calibrated policy.
    Compare only evaluations with the same number of samples. "No answer" counts as one answer, which is always wrong.

    Raises ValueError if there are no rows, or if a problem has a single sample.
    """
    by_problem: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        by_problem[row["problem_id"]].append(row)
    if not by_problem:
        raise InvalidError("evals.no_rows_for_confidence")
    members: list[list[tuple[float, bool]]] = [[] for _ in range(BINS)]
    for problem, samples in by_problem.items():
        others = len(samples) - 1
        if others == 0:
            raise InvalidError("evals.single_sample_for_confidence", problem=problem)
        answers = [canonical_answer(sample["extracted"]) for sample in samples]
        given = Counter(answers)
        for sample, answer in zip(samples, answers, strict=True):
            same = given[answer] - 1
            # Integer ceiling division: in floating point, 3 of 10 could fall on either side of a bin's edge.
            members[max(0, -(-BINS * same // others) - 1)].append((same / others, sample["correct"]))
    return [
        ReliabilityBin(
            low=index / BINS,
            high=(index + 1) / BINS,
            count=len(inside),
            confidence=mean(confidence for confidence, _ in inside),
            correct_frac=mean(correct for _, correct in inside),
        )
        for index, inside in enumerate(members)
    ]


def expected_calibration_error(bins: Sequence[ReliabilityBin]) -> float:
    """Return the mean |accuracy - mean confidence| over bins, weighted by their numbers of samples; in [0, 1].

    Naeini et al. (AAAI 2015); Guo et al., arXiv:1706.04599, eq. 3. Raises ValueError if all bins are empty.
    """
    total = sum(inside["count"] for inside in bins)
    if total == 0:
        raise InvalidError("evals.bins_without_sample")
    return math.fsum(
        inside["count"] / total * abs(inside["correct_frac"] - inside["confidence"])
        for inside in bins
        if inside["correct_frac"] is not None and inside["confidence"] is not None
    )
