"""Problems as rows of a local JSONL file or of a data set on the Hugging Face hub, checked against a pinned digest."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, overload

from evals.errors import DataMissingError, EvalError
from evals.graders import get_grader
from evals.grading import Grader
from evals.hub import Row, hub_rows
from evals.tasks.base import Problem
from harness.settings import Settings

DATA_FOLDER_VARIABLE = "BENCH_DATA"

_SURROGATE = re.compile(r"[\ud800-\udfff]")


def file_rows(path: Path) -> Iterator[tuple[str, Row]]:
    """Yield (location, row) for each line that is not blank. The location names file and line, for messages.

    `datasets` is not used, because it gives no line numbers and requires one type per column. Raises EvalError at a
    line that is not a JSON object.
    """
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            where = f"{path}, line {number}"
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise EvalError("evals.row_not_json", where=where, error=error) from error
            if not isinstance(row, dict):
                raise EvalError("evals.row_not_object", where=where, given_type=type(row).__name__)
            yield where, row


class Fields(Settings):
    """Which columns hold what.

    Rows without the `id` column are numbered; `solution` and `difficulty` may be absent. A grader may
    find the answer in columns of its own (`Grader.reference_in`).

    answer_after: a mark in the answer column, e.g. GSM8K's `####`, behind which the answer stands. The answer is then
        taken without thousands separators.
    difficulty_if_absent: the difficulty of a row without a number there. None leaves it unknown, and a curriculum then
        refuses the whole split.
    """

    id: str = "id"
    problem: str = "problem"
    answer: str = "answer"
    solution: str = "solution"
    difficulty: str = "difficulty"
    answer_after: str | None = None
    difficulty_if_absent: float | None = None


@dataclass(frozen=True)
class LocalFile:
    """A JSONL file in `folder`, or in $BENCH_DATA if `folder` is None."""

    file: str
    folder: Path | None = None
    fields: Fields = field(default_factory=Fields)

    def path(self) -> Path | None:
        """Return the expected path of the file, or None if no folder is known."""
        folder = self.folder or os.environ.get(DATA_FOLDER_VARIABLE)
        return Path(folder) / self.file if folder else None


class HubDataset(Settings):
    """One split of a data set on the hub; `revision` is a commit or a tag."""

    id: str
    split: str
    config: str | None = None
    revision: str | None = None
    fields: Fields = Fields()

    def __str__(self) -> str:
        return f"hub:{self.id}@{self.revision or 'main'}/{self.config or 'default'}/{self.split}"


@dataclass(frozen=True)
class LoadedRows(Sequence[Problem]):
    """The problems of a split, with their origin."""

    problems: tuple[Problem, ...]
    origin: str
    """The path of the file, or the address on the hub."""
    digest: str
    """The digest of the rows as loaded (see `rows_digest`)."""
    matches_pin: bool | None
    """True if `digest` equals the pinned digest; None if none is pinned.

    It can be False only for rows of the other source, from which the pinned digest was not made. Show `warning`
    wherever such results are shown.
    """

    @property
    def account(self) -> dict[str, Any]:
        """The facts about the rows that records state, in addition to their number."""
        return {"origin": self.origin, "digest": self.digest, "matches_pin": self.matches_pin}

    @property
    def warning(self) -> str | None:
        """The warning to show next to scores, or None."""
        if self.matches_pin is not False:
            return None
        return (
            f"the rows from {self.origin} differ from the pinned ones (digest {self.digest}); scores may not compare "
            "with those made from other copies."
        )

    def __len__(self) -> int:
        return len(self.problems)

    @overload
    def __getitem__(self, index: int) -> Problem: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Problem, ...]: ...
    def __getitem__(self, index: int | slice) -> Problem | tuple[Problem, ...]:
        return self.problems[index]


@dataclass(frozen=True)
class TaskRows:
    """A split from a file, a data set on the hub, or both. If both are given, the file is read if it exists.

    Raises EvalError if neither source is given, or if a hub data set is pinned by neither digest nor revision.
    """

    name: str
    """The prefix of ids for rows without an id: `<name>-00000`."""
    local: LocalFile | None = None
    hub: HubDataset | None = None
    count: int | None = None
    """The expected number of rows; None if it is not checked."""
    digest: str | None = None
    """The pinned `rows_digest` of the content, or None."""
    digest_of: Literal["file", "hub"] = "file"
    """The source that the digest was made from. Rows from this source must match it. For rows from the other source,
    `LoadedRows.matches_pin` records whether they do.
    """
    grader: str | None = "exact"
    """The task's grader. An answer that it cannot compare with is an error. None if rows need no answers."""

    def __post_init__(self) -> None:
        if self.local is None and self.hub is None:
            raise EvalError("evals.rows_without_source", name=self.name)
        if self.hub is not None and self.digest is None and self.hub.revision in {None, "main"}:
            raise EvalError("evals.hub_rows_not_pinned", name=self.name, source=self.hub)

    @property
    def fingerprint(self) -> str:
        """The pinned digest or hub revision, known without data; if none is pinned, the digest of the current file."""
        if self.digest is not None:
            return f"rows:{self.digest}"
        if self.hub is not None:
            return f"{self.hub}:{self.hub.fields!r}"
        return f"rows:{self.load().digest}"

    def load(self) -> LoadedRows:
        """Return the problems in the source's order.

        Raises DataMissingError if neither source is available. Raises EvalError if a row is malformed, the grader
        cannot compare with an answer, an id repeats, or the number of rows or the digest differs from the pinned one.
        """
        path = self.local.path() if self.local else None
        if self.local and path and path.is_file():
            rows, origin, fields, source = list(file_rows(path)), str(path), self.local.fields, "file"
        elif self.hub:
            rows, origin, fields, source = self._hub_rows(self.hub), str(self.hub), self.hub.fields, "hub"
        else:
            raise DataMissingError(self._missing())
        grader = None if self.grader is None else get_grader(self.grader)
        if grader is not None:
            rows = [(where, _with_reference(row, where, fields.answer, grader)) for where, row in rows]
        needs_answer = grader is not None and grader.needs_answer
        problems = tuple(
            _problem(row, where, fields, f"{self.name}-{i:05d}", needs_answer) for i, (where, row) in enumerate(rows)
        )
        if grader is not None:
            for (where, _), problem in zip(rows, problems, strict=True):
                if not grader.can_compare_with(problem.answer):
                    raise EvalError("evals.in_answer", where=where, fault=grader.fault(problem.answer))
        self._check_rows(problems, origin)
        digest = rows_digest(problems)
        matches = None if self.digest is None else digest == self.digest
        # Only rows of the source that the digest was made from must match it; see `TaskRows.digest_of`.
        if matches is False and source == self.digest_of:
            raise EvalError(
                "evals.data_digest_differs", origin=origin, name=self.name, digest=digest, pinned_digest=self.digest
            )
        return LoadedRows(problems, origin, digest, matches)

    def _hub_rows(self, hub: HubDataset) -> list[tuple[str, Row]]:
        try:
            return list(hub_rows(str(hub), hub.id, hub.config, hub.split, hub.revision))
        except DataMissingError as error:
            raise DataMissingError("evals.hub_rows_not_loaded", lookup=self._missing(), error=error) from error

    def _missing(self) -> str:
        """Return a message that says what was looked up, where, and how to provide it."""
        looked, remedies = [], []
        if self.local:
            path = self.local.path()
            looked.append(
                f"the file {path or self.local.file}" + ("" if path else f" (${DATA_FOLDER_VARIABLE} is not set)")
            )
            where = (
                f"in {self.local.folder}" if self.local.folder else f"in a folder and set {DATA_FOLDER_VARIABLE} to it"
            )
            remedies.append(f"put {self.local.file} {where}")
        if self.hub:
            looked.append(str(self.hub))
            remedies.append("allow access to the hub (network; HF_HUB_OFFLINE and HF_DATASETS_OFFLINE unset)")
        return f"no problems for {self.name}: looked for {' and '.join(looked)}; {', or '.join(remedies)}."

    def _check_rows(self, problems: Sequence[Problem], origin: str) -> None:
        """Raise EvalError if there are no rows, another number than declared, or a repeated id."""
        if not problems:
            raise EvalError("evals.source_without_rows", origin=origin)
        if self.count is not None and len(problems) != self.count:
            raise EvalError(
                "evals.row_count_differs", origin=origin, n_rows=len(problems), name=self.name, n_expected=self.count
            )
        seen: set[str] = set()
        for problem in problems:
            if problem.id in seen:
                raise EvalError("evals.duplicate_problem_id", origin=origin, problem=problem.id)
            seen.add(problem.id)


