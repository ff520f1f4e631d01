"""Demonstrations for the arithmetic task: several ways of working, of mixed quality.

Reinforcement learning can only choose among behaviours that the cold start has made likely. So the demonstrations mix
careful work, hasty guesses, rambling with re-checks, and slips: they differ in length and in how often they are right.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from evals.tasks.arithmetic import draw_digits

# Shares of the ways of working; the rest is careful. A slip can strike any partial sum of careful and rambling work.
HASTY_FRAC = 0.52
RAMBLING_FRAC = 0.20
SLIP_FRAC = 0.07
HASTY_RIGHT_FRAC = 0.10


def demonstrations(seed: int) -> Iterator[tuple[str, str]]:
    """Endless (prompt, completion) pairs, e.g. `("3+5+9=", "8,17#17")`. The prompts are those of the training split."""
    rng = random.Random(seed)
    while True:
        digits = draw_digits(rng, "train")
        yield "+".join(map(str, digits)) + "=", demonstrate(digits, rng)


def demonstrate(digits: tuple[int, ...], rng: random.Random) -> str:
    """One completion for the digits, in a way of working drawn from the mixture."""
    draw = rng.random()
    if draw < HASTY_FRAC:
        return _hasty(digits, rng)
    return _stepwise(digits, rng, recheck_frac=0.35 if draw < HASTY_FRAC + RAMBLING_FRAC else 0.0)


def _hasty(digits: tuple[int, ...], rng: random.Random) -> str:
    total = sum(digits)
    if rng.random() >= HASTY_RIGHT_FRAC:
        total += _off_by(rng)
    return f"#{max(total, 0)}"


def _stepwise(digits: tuple[int, ...], rng: random.Random, recheck_frac: float) -> str:
    """Partial sums one by one; a re-check says "wait" and starts again from the first partial sum, without the slip."""
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
            recheck_frac /= 2
    return ",".join(written) + f"#{max(total, 0)}"


def _off_by(rng: random.Random) -> int:
    return (-2, -1, 1, 2)[int(rng.random() * 4)]
