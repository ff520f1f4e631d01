"""Settings: the fields that a run spec, an objective, a sweep file, a task file or a reward part lets its user set.

A knob is one dotted field of a group of settings (`rollout.temperature`, `objective.rule.clip_high`). It is declared
once, at that field: its type, bounds, default and words, and by markers all that others must know of it. `fields` has
the one base class and the walk over an instance of a group, `space` the walk over a class of them. `marks` has what the
rest of bench must know of a knob, `faults` what is wrong as data and in words, `words` tables of knobs.

Some knobs exist only at some points: a clip range belongs to the clipping rule, an epsilon to a standard deviation. The
knob that decides is the selector, and it is declared where the knob is:

* a union is a field that holds one of several groups; the group's `type` (or `where`) says which;
* `OnlyWith` marks a field that exists only at some values of another field, `IfChosen` one that does if it is chosen;
* `Settings.excludes` names the fields that do not exist in the presence of a group.

A knob that does not exist keeps its default in the model and is absent from `active_knobs`. Two groups are therefore
the same exactly if their active knobs are.

Everything else builds on this package, `harness.errors` and `harness.plugins`; it imports nothing else of bench.
"""

from harness.settings.fields import (
    IfChosen,
    InWords,
    KnobValue,
    Listed,
    MadeOf,
    OneOf,
    OnlyWith,
    Settings,
    active_knobs,
    defaults,
    dotted,
    nested,
)
from harness.settings.space import Knob, knobs_of, unions_of

__all__ = [
    "IfChosen",
    "InWords",
    "Knob",
    "KnobValue",
    "Listed",
    "MadeOf",
    "OneOf",
    "OnlyWith",
    "Settings",
    "active_knobs",
    "defaults",
    "dotted",
    "knobs_of",
    "nested",
    "unions_of",
]
