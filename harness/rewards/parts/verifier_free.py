"""Rewards without any reference answer: the policy judges itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

from evals.grading.numeric import parse_number
from harness.rewards import Attempt, RewardContext, RewardPart


class OwnLogp(RewardPart):
    """Mean log-prob of the completion's tokens under the sampler, in nats."""

    name = "own_logp"

    def rewards(self, group: Sequence[Attempt], context: RewardContext) -> list[float]:
        return [attempt.mean_logp for attempt in group]


class Majority(RewardPart):
    """1 for the group's most common answer, else 0 (majority voting as the label: TTRL, 2504.16084).

    Numbers are one answer if they are equal, other answers if their texts are. k answers that tie get 1 / k each: what
    drawing the label among them would give on average. Completions without an answer have no vote and get 0.
    """

    name = "majority"

    def rewards(self, group: Sequence[Attempt], context: RewardContext) -> list[float]:
        answers = [_answer(attempt) for attempt in group]
        votes = Counter(answer for answer in answers if answer is not None)
        most = max(votes.values(), default=0)
        winners = [answer for answer, count in votes.items() if count == most]
        return [1 / len(winners) if answer in winners else 0.0 for answer in answers]


def _answer(attempt: Attempt) -> Fraction | str | None:
    extracted = attempt.verdict.extracted
    if extracted is None:
        return None
    number = parse_number(extracted)
    return extracted if number is None else number
