from __future__ import annotations

from evals.contamination import Overlap, overlap

LONG = "Natalia sold clips to forty of her friends in April, and then half as many."


def test_nothing_in_common():
    assert overlap(["one two three"], ["four five six"]) == Overlap(exact=0, n_gram=0, problems=1)


def test_case_punctuation_and_spacing_do_not_count():
    assert overlap([LONG], [LONG.upper().replace(",", "  --\n"), "other"]) == Overlap(exact=1, n_gram=1, problems=2)


def test_eight_words_in_a_row_are_an_overlap_and_seven_are_not():
    eight = "before it Natalia sold clips to forty of her friends but"
    seven = "before it Natalia sold clips to forty of her pals but"
    assert overlap([LONG], [eight, seven]) == Overlap(exact=0, n_gram=1, problems=2)


def test_a_short_problem_counts_only_as_a_whole():
    assert overlap(["What is 1+1?"], ["what is 1 1", "What is 1+2?"]) == Overlap(exact=1, n_gram=0, problems=2)
