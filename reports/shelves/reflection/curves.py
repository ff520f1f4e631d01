"""Curves of reflection words over training, starting with the model before any update."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from reports.measure import Analysis, derived
from reports.measure.curves import Axis, Curve, mean_curve, to_line, training_axis
from reports.measure.measurements import Columns
from reports.shelves.reflection import per_1000_tokens, ratio_or_none, read_reflection
from reports.shelves.reflection.tally import OTHER, WORD, Count, FloatArray, Sum, Tally

MOST_POINTS = 20
"""The most points of a curve, each a stretch of steps. Words are rare, so a single step contains too few of them."""

Side = Callable[[FloatArray, FloatArray], float | None]
"""Computes a number from the total counts [len(Count)] and sums [2, len(Sum)] of some steps."""


@dataclass(frozen=True)
class Quantity:
    """A quantity of the words and, if there is a counterpart, of everything else (`other`)."""

    name: str
    heading: str
    word: Side
    other: Side | None = None


def _token_quantity(name: str, heading: str, total: Sum, number: Sum) -> Quantity:
    return Quantity(
        name,
        heading,
        lambda _, sums: ratio_or_none(sums[WORD, total], sums[WORD, number]),
        lambda _, sums: ratio_or_none(sums[OTHER, total], sums[OTHER, number]),
    )


FREQUENCY = Quantity("per_1000_tokens", "occurrences per 1,000 tokens", lambda counts, _: per_1000_tokens(counts))
RIGHT = Quantity(
    "right_frac",
    "share of right answers",
    lambda counts, _: ratio_or_none(counts[Count.RIGHT_WITH], counts[Count.COMPLETIONS_WITH]),
    lambda counts, _: ratio_or_none(
        counts[Count.RIGHT] - counts[Count.RIGHT_WITH], counts[Count.COMPLETIONS] - counts[Count.COMPLETIONS_WITH]
    ),
)
LOGP = _token_quantity("logp_nats", "log-prob (nats per token)", Sum.LOGP, Sum.RECORDED)
ENTROPY = _token_quantity("entropy_nats", "entropy (nats per token)", Sum.ENTROPY, Sum.RECORDED)
ADVANTAGE = _token_quantity("advantage", "advantage", Sum.ADVANTAGE, Sum.RECORDED)
RATIO = _token_quantity("ratio", "importance ratio", Sum.RATIO, Sum.SEEN)
BOUNDED = _token_quantity("bounded_frac", "share clipped or masked", Sum.BOUNDED, Sum.SEEN)


@dataclass(frozen=True)
class Stretch:
    """Some consecutive steps of a cell, with their totals as in `Tally`."""

    x: float
    """The mean position of these steps on the axis, before each step."""
    counts: FloatArray
    """[len(Count)]"""
    sums: FloatArray
    """[2, len(Sum)]"""


Stretches = dict[str, dict[int, list[Stretch]]]
"""The stretches of each arm and seed, in the order of training."""


@derived
def stretches_of(analysis: Analysis) -> Stretches:
    """Divide each run into its first step, which the untrained model sampled, and equal stretches of the rest."""
    steps, axis = analysis.by_seed(lambda m: m.steps), training_axis(analysis)
    return {
        arm: {seed: _stretches(tallied, steps[arm][seed], axis) for seed, tallied in by_seed.items()}
        for arm, by_seed in read_reflection(analysis).tallies.items()
    }


def word_curves(analysis: Analysis, side: Side) -> dict[str, Curve]:
    """Return one side of a quantity by arm, over the tokens generated (or steps) before a rollout was sampled."""
    curves = {}
    for arm, by_seed in stretches_of(analysis).items():
        lines = [
            line
            for seed, parts in by_seed.items()
            if len((line := to_line(seed, [(part.x, side(part.counts, part.sums)) for part in parts])).x)
        ]
        if lines:
            curves[arm] = mean_curve(arm, lines, analysis.sweep.alpha)
    return curves


def _stretches(tallied: Tally, steps: Columns, axis: Axis) -> list[Stretch]:
    reached = [0.0, *steps[axis.field].tolist()]
    before = {int(step): x for step, x in zip(steps["step"], reached, strict=False)}
    known = np.array([place for place, step in enumerate(tallied.steps) if int(step) in before], dtype=int)
    # Keep the first step separate: only its completions come from the untrained model.
    parts = [part for part in (known[:1], *np.array_split(known[1:], MOST_POINTS)) if len(part)]
    return [
        Stretch(
            float(np.mean([before[int(step)] for step in tallied.steps[places]])),
            tallied.counts[places].sum(0),
            tallied.sums[places].sum(0),
        )
        for places in parts
    ]
