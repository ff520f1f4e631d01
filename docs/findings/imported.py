"""Runs that others made: the laws fitted to their logs, which are kept, and the section of the page about them."""

from __future__ import annotations

import csv
import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from docs.findings.source import HOME, Imported
from harness.errors import RefusedError
from harness.records.files import read_object
from reports.formats import count, csv_text, markdown_table, number
from reports.page.templating import write_text

EXTERNAL = "BENCH_EXTERNAL"
_TARGET = "training reward"
_FITTED = ("n_points", "a", "b", "r2")
_FORECAST = ("n_predicted", "rmse_law", "rmse_line", "rmse_last", "rmse_step")


def import_runs(imported: Imported, call: Callable[[Sequence[str]], int]) -> bool:
    """Import the logs, fit the laws, keep the fits; False if `bench` fails. Raises RefusedError without the logs."""
    folder = Path(os.environ.get(EXTERNAL, "")) / imported.logs
    if EXTERNAL not in os.environ or not folder.is_dir():
        raise RefusedError(
            f"{imported.logs}: the logs are not on this machine. Put those of {imported.origin} into $"
            f"{EXTERNAL}/{imported.logs}."
        )
    home = HOME / "imported"
    place = ["--home", str(home)]
    if call(["import", *imported.options(folder), *place]) or call(["report", imported.logs, *place]):
        return False
    laws = read_object(home / imported.logs / "report" / "report.json")["laws"]
    rows = [
        {"run": law["arm"], **_only(law, _FITTED), **_only(law["forecast"], _FORECAST)}
        for law in laws
        if law["law"] == "entropy" and law["target"] == _TARGET and law["seed"] is None and law["forecast"]
    ]
    imported.record.parent.mkdir(exist_ok=True)
    write_text(imported.record, csv_text(rows))
    return True


def _only(row: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: row[name] for name in names}


def section(name: str, imported: Imported) -> str:
    """The kept fits, and the number of runs in which the law predicts better than a line in the entropy."""
    with imported.record.open(encoding="utf-8", newline="") as handle:
        fits = [*csv.DictReader(handle)]
    numbers = {"n_points": "steps", "a": "a", "b": "b", "r2": "R²", "rmse_law": "law", "rmse_line": "line in H"}
    numbers |= {"rmse_last": "last value", "rmse_step": "line in log step"}
    rows = [[fit["run"], *(number(float(fit[key])) for key in numbers)] for fit in fits]
    better = sum(float(fit["rmse_law"]) < float(fit["rmse_line"]) for fit in fits)
    command = shlex.join(["bench", "import", *imported.options(Path(imported.logs))])
    return _SECTION.format(
        name=name,
        runs=count(len(fits), "run"),
        origin=imported.origin,
        table=markdown_table(["run", *numbers.values()], rows),
        better=better,
        command=command,
        logs=imported.logs,
    )


_SECTION = """## {name}

{runs} made by others, read from [their logs]({origin}). The logs are not in this repository; the fits to them are.

{table}

The last four columns are root mean squared errors of four forecasts: the law, a line in H, the last reward, and a line
in the logarithm of the step. Each is fitted to the first 30% of the steps and predicts the training reward of the rest.
The law and the line in H are also given the later entropies. The law's error is smaller than that of the line in H in
{better} of {runs}. Each row is a single run, so there is no interval.

To repeat this with the logs in a folder `{logs}`:

```
{command}
bench report {logs}
```
"""
