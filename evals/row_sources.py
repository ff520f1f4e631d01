"""Raw rows, each with the place that an error names: lines of a JSONL file, or rows of a data set on the hub."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from evals.errors import DataMissingError, EvalError

DATA_FOLDER_VARIABLE = "BENCH_DATA"

Row = Mapping[str, object]


def file_rows(path: Path) -> Iterator[tuple[str, Row]]:
    """(place, row) of each line that is not blank.

    Not read through `datasets`: it tells no line numbers, and wants all rows to have columns of one type.
    Raises EvalError at a line that is not a JSON object.
    """
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            where = f"{path}, line {number}"
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise EvalError(f"{where}: not valid JSON ({error}); each line must be one JSON object") from error
            if not isinstance(row, dict):
                raise EvalError(f"{where}: {type(row).__name__} given; each line must be one JSON object")
            yield where, row


def hub_rows(name: str, id: str, config: str | None, split: str, revision: str | None) -> Iterator[tuple[str, Row]]:
    """(place, row) of each row of a split on the hub, or of a folder in its layout. `name` names it in places.

    Raises DataMissingError, with the hub's words alone, if it cannot be had.
    """
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    try:
        rows = load_dataset(id, config, split=split, revision=revision)
    except (OSError, ValueError, DatasetsError) as error:
        raise DataMissingError(str(error)) from error
    for number, row in enumerate(rows):
        yield f"{name}, row {number}", row
