"""`python -m tests.harness.tracking.killed SWEEP WORKPLACE`: syncs killed while they make or migrate a database.

Lists the points that a sync passes, in a copy of the sweep's home and in one whose database has an older schema. For
each point but most of the many alike, prints how a sync that a signal stopped there ended, what it left, and what came
of a second sync. Each sync is a fork of a process that has imported MLflow.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

from harness.tracking import Mirror, tracking_uri
from harness.tracking.client import talking_to_mlflow


def hook(owner: Any, name: str, reach: Callable[[str], None]) -> None:
    """Call `reach` before and after each call of the owner's function."""
    function = getattr(owner, name)

    def hooked(*args: Any, **kwargs: Any) -> Any:
        reach(f"before {name}")
        result = function(*args, **kwargs)
        reach(f"after {name}")
        return result

    mock.patch.object(owner, name, hooked).start()


def sync(sweep: Path, end: Connection, stop_at: int | None, by: signal.Signals) -> None:
    """Sync, and say what came of it: the points sent, or those passed. At the point number `stop_at` a signal comes."""
    from alembic.runtime.migration import HeadMaintainer
    from mlflow.store.tracking.dbmodels.initial_models import Base
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    passed: list[str] = []

    def reach(name: str) -> None:
        passed.append(name)
        if stop_at == len(passed) - 1:
            os.kill(os.getpid(), by)

    for owner, name in (
        (Base.metadata, "create_all"),
        (HeadMaintainer, "update_to_step"),
        (Path, "replace"),
        (SqlAlchemyStore, "_initialize_store_state"),
    ):
        hook(owner, name, reach)
    try:
        n_points = Mirror(sweep, tracking_uri(sweep.parent)).sync()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    end.send({"sent": n_points, "passed": passed})


def in_child(sweep: Path, stop_at: int | None = None, by: signal.Signals = signal.SIGKILL) -> tuple[int | None, Any]:
    """Return the exit code of a sync, and what came of it."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=partial(sync, sweep, theirs, stop_at, by))
    process.start()
    process.join()
    return process.exitcode, ours.recv() if ours.poll() else None


def database(home: Path) -> dict[str, Any]:
    """Return SQLite's integrity check of the home's database, and its runs; {} without one."""
    if not (home / "mlflow.db").exists():
        return {}
    with closing(sqlite3.connect(home / "mlflow.db")) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        runs = connection.execute("SELECT run_uuid FROM runs ORDER BY 1").fetchall() if "runs" in tables else []
        [(verdict,)] = connection.execute("PRAGMA integrity_check").fetchall()
    return {"integrity": verdict, "tables": len(tables), "runs": [run for (run,) in runs]}


def age(database: Path) -> None:
    """Take the last four of MLflow's migrations back."""
    from alembic import command
    from mlflow.store.db import utils

    engine, config = utils.create_sqlalchemy_engine(f"sqlite:///{database}"), utils._get_alembic_config("")
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "-4")
    engine.dispose()


def main(sweep: Path, workplace: Path) -> None:
    def copied(home: Path, name: str) -> Path:
        return shutil.copytree(home, workplace / name) / sweep.name

    with talking_to_mlflow(tracking_uri(sweep.parent)):
        pass
    whole = copied(sweep.parent, "whole")
    in_child(whole)
    old = copied(whole.parent, "old").parent
    age(old / "mlflow.db")
    for home in (sweep.parent, old):
        trial = copied(home, f"{home.name}-trial")
        passed = in_child(trial)[1]["passed"]
        stamps = [number for number, name in enumerate(passed) if name == "before update_to_step"]
        others = [passed.index(f"before {name}") for name in ("create_all", "replace", "_initialize_store_state")]
        signals = itertools.cycle([signal.SIGINT, signal.SIGKILL] if home is old else [signal.SIGKILL, signal.SIGINT])
        for number in (stamps[len(stamps) // 2], *others, passed.index("after replace")):
            by = next(signals)
            killed = copied(home, f"{home.name}-{number}")
            ended, _ = in_child(killed, number, by)
            left = database(killed.parent)
            _, second = in_child(killed)
            row = {"home": home.name, "point": passed[number], "ended": ended, "left": left, "sent": second["sent"]}
            files = sorted(path.name for path in killed.parent.iterdir())
            print(json.dumps(row | {"files": files, "database": database(killed.parent)}))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
