"""Judges, which compare two completions of one problem, and what they say when they are asked in both orders.

A judge reads the problem and two completions and scores each. Only which score is higher counts. Judges favour one
position: whatever is shown first, or second. So every question is asked in both orders, and a completion is preferred
only if both verdicts prefer it. How often the two differ is recorded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from harness.rewards.base import Attempt

Scores = tuple[float, float]
NO_SCORES: Scores = (math.nan, math.nan)
"""A judge's answer in which no scores can be read."""


class Pair(NamedTuple):
    """A problem and two texts that answer it, in the order in which a judge sees them."""

    problem: str
    first: str
    second: str

    @property
    def swapped(self) -> Pair:
        return Pair(self.problem, self.second, self.first)


class Judge(Protocol):
    """Compares completions: a model of our own, a model at an address, or a person's rule."""

    def scores(self, pairs: Sequence[Pair]) -> Sequence[Scores]:
        """The score of the first completion and that of the second, for each pair; `NO_SCORES` where there are none.

        Equal pairs must get equal scores, whatever else is asked beside them, so that a resumed cell sees the same.
        """


class Preference(NamedTuple):
    """A judge's two verdicts on one pair: 1 for the pair's first completion, -1 for its second, 0 for equal scores, NaN
    without scores."""

    in_order: float
    swapped: float

    @property
    def agreed(self) -> float:
        """1 or -1 where both verdicts are that, 0 for a tie: equal scores, or verdicts that differ. NaN if either order
        has no scores."""
        if math.isnan(self.in_order + self.swapped):
            return math.nan
        return self.in_order if self.in_order == self.swapped else 0.0

    @property
    def flips(self) -> bool:
        """Whether another completion is preferred when the order is swapped."""
        return self.in_order * self.swapped < 0


def preferences(judge: Judge, pairs: Sequence[Pair]) -> list[Preference]:
    """What the judge prefers in each pair, asked in both orders. A question that occurs several times is asked once,
    and two equal texts are a tie without being asked about."""
    orders = [order for pair in pairs if pair.first != pair.second for order in (pair, pair.swapped)]
    asked = list(dict.fromkeys(orders))
    verdicts = dict(zip(asked, map(_verdict, judge.scores(asked) if asked else []), strict=True))
    return [
        Preference(verdicts[pair], 0 - verdicts[pair.swapped]) if pair.first != pair.second else Preference(0.0, 0.0)
        for pair in pairs
    ]


def _verdict(scores: Scores) -> float:
    first, second = scores
    return math.nan if math.isnan(first + second) else float((first > second) - (first < second))


@dataclass(frozen=True)
class Comparison:
    """A completion against the reference of its group. preference: 1 is for the completion, -1 for the reference."""

    reference: Attempt
    preference: Preference


def compared(judge: Judge, attempts: Sequence[Attempt], references: Sequence[int]) -> list[Attempt]:
    """The attempts with what the judge says of each against its reference.

    references: the row of each attempt's reference; a group has one. It is not compared with itself.
    """
    rows = [row for row, reference in enumerate(references) if row != reference]
    pairs = [Pair(attempts[row].problem.problem, attempts[row].text, attempts[references[row]].text) for row in rows]
    found = dict(zip(rows, preferences(judge, pairs), strict=True))
    return [
        replace(attempt, comparison=Comparison(attempts[references[row]], found[row])) if row in found else attempt
        for row, attempt in enumerate(attempts)
    ]


def judge_metrics(attempts: Sequence[Attempt]) -> dict[str, float | None]:
    """judge/* of steps.jsonl: how a step's comparisons came out; None where there is nothing to count.

    Texts equal to their reference's are left out, since nobody was asked about them.

    * judge/flip_frac: pairs of which another completion is preferred when the order is swapped;
    * judge/first_frac: verdicts for the completion that was shown first, of all that prefer one: 0.5 has no bias;
    * judge/tie_frac: pairs without a winner, by equal scores or verdicts that differ;
    * judge/no_scores_frac: pairs of which an order has no scores;
    * judge/right_frac: pairs of a right and a wrong completion in which the right one is preferred.
    """
    comparisons = [(attempt, attempt.comparison) for attempt in attempts if attempt.comparison is not None]
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
    """What the order of the completions does to verdicts, as in `judge_metrics`."""
    shown_first = [verdict for one in given for verdict in (one.in_order, 0 - one.swapped) if abs(verdict) == 1]
    return {
        f"{prefix}flip_frac": _frac(one.flips for one in given),
        f"{prefix}first_frac": _frac(verdict > 0 for verdict in shown_first),
        f"{prefix}tie_frac": _frac(one.agreed == 0 for one in given),
        f"{prefix}no_scores_frac": _frac(math.isnan(one.agreed) for one in given),
    }


def _frac(holds: Iterable[bool]) -> float | None:
    """The share of cases in which it holds."""
    cases = list(holds)
    return sum(cases) / len(cases) if cases else None
