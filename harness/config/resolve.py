"""Layers of settings become one resolved RunSpec: profile < sweep base < arm < --set.

A layer is a mapping whose keys may be nested or dotted. `algorithm: <preset>` is shorthand for all objective knobs, and
setting a `type` resets its siblings to that type's defaults. An algorithm that learns from rewards has no pairs: naming
one drops the `pairs` of the layers below, as it drops their objective knobs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic import ValidationError

from algorithms import AnyObjective, Objective, PreferenceObjective, objective_knobs, preset, with_overrides
from evals.tasks import get_task
from evals.tasks.base import Task
from harness.config.knobs import descriptions, governor
from harness.config.run_spec import RunSpec
from harness.config.section import LARGEST_NUMBER
from harness.config.trainer import BENCH, is_open
from harness.errors import RefusedError, nearest, shown
from harness.rewards.base import nameable_parts

Knobs = dict[str, Any]


@dataclass(frozen=True)
class Layer:
    """Settings and where they come from, for error messages (`sweeps/std_norm.yaml: arms.no_std`)."""

    origin: str
    settings: Mapping[str, Any]


def resolve(layers: Sequence[Layer], seed: int, checkpoint: str | None = None) -> RunSpec:
    """The resolved spec of one cell. checkpoint: the model that it evaluates as it is, as a user names it.

    Raises RefusedError with every problem of all layers.
    """
    found = _resolved(layers, seed, checkpoint)
    if found.spec is None:
        raise RefusedError("\n".join([*found.problems, *found.missing]))
    return found.spec


def problems_of(layers: Sequence[Layer], seed: int) -> list[str]:
    """What is wrong with layers when another layer could not be read: missing settings may be in that one."""
    return _resolved(layers, seed, None).problems


class _Resolved(NamedTuple):
    spec: RunSpec | None
    problems: list[str]
    missing: list[str]


def _resolved(layers: Sequence[Layer], seed: int, checkpoint: str | None) -> _Resolved:
    problems: list[str] = []
    missing: list[str] = []
    knobs: Knobs = {}
    origins: dict[str, str] = {}
    objective: AnyObjective | None = None
    algorithm_is_named = False
    for layer in layers:
        flat = dotted(layer.settings)
        unknown = dict(_unknown_knobs(flat))
        problems += [f"{layer.origin}: {problem}" for problem in unknown.values()]
        problems += [f"{layer.origin}: {problem}" for problem in _unusable_numbers(flat)]
        flat = {knob: value for knob, value in flat.items() if knob not in unknown}
        overrides = {
            key.removeprefix("objective."): flat.pop(key) for key in list(flat) if key.startswith("objective.")
        }
        if "algorithm" in flat:
            algorithm_is_named = True
            try:
                objective = preset(str(flat.pop("algorithm")))
                origins = {knob: origin for knob, origin in origins.items() if not knob.startswith("objective.")}
                origins["objective."] = layer.origin
                if isinstance(objective, Objective):
                    knobs = {knob: value for knob, value in knobs.items() if not knob.startswith("pairs.")}
            except ValueError as error:
                problems.append(f"{layer.origin}: {error}")
        if overrides and objective is not None:
            try:
                objective = with_overrides(objective, overrides)
                origins |= {f"objective.{knob}": layer.origin for knob in overrides}
            except ValueError as error:
                problems += [f"{layer.origin}: {_under_objective(line)}" for line in str(error).splitlines()]
        elif overrides and not algorithm_is_named:
            missing.append(f"{layer.origin}: objective knobs without `algorithm`; name a preset to start from.")
        for knob in _types_first(flat):
            _set(knobs, knob, flat[knob])
            origins.pop(knob, None)
            origins[knob] = layer.origin
    lacks_algorithm = not algorithm_is_named and not problems and not missing
    knobs |= {"seed": seed, "checkpoint": checkpoint}
    nested = _nested(knobs)
    # Without an objective there is a problem already; any will do to find the others.
    nested["objective"] = objective or preset("grpo")
    pairs = nested.get("pairs", {} if isinstance(objective, PreferenceObjective) else None)
    if pairs is not None:
        nested["pairs"] = {"type": "dataset" if "data" in pairs else "policy"} | pairs
    if isinstance(optimizer := nested.get("train", {}).get("optimizer"), dict):
        nested["train"]["optimizer"] = {"type": "adamw"} | optimizer
    _fill_from_task(nested)
    by_bench = nested.get("trainer", {}).get("type", BENCH) == BENCH
    spec = None
    try:
        spec = RunSpec.model_validate(nested)
    except ValidationError as error:
        for path, problem in readable_errors(error):
            is_clash = not path
            if path not in _undecided_by_task(nested) and not (is_clash and objective is None and by_bench):
                found = missing if problem.endswith(_SET_IT) else problems
                found.append(f"{_origin(path, problem, origins, layers)}: {problem}")
    if lacks_algorithm and (by_bench if spec is None else spec.trainer.reads("objective.aggregation")):
        missing.insert(0, f"{layers[-1].origin}: no `algorithm` is given; name a preset, e.g. algorithm: grpo.")
    faulty = problems or missing
    return _Resolved(None if faulty else spec, list(dict.fromkeys(problems)), list(dict.fromkeys(missing)))


def _under_objective(problem: str) -> str:
    """A problem of `algorithms`, which knows no prefix: `scale='x': ...` -> `objective.scale='x': ...`."""
    knob = re.split(r"[ =]", problem, maxsplit=1)[0]
    return f"objective.{problem}" if knob in objective_knobs() else f"objective: {problem}"


def _origin(path: str, problem: str, origins: Mapping[str, str], layers: Sequence[Layer]) -> str:
    """The layer that, last of all, set what the problem is about; the first layer for a key that nobody set.

    origins: knob -> the layer that set it, in the order of setting.
    """

    def concerns(knob: str) -> bool:
        if not path:  # sections clash: the problem names the knobs
            return knob in problem
        return path.startswith(f"{knob}.") or f"{knob}.".startswith(f"{path}.") or knob == governor(path)

    return next((origin for knob, origin in reversed(list(origins.items())) if concerns(knob)), layers[0].origin)


_SET_IT = ": set it."
KNOBS_LISTED = " `bench ls knobs` lists all."


def readable_errors(error: ValidationError, keys: Sequence[str] | None = None) -> Iterator[tuple[str, str]]:
    """For each problem the dotted path and a line with path, value and rule. keys: those of the document if it is no
    spec."""
    details = error.errors(include_url=False)
    # A list whose items are faulty counts as too short as well.
    faulty_within = {detail["loc"][:depth] for detail in details for depth in range(len(detail["loc"]))}
    for detail in details:
        if detail["loc"] in faulty_within:
            continue
        path = _knob_of(detail["loc"])
        message = detail["msg"].removeprefix("Value error, ")
        match detail["type"]:
            case "missing":
                yield path, f"{path} has no default{_SET_IT}"
            case "union_tag_not_found":
                yield path, f"{path}.type has no default here{_SET_IT}"
            case "union_tag_invalid":
                yield (
                    path,
                    f"{path}.type is {shown(detail['ctx']['tag'])}: choose among {detail['ctx']['expected_tags']}.",
                )
            case "extra_forbidden":
                known = descriptions() if keys is None else keys
                yield path, f"{path} is not a key here{nearest(path, known)}{KNOBS_LISTED if keys is None else ''}"
            case "value_error":
                where = f"{path}: " if path else ""
                yield from ((path, f"{where}{line}{_end(line)}") for line in _unindented(message).splitlines())
            case "dict_type":
                yield path, f"{path} is {shown(detail['input'])}: input should be a mapping, e.g. {{}}."
            case "tuple_type" | "list_type":
                yield path, f"{path} is {shown(detail['input'])}: input should be a list, e.g. [a, b]."
            case "less_than_equal":
                most = detail["ctx"]["le"]
                written = f"{most:,}" if isinstance(most, int) else f"{most:g}"
                yield path, f"{path} is {shown(detail['input'])}: input should be less than or equal to {written}."
            case _:
                yield path, f"{path} is {shown(detail['input'])}: {message[0].lower()}{message[1:]}."


def _knob_of(location: Sequence[int | str]) -> str:
    """The dotted knob at a location in pydantic's words, which also names the member of a union that was chosen:
    `("model", "cold_start", "sft", "steps")`."""
    knob = ""
    at_member = False
    for part in location:
        at_member = not at_member and knob != "trainer" and f"{knob}.type" in descriptions()
        if not at_member and part != "[key]":
            knob = f"{knob}.{part}" if knob else str(part)
    return knob


def _unindented(message: str) -> str:
    """With the indented lines of a list, as of the faults of a template's file, on the line that leads to them."""
    return re.sub(r"\.?\n +", "; ", re.sub(r":\n +", ": ", message))


