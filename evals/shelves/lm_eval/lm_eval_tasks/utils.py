"""Functions for the task files of this folder.

lm-eval imports this file by its path, in an environment that has this package installed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from evals.errors import DataMissingError, EvalError
from evals.graders import grade
from evals.hub import Row
from evals.metrics.averages import avg_at_n
from evals.metrics.success import pass_at_k
from evals.prompts import get_template
from evals.tasks.rows import DATA_FOLDER_VARIABLE, file_rows


def load_rows(files: Mapping[str, str], columns: Mapping[str, str], **_metadata: object) -> Any:
    """Return a `datasets.DatasetDict` of rows from $BENCH_DATA, for `custom_dataset:` of a task file.

    files: split -> name of a JSONL file. columns: column of the task -> field of the rows; numbers become text. lm-eval
    adds the task's metadata to the arguments.

    Raises DataMissingError if the folder or a file is missing, EvalError for a row without a field and for no rows.
    """
    from datasets import Dataset, DatasetDict

    folder = os.environ.get(DATA_FOLDER_VARIABLE)
    if not folder:
        raise DataMissingError(
            "evals.shelves.lm_eval.data_folder_not_set",
            files=" and ".join(files.values()),
            variable=DATA_FOLDER_VARIABLE,
        )
    return DatasetDict({split: Dataset.from_list(_rows(Path(folder) / name, columns)) for split, name in files.items()})


def _rows(path: Path, columns: Mapping[str, str]) -> list[dict[str, str]]:
    fields = ", ".join(sorted(set(columns.values())))
    if not path.is_file():
        raise DataMissingError(
            "evals.shelves.lm_eval.data_file_missing", path=path, columns=fields, variable=DATA_FOLDER_VARIABLE
        )
    rows = [{column: _text(row, field, where) for column, field in columns.items()} for where, row in file_rows(path)]
    if not rows:
        raise EvalError("evals.shelves.lm_eval.data_file_without_rows", path=path, columns=fields)
    return rows


def _text(row: Row, field: str, where: str) -> str:
    value = row.get(field)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        given = f"the field {field!r} is {value!r}" if field in row else f"no field {field!r}"
        raise EvalError("evals.shelves.lm_eval.field_not_text", where=where, fault=given)
    return str(value)


def boxed_prompt(doc: Mapping[str, str]) -> str:
    """Return the user's turn of our template `boxed`; lm-eval decides whether a chat template frames it."""
    rendered = get_template("boxed").render(doc["problem"])
    return rendered if isinstance(rendered, str) else rendered[-1]["content"]


def keep_all(resps: Iterable[Sequence[str]], docs: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Keep all samples of a document: lm-eval's default filter keeps only the first."""
    return [list(samples) for samples in resps]


def score_numeric(doc: Mapping[str, str], results: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return the metrics of one document under our grader `numeric` (see `_at_n`)."""
    return _at_n(doc["answer"], results, "numeric")


def score_math(doc: Mapping[str, str], results: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return the metrics of one document under our grader `math` (see `_at_n`)."""
    return _at_n(doc["answer"], results, "math")


def _at_n(answer: str, results: Sequence[Sequence[str]], grader: str) -> dict[str, float]:
    """Return `avg@n`, and the unbiased `pass@k` for k = 2, 4, ... up to n, of n samples.

    results: the samples in its only entry.
    """
    (samples,) = results
    n = len(samples)
    correct = sum(grade(text, answer, grader).correct for text in samples)
    ks = [2**power for power in range(1, n.bit_length()) if 2**power <= n]
    return {f"avg@{n}": avg_at_n(n, correct), **{f"pass@{k}": pass_at_k(n, correct, k) for k in ks}}
