"""Majority votes over extracted answers: of all n samples, and of random subsets of k of them.

Ties share the vote, and a sample without a readable answer does not vote.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from evals.metrics import Metric, Samples, mean
from evals.metrics.success import require_k

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Votes:
    """The votes of one problem's samples."""

    right: tuple[int, ...]
    """The number of samples behind each distinct correct answer."""
    wrong: tuple[int, ...]
    """The number of samples behind each distinct wrong answer."""
    unparsed: int = 0
    """The number of samples without an answer. They are drawn like the others but do not vote."""

    @property
    def n(self) -> int:
        return sum(self.right) + sum(self.wrong) + self.unparsed


def count_votes(answers: Sequence[Hashable | None], correct: Sequence[bool]) -> Votes:
    """Count the votes of one problem's samples.

    answers [n]: equal for equal answers (see `Samples.answers`); None if there is no answer.
    correct [n]: the verdicts.
    Equal answers have the same verdict, unless the grader is sensitive to spelling. Then the answer counts as correct
    if more than half of its samples were judged correct.
    """
    given = Counter(answers)
    judged_right = Counter(answer for answer, right in zip(answers, correct, strict=True) if right)
    unparsed = given.pop(None, 0)
    right = {answer: count for answer, count in given.items() if 2 * judged_right[answer] > count}
    wrong = (count for answer, count in given.items() if answer not in right)
    return Votes(tuple(sorted(right.values())), tuple(sorted(wrong)), unparsed)


def cons_at_n(votes: Votes) -> float:
    """Return cons@n: 1 if the most frequent answer of the n samples is correct, else 0.

    Answers that tie share the vote, regardless of their order. Returns 0 if no sample has an answer.
    """
    most = max((*votes.right, *votes.wrong), default=0)
    tied = votes.right.count(most) + votes.wrong.count(most)
    return votes.right.count(most) / tied if tied else 0.0


def maj_at_k(votes: Votes, k: int) -> float:
    """Return maj@k: the chance that a majority vote of k of the n samples is correct, with ties as in `cons_at_n`.

    This is the mean over all C(n, k) subsets, drawn without replacement, so it is unbiased for the vote of k new
    samples. It is exact up to rounding, without enumerating the subsets. Raises ValueError unless 1 <= k <= n.
    """
    require_k("maj_at_k", votes.n, k)
    if not votes.right:
        return 0.0
    if k == votes.n:
        return cons_at_n(votes)
    return _expected_share(votes, k)


@lru_cache(maxsize=16_384)  # Problems share few patterns of votes: all correct, all different, ...
def _expected_share(votes: Votes, k: int) -> float:
    """Return the expected share of the vote that correct answers win in a random subset of k.

    The sum runs over each correct answer and each number of votes `top` with which it can win; each term is the share
    that ties leave it. A random subset of k is equivalent to n independent draws with chance k/n, given that k samples
    are drawn in total. So the votes for the answers are independent binomials, whose joint distribution with the total
    is built up answer by answer. The chance that the total is k is divided out at the end. All terms are positive, so
    nothing cancels.
    """
    drawn = _Binomials(votes.n, k)
    expected = 0.0
    for position, size in enumerate(votes.right):
        rivals = (*votes.right[:position], *votes.right[position + 1 :], *votes.wrong)
        for top in range(1, min(size, k) + 1):
            share = _share_at_top(rivals, votes.unparsed, top, k - top, drawn)
            expected += float(drawn.of(size)[top]) * share
    return min(1.0, expected / float(drawn.of(votes.n)[k]))  # Rounding may leave a share just above 1.


def _share_at_top(rivals: Sequence[int], unparsed: int, top: int, others: int, drawn: _Binomials) -> float:
    """Return E[1 / (1 + ties); `others` more samples are drawn, and no rival has more than `top` votes].

    top: the number of samples drawn for the answer itself.
    rivals: the number of samples behind each other answer.
    """
    import numpy as np

    # Answers with fewer samples can neither win nor tie, so they are treated as unparsed here.
    idle = drawn.of(unparsed + sum(rival for rival in rivals if rival < top))[: others + 1]
    chance = np.zeros((others // top + 1, others + 1))  # [rivals that tie, samples drawn so far]
    chance[0, : len(idle)] = idle
    for rival in rivals:
        if rival < top:
            continue
        of_rival = drawn.of(rival)
        after = np.zeros_like(chance)
        # A rival with fewer than `top` votes loses. With exactly `top` votes it ties, which moves the chance to the
        # next row.
        for lost in range(min(top, others + 1)):
            after[:, lost:] += of_rival[lost] * chance[:, : others + 1 - lost]
        if top <= others:
            after[1:, top:] += of_rival[top] * chance[:-1, : others + 1 - top]
        chance = after
    return float((chance[:, others] / np.arange(1, len(chance) + 1)).sum())


class _Binomials:
    """Binomial distributions with chance k/n, each computed once. Requires 0 < k < n."""

    def __init__(self, n: int, k: int) -> None:
        import numpy as np

        self._log_factorials = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, n + 1)))))
        self._log_drawn, self._log_left = float(np.log(k / n)), float(np.log1p(-k / n))
        self._made: dict[int, FloatArray] = {}

    def of(self, trials: int) -> FloatArray:
        """Return the distribution [trials + 1], indexed by the number of successes."""
        import numpy as np

        if trials not in self._made:
            # Use logarithms, because factorials overflow.
            logs = self._log_factorials[: trials + 1]
            successes = np.arange(trials + 1)
            self._made[trials] = np.exp(
                logs[-1] - logs - logs[::-1] + successes * self._log_drawn + successes[::-1] * self._log_left
            )
        return self._made[trials]


def _votes(samples: Samples) -> list[Votes]:
    return [
        count_votes(answers, [row["correct"] for row in rows])
        for answers, rows in zip(samples.answers, samples.by_problem, strict=True)
    ]


def _mean_maj_at_k(samples: Samples, k: int) -> float | None:
    return mean(maj_at_k(votes, k) for votes in _votes(samples))


def _mean_cons_at_n(samples: Samples) -> float | None:
    return mean(map(cons_at_n, _votes(samples)))


def _mean_distinct_answers(samples: Samples) -> float | None:
    return mean(len(votes.right) + len(votes.wrong) for votes in _votes(samples))


MAJ_AT_K = Metric("maj@{k}", "the majority vote of k samples is right", "fraction", "more", _mean_maj_at_k)
CONS_AT_N = Metric("cons@n", "the majority vote of all n samples is right", "fraction", "more", _mean_cons_at_n)
DISTINCT_ANSWERS = Metric(
    "distinct_answers", "mean number of different answers to a problem", "count", None, _mean_distinct_answers
)
