"""Evaluations in MLflow: the experiment `evals`, with one run per model and task, found by its name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.records.cell import STARTS_FILE, begins_s, read_starts
from harness.records.files import PROBLEMS_FILE, read_json, read_problems
from harness.records.scores import lm_eval_files
from harness.tracking.cell import commit_tag, first_samples
from harness.tracking.client import connect, experiment_id, modified_ms, talking_to_mlflow
from harness.tracking.curves import value_curves
from harness.tracking.question import FIRST_SAMPLES_PAGE, apart
from harness.tracking.run import MirroredRun, completions_table, dataset_inputs, flat_params

EXPERIMENT = "evals"
_SAMPLES = "evals.parquet"
_SHOWN_TAG = "bench.mirrored"
"""A digest of what the run shows. It is written last."""


def log_evaluation(uri: str, home: Path, label: str, document: dict[str, Any]) -> None:
    """Log the current scores of a store, replacing a run that shows other scores.

    document: the result of `TaskEvaluation.run`. Raises MirrorError if MLflow cannot be reached or refuses.
    """
    folder = Path(document["path"])
    asked = {key: document[key] for key in ("n_problems", "n_samples", "grader")} | read_json(folder / "spec.json")
    tags = {"bench.evaluation": f"{label}/{folder.name}", "model": label, "task": document["task"]}
    _log(uri, home, tags, asked, document["metrics"], folder / "scores.json")


def log_lm_eval(uri: str, home: Path, label: str, file: Path) -> None:
    """Log one task of `LmEvaluation`, with its metrics as `<metric>,<filter>`. Raises as `log_evaluation`."""
    task, folder = read_json(file), file.parent
    asked = {"n_problems": task["n_docs"], "n_samples": task["repeats"], "task": {"version": task["version"]}}
    tags = {"bench.evaluation": f"{label}/{folder.name}/{file.stem}", "model": label, "task": task["name"]}
    metrics = {f"{one['name']},{one['filter']}": one["value"] for one in task["metrics"]}
    _log(uri, home, tags, asked | read_json(folder / "spec.json"), metrics, file)


def sync_evaluations(uri: str, home: Path) -> int:
    """Log every evaluation under `home`, and return their number. Raises as `log_evaluation`."""
    scores = sorted(home.glob("evals/*/*/scores.json"))
    for path in scores:
        log_evaluation(uri, home, path.parent.parent.name, read_json(path) | {"path": str(path.parent)})
    lm_eval = [path for folder in sorted(home.glob("evals/*/lm_eval-*")) for path in lm_eval_files(folder)]
    for path in lm_eval:
        log_lm_eval(uri, home, path.parent.parent.name, path)
    return len(scores) + len(lm_eval)


def _log(
    uri: str, home: Path, tags: dict[str, str], params: Mapping[str, object], metrics: Mapping[str, object], file: Path
) -> None:
    name, folder, task = tags["bench.evaluation"], file.parent, tags["task"]
    starts = read_starts(folder)
    begun_s = begins_s(starts, folder / STARTS_FILE)
    tags |= {"mlflow.source.name": "bench eval"} | commit_tag(starts)
    shown = hashlib.blake2b(json.dumps([params, dict(metrics)]).encode(), digest_size=8).hexdigest()
    with talking_to_mlflow(uri):
        client = connect(uri, home)
        experiment = experiment_id(client, uri, EXPERIMENT, home)
        # Anything but a single run with this digest shows other scores, or remains from an interrupted attempt.
        runs = MirroredRun.find(client, experiment, "bench.evaluation", name)
        if len(runs) == 1 and runs[0].tags.get(_SHOWN_TAG) == shown:
            return
        for run in runs:
            run.delete()
        start_ms = round(1000 * begun_s[0]) if begun_s else modified_ms(file)
        run = MirroredRun.create(client, experiment, name, start_ms, tags)
        run.log_params(flat_params(params))
        run.log_inputs(dataset_inputs([(task, "test")], []))
        run.log_points(value_curves(f"eval/{task}/", metrics, run.start_ms))
        run.log_file(file)
        if (folder / _SAMPLES).exists():
            table = completions_table(first_samples(folder / _SAMPLES), read_problems(folder / PROBLEMS_FILE))
            run.log_table("completions.json", table)
        page = folder / FIRST_SAMPLES_PAGE
        if page.exists():
            run.log_text(page.name, apart(page.read_text(encoding="utf-8"), []))
        run.set_status("FINISHED", modified_ms(file))
        run.set_tags({_SHOWN_TAG: shown})
