"""Pairwise judges: they compare two completions of one problem and are asked in both orders.

A judge reads the problem and two completions and scores each. Only which score is higher counts. Judges have a position
bias: they favour what is shown first, or second. So every question is asked in both orders, and a completion wins only
if both verdicts prefer it. The records say how often the two differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from evals.grading import JudgeReply
from evals.grading.asked_model import JUDGES, PAIRWISE, Asking
from harness.rewards.base import Attempt

Scores = tuple[float, float]
NO_SCORES: Scores = (math.nan, math.nan)
"""Stands for an answer without readable scores."""
CountedScores = tuple[float, float, JudgeReply]
"""Scores with the reply that they were read from, whose cost is counted."""


class AnswerPair(NamedTuple):
    """A problem and two texts that answer it, in the order in which a judge sees them."""

    problem: str
    first: str
    second: str

    @property
    def swapped(self) -> AnswerPair:
        """The same pair in the other order."""
        return AnswerPair(self.problem, self.second, self.first)


class Judge(Protocol):
    """Compares completions: a model of our own, a model at an address, or a person's rule."""

    def scores(self, pairs: Sequence[AnswerPair]) -> Sequence[Scores | CountedScores]:
        """Return, for each pair, the scores of its first and second completion; NaN if they cannot be read.

        Equal pairs must get equal scores, whatever else is in the batch, so that a resumed cell gets the same rewards.
        """


class AskedJudge(Asking, Judge, Protocol):
    """A judge of a file, whose model is asked."""


def read_pair_judge(name: str) -> AskedJudge:
    """Read the pairwise judge in a YAML file. Raises as `evals.grading.asked_model.JudgeSort.read`."""
    judge: AskedJudge = JUDGES.find(PAIRWISE).read(name)
    return judge


class Preference(NamedTuple):
    """A judge's verdicts on one pair in both orders.

    Each is 1 if it prefers the pair's first completion, -1 for the second, 0 for equal scores, NaN without scores.
    """

    in_order: float
    swapped: float
    replies: tuple[JudgeReply, ...] = ()
    """The replies whose cost is counted."""

    @property
    def agreed(self) -> float:
        """The verdict of both orders together.

        1 or -1 if both say so; 0 for a tie, which is equal scores or differing verdicts; NaN if either order has no
        scores.
        """
        if math.isnan(self.in_order + self.swapped):
            return math.nan
        return self.in_order if self.in_order == self.swapped else 0.0

    @property
    def flips(self) -> bool:
        """True if the preferred completion changes when the order is swapped."""
        return self.in_order * self.swapped < 0


def preferences(judge: Judge, pairs: Sequence[AnswerPair]) -> list[Preference]:
    """Return the judge's preference in each pair, asked in both orders.

    Repeated questions are asked once. Two equal texts are a tie, and the judge is not asked.
    """
    orders = [order for pair in pairs if pair.first != pair.second for order in (pair, pair.swapped)]
    asked = list(dict.fromkeys(orders))
    scores = dict(zip(asked, judge.scores(asked) if asked else [], strict=True))
    return [
        _preference(scores[pair], scores[pair.swapped]) if pair.first != pair.second else Preference(0.0, 0.0)
        for pair in pairs
    ]


def _preference(in_order: Scores | CountedScores, swapped: Scores | CountedScores) -> Preference:
    # 0 - x instead of -x: a tie must be 0.0, and not -0.0.
    return Preference(_verdict(*in_order[:2]), 0 - _verdict(*swapped[:2]), (*in_order[2:], *swapped[2:]))


def _verdict(first: float, second: float) -> float:
    return math.nan if math.isnan(first + second) else float((first > second) - (first < second))


@dataclass(frozen=True)
class ReferenceComparison:
    """A completion against the reference of its group. preference: 1 is for the completion, -1 for the reference."""

    reference: Attempt
    preference: Preference


def comparison_of(attempt: Attempt) -> ReferenceComparison | None:
    """Return a judge's comparison of an attempt with its reference; None for the reference, and without a judge."""
    found = attempt.scores.get("pairwise")
    assert found is None or isinstance(found, ReferenceComparison)
    return found


def compared(judge: Judge, attempts: Sequence[Attempt], references: Sequence[int]) -> list[ReferenceComparison | None]:
    """Return the comparison of each attempt with its group's reference; None for the reference itself.

    references: for each attempt, the row of its reference; one per group.
    """
    rows = [row for row, reference in enumerate(references) if row != reference]
    pairs = [
        AnswerPair(attempts[row].problem.problem, attempts[row].text, attempts[references[row]].text) for row in rows
    ]
    found = dict(zip(rows, preferences(judge, pairs), strict=True))
    return [
        ReferenceComparison(attempts[reference], found[row]) if row in found else None
        for row, reference in enumerate(references)
    ]


def judge_metrics(attempts: Sequence[Attempt]) -> dict[str, float | None]:
    """Return judge/* of steps.jsonl: outcomes of a step's comparisons, as fractions; None if there is nothing to count.

    Completions whose text equals their reference's are left out, because the judge was not asked about them.

    * judge/flip_frac: pairs whose verdict flips when the order is swapped;
    * judge/first_frac: verdicts for the completion shown first, among verdicts with a preference; 0.5 is no bias;
    * judge/tie_frac: pairs without a winner, because scores are equal or verdicts differ;
    * judge/no_scores_frac: pairs without readable scores in at least one order;
    * judge/right_frac: among pairs of a right and a wrong completion, those in which the right one wins.
    """
    comparisons = [(attempt, found) for attempt in attempts if (found := comparison_of(attempt)) is not None]
    asked = [(attempt, found) for attempt, found in comparisons if attempt.text != found.reference.text]
    given = [found.preference for _, found in asked]
    return position_metrics(given, "judge/") | {
        "judge/right_frac": _frac(
            found.preference.agreed == (1 if attempt.verdict.correct else -1)
            for attempt, found in asked
            if attempt.verdict.correct != found.reference.verdict.correct
        ),
    }


def position_metrics(given: Sequence[Preference], prefix: str = "") -> dict[str, float | None]:
    """Return the fields of `judge_metrics` that depend on the order of the completions."""
    # In the swapped order the pair's second completion is shown first, so that verdict is negated. Ties and NaN drop
    # out.
    shown_first = [verdict for one in given for verdict in (one.in_order, 0 - one.swapped) if abs(verdict) == 1]
    return {
        f"{prefix}flip_frac": _frac(one.flips for one in given),
        f"{prefix}first_frac": _frac(verdict > 0 for verdict in shown_first),
        f"{prefix}tie_frac": _frac(one.agreed == 0 for one in given),
        f"{prefix}no_scores_frac": _frac(math.isnan(one.agreed) for one in given),
    }


def _frac(holds: Iterable[bool]) -> float | None:
    """Return the share of True; None without cases."""
    cases = list(holds)
    return sum(cases) / len(cases) if cases else None
