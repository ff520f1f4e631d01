from __future__ import annotations

import math
from collections import Counter
from itertools import combinations
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.metrics.success import pass_at_k, pass_hat_k
from evals.metrics.votes import Votes, cons_at_n, count_votes, maj_at_k

# Up to four wrong answers a, b, c, d and two right ones A, B; None is a sample without an answer.
ANSWERS = st.lists(st.sampled_from(["A", "A", "B", "a", "b", "c", "d", None]), min_size=1, max_size=9)
SAMPLES = ANSWERS.flatmap(lambda answers: st.tuples(st.just(answers), st.integers(1, len(answers))))


def votes_of(answers: list[str | None]) -> Votes:
    return count_votes(answers, [answer is not None and answer.isupper() for answer in answers])


def vote(answers: tuple[str | None, ...]) -> float:
    """The share of the answers that come first which are right, by counting."""
    given = Counter(answer for answer in answers if answer is not None)
    first = [answer for answer, count in given.items() if count == max(given.values())]
    return mean(answer.isupper() for answer in first) if first else 0.0


@given(SAMPLES)
def test_maj_at_k_is_the_mean_vote_of_all_subsets(drawn):
    answers, k = drawn
    expected = mean(vote(subset) for subset in combinations(answers, k))
    assert maj_at_k(votes_of(answers), k) == pytest.approx(expected, abs=1e-12)


@given(ANSWERS)
def test_cons_at_n_is_the_vote_of_all(answers):
    assert cons_at_n(votes_of(answers)) == pytest.approx(vote(tuple(answers)))
    assert maj_at_k(votes_of(answers), len(answers)) == cons_at_n(votes_of(answers))


@given(ANSWERS)
def test_the_vote_of_one_is_the_share_of_right_samples(answers):
    votes = votes_of(answers)
    assert maj_at_k(votes, 1) == pytest.approx(sum(votes.right) / votes.n, abs=1e-12)


@given(SAMPLES)
def test_a_vote_is_never_surer_than_one_right_sample_nor_less_than_all(drawn):
    answers, k = drawn
    votes = votes_of(answers)
    right = sum(votes.right)
    assert pass_hat_k(votes.n, right, k) - 1e-9 <= maj_at_k(votes, k) <= pass_at_k(votes.n, right, k) + 1e-9


@given(SAMPLES, st.randoms())
def test_the_order_of_the_samples_does_not_matter(drawn, random):
    answers, _ = drawn
    shuffled = random.sample(answers, len(answers))
    assert votes_of(shuffled) == votes_of(answers)


def test_votes_by_hand():
    assert cons_at_n(Votes(right=(3,), wrong=(2, 2))) == 1
    assert cons_at_n(Votes(right=(2,), wrong=(3,))) == 0
    assert cons_at_n(Votes(right=(2,), wrong=(2, 2, 1))) == pytest.approx(1 / 3)
    assert cons_at_n(Votes(right=(1,), wrong=(), unparsed=99)) == 1, "no answer never wins"
    assert cons_at_n(Votes(right=(), wrong=(), unparsed=4)) == 0
    # Two of A, A, a: {A, A} is right, {A, a} twice is even.
    assert maj_at_k(Votes(right=(2,), wrong=(1,)), 2) == pytest.approx((1 + 0.5 + 0.5) / 3)
    # One sample with an answer and one without: a vote of one.
    assert maj_at_k(Votes(right=(1,), wrong=(), unparsed=1), 1) == pytest.approx(0.5)


def test_with_two_answers_the_vote_is_a_hypergeometric_tail():
    """64 samples, two answers and an odd k: the vote is right where more than half of k are. Counted with integers."""
    for k, right in ((31, 20), (33, 40), (7, 32), (63, 31)):
        tail = sum(math.comb(right, i) * math.comb(64 - right, k - i) for i in range(k // 2 + 1, k + 1))
        votes = Votes(right=(right,), wrong=(64 - right,))
        assert maj_at_k(votes, k) == pytest.approx(tail / math.comb(64, k), rel=1e-10)


@given(st.integers(2, 200), st.data())
def test_where_all_are_right_so_is_every_vote(n, data):
    share = maj_at_k(Votes(right=(n,), wrong=()), data.draw(st.integers(1, n)))
    assert share <= 1, "a fraction, whatever the rounding"
    assert share == pytest.approx(1, abs=1e-9)


def test_where_all_answers_differ_every_one_of_them_ties():
    # The right one is drawn with k of n, and then shares with k - 1 others.
    assert maj_at_k(Votes(right=(1,), wrong=(1,) * 63), 32) == pytest.approx(1 / 64, rel=1e-10)


def test_many_samples_neither_overflow_nor_vanish():
    # Closed form: with no rival, the vote fails only where no right sample is among the k.
    lonely = Votes(right=(1,), wrong=(), unparsed=4095)
    assert maj_at_k(lonely, 2048) == pytest.approx(0.5, rel=1e-9)
    assert maj_at_k(lonely, 2) == pytest.approx(2 / 4096, rel=1e-9)


def test_an_answer_has_the_verdict_of_most_of_its_samples():
    answers = ["x"] * 3 + ["y"] * 2 + [None]
    assert count_votes(answers, [True, True, False, True, False, False]) == Votes((3,), (2,), 1)


@pytest.mark.parametrize(
    ("k", "message"), [(5, "draw at least 5 samples per problem, or ask for k <= 4"), (0, "at least 1")]
)
def test_subsets_that_cannot_be_drawn_are_refused(k, message):
    with pytest.raises(ValueError, match=rf"maj_at_k: k={k}.*{message}"):
        maj_at_k(Votes((2,), (1,), 1), k)
    with pytest.raises(ValueError, match="maj_at_k"):
        maj_at_k(Votes((), (4,)), 5)
