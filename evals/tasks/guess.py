"""Guess a number: the smallest task in which a second turn can be better than the first.

A prompt is `23,31=`: the number is between 23 and 31. A turn ends with a guess after `#`. The environment replies `+`
if the number is larger, `w` if it is lower, `=` if the guess is right, and `wait` if it finds no guess; the built-in
model has no other characters for these. A completion is correct if the guess of its last turn is the number.

Halving the range finds one of 15 numbers in four turns. The solutions, which a cold start can show, guess at random
among the numbers that the replies leave. So the starting model is sensible but can improve.
"""

from __future__ import annotations

import hashlib
import math
import random
import re
from collections.abc import Sequence

from evals.tasks.base import Environment, Generated, Problem, Task
from evals.tasks.environment import Reply

SMALLEST, LARGEST = 1, 99
MIN_NUMBERS, MAX_NUMBERS = 5, 15
"""The bounds on the size of a range."""
TRAIN_PROBLEMS, TEST_PROBLEMS = 6144, 256
_NUMBER = re.compile(r"\d{1,6}")
HIGHER, LOWER, FOUND, UNREADABLE = "+", "w", "=", "wait"


def guess_in(text: str) -> int | None:
    """Return the number after the last `#` of a turn, or None if anything but a number follows it."""
    _, mark, guess = text.rpartition("#")
    return int(guess) if mark and _NUMBER.fullmatch(guess) else None


def narrowed(numbers: range, guess: int | None, hidden: int) -> range:
    """Return the numbers of a range that remain possible after the reply to a guess."""
    if guess is None or guess not in numbers:
        return numbers
    if guess == hidden:
        return range(hidden, hidden + 1)
    return range(guess + 1, numbers.stop) if guess < hidden else range(numbers.start, guess)


def reply(problem: Problem, said: Sequence[str]) -> Reply:
    """Return the environment's reply to the last turn, with its reward.

    The reward is the share of the missing information that the guess provides: log(before / after) / log(at first),
    with counts of the possible numbers. It adds up to 1 once the number is known, and never to more, however many turns
    it takes.
    """
    numbers, hidden = numbers_of(problem), int(problem.answer)
    at_first = len(numbers)
    # There is no state: recompute the range from the earlier turns.
    for text in said[:-1]:
        numbers = narrowed(numbers, guess_in(text), hidden)
    guess = guess_in(said[-1])
    reward = math.log(len(numbers) / len(narrowed(numbers, guess, hidden))) / math.log(at_first)
    if guess is None:
        return Reply(UNREADABLE, reward=reward)
    if guess == hidden:
        return Reply(FOUND, done=True, reward=reward)
    return Reply(HIGHER if guess < hidden else LOWER, reward=reward)


def numbers_of(problem: Problem) -> range:
    """Return the range of numbers that a problem allows."""
    first, last = map(int, problem.problem.rstrip("=").split(","))
    return range(first, last + 1)


def _draw_range(rng: random.Random, split: str) -> range:
    """Draw a range of a split. A hash assigns every range to one split, so splits never overlap."""
    while True:
        count = MIN_NUMBERS + int(rng.random() * (MAX_NUMBERS - MIN_NUMBERS + 1))
        first = SMALLEST + int(rng.random() * (LARGEST - SMALLEST - count + 2))
        is_test = hashlib.blake2b(bytes([first, count]), digest_size=1).digest()[0] < 32
        if is_test == (split == "test"):
            return range(first, first + count)


def _random_guesses(numbers: range, hidden: int, rng: random.Random) -> str:
    """Write turns, one per line, each guessing one of the numbers that remain possible."""
    turns = []
    while True:
        guess = numbers[int(rng.random() * len(numbers))]
        turns.append(f"#{guess}")
        if guess == hidden:
            return "\n".join(turns)
        numbers = narrowed(numbers, guess, hidden)


def _problems(split: str, count: int, seed: int) -> list[Problem]:
    rng = random.Random(seed)
    problems: dict[str, Problem] = {}
    while len(problems) < count:
        numbers = _draw_range(rng, split)
        hidden = numbers[int(rng.random() * len(numbers))]
        prompt = f"{numbers[0]},{numbers[-1]}="
        name = f"{prompt}{hidden}"
        solution = _random_guesses(numbers, hidden, rng)
        problems.setdefault(
            name, Problem(id=name, problem=prompt, answer=str(hidden), solution=solution, difficulty=len(numbers))
        )
    return list(problems.values())


TASK = Task(
    name="guess",
    template="plain",
    grader="numeric",
    extract="hash",
    margin_pp=1.0,
    splits={
        "train": Generated(lambda: _problems("train", TRAIN_PROBLEMS, seed=1), version=1),
        "test": Generated(lambda: _problems("test", TEST_PROBLEMS, seed=2), version=1),
    },
    environment=Environment(reply, max_turns=4),
)
