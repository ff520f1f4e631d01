"""Evaluations in MLflow: experiment `evals`, one run for each model and task, found again by its name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.records.files import read_json
from harness.tracking.client import experiment_id, talking_to_mlflow
from harness.tracking.run import MirroredRun, flat_params, value_points

EXPERIMENT = "evals"
# What lies beside the results of lm-eval's tasks.
_NOT_TASKS = frozenset({"spec", "provenance", "lease"})


def log_evaluation(uri: str, home: Path, label: str, document: dict[str, Any]) -> None:
    """Log the scores of a store as they are now; a run that showed others is replaced.

    document: as `TaskEvaluation.run` gives it. Raises MirrorError if MLflow cannot be reached or refuses.
    """
    folder = Path(document["path"])
    asked = {key: document[key] for key in ("n_problems", "n_samples", "grader")} | read_json(folder / "spec.json")
    tags = {"bench.evaluation": f"{label}/{folder.name}", "model": label, "task": document["task"]}
    _log(uri, home, tags, asked, document["metrics"], folder / "scores.json")


def log_lm_eval(uri: str, home: Path, label: str, file: Path) -> None:
    """Log what `LmEvaluation` kept of one task, with its metrics as `<metric>,<filter>`. Raises as `log_evaluation`."""
    task, folder = read_json(file), file.parent
    asked = {"n_problems": task["n_docs"], "n_samples": task["repeats"], "task": {"version": task["version"]}}
    tags = {"bench.evaluation": f"{label}/{folder.name}/{file.stem}", "model": label, "task": task["name"]}
    metrics = {f"{one['name']},{one['filter']}": one["value"] for one in task["metrics"]}
    _log(uri, home, tags, asked | read_json(folder / "spec.json"), metrics, file)


def sync_evaluations(uri: str, home: Path) -> int:
    """Log every evaluation under `home`; how many there are. Raises as `log_evaluation`."""
    scores = sorted(home.glob("evals/*/*/scores.json"))
    for path in scores:
        log_evaluation(uri, home, path.parent.parent.name, read_json(path) | {"path": str(path.parent)})
    lm_eval = [path for path in sorted(home.glob("evals/*/lm_eval-*/*.json")) if path.stem not in _NOT_TASKS]
    for path in lm_eval:
        log_lm_eval(uri, home, path.parent.parent.name, path)
    return len(scores) + len(lm_eval)


def _log(
    uri: str, home: Path, tags: dict[str, str], params: dict[str, Any], metrics: Mapping[str, Any], file: Path
) -> None:
    name = tags["bench.evaluation"]
    with talking_to_mlflow(uri):
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=uri)
        experiment = experiment_id(client, uri, EXPERIMENT, home)
        for run in MirroredRun.find(client, experiment, "bench.evaluation", name):
            run.delete()
        run = MirroredRun.create(client, experiment, name, None, tags)
        run.log_params(flat_params(params))
        run.log_points(list(value_points(f"eval/{tags['task']}", dict(metrics))))
        run.log_file(file)
        run.set_status("FINISHED", None)
