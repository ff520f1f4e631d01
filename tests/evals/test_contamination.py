from __future__ import annotations

import random

import pytest

from evals.contamination import MAX_EXAMPLES, MAX_SHOWN_WORDS, Example, Overlap, is_contaminated, overlap

LONG = "Natalia sold clips to forty of her friends in April, and then half as many."


def found(training: list[str], evaluation: list[str]) -> Overlap:
    return overlap(
        [(f"t{number}", text) for number, text in enumerate(training)],
        [(f"e{number}", text) for number, text in enumerate(evaluation)],
    )


EIGHT = "before it Natalia sold clips to forty of her friends but"


@pytest.mark.parametrize(
    ("training", "evaluation", "expected"),
    [
        ("one two three", ["four five six"], (0, 0, 0, 1)),
        (LONG, [LONG.upper().replace(",", "  --\n"), "other"], (1, 0, 1, 2)),
        (LONG, [EIGHT, EIGHT.replace("friends", "pals")], (0, 0, 1, 2)),
        ("What is 1+1?", ["what is 1 1", "What is 1+2?"], (1, 0, 0, 2)),
        (f"Solve this problem. {LONG} Think step by step.", [LONG], (0, 1, 1, 1)),
        # 12 of the 15 words are 80%, 11 are not.
        (" ".join(LONG.split()[:12]), [LONG], (0, 1, 1, 1)),
        (" ".join(LONG.split()[:11]), [LONG], (0, 0, 1, 1)),
    ],
    ids=[
        "nothing in common",
        "case, punctuation and spacing do not count",
        "eight words in a row are an overlap and seven are not",
        "a short problem counts only as a whole",
        "a problem inside a longer prompt is a near copy",
        *("80%", "less"),
    ],
)
def test_counts(training, evaluation, expected):
    made = found([training], evaluation)
    assert (made.exact, made.near_copies, made.n_gram, made.problems) == expected


def test_examples_name_both_sides_and_what_they_share():
    other = "alpha " + " ".join(LONG.split()[2:11]) + " omega" + " psi" * 9
    made = found(["unrelated", "x " + other.upper(), "y " + LONG, LONG], ["no such words", other, LONG])
    assert made.examples == (
        Example("e2", "t3", "exact", LONG.lower().replace(",", "").rstrip("."), 15, 15),
        Example("e1", "t1", "near_copy", other.lower().replace(",", ""), 20, 20),
    )
    (only,) = found([LONG], [other]).examples
    assert (only.problem, only.prompt, only.kind) == ("e0", "t0", "n_gram")
    shared = " ".join(LONG.lower().replace(",", "").split()[2:11])
    assert (only.shared, only.shared_words, only.problem_words) == (shared, 9, 20)


def test_the_longest_run_is_given_wherever_it_stands():
    words = [f"w{number}" for number in range(60)]
    training = [" ".join(words[:10]), " ".join(["z", *words[20:45], "z", *words[3:20]]), " ".join(words[45:])]
    (only,) = found(training, [" ".join(words)]).examples
    assert (only.prompt, only.shared_words) == ("t1", 25)
    assert only.shared == " ".join(words[20 : 20 + MAX_SHOWN_WORDS]) + " ..."


def test_a_repeated_word_does_not_make_runs_longer_than_they_are():
    (only,) = found(["0 " * 12], ["0 " * 10 + "1 " * 10]).examples
    assert (only.kind, only.shared_words) == ("n_gram", 10)


def test_examples_are_few_and_the_worst_come_first():
    evaluation = [" ".join(f"w{number}" for number in range(start, start + 30)) for start in range(0, 3000, 30)]
    training = [" ".join(text.split()[: 8 + number % 22]) for number, text in enumerate(evaluation)] + evaluation[-1:]
    made = found(training, evaluation)
    assert (made.exact, made.n_gram, len(made.examples)) == (1, 100, MAX_EXAMPLES)
    assert made.examples[0].kind == "exact"
    shares = [example.shared_words for example in made.examples[1:]]
    assert shares == sorted(shares, reverse=True)
    assert min(shares) == 25


def test_shared_runs_are_those_of_every_pair_of_places():
    """Against the definition: the longest common run of words, by trying all places."""
    rng = random.Random(0)
    for _ in range(60):
        one, other = ([rng.choice("ab") for _ in range(rng.randint(0, 40))] for _ in range(2))
        longest = max(
            (
                length
                for i in range(len(one))
                for j in range(len(other))
                for length in range(1, min(len(one) - i, len(other) - j) + 1)
                if one[i : i + length] == other[j : j + length]
            ),
            default=0,
        )
        made = found([" ".join(one)], [" ".join(other)])
        assert [e.shared_words for e in made.examples if e.kind != "exact"] == (
            [longest] if longest >= 8 and one != other else []
        )


def test_training_prompts_are_read_once_and_not_kept():
    assert overlap(((str(n), LONG) for n in range(3)), iter([("e", LONG)])).examples[0].prompt == "0"


@pytest.mark.parametrize(
    ("exact", "near_copies", "problems", "contaminated"),
    [(0, 0, 500, False), (5, 0, 500, False), (5, 1, 500, True), (0, 6, 500, True), (1, 0, 30, True), (0, 0, 0, False)],
)
def test_more_than_one_percent_is_contaminated(exact, near_copies, problems, contaminated):
    assert is_contaminated(Overlap(exact, near_copies, problems, problems)) is contaminated