def _end(sentence: str) -> str:
    return "" if sentence.endswith(("?", ".")) else "."


def dotted(settings: Mapping[str, Any], prefix: str = "") -> Knobs:
    """Flatten nested mappings to dotted knobs. Later spellings of one knob win."""
    flat: Knobs = {}
    for key, value in settings.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat |= dotted(value, f"{name}.")
        else:
            flat[name] = value
    return flat


_PARTS = "reward.parts."


def _unknown_knobs(flat: Knobs) -> Iterator[tuple[str, str]]:
    """Keys that are not knobs, each with the complaint. Whether an objective knob exists at this point is not asked."""
    known = descriptions()
    nameable = ("algorithm", *known, *(f"{_PARTS}{part}" for part in nameable_parts()))
    for knob in flat:
        if knob == "seed":
            yield knob, "seed is not a knob: give `seeds` in the sweep, or --seeds."
        elif knob == "checkpoint":
            yield knob, "checkpoint is not a knob, but stands for training: give it in the sweep, beside `arms`."
        elif knob == "algorithm" or _is_part(knob) or is_open(knob):
            continue
        elif within := [name for name in nameable if name.startswith(f"{knob}.")]:
            yield knob, f"{knob} is a section: set its keys, e.g. {within[0]}."
        elif knob not in known:
            yield knob, f"unknown key {knob}{nearest(knob, nameable)}{KNOBS_LISTED}"


