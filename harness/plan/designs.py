"""Designs: short forms in a sweep file from which several arms are made.

A factorial has an arm for each combination of the values of some knobs. A leave-one-out design has a recipe, and arms
that each reset one knob of the recipe to its ordinary value. The score that such an arm loses is what the knob
contributes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from harness.config.run_spec import RunSpec
from harness.plan.gate import EVALUATION, check_gate
from harness.settings.words import written

RECIPE = "base"
"""The arm of a leave-one-out design that has the unchanged recipe."""

Arms = dict[str, dict[str, object]]


def factorial(grid: Mapping[str, Sequence[object]]) -> Arms:
    """Return an arm for each combination of values, named by its knobs' last segments: `clip_high=0.28+beta=0`."""
    points = (dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values()))
    return {"+".join(f"{knob.rsplit('.', 1)[-1]}={value}" for knob, value in point.items()): point for point in points}


def leave_one_out(ordinary: Mapping[str, object]) -> Arms:
    """Return an arm with the recipe, and for each knob an arm that resets it to its ordinary value.

    Such an arm is named by knob and value: `scale=group_std`. The type of a section is named by the section:
    `rule=ppo_clip`.
    """
    arms: Arms = {RECIPE: {}}
    for knob, value in ordinary.items():
        arms[f"{knob.removesuffix('.type').rsplit('.', 1)[-1]}={written(value)}"] = {knob: value}
    return arms


def leave_one_out_faults(
    arms: Mapping[str, RunSpec], ordinary: Mapping[str, object], co_changes: Mapping[str, str]
) -> Iterator[str]:
    """Yield a message for each arm that does not differ from the recipe in exactly its one knob.

    Options of the knob may differ too, and knobs in co_changes, for the stated reason. Knobs of the evaluation are left
    to the gate, which refuses all of them.
    arms: the resolved spec of each arm, for one seed. Arms that --arms leaves out are not checked.
    """
    for arm, settings in leave_one_out(ordinary).items():
        for knob, value in settings.items() if {RECIPE, arm} <= arms.keys() else ():
            # With only this knob declared, the gate reports exactly the other knobs that differ.
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
