"""Overrides: build an objective from another one by naming the knobs that change.

There are two families of objectives, policy gradients and preferences. They have no knob in common.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, TypeVar, cast

from pydantic import ValidationError

from algorithms.objective import Objective
from algorithms.preference.objective import PreferenceObjective
from harness import plugins
from harness.errors import UnknownNameError, nearest
from harness.settings import Knob, Settings, active_knobs, knobs_of, nested, unions_of
from harness.settings.faults import Fault, FaultyError, faults_of, misnamed

AnyObjective = Objective | PreferenceObjective
Family = Literal["policy_gradient", "preference"]
AnObjective = TypeVar("AnObjective", bound=AnyObjective)

_CLASSES: Mapping[Family, type[AnyObjective]] = {"policy_gradient": Objective, "preference": PreferenceObjective}


def family_of(objective: AnyObjective) -> Family:
    """Return the family of an objective."""
    return next(family for family, model in _CLASSES.items() if isinstance(objective, model))


@plugins.cached
def objective_knobs() -> Mapping[str, Knob]:
    """Map dotted names to the knobs of both families, whether or not a knob exists at a given point."""
    # The cache is cleared when plug-ins change, because a rule from a plug-in adds knobs.
    return {name: knob for model in _CLASSES.values() for name, knob in knobs_of(model).items()}


def with_overrides(objective: AnObjective, overrides: Mapping[str, object], prefix: str = "") -> AnObjective:
    """Return the objective with some dotted knobs changed: `with_overrides(grpo, {"rule.clip_high": 0.28})`.

    Setting a group's `type` resets its other knobs to that type's defaults. If a knob no longer exists because its
    selector changed, it is dropped. The order of the overrides does not matter.

    prefix: prepended to the names of knobs in messages.
    Raises FaultyError, a ValueError that lists all faults: unknown knobs, knobs of the other family, invalid values and
    invalid combinations.
    """
    model = type(objective)
    known = {knob: value for knob, value in overrides.items() if knob in knobs_of(model)}
    kept = {knob: value for knob, value in active_knobs(objective).items() if not _is_reset(model, knob, known)}
    knobs = kept | known
    # Misplaced knobs are already faults. The others are validated without them, so that one message has all faults.
    misplaced = dict(_misplaced(model, knobs, prefix))
    faults = [*(_unknown(model, knob, prefix) for knob in overrides if knob not in known), *misplaced.values()]
    try:
        moved = model.model_validate(nested({knob: value for knob, value in knobs.items() if knob not in misplaced}))
    except ValidationError as error:
        faults += faults_of(error, model, prefix)
    if faults:
        raise FaultyError(faults)
    return cast("AnObjective", moved)


def _unknown(model: type[Settings], knob: str, prefix: str) -> Fault:
    """Build the fault for a knob that the model does not have: a knob of the other family, or a misspelt name."""
    names = knobs_of(model)
    for family, other in _CLASSES.items():
        if other is not model and any(name == knob or name.startswith(f"{knob}.") for name in knobs_of(other)):
            own = "policy-gradient" if family == "preference" else "preference"
            line = (
                f"{prefix}{knob} belongs to {family.replace('_', '-')} objectives, and this is a {own} objective: "
                f"leave it out, or choose another algorithm{nearest(knob, names)}"
            )
            return Fault("unknown", f"{prefix}{knob}", line)
    line = misnamed(knob, model, prefix) or str(UnknownNameError("objective knob", knob, names, "bench ls knobs"))
    return Fault("unknown", f"{prefix}{knob}", line)


def _is_reset(model: type[Settings], knob: str, overrides: Mapping[str, object]) -> bool:
    """Return whether the overrides reset this knob, because its group's type is set or the knob no longer exists."""
    group, _, _ = knob.rpartition(".")
    if group in unions_of(model) and f"{group}.{unions_of(model)[group].selector}" in overrides:
        return True
    known = knobs_of(model).get(knob)  # None for a knob of a rule that is not in use yet
    if known is None or known.selector is None or known.selector not in overrides:
        return False
    return overrides[known.selector] not in known.exists_at


def _misplaced(model: type[Settings], knobs: Mapping[str, object], prefix: str) -> Iterator[tuple[str, Fault]]:
    """Yield (knob, fault) for every knob that does not exist with the current type of its group."""
    for field, union in unions_of(model).items():
        selector, members = f"{field}.{union.selector}", union.members
        kind = str(knobs.get(selector))
        for knob in knobs:
            group, _, name = knob.rpartition(".")
            if group == field and kind in members and name not in members[kind].model_fields:
                owners = [owner for owner, member in members.items() if name in member.model_fields]
                line = (
                    f"{prefix}{knob} does not exist while {prefix}{selector}={kind}: leave it out, or set "
                    f"{prefix}{selector} to {' or '.join(owners)}."
                )
                yield knob, Fault("clash", f"{prefix}{knob}", line)
