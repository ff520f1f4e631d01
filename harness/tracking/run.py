"""One run in MLflow, with what this process knows of it, so that only changes are sent.

Records in MLflow's vocabulary: rows become points of curves, a nested spec becomes flat parameters.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

_MAX_RUNS = 50_000
_ENDED = ("FINISHED", "FAILED", "KILLED")


@dataclass
class MirroredRun:
    """`client` is an `MlflowClient`; `status` one of MLflow's SCHEDULED, RUNNING, FINISHED, FAILED, KILLED."""

    client: Any
    run_id: str
    start_ms: int
    status: str
    tags: dict[str, str]

    @classmethod
    def find(cls, client: Any, experiment_id: str, tag: str, value: str) -> list[MirroredRun]:
        """The runs of an experiment (deleted ones left out) that carry a tag."""
        found = client.search_runs([experiment_id], f"tags.`{tag}` = '{value}'", max_results=_MAX_RUNS)
        return [cls._of(client, run) for run in found]

    @classmethod
    def create(
        cls, client: Any, experiment_id: str, name: str, start_ms: int | None, tags: dict[str, str]
    ) -> MirroredRun:
        """A new run; without `start_ms` it begins now."""
        return cls._of(client, client.create_run(experiment_id, start_time=start_ms, tags=tags, run_name=name))

    @classmethod
    def _of(cls, client: Any, run: Any) -> MirroredRun:
        return cls(client, run.info.run_id, run.info.start_time, run.info.status, dict(run.data.tags))

    def log_points(self, points: Sequence[Point]) -> None:
        """Add points to the curves, in as many requests as MLflow's client deems right (1000 points each).

        Each bears the time at which the run began: the records keep no clock, and MLflow recognises a point that is
        sent a second time (its answer was lost, we were killed) only if the time is equal too.
        """
        from mlflow.entities import Metric

        metrics = [Metric(point.key, point.value, self.start_ms, point.step) for point in points]
        self.client.log_batch(self.run_id, metrics=metrics)

    def log_params(self, params: dict[str, str]) -> None:
        from mlflow.entities import Param

        self.client.log_batch(self.run_id, params=[Param(*item) for item in params.items()])

    def log_file(self, path: Path) -> None:
        self.client.log_artifact(self.run_id, str(path))

    def set_tags(self, tags: dict[str, str]) -> None:
        from mlflow.entities import RunTag

        changed = {key: value for key, value in tags.items() if self.tags.get(key) != value}
        self.client.log_batch(self.run_id, tags=[RunTag(*item) for item in changed.items()])
        self.tags |= changed

    def set_status(self, status: str, end_ms: int | None) -> None:
        """`end_ms` counts if the status is an end; without it the run ends now."""
        if status == self.status:
            return
        if status in _ENDED:
            self.client.set_terminated(self.run_id, status, end_ms)
        else:
            self.client.update_run(self.run_id, status)
        self.status = status

    def delete(self) -> None:
        """Into MLflow's bin, from which `mlflow gc` takes it."""
        self.client.delete_run(self.run_id)


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
    """Dotted names to strings: text as it is, the rest (numbers, lists, null) as JSON; long ones are cut and marked."""
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
