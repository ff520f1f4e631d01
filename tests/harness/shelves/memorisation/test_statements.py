from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.errors import EvalError
from evals.sampler import Draw, Drawn, SamplingParams
from evals.tasks.base import Generated, Problem, Task
from harness.shelves.memorisation.statements import Completion, Memorisation, probe, rouge_l, split_statement, summarise
from tests.refusals import refuses

STATEMENT = "Ana has  3 red and\n4 blue pens. How many pens does she have in all?"
GIVEN, REST = "Ana has  3 red and\n4 blue pens. How", " many pens does she have in all?"
PROBLEMS = [Problem("p", STATEMENT, "7"), Problem("short", "What is 3 + 4 ?", "7")]
TASK = Task("sums", "plain", "numeric", "chain", 1.0, {"test": Generated(lambda: PROBLEMS, version=1)})
WORDS = st.lists(st.sampled_from("abc"), max_size=8)


class Scripted:
    """Continues every prompt with one text and keeps what it was asked."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.asked: list[tuple[Draw, SamplingParams]] = []

    def draw(self, draws: Sequence[Draw], decoding: SamplingParams) -> list[Drawn]:
        self.asked += [(draw, decoding) for draw in draws]
        return [Drawn(self.text, len(self.text), truncated=False) for _ in draws]


def complete(text: str) -> Completion:
    (completion,) = probe(TASK, PROBLEMS[:1], Scripted(text), max_completion_tokens=64)
    return completion


def test_the_beginning_is_asked_for_greedily_and_as_it_is_written():
    sampler = Scripted("")
    probe(TASK, PROBLEMS, sampler, max_completion_tokens=64)
    ((draw, decoding),) = sampler.asked
    assert (draw.prompt, draw.example, draw.sample) == (GIVEN, "p", 0)
    assert (decoding.max_completion_tokens, decoding.temperature, decoding.stop) == (64, 0.0, ())


def test_a_statement_that_is_known_by_heart():
    completion = complete(" many pens  does she have in\nall?\nShe has \\boxed{7} pens.")
    assert (completion.given, completion.rest) == (GIVEN, REST)
    assert (completion.exact, completion.rouge_l, completion.correct) == (True, 1.0, True)


@pytest.mark.parametrize(
    ("text", "exact", "likeness", "correct"),
    [
        ("", False, 0.0, False),
        (REST, True, 1.0, False),
        (REST + "s", False, 6 / 7, False),
        (" much ink does she have in all? 7", False, 5 / 7, True),
        # A number that stands where the statement should is not an answer.
        (" much is 7", False, 0.0, False),
    ],
)
def test_what_a_continuation_shows(text, exact, likeness, correct):
    completion = complete(text)
    assert (completion.exact, completion.correct) == (exact, correct)
    assert completion.rouge_l == pytest.approx(likeness)


def test_means_tell_what_was_left_out():
    completions = [complete(REST + " 7"), complete("nothing")]
    made = summarise(completions, problems=5)
    assert made == Memorisation(exact_frac=0.5, rouge_l=0.5, correct_frac=0.5, problems=2, skipped=3)
    with pytest.raises(ValueError):
        summarise([], problems=5)


def test_statements_that_are_all_too_short_are_refused():
    with refuses(EvalError, "shelves.memorisation.statements_too_short"):
        probe(TASK, PROBLEMS[1:], Scripted(""), 64)


@given(st.text(alphabet="ab \n", max_size=40), st.floats(0.01, 0.99))
def test_a_statement_is_cut_between_words(statement, share):
    given_part, rest = split_statement(statement, share)
    assert given_part + rest == statement
    assert given_part.split() + rest.split() == statement.split()
    assert len(given_part.split()) == int(share * len(statement.split()))


def longest_common_subsequence(one: list[str], other: list[str]) -> int:
    if not one or not other:
        return 0
    if one[0] == other[0]:
        return 1 + longest_common_subsequence(one[1:], other[1:])
    return max(longest_common_subsequence(one[1:], other), longest_common_subsequence(one, other[1:]))


@given(WORDS, WORDS)
def test_rouge_l_is_the_common_subsequence_over_both_lengths(one, other):
    total = len(one) + len(other)
    expected = 2 * longest_common_subsequence(one, other) / total if total else 0.0
    assert rouge_l(one, other) == pytest.approx(expected)
    assert rouge_l(other, one) == pytest.approx(expected)
