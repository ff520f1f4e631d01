"""Records in MLflow's vocabulary: rows become points of curves, a nested spec becomes flat parameters."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

MAX_PARAM_LENGTH = 6000
"""Characters in a parameter's value (mlflow.utils.validation.MAX_PARAM_VAL_LENGTH)."""


class Point(NamedTuple):
    """One point of the curve `key`, at the optimiser round `step`."""

    key: str
    step: int
    value: float


def mlflow_name(name: str) -> str:
    """A legal MLflow name: letters, digits and `_-./` stay, `@` becomes `_at_` and `^` `_hat_` (`pass@1`:
    `pass_at_1`), others `_`."""
    return re.sub(r"[^\w\-./]", "_", name.replace("@", "_at_").replace("^", "_hat_"))


def step_points(row: dict[str, Any]) -> Iterator[Point]:
    """A row of steps.jsonl as `train/<key>`."""
    return value_points("train", row, row["step"])


def timing_points(row: dict[str, Any]) -> Iterator[Point]:
    """A row of timing.jsonl as `time/<key>`."""
    return value_points("time", row, row["step"])


def score_points(row: dict[str, Any]) -> Iterator[Point]:
    """A row of scores.jsonl as `eval/<task>/<metric>`, that of the final evaluation as `eval/final/<task>/<metric>`."""
    prefix = "eval/final" if row["final"] else "eval"
    return value_points(f"{prefix}/{row['task']}", row["metrics"], row["step"])


def value_points(prefix: str, values: dict[str, Any], step: int = 0) -> Iterator[Point]:
    """The numbers among some values as `<prefix>/<key>`."""
    # What a step does not have is null in the records: a gap in the curve. MLflow would store an infinity as 1.8e308.
    for key, value in values.items():
        if key != "step" and isinstance(value, int | float) and math.isfinite(value):
            yield Point(mlflow_name(f"{prefix}/{key}"), step, float(value))


def flat_params(spec: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Dotted names to strings: text as it is, all else (numbers, lists, null) as JSON; what is too long says so."""
    params: dict[str, str] = {}
    for key, value in spec.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            params |= flat_params(value, f"{name}.")
        else:
            params[mlflow_name(name)] = _shortened(value if isinstance(value, str) else json.dumps(value))
    return params


def _shortened(text: str) -> str:
    if len(text) <= MAX_PARAM_LENGTH:
        return text
    note = f"... [{len(text)} characters; all of them in spec.json]"
    return text[: MAX_PARAM_LENGTH - len(note)] + note
