"""Layers of settings become one resolved RunSpec: profile < sweep base < arm < --set.

A layer is a mapping whose keys may be nested or dotted. `algorithm: <preset>` is shorthand for all objective knobs, and
setting a `type` resets its siblings to that type's defaults.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from algorithms import Objective, preset, with_overrides
from evals.errors import EvalError
from evals.tasks import get_task
from harness.errors import RefusedError
from harness.spec.knobs import ALL_KNOBS
from harness.spec.run_spec import RunSpec

Knobs = dict[str, Any]


@dataclass(frozen=True)
class Layer:
    """Settings and where they come from, for error messages (`sweeps/std_norm.yaml: arms.no_std`)."""

    origin: str
    settings: Mapping[str, Any]


def resolve(layers: Sequence[Layer], seed: int) -> RunSpec:
    """The resolved spec of one cell. Raises RefusedError with every problem of all layers."""
    problems: list[str] = []
    knobs: Knobs = {}
    origins: dict[str, str] = {}
    objective: Objective | None = None
    for layer in layers:
        flat = _dotted(layer.settings)
        problems += [f"{layer.origin}: {problem}" for problem in _unknown_knobs(flat)]
        algorithm = flat.pop("algorithm", None)
        overrides = {key.removeprefix("objective."): flat.pop(key) for key in list(flat) if key.startswith("objective.")}
        try:
            if algorithm is not None:
                objective = preset(str(algorithm))
            if overrides and objective is None:
                problems.append(f"{layer.origin}: objective knobs without `algorithm`; name a preset to start from.")
            elif overrides and objective is not None:
                objective = with_overrides(objective, overrides)
        except ValueError as error:
            problems += [f"{layer.origin}: objective: {line}" for line in str(error).splitlines()]
        for knob, value in flat.items():
            _set(knobs, knob, value)
            origins[knob] = layer.origin
    if objective is None and not problems:
        problems.append(f"{layers[-1].origin}: no `algorithm` is given; name a preset, e.g. algorithm: grpo.")
    if problems:
        raise RefusedError("\n".join(dict.fromkeys(problems)))

    knobs["seed"] = seed
    nested = _nested(knobs)
    nested["objective"] = objective
    try:
        _fill_from_task(nested)
        return RunSpec.model_validate(nested)
    except ValidationError as error:
        lines = [f"{_origin(path, origins, layers)}: {problem}" for path, problem in readable_errors(error)]
        raise RefusedError("\n".join(lines)) from None
    except EvalError as error:
        raise RefusedError(f"{layers[-1].origin}: {error}") from None


def _origin(path: str, origins: Mapping[str, str], layers: Sequence[Layer]) -> str:
    """The layer that set what the problem is about; for a missing key or a clash of several, the first layer."""
    matching = [origin for knob, origin in origins.items() if path and (path == knob or path.startswith(f"{knob}."))]
    return matching[-1] if matching else layers[0].origin


def readable_errors(error: ValidationError) -> Iterator[tuple[str, str]]:
    """For each problem the dotted path and a line with path, value and rule."""
    for detail in error.errors(include_url=False):
        path = ".".join(str(part) for part in detail["loc"] if part not in ("none", "sft"))
        message = detail["msg"].removeprefix("Value error, ")
        if detail["type"] == "missing":
            yield path, f"{path} has no default: set it."
        elif detail["type"] == "extra_forbidden":
            yield path, f"{path} is not a key here{suggest(path)}"
        elif detail["type"] == "value_error":
            yield path, f"{path + ': ' if path else ''}{message}."
        else:
            yield path, f"{path} is {detail['input']!r}: {message[0].lower()}{message[1:]}."


def suggest(knob: str, known: Sequence[str] = ALL_KNOBS) -> str:
    """`"; did you mean rollout.temperature?"`: the nearest knobs, also by last segment; empty when none is close."""
    last = knob.rsplit(".", 1)[-1]
    same_last = [name for name in known if name.rsplit(".", 1)[-1] == last]
    by_last = {name.rsplit(".", 1)[-1]: name for name in known}
    close = [
        *same_last,
        *difflib.get_close_matches(knob, known, n=2, cutoff=0.75),
        *(by_last[name] for name in difflib.get_close_matches(last, by_last, n=2, cutoff=0.75)),
    ]
    return f"; did you mean {' or '.join(list(dict.fromkeys(close))[:3])}?" if close else ""


def _dotted(settings: Mapping[str, Any], prefix: str = "") -> Knobs:
    """Flatten nested mappings to dotted knobs. Later spellings of one knob win."""
    flat: Knobs = {}
    for key, value in settings.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat |= _dotted(value, f"{name}.")
        else:
            flat[name] = value
    return flat


def _unknown_knobs(flat: Knobs) -> Iterator[str]:
    for knob in flat:
        # Objective knobs are judged by `with_overrides`, which knows what exists at which point.
        if knob == "algorithm" or knob in ALL_KNOBS or knob.startswith(("objective.", "reward.parts.")):
            continue
        if knob == "seed":
            yield "seed is set by `seeds`, not as a knob."
        elif any(name.startswith(f"{knob}.") for name in ALL_KNOBS):
            yield f"{knob} is a section: it must be a mapping of its keys."
        else:
            yield f"unknown key {knob}{suggest(knob, [*ALL_KNOBS, 'algorithm'])}"


def _set(knobs: Knobs, knob: str, value: Any) -> None:
    if knob.endswith(".type") and knobs.get(knob) != value:
        prefix = knob.removesuffix("type")
        for sibling in [name for name in knobs if name.startswith(prefix)]:
            del knobs[sibling]
    if knob.startswith("reward.parts."):
        # Other parts come on top of correctness, whose weight is 1 unless it is set.
        knobs.setdefault("reward.parts.correct", 1.0)
    knobs[knob] = value


def _nested(knobs: Knobs) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for knob, value in knobs.items():
        *path, last = knob.split(".")
        section = nested
        for name in path:
            section = section.setdefault(name, {})
        section[last] = value
    return nested


def _fill_from_task(nested: dict[str, Any]) -> None:
    """Defaults that the task decides, written out. Raises EvalError for an unknown task."""
    train = nested.get("task", {}).get("train")
    if not isinstance(train, str):
        return
    task = get_task(train)
    nested["task"].setdefault("template", task.template)
    nested.setdefault("reward", {}).setdefault("grader", task.grader)
    evaluation = nested.setdefault("eval", {})
    tasks = evaluation.setdefault("tasks", [train])
    first = get_task(str(tasks[0])) if tasks else task
    evaluation.setdefault("template", first.template)
    evaluation.setdefault("grader", first.grader)
    samples = evaluation.setdefault("samples", 16)
    if isinstance(samples, int):
        evaluation.setdefault("k", [2**power for power in range(samples.bit_length())])
