"""Resolve layers of settings into one RunSpec. A later layer overrides: profile < sweep base < arm < --set.

A layer is a mapping whose keys may be nested or dotted. `algorithm: <preset>` is shorthand for all objective knobs.
Setting a `type` resets its siblings to the defaults of that type.

Naming an algorithm drops the objective knobs of the layers below. If the algorithm learns from rewards, it also drops
their `pairs`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from pydantic import ValidationError

from algorithms import AnyObjective, Objective, PreferenceObjective, preset, with_overrides
from evals.tasks import get_task
from evals.tasks.base import Task
from harness.config.knobs import PARTS, governor, reads, spec_knobs
from harness.config.names import FromTask
from harness.config.run_spec import RunSpec
from harness.config.trainer import BENCH, is_open
from harness.errors import RefusedError, few, nearest
from harness.rewards.base import nameable_parts
from harness.settings import dotted, nested
from harness.settings.faults import Fault, FaultyError, faults_of, misnamed
from harness.settings.fields import LARGEST_NUMBER, Document

Knobs = dict[str, object]
LISTED_BY = "bench ls knobs"
_OBJECTIVE = "objective."


@dataclass(frozen=True)
class Layer:
    """Settings and where they come from, for error messages, e.g. `sweeps/std_norm.yaml: arms.no_std`."""

    origin: str
    settings: Mapping[str, Any]


def resolve(layers: Sequence[Layer], seed: int, checkpoint: str | None = None) -> RunSpec:
    """Resolve the spec of one cell.

    checkpoint: the model that the cell evaluates without training, as named by the user.
    Raises FaultyError with every fault of all layers, missing settings last.
    """
    spec, faults = _resolved(layers, seed, checkpoint)
    if spec is None:
        raise FaultyError(sorted(faults, key=lambda fault: fault.code == "missing"))
    return spec


def faults_of_incomplete(layers: Sequence[Layer]) -> list[Fault]:
    """Return the faults of layers when another layer could not be read.

    Missing settings are not reported: they may be in the unreadable layer.
    """
    return [fault for fault in _resolved(layers, 0, None)[1] if fault.code != "missing"]


def _resolved(layers: Sequence[Layer], seed: int, checkpoint: str | None) -> tuple[RunSpec | None, list[Fault]]:
    """Return the spec and the faults of the layers. The spec is None if there are faults."""
    faults: list[Fault] = []
    knobs: Knobs = {}
    origins: dict[str, str] = {}
    objective: AnyObjective | None = None
    algorithm_is_named = False
    for layer in layers:
        flat = dotted(layer.settings)
        unknown = {fault.path: fault for fault in _unknown_knobs(flat)}
        faults += _of(layer, *unknown.values(), *_unusable_numbers(flat))
        # Each fault is reported once, so unknown keys must not reach validation, which would refuse them again.
        flat = {knob: value for knob, value in flat.items() if knob not in unknown}
        overrides = {key.removeprefix(_OBJECTIVE): flat.pop(key) for key in list(flat) if key.startswith(_OBJECTIVE)}
        if "algorithm" in flat:
            algorithm_is_named = True
            try:
                objective = preset(str(flat.pop("algorithm")))
                # A preset replaces all objective knobs of the layers below. Their origins no longer explain a fault.
                origins = {knob: origin for knob, origin in origins.items() if not knob.startswith(_OBJECTIVE)}
                origins[_OBJECTIVE] = layer.origin
                if isinstance(objective, Objective):
                    knobs = {knob: value for knob, value in knobs.items() if not knob.startswith("pairs.")}
            except ValueError as error:
                faults += _of(layer, Fault("value", "algorithm", str(error)))
        if overrides and objective is not None:
            try:
                objective = with_overrides(objective, overrides, _OBJECTIVE)
                origins |= {f"{_OBJECTIVE}{knob}": layer.origin for knob in overrides}
            except FaultyError as error:
                faults += _of(layer, *error.faults)
        elif overrides and not algorithm_is_named:
            words = "objective knobs without `algorithm`; name a preset to start from."
            faults += _of(layer, Fault("missing", "algorithm", words))
        for knob in _types_first(flat):
            _set(knobs, knob, flat[knob])
            # The knob is removed first, so that it moves to the end: `_origin` relies on the order of setting.
            origins.pop(knob, None)
            origins[knob] = layer.origin
    lacks_algorithm = not algorithm_is_named and not faults
    document = _nested(knobs | {"seed": seed, "checkpoint": checkpoint})
    # Without an objective there is a fault already. Any preset will do to find the others.
    document["objective"] = objective or preset("grpo")
    _fill_in_types(document)
    _fill_from_task(document)
    by_bench = document.get("trainer", {}).get("type", BENCH) == BENCH
    spec = None
    try:
        spec = RunSpec.model_validate(document)
    except ValidationError as error:
        undecided = _undecided_by_task(document)
        for fault in faults_of(error, RunSpec, listed_by=LISTED_BY):
            # A clash with the objective that was filled in above would not be the user's mistake.
            is_clash = not fault.path
            if fault.path not in undecided and not (is_clash and objective is None and by_bench):
                faults.append(replace(fault, origin=_origin(fault, origins, layers)))
    if lacks_algorithm and (by_bench if spec is None else reads(spec, "objective.aggregation")):
        words = "no `algorithm` is given; name a preset, e.g. algorithm: grpo."
        faults = [*_of(layers[-1], Fault("missing", "algorithm", words)), *faults]
    return None if faults else spec, list(dict.fromkeys(faults))


def _of(layer: Layer, *faults: Fault) -> list[Fault]:
    return [replace(fault, origin=layer.origin) for fault in faults]


def _origin(fault: Fault, origins: Mapping[str, str], layers: Sequence[Layer]) -> str:
    """Return the layer that last set the knob at fault, or the first layer if no layer set it.

    origins: maps each knob to the layer that set it, in the order of setting.
    """

    def concerns(knob: str) -> bool:
        if not fault.path:  # a clash between sections
            return knob in fault.words
        path = fault.path
        return path.startswith(f"{knob}.") or f"{knob}.".startswith(f"{path}.") or knob == governor(path)

    return next((origin for knob, origin in reversed(list(origins.items())) if concerns(knob)), layers[0].origin)


def _unknown_knobs(flat: Mapping[str, object]) -> Iterator[Fault]:
    """Yield a fault for each key that is not a knob.

    Whether an objective knob exists at this point is checked elsewhere.
    """
    parts = [f"{PARTS}{part}" for part in nameable_parts()]
    nameable = ("algorithm", *spec_knobs(), *parts)
    for knob in flat:
        line = None
        if knob == "seed":
            line = "seed is not a knob: give `seeds` in the sweep, or --seeds."
        elif knob == "checkpoint":
            line = "checkpoint is not a knob, but stands for training: give it in the sweep, beside `arms`."
        elif f"{knob}." == PARTS:
            line = f"{knob} is a section: set one of {few(parts)}."
        elif not (_is_part(knob) or is_open(knob)):
            line = misnamed(knob, RunSpec)
            if line is None and knob not in nameable:
                line = f"unknown key {knob}{nearest(knob, nameable)} `{LISTED_BY}` lists all."
        if line is not None:
            yield Fault("unknown", knob, line)


def _unusable_numbers(flat: Knobs) -> Iterator[Fault]:
    """Yield a fault for each number that is too large or too small for 32-bit arithmetic."""
    for knob, given in flat.items():
        for value in given if isinstance(given, list | tuple) else [given]:
            if _is_number(value) and not 1 / LARGEST_NUMBER <= abs(value) <= LARGEST_NUMBER:
                line = (
                    f"{knob} is {value:g}: a number here is 0, or its size lies between {1 / LARGEST_NUMBER:g} and "
                    f"{LARGEST_NUMBER:g}, where 32-bit arithmetic can use it."
                )
                yield Fault("value", knob, line)


def _is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is a number whose size can be checked. Infinities and NaN are refused elsewhere."""
    # 0 is always usable.
    return isinstance(value, int | float) and math.isfinite(value) and value != 0


