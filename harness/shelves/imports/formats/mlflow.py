"""An MLflow experiment: `mlflow.db#EXPERIMENT`, or an address of a tracking server, `http://host:5000#EXPERIMENT`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.errors import RefusedError, few, nearest
from harness.shelves.imports.base import ImportedRun, ImportFormat, beginning
from harness.shelves.imports.formats.trl import BOOKKEEPING
from harness.shelves.imports.names import log

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

_SERVERS = ("http://", "https://", "sqlite://", "postgresql://", "mysql://")


def _reads(source: str) -> bool:
    store = source.partition("#")[0]
    return store.startswith(_SERVERS) or beginning(store, 16).startswith(b"SQLite format 3")


def _read(sources: Sequence[str]) -> list[ImportedRun]:
    return [run for source in sources for run in _runs(source)]


def _runs(source: str) -> list[ImportedRun]:
    from mlflow import MlflowClient

    store, _, wanted = source.partition("#")
    client = MlflowClient(store if store.startswith(_SERVERS) else f"sqlite:///{store}")
    experiments = {one.name: one for one in client.search_experiments()}
    if wanted not in experiments:
        raise RefusedError(
            "shelves.imports.no_experiment",
            source=source,
            experiment=wanted,
            nearest=nearest(wanted, experiments),
            store=store,
            known=few(experiments),
        )
    found = client.search_runs([experiments[wanted].experiment_id], order_by=["attributes.start_time ASC"])
    if not found:
        raise RefusedError("shelves.imports.experiment_without_runs", source=source)
    return [_run(source, client, one) for one in found]


def _run(source: str, client: MlflowClient, found: Run) -> ImportedRun:
    run = ImportedRun(source, str(found.info.run_name))
    if found.info.status != "FINISHED":
        raise RefusedError(
            "shelves.imports.mlflow_run_unfinished", source=source, run=run.name, status=found.info.status
        )
    for name in sorted(found.data.metrics):
        # `data.metrics` holds only the last value of each metric.
        for point in client.get_metric_history(found.info.run_id, name):
            log(run, point.step, {name: point.value})
    run.config = {name: _value(text) for name, text in found.data.params.items()}
    return run


def _value(text: str) -> int | str:
    """Parse a setting: MLflow keeps settings as text."""
    return int(text) if text.isdecimal() else text


MLFLOW = ImportFormat(
    "mlflow", "mlflow.db#EXPERIMENT, or the address of a tracking server with #EXPERIMENT", _reads, _read, BOOKKEEPING
)
