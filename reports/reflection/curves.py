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


@dataclass(frozen=True)
class Stretch:
    """Some steps of a cell: where on the axis training stood before them on average, and what they add up to, as in
    `Tally`: counts [len(Count)], sums [2, len(Sum)]."""

    x: float
    counts: FloatArray
    sums: FloatArray


Stretches = dict[str, dict[int, list[Stretch]]]
"""By arm and seed, in the order of training."""


def stretches_of(reflection: Reflection, measurements: dict[str, list[Measurement]], axis: Axis) -> Stretches:
    """The first step, whose rollout is by the model before training, and equal stretches of the others."""
    steps = {(arm, m.cell.seed): m.steps for arm, cells in measurements.items() for m in cells}
    return {
        arm: {seed: _stretches(tallied, steps[arm, seed], axis) for seed, tallied in by_seed.items()}
        for arm, by_seed in reflection.tallies.items()
    }


def word_curves(stretches: Stretches, side: Side, alpha: float) -> dict[str, Curve]:
    """By arm, one side of a quantity over what was generated (or the steps taken) before a rollout was drawn."""
    curves = {}
    for arm, by_seed in stretches.items():
        lines = [
            line
            for seed, parts in by_seed.items()
            if len((line := to_line(seed, [(part.x, side(part.counts, part.sums)) for part in parts])).x)
        ]
        if lines:
            curves[arm] = mean_curve(arm, lines, alpha)
    return curves


def _stretches(tallied: Tally, steps: Columns, axis: Axis) -> list[Stretch]:
    reached = [0.0, *steps[axis.field].tolist()]
    before = {int(step): x for step, x in zip(steps["step"], reached, strict=False)}
    known = np.array([place for place, step in enumerate(tallied.steps) if int(step) in before], dtype=int)
    parts = [part for part in (known[:1], *np.array_split(known[1:], MOST_POINTS)) if len(part)]
    return [
        Stretch(
            float(np.mean([before[int(step)] for step in tallied.steps[places]])),
            tallied.counts[places].sum(0),
            tallied.sums[places].sum(0),
        )
        for places in parts
    ]