def _is_part(knob: str) -> bool:
    """Return whether a knob is the weight of a reward part.

    The name of a user's function may contain dots: `package.module:name`.
    """
    part = knob.removeprefix(PARTS)
    return part != knob and ("." not in part or ":" in part)


def laid_over(below: Mapping[str, object], above: Mapping[str, object]) -> dict[str, object]:
    """Return the nested settings `below`, overridden by `above`, as `resolve` does before it adds defaults."""
    knobs, flat = dotted(below), dotted(above)
    for knob in _types_first(flat):
        _set(knobs, knob, flat[knob])
    return _nested(knobs)


def _types_first(flat: Mapping[str, object]) -> list[str]:
    """Return the knobs with types first. A type resets its siblings, and a layer may list them in any order."""
    return sorted(flat, key=lambda knob: not knob.endswith(".type"))


def _set(knobs: dict[str, object], knob: str, value: object) -> None:
    if knob.endswith(".type") and not is_open(knob):
        prefix = knob.removesuffix("type")
        for sibling in [name for name in knobs if name.startswith(prefix)]:
            del knobs[sibling]
    if knob.startswith(PARTS):
        # Other parts are added to `correct`, whose weight is 1 unless it is set.
        knobs.setdefault("reward.parts.correct", 1.0)
    knobs[knob] = value


