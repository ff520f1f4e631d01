"""Curves of reflection words over training, from the model before any update on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from reports.columns import Columns
from reports.curves import Axis, Curve, mean_curve, to_line
from reports.reflection.summary import Reflection, per_1000_tokens, share
from reports.reflection.tally import OTHER, WORD, Count, FloatArray, Sum, Tally

if TYPE_CHECKING:
    from reports.measurements import Measurement

MOST_POINTS = 20
"""On a curve: words are rare, so that a single step holds too few of them."""

Side = Callable[[FloatArray, FloatArray], float | None]
"""A number of some steps, from their summed counts [len(Count)] and sums [2, len(Sum)]."""


@dataclass(frozen=True)
class Quantity:
    """Something of the words (`word`) and, where it has a counterpart, of all else (`other`)."""

    name: str
    heading: str
    word: Side
    other: Side | None = None


def _of_tokens(name: str, heading: str, total: Sum, number: Sum) -> Quantity:
    return Quantity(
        name,
        heading,
        lambda _, sums: share(sums[WORD, total], sums[WORD, number]),
        lambda _, sums: share(sums[OTHER, total], sums[OTHER, number]),
    )


FREQUENCY = Quantity("per_1000_tokens", "occurrences per 1,000 tokens", lambda counts, _: per_1000_tokens(counts))
RIGHT = Quantity(
    "right_frac",
    "share of right answers",
    lambda counts, _: share(counts[Count.RIGHT_WITH], counts[Count.COMPLETIONS_WITH]),
    lambda counts, _: share(
        counts[Count.RIGHT] - counts[Count.RIGHT_WITH], counts[Count.COMPLETIONS] - counts[Count.COMPLETIONS_WITH]
    ),
)
LOGP = _of_tokens("logp_nats", "log-prob (nats per token)", Sum.LOGP, Sum.RECORDED)
ENTROPY = _of_tokens("entropy_nats", "entropy (nats per token)", Sum.ENTROPY, Sum.RECORDED)
ADVANTAGE = _of_tokens("advantage", "advantage", Sum.ADVANTAGE, Sum.RECORDED)
RATIO = _of_tokens("ratio", "importance ratio", Sum.RATIO, Sum.SEEN)
BOUNDED = _of_tokens("bounded_frac", "share clipped or masked", Sum.BOUNDED, Sum.SEEN)


def word_curves(
    reflection: Reflection, measurements: dict[str, list[Measurement]], side: Side, axis: Axis, alpha: float
) -> dict[str, Curve]:
    """By arm, one side of a quantity over what was generated (or the steps taken) before a rollout was drawn: the first
    point, at 0, is of the model before training, the others of equal stretches of steps."""
    curves = {}
    for arm, by_seed in reflection.tallies.items():
        before = {m.cell.seed: _before(m.steps, axis) for m in measurements[arm]}
        lines = [
            line
            for seed, tallied in by_seed.items()
            if len((line := to_line(seed, _points(tallied, side, before[seed]))).x)
        ]
        if lines:
            curves[arm] = mean_curve(arm, lines, alpha)
    return curves


def _before(steps: Columns, axis: Axis) -> dict[int, float]:
    """Step -> where on the axis training stood before it."""
    reached = [0.0, *steps[axis.field].tolist()]
    return {int(step): x for step, x in zip(steps["step"], reached, strict=False)}


def _points(tallied: Tally, side: Side, before: dict[int, float]) -> list[tuple[float, float | None]]:
    known = np.array([place for place, step in enumerate(tallied.steps) if int(step) in before], dtype=int)
    stretches = [part for part in (known[:1], *np.array_split(known[1:], MOST_POINTS)) if len(part)]
    return [
        (
            float(np.mean([before[int(step)] for step in tallied.steps[places]])),
            side(tallied.counts[places].sum(0), tallied.sums[places].sum(0)),
        )
        for places in stretches
    ]
