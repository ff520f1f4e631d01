"""How this process talks to MLflow, which takes seconds to import: nothing imports it before it is needed.

Experiments in MLflow, made when they are first needed.

What the file system tells of a record.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.errors import BenchError

# For this process, and only where the user has not chosen otherwise. The next sync is the retry.
_ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


class MirrorError(BenchError):
    """MLflow could not be reached or refused. Nothing is lost: the next sync continues where this one ended."""


def tracking_uri(home: Path) -> str:
    """Where the sweeps under `home` are mirrored: `MLFLOW_TRACKING_URI`, else the SQLite file `<home>/mlflow.db`."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{home.resolve() / 'mlflow.db'}"


@contextmanager
def talking_to_mlflow(uri: str) -> Iterator[None]:
    """All of MLflow is imported and called in here: quiet, impatient, its errors turned into `MirrorError`.

    OSError is one of them: a full disk under the database or the artifacts must not stop the training either.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from mlflow.exceptions import MlflowException
    from requests import RequestException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, RequestException, SQLAlchemyError, OSError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        # A disk that filled while the database was made leaves one that MLflow can never open.
        torn = " If its database is damaged, move that away first." if uri.startswith("sqlite:") else ""
        raise MirrorError(
            f"MLflow at {uri} is not up to date: {reason:.200}\n"
            f"The records are complete. Once MLflow can be reached, `bench sync` brings it up to date.{torn}"
        ) from error


def experiment_id(client: Any, uri: str, name: str, home: Path) -> str:
    """The id of the experiment of that name. client: an `MlflowClient` of `uri`; home: where runs are kept."""
    experiment = client.get_experiment_by_name(name)
    if experiment is not None:
        return str(experiment.experiment_id)
    # A server knows where it keeps files; with a bare database MLflow would use the current directory.
    has_server = uri.startswith(("http://", "https://"))
    folder = None if has_server else (home.resolve() / "mlartifacts").as_uri()
    return str(client.create_experiment(name, artifact_location=folder))


def file_fingerprint(path: Path) -> tuple[int, int] | None:
    """Time of change and size: another one after every write. None without the file."""
    if not path.exists():
        return None
    stat = path.stat()
    return stat.st_mtime_ns, stat.st_size


def modified_ms(path: Path) -> int | None:
    """Time of change in Unix milliseconds, MLflow's unit. None without the file."""
    return path.stat().st_mtime_ns // 1_000_000 if path.exists() else None