def rows_digest(problems: Sequence[Problem]) -> str:
    """Return `sha256:<hex>` of the (problem, answer) pairs, in order.

    The digest ignores ids, solutions and the layout of the file.
    """
    digest = hashlib.sha256()
    for problem in problems:
        digest.update(json.dumps([problem.problem, problem.answer]).encode() + b"\n")
    return f"sha256:{digest.hexdigest()}"


def _problem(row: Row, where: str, fields: Fields, numbered_id: str, answer_required: bool) -> Problem:
    """Build the problem of a row. Raises EvalError for a missing or malformed field."""
    has_answer = answer_required or fields.answer in row
    answer = _text(row, fields.answer, where) if has_answer else ""
    if fields.answer_after is not None and has_answer:
        _, mark, answer = answer.rpartition(fields.answer_after)
        if not mark:
            raise EvalError("evals.answer_mark_missing", where=where, field=fields.answer, mark=fields.answer_after)
        # Remove thousands separators: GSM8K writes `1,000`.
        answer = re.sub(r"(?<=\d),(?=\d)", "", answer)
    difficulty = row.get(fields.difficulty)
    return Problem(
        id=_text(row, fields.id, where) if fields.id in row else numbered_id,
        problem=_text(row, fields.problem, where),
        answer=answer.strip(),
        solution=_text(row, fields.solution, where) if fields.solution in row else None,
        difficulty=float(difficulty) if isinstance(difficulty, int | float) else fields.difficulty_if_absent,
    )


def _with_reference(row: Row, where: str, column: str, grader: Grader) -> Row:
    """Return the row with its answer replaced by the reference from the grader's own columns, if it has any."""
    try:
        reference = grader.reference_in(row)
    except EvalError as error:
        raise EvalError("evals.in_row", where=where, error=error) from None
    return row if reference is None else {**row, column: reference}


def _text(row: Row, name: str, where: str) -> str:
    """Return a field as text. Raises EvalError if it is missing, neither text nor a number, or not valid Unicode."""
    if name not in row:
        raise EvalError("evals.row_field_missing", where=where, field=name, row_fields=", ".join(map(repr, row)))
    value = row[name]
    is_number = (isinstance(value, int) and not isinstance(value, bool)) or (
        isinstance(value, float) and math.isfinite(value)
    )
    if not isinstance(value, str) and not is_number:
        raise EvalError("evals.row_field_not_text", where=where, field=name, value=value)
    if isinstance(value, str) and (lone := _SURROGATE.search(value)):
        raise EvalError("evals.half_character_in_field", where=where, field=name, character=lone[0], place=lone.start())
    return str(value)