def _nested(knobs: Mapping[str, object]) -> Document:
    return nested(knobs, lambda knob: [*PARTS.split(".")[:-1], knob.removeprefix(PARTS)] if _is_part(knob) else None)


def _undecided_by_task(document: Document) -> set[str]:
    """Return the fields whose default is missing only because a task is unknown. They are not separate faults."""
    by_task = (name.split(".") for name, knob in spec_knobs().items() if knob.mark(FromTask))
    return {f"{section}.{field}" for section, field in by_task if field not in document.get(section, {})}


def _fill_in_types(document: Document) -> None:
    """Fill in the types that follow from other settings."""
    pairs = document.get("pairs", {} if isinstance(document["objective"], PreferenceObjective) else None)
    if pairs is not None:
        document["pairs"] = {"type": "dataset" if "data" in pairs else "policy"} | pairs
    if isinstance(optimizer := document.get("train", {}).get("optimizer"), dict):
        document["train"]["optimizer"] = {"type": "adamw"} | optimizer


def _fill_from_task(document: Document) -> None:
    """Fill in the defaults that depend on the task. If it is unknown they stay open, and validation reports it."""
    reward, evaluation = document.setdefault("reward", {}), document.setdefault("eval", {})
    samples = evaluation.setdefault("samples", 16)
    most_samples = samples if isinstance(samples, int) else 1
    # bit_length gives the powers of 2 up to the number of samples: 1, 2, 4, 8 and 16 for 16 samples.
    evaluation.setdefault("k", [2**power for power in range(max(1, most_samples.bit_length()))])
    trained = _known_task(document.get("task", {}).get("train"))
    if trained is None:
        return
    document["task"].setdefault("template", trained.template)
    reward.setdefault("grader", trained.grader)
    tasks = evaluation.setdefault("tasks", [document["task"]["train"]])
    # Arms are compared on the first task. Validation checks the type of the list.
    first = _known_task(tasks[0]) if isinstance(tasks, list) and tasks else None
    if first is not None:
        evaluation.setdefault("template", first.template)
        evaluation.setdefault("grader", first.grader)


def _known_task(name: object) -> Task | None:
    try:
        return get_task(name) if isinstance(name, str) else None
    except RefusedError:
        return None
