"""Settings: the fields of a run spec, an objective, a sweep file, a task file or a reward part that a user can set.

A knob is one dotted field of a group of settings (`rollout.temperature`, `objective.rule.clip_high`). It is declared
once, at that field: its type, bounds, default and description, and markers for everything that other modules must know
about it. `fields` contains the base class of all groups and the walk over an instance of a group, `space` the walk over
a class. `marks` contains the markers for the rest of bench, `faults` faults as data and in words, `words` tables of
knobs.

Some knobs exist only at some points. For example, a clip range belongs to the clipping rule. The knob that decides is
called the selector, and it is declared where the dependent knob is:

* A union is a field that contains one of several groups. The group's `type` (or `where`) says which.
* `OnlyWith` marks a field that exists only at some values of another field, `IfChosen` a field that exists only if it
  is set.
* `Settings.excludes` names the fields that do not exist in the presence of a group.

A knob that does not exist keeps its default in the model and is absent from `active_knobs`. Two groups are therefore
equal exactly if their active knobs are.

Everything else builds on this package, `harness.errors` and `harness.plugins`. It imports nothing else of bench.
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
