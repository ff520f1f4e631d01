"""The connection to MLflow: import, addresses, experiments and artifact locations.

MLflow takes seconds to import, so nothing imports it before it is needed.
"""

from __future__ import annotations

import os
import shlex
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from harness.errors import BenchError
from harness.secrets import redact, register_address, without_password
from harness.tracking.database import opening, own_database, tagged

if TYPE_CHECKING:
    from mlflow import MlflowClient

ARTIFACTS = "mlartifacts"
_PATIENCE_S = "MLFLOW_HTTP_REQUEST_TIMEOUT"
# These apply only to this process, and only if the user has not set them. There are no retries: the next sync is one.
_ENVIRONMENT = {
    _PATIENCE_S: "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
_SQLITE = "sqlite:///"
_DATABASE_SERVERS = ("postgresql", "mysql", "mssql")
"""The schemes of database servers, which may be unreachable."""


class MirrorError(BenchError):
    """MLflow could not be reached, or refused. Nothing is lost: the next sync continues where this one ended."""


def tracking_uri(home: Path) -> str:
    """Return the address to which the sweeps under `home` are mirrored: `MLFLOW_TRACKING_URI`, else `<home>/mlflow.db`.

    It may contain a password, so show it only through `without_password`.
    """
    uri = os.environ.get("MLFLOW_TRACKING_URI") or f"{_SQLITE}{own_database(home)}"
    register_address("MLFLOW_TRACKING_URI", uri)
    return uri


@contextmanager
def talking_to_mlflow(uri: str) -> Iterator[None]:
    """Import and call MLflow in this block: without output, with short timeouts, and with its errors as MirrorError.

    OSError becomes MirrorError too, because a full disk must not stop the training. So does ImportError, which a
    missing database driver raises.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        _require_server(uri)
    except (OSError, ValueError) as error:
        raise _late(uri, error) from error
    from mlflow.exceptions import MlflowException
    from requests import RequestException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, RequestException, SQLAlchemyError, OSError, ImportError) as error:
        raise _late(uri, error) from error


def _late(uri: str, error: Exception) -> MirrorError:
    reason = (redact(without_password(str(error), uri)).splitlines() or [type(error).__name__])[0]
    return MirrorError("tracking.mirror_late", uri=without_password(uri), reason=reason)


def _require_server(uri: str) -> None:
    """Raise OSError if MLflow's server accepts no connection, and ValueError for a malformed address.

    This is checked before MLflow is imported, which takes seconds. A server behind a proxy is not checked here.
    """
    from urllib.request import getproxies, proxy_bypass

    if not _is_server(uri):
        return
    server = urlsplit(uri)
    if server.hostname is None or (server.scheme in getproxies() and not proxy_bypass(server.hostname)):
        return
    port = server.port or {"http": 80, "https": 443}[server.scheme]
    socket.create_connection((server.hostname, port), timeout=float(os.environ[_PATIENCE_S])).close()


def connect(uri: str, home: Path) -> MlflowClient:
    """Return an `MlflowClient`. If it uses the home's own database, that is first created, repaired or migrated."""
    from mlflow import MlflowClient

    if uri != f"{_SQLITE}{own_database(home)}":
        if urlsplit(uri).scheme.partition("+")[0] in _DATABASE_SERVERS:
            _require_answer(uri)
        return MlflowClient(tracking_uri=uri)
    with opening(own_database(home), _artifacts(uri, home)):
        return MlflowClient(tracking_uri=uri)


def experiment_of_run(uri: str, home: Path, tags: Mapping[str, str]) -> str | None:
    """Return the experiment of a run with these tags in the home's own database, or None if there is no such run.

    MLflow is not imported.
    """
    if uri != f"{_SQLITE}{own_database(home)}":
        return None
    return tagged(own_database(home), _artifacts(uri, home), tags)


def experiment_id(client: MlflowClient, uri: str, name: str, home: Path) -> str:
    """Return the id of the experiment with this name. It is created if it does not exist.

    client: an `MlflowClient` for `uri`.
    home: the folder with all sweeps.
    """
    experiment = client.get_experiment_by_name(name)
    if experiment is not None:
        return str(experiment.experiment_id)
    # A server determines where it keeps files. With a bare database, MLflow would use the current directory.
    location = None if _is_server(uri) else _artifacts(uri, home)
    return str(client.create_experiment(name, artifact_location=location))


def address(uri: str, experiment: str) -> str:
    """Return the address of an experiment's page. For a database, it is the address under `server_command`."""
    server = urlsplit(uri)
    root = f"{server.scheme}://{server.netloc.rpartition('@')[2]}{server.path.rstrip('/')}"
    return f"{root if _is_server(uri) else 'http://127.0.0.1:5000'}/#/experiments/{experiment}/runs"


def server_command(uri: str) -> str | None:
    """Return the command that shows a database in a browser, or None if `uri` is a server."""
    return None if _is_server(uri) else f"mlflow ui --backend-store-uri {shlex.quote(without_password(uri))}"


def _is_server(uri: str) -> bool:
    return uri.startswith(("http://", "https://"))


def _require_answer(uri: str) -> None:
    """Raise SQLAlchemyError if the database cannot be reached. MLflow itself would try ten times, for 100 s."""
    from sqlalchemy import create_engine

    engine = create_engine(uri)
    try:
        engine.connect().close()
    finally:
        engine.dispose()


def _artifacts(uri: str, home: Path) -> str:
    """Return the folder for the runs' files. It is next to a database file, so that both can be moved together."""
    folder = Path(uri.removeprefix(_SQLITE)).parent if uri.startswith(_SQLITE) else home
    return (folder.resolve() / ARTIFACTS).as_uri()


def file_fingerprint(path: Path) -> tuple[int, int] | None:
    """Return the modification time (ns) and size of a file, which every write changes, or None if there is no file."""
    if not path.exists():
        return None
    stat = path.stat()
    return stat.st_mtime_ns, stat.st_size


def modified_ms(path: Path) -> int | None:
    """Return the modification time in Unix milliseconds, MLflow's unit, or None if there is no file."""
    return path.stat().st_mtime_ns // 1_000_000 if path.exists() else None
