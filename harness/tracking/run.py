"""One run in MLflow, with what this process knows about it, so that only changes are sent.

Records are translated to MLflow's terms: a nested spec to flat parameters, sources of rows to data sets, samples to a
table.
"""

from __future__ import annotations

import getpass
import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from harness.records.files import ProblemRow
from harness.secrets import redact, redacted
from harness.tracking.curves import Curves, count_points, mlflow_name, value_curves
from harness.tracking.store import add_points

if TYPE_CHECKING:
    import pyarrow
    from mlflow import MlflowClient
    from mlflow.entities import DatasetInput, Run

_MAX_RUNS = 50_000
_ENDED = ("FINISHED", "FAILED", "KILLED")


@dataclass
class MirroredRun:
    """A run, and what this process knows about it. `client` is an `MlflowClient`."""

    client: MlflowClient
    run_id: str
    start_ms: int
    status: str
    """One of MLflow's SCHEDULED, RUNNING, FINISHED, FAILED, KILLED."""
    tags: dict[str, str]
    params: dict[str, str]
    metrics: dict[str, float]
    """The last value of each metric, as found in MLflow or sent by `log_values` since."""

    @classmethod
    def find(cls, client: MlflowClient, experiment_id: str, tag: str, value: str) -> list[MirroredRun]:
        """Return the runs of an experiment that have a tag with this value, except deleted runs."""
        return cls.search(client, experiment_id, f"tags.`{tag}` = '{value}'")

    @classmethod
    def search(cls, client: MlflowClient, experiment_id: str, condition: str) -> list[MirroredRun]:
        """Return the runs of an experiment that meet a condition in MLflow's query language, except deleted runs."""
        return [cls._of(client, run) for run in client.search_runs([experiment_id], condition, max_results=_MAX_RUNS)]

    @classmethod
    def create(
        cls, client: MlflowClient, experiment_id: str, name: str, start_ms: int | None, tags: dict[str, str]
    ) -> MirroredRun:
        """Create a run that belongs to the user of this process. start_ms: None for now."""
        tags = {"mlflow.user": _user(), "mlflow.source.type": "LOCAL"} | tags
        return cls._of(
            client, client.create_run(experiment_id, start_time=start_ms, tags=redacted(tags), run_name=name)
        )

    @classmethod
    def _of(cls, client: MlflowClient, run: Run) -> MirroredRun:
        info, data = run.info, run.data
        tags, params, metrics = dict(data.tags), dict(data.params), dict(data.metrics)
        return cls(client, info.run_id, info.start_time, info.status, tags, params, metrics)

    def log_points(self, curves: Curves) -> int:
        return log_points(self.client, {self.run_id: curves})

    def log_values(self, values: Mapping[str, object], at_ms: int | None) -> int:
        """Set the values of metrics without steps. Return how many were new or different."""
        curves = value_curves("", values, at_ms or self.start_ms)
        new = {name: curve for name, curve in curves.items() if self.metrics.get(name) != curve.last[0]}
        self.log_points(new)
        self.metrics |= {name: curve.last[0] for name, curve in new.items()}
        return len(new)

    def log_params(self, params: dict[str, str]) -> None:
        """Add parameters. Existing parameters are kept, because MLflow cannot change them."""
        from mlflow.entities import Param

        new = {key: value for key, value in redacted(params).items() if key not in self.params}
        self.client.log_batch(self.run_id, params=[Param(*item) for item in new.items()])
        self.params |= new

    def log_inputs(self, datasets: Sequence[DatasetInput]) -> None:
        """Record the data sets that the run has used (see `dataset_inputs`). Recording one again has no effect."""
        if datasets:
            self.client.log_inputs(self.run_id, datasets)

    def log_file(self, path: Path, folder: str | None = None) -> None:
        """Add or replace one of the run's artifacts. folder: its folder among the artifacts."""
        self.client.log_artifact(self.run_id, str(path), folder)

    def log_text(self, name: str, text: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            path.write_text(redact(text), encoding="utf-8")
            self.log_file(path)

    def log_table(self, name: str, table: Mapping[str, object]) -> None:
        """Add or replace a table, in the form of `completions_table`. MLflow's own `log_table` would append rows."""
        self.log_text(name, json.dumps(table, ensure_ascii=False))
        self.set_tags({TABLES_TAG: json.dumps([{"path": name, "type": "table"}])})

    def set_tags(self, tags: dict[str, str]) -> None:
        from mlflow.entities import RunTag

        changed = {key: value for key, value in redacted(tags).items() if self.tags.get(key) != value}
        self.client.log_batch(self.run_id, tags=[RunTag(*item) for item in changed.items()])
        self.tags |= changed

    def set_status(self, status: str, end_ms: int | None) -> None:
        """Set the status. end_ms: the time of the end, if the status is final; None for now."""
        if status == self.status:
            return
        if status in _ENDED:
            self.client.set_terminated(self.run_id, status, end_ms)
        else:
            self.client.update_run(self.run_id, status)
        self.status = status

    def delete(self) -> None:
        """Move the run to MLflow's bin, which `mlflow gc` empties."""
        self.client.delete_run(self.run_id)


def log_points(client: MlflowClient, curves_of_runs: Mapping[str, Curves]) -> int:
    """Add points to the curves of runs, by run id. Return the number of points.

    For a server, MLflow's client sends requests of 1000 points each. If a point is sent twice, because an answer was
    lost or a process was killed, MLflow recognises it by value, step and time. All three come from the records.
    """
    from mlflow.entities import Metric

    if not add_points(client.tracking_uri, curves_of_runs):
        for run_id, curves in curves_of_runs.items():
            points = ((name, *point) for name, curve in curves.items() for point in curve.points())
            client.log_batch(run_id, metrics=[Metric(*point) for point in points])
    return sum(count_points(curves) for curves in curves_of_runs.values())


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        return "unknown"


TABLES_TAG = "mlflow.loggedArtifacts"
"""A tag that lists the tables among a run's artifacts, which MLflow then shows as tables."""
MAX_PARAM_LENGTH = 6000
"""The most characters in the value of a parameter (mlflow.utils.validation.MAX_PARAM_VAL_LENGTH)."""
MAX_TAG_LENGTH = 8000
"""The most characters in the value of a tag (mlflow.utils.validation.MAX_TAG_VAL_LENGTH)."""


def dataset_inputs(tasks: Iterable[tuple[str, str]], sources: Iterable[Mapping[str, str]]) -> list[DatasetInput]:
    """Return the rows of these pairs of task and split as MLflow's data sets.

    sources: the origins of rows, as in `SweepRecord.data`. The rows of a task without a source were generated.
    """
    from mlflow.entities import Dataset, InputTag
    from mlflow.entities import DatasetInput as Input

    inputs = []
    for task, split in tasks:
        found = [source for source in sources if (source["task"], source["split"]) == (task, split)]
        for source in found or [{"origin": "generated", "digest": "generated"}]:
            # MLflow identifies data sets by name and digest. The digest is truncated to the length that MLflow allows.
            dataset = Dataset(f"{task} {split}", source["digest"][:36], source["origin"], json.dumps(dict(source)))
            context = "training" if split == "train" else "evaluation"
            inputs.append(Input(dataset, [InputTag("mlflow.data.context", context)]))
    return inputs


TABLE_ROWS = 100
_TABLE_COLUMNS = ("task", "problem", "prompt", "completion", "extracted", "reference", "correct", "tokens", "cut off")


class MlflowTable(TypedDict):
    """A table in the form in which MLflow stores one (pandas's "split")."""

    columns: list[str]
    data: list[list[object]]


def completions_table(samples: pyarrow.Table, problems: Sequence[ProblemRow]) -> MlflowTable:
    """Return the first samples of a final evaluation in MLflow's table format (pandas's "split").

    They are the first sample of each of the first TABLE_ROWS problems. These problems are the same in each cell, so
    that MLflow can show the completions of several cells next to each other.
    """
    statements = {(row["task"], row["problem_id"]): row for row in problems if row["split"] == "test"}
    rows: list[list[object]] = []
    for sample in samples.to_pylist():
        if not sample.get("final", True) or sample["sample"] != 0 or len(rows) == TABLE_ROWS:
            continue
        problem = statements.get((sample["task"], sample["problem_id"]))
        prompt, reference = ("", "") if problem is None else (_as_text(problem["prompt"]), problem["answer"])
        about = [sample["task"], sample["problem_id"], prompt, sample.get("text"), sample.get("extracted"), reference]
        rows.append([*about, sample["correct"], sample.get("n_tokens"), sample.get("truncated")])
    return {"columns": [*_TABLE_COLUMNS], "data": rows}


def _as_text(prompt: str | list[dict[str, str]]) -> str:
    """Return a prompt as one text. The messages of a chat are joined."""
    return prompt if isinstance(prompt, str) else "\n\n".join(f"{one['role']}: {one['content']}" for one in prompt)


def flat_params(spec: Mapping[str, object], prefix: str = "") -> dict[str, str]:
    """Return a nested spec with dotted names and values as strings: text unchanged, everything else as JSON.

    Values that are too long are truncated and marked.
    """
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