def _unusable_numbers(flat: Knobs) -> Iterator[str]:
    for knob, given in flat.items():
        for value in given if isinstance(given, list | tuple) else [given]:
            if _is_number(value) and not 1 / LARGEST_NUMBER <= abs(value) <= LARGEST_NUMBER:
                yield (
                    f"{knob} is {value:g}: a number here is 0, or its size lies between {1 / LARGEST_NUMBER:g} and "
                    f"{LARGEST_NUMBER:g}, where 32-bit arithmetic can use it."
                )


def _is_number(value: object) -> bool:
    """Whether it has a size: infinities and NaN are refused elsewhere."""
    return isinstance(value, int | float) and math.isfinite(value) and value != 0


def _is_part(knob: str) -> bool:
    """Whether a knob is the weight of a reward part; that of a user's function may hold dots: `package.module:name`."""
    part = knob.removeprefix(_PARTS)
    return part != knob and ("." not in part or ":" in part)


def laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Settings on top of others, nested: what `resolve` makes of two layers before it fills in defaults."""
    knobs, flat = dotted(below), dotted(above)
    for knob in _types_first(flat):
        _set(knobs, knob, flat[knob])
    return _nested(knobs)


def _types_first(flat: Knobs) -> list[str]:
    """They reset their siblings, which the same layer may set, in whatever order it names them."""
    return sorted(flat, key=lambda knob: not knob.endswith(".type"))


def _set(knobs: Knobs, knob: str, value: Any) -> None:
    if knob.endswith(".type") and not is_open(knob):
        prefix = knob.removesuffix("type")
        for sibling in [name for name in knobs if name.startswith(prefix)]:
            del knobs[sibling]
    if knob.startswith(_PARTS):
        # Other parts come on top of correctness, whose weight is 1 unless it is set.
        knobs.setdefault("reward.parts.correct", 1.0)
    knobs[knob] = value


def _nested(knobs: Knobs) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for knob, value in knobs.items():
        *path, last = ["reward", "parts", knob.removeprefix(_PARTS)] if _is_part(knob) else knob.split(".")
        section = nested
        for name in path:
            section = section.setdefault(name, {})
        section[last] = value
    return nested


_DECIDED_BY_TASK = ("task.template", "reward.grader", "eval.tasks", "eval.template", "eval.grader")


def _undecided_by_task(nested: dict[str, Any]) -> list[str]:
    """Defaults that are missing only because a task is unknown: no further problem."""
    names = [name.split(".") for name in _DECIDED_BY_TASK]
    return [f"{section}.{field}" for section, field in names if field not in nested.get(section, {})]


def _fill_from_task(nested: dict[str, Any]) -> None:
    """Defaults that the task decides, written out; left open where the task is unknown, which validation tells."""
    reward, evaluation = nested.setdefault("reward", {}), nested.setdefault("eval", {})
    samples = evaluation.setdefault("samples", 16)
    most_samples = samples if isinstance(samples, int) else 1
    evaluation.setdefault("k", [2**power for power in range(max(1, most_samples.bit_length()))])
    trained = _known_task(nested.get("task", {}).get("train"))
    if trained is None:
        return
    nested["task"].setdefault("template", trained.template)
    reward.setdefault("grader", trained.grader)
    tasks = evaluation.setdefault("tasks", [nested["task"]["train"]])
    first = _known_task(tasks[0]) if isinstance(tasks, list) and tasks else None
    if first is not None:
        evaluation.setdefault("template", first.template)
        evaluation.setdefault("grader", first.grader)


def _known_task(name: Any) -> Task | None:
    try:
        return get_task(name) if isinstance(name, str) else None
    except RefusedError:
        return None
