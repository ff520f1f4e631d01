"""Settings: what a run spec, an objective, a sweep file, a task file or a reward part lets its user say.

A knob is one dotted field of a group of settings (`rollout.temperature`, `objective.rule.clip_high`), declared once,
at that field: its type, bounds, default and words, and by markers all that others must know of it. `fields` has the one
base class and the walk over a group at hand, `space` the walk over a class of them, `marks` what the rest of bench must
know of a knob, `faults` what is wrong as data and in words, `words` tables of knobs.

Some knobs exist only at some points: a clip range belongs to the clipping rule, an epsilon to a standard deviation. The
knob that decides is the selector, and it is declared where the knob is:

* a union is a field that holds one of several groups; the group's `type` (or `where`) says which;
* `OnlyWith` marks a field that exists only at some values of another field, `IfChosen` one that does if it is chosen;
* `Settings.excludes` names the fields that do not exist beside a group.

A knob that does not exist keeps its default in the model and does not appear in `active_knobs`, so two groups are the
same exactly when their active knobs are.

Beside `harness.errors` and `harness.plugins` this is what everything else stands on; it imports nothing else of bench.
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
