"""Chained sums of single digits with written partial sums: the task of the `tiny` profile.

A prompt is `3+5+9=`, a completion `8,17#17`: the partial sums, then the answer after `#`. The problems are generated,
so the task needs no data.

The demonstrations for its cold start mix several ways of working, because reinforcement learning can only choose among
behaviours that the cold start has made likely: careful work, hasty guesses, rambling with re-checks, and slips. They
differ in length and in how often they are correct.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import replace

from evals.tasks.base import Generated, Problem, Step, Task

TERMS = range(3, 8)
TRAIN_PROBLEMS, TEST_PROBLEMS = 8192, 256
MANY_TEST_PROBLEMS = 8192
# The shares of the ways of working; the rest is careful. A slip can affect any partial sum of careful and rambling
# work.
HASTY_FRAC = 0.52
RAMBLING_FRAC = 0.20
SLIP_FRAC = 0.07
HASTY_RIGHT_FRAC = 0.10


def draw_digits(rng: random.Random, split: str, n_terms: range = TERMS) -> tuple[int, ...]:
    """Draw the digits of one problem of `split`.

    A hash of the digits assigns every sum to one split, so splits never overlap.
    """
    while True:
        # `random()` is the method whose stream Python guarantees to keep in all versions.
        terms = n_terms.start + int(rng.random() * len(n_terms))
        digits = tuple(1 + int(rng.random() * 9) for _ in range(terms))
        is_test = hashlib.blake2b(bytes(digits), digest_size=1).digest()[0] < 32
        if is_test == (split == "test"):
            return digits


def partial_sums(digits: tuple[int, ...]) -> list[int]:
    """Return the partial sums: `(3, 5, 9)` -> `[8, 17]`."""
    return [sum(digits[: i + 1]) for i in range(1, len(digits))]


def written_steps(problem: Problem, completion: str) -> list[Step]:
    """Return the partial sums before `#`, each marked as right if it is the correct one for its position.

    Only the work after the last `wait` is judged, because `wait` takes back what precedes it.
    """
    work = completion.partition("#")[0]
    kept = work.rpartition("wait")[2].lstrip(",")
    if not kept:
        return []
    sums = [str(value) for value in partial_sums(_digits(problem))]
    steps = []
    start = len(work) - len(kept)
    for place, written in enumerate(kept.rstrip(",").split(",")):
        end = start + len(written)
        steps.append(Step(end, right=place < len(sums) and written == sums[place]))
        start = end + len(",")
    return steps


def has_faulty_step(problem: Problem, completion: str) -> bool | None:
    """Return whether a partial sum is wrong or missing; None if none is written."""
    steps = written_steps(problem, completion)
    if not steps:
        return None
    return not all(step.right for step in steps) or len(steps) != len(_digits(problem)) - 1


def _digits(problem: Problem) -> tuple[int, ...]:
    return tuple(int(term) for term in problem.problem.rstrip("=").split("+"))


def _problems(split: str, count: int, seed: int, n_terms: range = TERMS) -> list[Problem]:
    rng = random.Random(seed)
    seen: dict[tuple[int, ...], None] = {}
    while len(seen) < count:
        seen.setdefault(draw_digits(rng, split, n_terms))
    problems = []
    for digits in seen:
        expression = "+".join(map(str, digits))
        solution = ",".join(map(str, partial_sums(digits))) + f"#{sum(digits)}"
        problems.append(
            Problem(
                id=expression,
                problem=expression + "=",
                answer=str(sum(digits)),
                solution=solution,
                difficulty=len(digits),
            )
        )
    return problems


def demonstrations(seed: int) -> Iterator[tuple[str, str]]:
    """Yield (prompt, completion) pairs endlessly, e.g. `("3+5+9=", "8,17#17")`, with prompts of the training split."""
    rng = random.Random(seed)
    while True:
        digits = draw_digits(rng, "train")
        yield "+".join(map(str, digits)) + "=", demonstrate(digits, rng)


def demonstrate(digits: tuple[int, ...], rng: random.Random) -> str:
    """Write a completion for the digits, in a way of working drawn from the mixture."""
    draw = rng.random()
    if draw < HASTY_FRAC:
        return _hasty(digits, rng)
    return _stepwise(digits, rng, recheck_frac=0.35 if draw < HASTY_FRAC + RAMBLING_FRAC else 0.0)


def _hasty(digits: tuple[int, ...], rng: random.Random) -> str:
    """Write an answer without partial sums, which is rarely correct."""
    total = sum(digits)
    if rng.random() >= HASTY_RIGHT_FRAC:
        total += _off_by(rng)
    return f"#{max(total, 0)}"


def _stepwise(digits: tuple[int, ...], rng: random.Random, recheck_frac: float) -> str:
    """Write partial sums one by one.

    A re-check writes "wait" and starts again from the first partial sum, without earlier slips.
    """
    written: list[str] = []
    total = digits[0]
    position = 1
    while position < len(digits):
        total += digits[position]
        if rng.random() < SLIP_FRAC:
            total += _off_by(rng)
        written.append(str(max(total, 0)))
        position += 1
        if rng.random() < recheck_frac:
            written.append("wait")
            total, position = digits[0], 1
            # Each re-check halves the chance of another, so that the work ends.
            recheck_frac /= 2
    return ",".join(written) + f"#{max(total, 0)}"


def _off_by(rng: random.Random) -> int:
    return (-2, -1, 1, 2)[int(rng.random() * 4)]


TASK = Task(
    name="arithmetic",
    template="plain",
    grader="numeric",
    extract="hash",
    margin_pp=1.0,
    splits={
        "train": Generated(lambda: _problems("train", TRAIN_PROBLEMS, seed=1), version=1),
        "test": Generated(lambda: _problems("test", TEST_PROBLEMS, seed=2), version=1),
    },
    written_steps=written_steps,
    check_steps=has_faulty_step,
    judge_template="judge_digits",
)

MANY = replace(
    TASK,
    name="arithmetic_many",
    splits={"test": Generated(lambda: _problems("test", MANY_TEST_PROBLEMS, seed=2), version=1)},
)
"""The same sums, with more problems to evaluate: for questions in which problems are the replicates."""


def _with_terms(name: str, n_terms: range) -> Task:
    """Build a task of sums of other lengths.

    The model of the profile `tiny` has seen no sums of more than seven terms.
    """
    splits = {
        "train": Generated(lambda: _problems("train", TRAIN_PROBLEMS, seed=1, n_terms=n_terms), version=1),
        "test": Generated(lambda: _problems("test", TEST_PROBLEMS, seed=2, n_terms=n_terms), version=1),
    }
    return replace(TASK, name=name, splits=splits)


HARD = _with_terms("arithmetic_hard", range(7, 11))
"""Nearly all of its sums are longer than any in the demonstrations."""

MIXED = _with_terms("arithmetic_mixed", range(3, 11))
"""Short and long sums, mixed."""
