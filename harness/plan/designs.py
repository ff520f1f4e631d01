"""Designs: arms that a sweep file does not state one by one.

A factorial crosses knobs. Leaving one out takes a recipe and puts its knobs back one at a time, each to its ordinary
value. What an arm loses against the recipe is what that knob contributes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from harness.config.run_spec import RunSpec
from harness.plan.gate import EVALUATION, check_gate
from harness.settings.words import written

RECIPE = "base"
"""The arm of a leave-one-out design that leaves nothing out."""

Arms = dict[str, dict[str, object]]


def factorial(grid: Mapping[str, Sequence[object]]) -> Arms:
    """Return an arm for each combination, named by the last segments of its knobs: `clip_high=0.28+beta=0`."""
    points = (dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values()))
    return {"+".join(f"{knob.rsplit('.', 1)[-1]}={value}" for knob, value in point.items()): point for point in points}


def leave_one_out(ordinary: Mapping[str, object]) -> Arms:
    """Return the recipe, and for each knob an arm with the knob's ordinary value.

    An arm is named by that value: `scale=group_std`. The type of a section is named by the section: `rule=ppo_clip`.
    """
    arms: Arms = {RECIPE: {}}
    for knob, value in ordinary.items():
        arms[f"{knob.removesuffix('.type').rsplit('.', 1)[-1]}={written(value)}"] = {knob: value}
    return arms


def leave_one_out_faults(
    arms: Mapping[str, RunSpec], ordinary: Mapping[str, object], co_changes: Mapping[str, str]
) -> Iterator[str]:
    """Yield why an arm does not differ from the recipe in its one knob, and in nothing else.

    The knob may have options of its own, and co_changes may change along for a reason. The gate refuses what is
    measured differently anyway. arms: resolved, of one seed; arms that --arms leaves out are not checked.
    """
    for arm, settings in leave_one_out(ordinary).items():
        for knob, value in settings.items() if {RECIPE, arm} <= arms.keys() else ():
            # The gate with this one knob declared shows exactly the knobs that differ besides.
            gate = check_gate({RECIPE: arms[RECIPE], arm: arms[arm]}, [knob], co_changes)
            if knob not in gate.differs:
                yield (
                    f"leave_one_out: {knob} is {written(value)} in the base recipe as well, so there is nothing to "
                    "leave out. Give the value that the recipe departs from, or take the knob out."
                )
            elif others := [other for other in gate.violations if not other.startswith(EVALUATION)]:
                yield (
                    f"leave_one_out: {knob}={written(value)} also changes {', '.join(others)}, and an arm leaves out "
                    "one knob. Set those alike under base, or give each a reason under co_changes."
                )
