"""Rows as CSV, for those who draw a figure anew."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """A header and a line for each row; columns in the order in which rows name them, empty where one has none."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    if len(columns) > 1 and all(len(row) == len(columns) for row in rows):
        writer.writerows(map(itemgetter(*columns), rows))
    else:
        writer.writerows([row.get(name, "") for name in columns] for row in rows)
    return buffer.getvalue()
