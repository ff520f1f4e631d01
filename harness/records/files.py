"""Files that survive a kill: JSON is written completely or not at all; JSONL loses at most a torn last line.

A file that was renamed into place also survives a power cut. Appended rows do so after `make_durable`.

This module also reads and writes problems.jsonl.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from functools import cache, cached_property
from pathlib import Path
from types import EllipsisType, UnionType
from typing import (
    Any,
    Literal,
    Protocol,
    TypedDict,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from harness.errors import BenchError
from harness.records.fence import aside_of, displaced_of, is_owned, require_owned, restore
from harness.secrets import json_text

TypedRow = TypeVar("TypedRow")
_NAME_BYTES = 100
_NO_JSON = (ValueError, RecursionError)
"""The errors of json for bytes that are not JSON, a document nested too deeply, or a number with too many digits."""
_END_BYTES = 64 * 1024
"""How many bytes from the end of a file `read_last_row` reads at first."""
OLD_TEMPORARY_S = 24 * 3600.0
"""A file of this age is not being written any more, however much two clocks differ."""


def make_durable(files: Iterable[Path]) -> None:
    """Sync the contents of these files, and their entries in their folders, to the disk."""
    paths = [*files]
    # A file's name is stored in its folder, which needs an fsync of its own.
    for path in [*paths, *dict.fromkeys(path.parent for path in paths)]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_atomic(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file, then rename it to `path`; after an OSError (disk full) `path` is unchanged.

    Raises LeaseLostError if another process has taken over the folder; see `harness.records.fence`.
    """
    aside = aside_of(path)
    try:
        write(aside)
        with aside.open("rb") as handle:
            os.fsync(handle.fileno())
        aside.replace(path)
        make_durable([path])
    except OSError:
        require_owned(path)
        raise
    finally:
        aside.unlink(missing_ok=True)


def write_folder(folder: Path, write: Callable[[Path], object], replaces: bool = False) -> None:
    """Let `write` fill a temporary folder, then rename it to `folder`, so that `folder` is complete or absent.

    replaces: whether to replace an existing folder. Otherwise an existing folder is kept.
    The replaced folder is deleted once the new one is in place. If the process is killed before that, the next
    `write_folder`, `restore` or owner of the surrounding folder puts the earlier one back. Raises as `write_atomic`.
    """
    aside, displaced = aside_of(folder), displaced_of(folder)
    restore(folder)
    try:
        aside.mkdir(parents=not is_owned(folder))
        write(aside)
        make_durable(path for path in aside.rglob("*") if path.is_file())
        folder.parent.mkdir(parents=True, exist_ok=True)
        if replaces and folder.exists():
            folder.rename(displaced)
        aside.rename(folder)
        make_durable([folder])
    except OSError:
        require_owned(folder)
        # A folder cannot be renamed onto a folder that contains files.
        if replaces or not folder.is_dir():
            raise
    finally:
        restore(folder)
        shutil.rmtree(aside, ignore_errors=True)


def sweep_temporary(folder: Path, older_than_s: float = OLD_TEMPORARY_S) -> None:
    """Remove the temporary files that killed processes have left in a folder.

    older_than_s: the age from which files are removed. Live processes may be writing in the folder, so it must exceed
    the age of any temporary file in use, unless the caller is the only writer.
    """
    for path in folder.glob(".*.tmp"):
        try:
            if time.time() - path.lstat().st_mtime < older_than_s:
                continue
        except FileNotFoundError:  # renamed into place
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def file_name(name: str) -> str:
    """Return a name without the characters that are not allowed in a file name; a task's name may be a path.

    A long name is shortened and ends with a hash, so that two names with the same beginning stay different.
    """
    safe = re.sub(r"[^\w.-]+", "_", name)
    # File systems limit names in bytes, not in characters.
    if len(safe.encode()) <= _NAME_BYTES:
        return safe
    ending = "-" + hashlib.blake2b(name.encode(), digest_size=5).hexdigest()
    return safe.encode()[: _NAME_BYTES - len(ending)].decode(errors="ignore") + ending


def write_json(path: Path, document: object) -> None:
    """Atomically write strict JSON. NaN and infinities become null, and secrets are redacted."""
    text = json_text(_finite(document), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    write_atomic(path, lambda aside: aside.write_text(text, encoding="utf-8"))


def is_disk_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


class DamagedRecordError(BenchError, ValueError):
    """A record is not as bench wrote it. Records are written atomically, so something else must have changed it."""

    exit_code = 2


def require_inside(folder: Path, paths: Iterable[Path]) -> None:
    """Raise DamagedRecordError if one of these paths, or a folder above it, is a link that leads out of `folder`.

    Following the link would read, write or delete files of others.
    """
    depth = len(folder.parts)
    for path in dict.fromkeys(Path(*one.parts[:end]) for one in paths for end in range(depth + 1, len(one.parts) + 1)):
        if path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
            raise DamagedRecordError("records.link_outside_folder", path=path, target=path.resolve(), folder=folder)


def read_bytes(path: Path) -> bytes:
    """Return the content of a file.

    Raises FileNotFoundError if it is missing. Raises DamagedRecordError if it cannot be read, for example because it is
    a folder.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DamagedRecordError("records.unreadable", path=path, reason=error.strerror) from None


def read_json(path: Path) -> Any:
    """Return the JSON document in a file; raise DamagedRecordError if the file is not valid JSON."""
    content = read_bytes(path)
    try:
        return json.loads(content.decode("utf-8"))
    except _NO_JSON as error:
        raise DamagedRecordError("records.not_json", path=path, error=error) from None


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file. Raises DamagedRecordError if the file is missing or contains something else."""
    if not path.exists():
        raise DamagedRecordError("records.file_missing", path=path)
    document = read_json(path)
    if not isinstance(document, dict):
        raise DamagedRecordError("records.not_an_object", path=path)
    return document


def append_jsonl(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    """Append rows in one write, with secrets redacted. A kill can tear only the last line, which `read_jsonl` drops."""
    text = "".join(json_text(_finite(row), ensure_ascii=False, allow_nan=False) + "\n" for row in rows)
    require_owned(path)
    content = memoryview(text.encode())
    try:
        # An owner does not create the file here: if it has lost the folder, it could bring back a file that was
        # removed.
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | (0 if is_owned(path) else os.O_CREAT), 0o666)
    except FileNotFoundError:
        write_atomic(path, lambda aside: aside.write_bytes(content))
        return
    try:
        # One write usually takes all the rows, so that lines of two processes do not mix.
        while content:
            content = content[os.write(handle, content) :]
    finally:
        os.close(handle)


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Return the complete rows of a JSONL file, or [] if there is no file. A torn last line is dropped.

    A line is torn if it lacks its newline. Raises DamagedRecordError, naming the line, if any other line is not a JSON
    object.
    """
    if not path.exists():
        return []
    lines = read_bytes(path).rpartition(b"\n")[0].split(b"\n")
    # If the rows are parsed as one document, they share the strings of their keys. This takes a third of the memory for
    # the long rows of steps.jsonl.
    try:
        rows: list[dict[str, object]] = json.loads(b"[" + b",".join(line for line in lines if line) + b"]")
    except _NO_JSON:
        rows = []
    if len(rows) != sum(map(bool, lines)) or not all(isinstance(row, dict) for row in rows):
        raise DamagedRecordError("records.rows_damaged", path=path, fault=_first_fault(lines))
    return rows


def read_last_row(path: Path) -> dict[str, Any] | None:
    """Return the last complete row of a JSONL file, or None if it has none. Only the end of the file is read.

    Raises DamagedRecordError if the row is not a JSON object.
    """
    if not path.exists():
        return None
    with path.open("rb") as handle:
        size = handle.seek(0, os.SEEK_END)
        lines: list[bytes] = []
        n_bytes = _END_BYTES
        while len(lines) < 2:  # the first line may lack its beginning
            handle.seek(max(0, size - n_bytes))
            lines = handle.read(n_bytes).rpartition(b"\n")[0].split(b"\n")
            if n_bytes >= size:
                break
            n_bytes *= 2
    if not lines[-1]:
        return None
    try:
        row = json.loads(lines[-1])
    except _NO_JSON as error:
        raise DamagedRecordError("records.last_row_damaged", path=path, error=error) from None
    if not isinstance(row, dict):
        raise DamagedRecordError("records.last_row_not_an_object", path=path)
    return row


def _first_fault(lines: list[bytes]) -> str:
    """Describe the first line that is not a JSON object. The caller must know that there is one."""
    for number, line in enumerate(lines, start=1):
        try:
            if line and not isinstance(json.loads(line.decode("utf-8")), dict):
                return f"line {number}: is not a JSON object"
        except _NO_JSON as error:
            return f"line {number}: is damaged ({error})"
    raise AssertionError("no line is at fault")


def typed_rows(path: Path, rows: list[dict[str, object]], kind: type[TypedRow]) -> list[TypedRow]:
    """Return the rows of a file as TypedDicts.

    kind: the TypedDict. Raises DamagedRecordError if a row lacks a required field or has a field of another type.
    """
    required = kind.__required_keys__  # type: ignore[attr-defined]  # of a TypedDict
    # `...` stands for a field that a row lacks.
    fields = {
        name: wanted if name in required else (*wanted, EllipsisType)
        for name, wanted in types_of_fields(kind).items()  # type: ignore[arg-type]
    }
    # The types in each column are checked first. Only a file with a fault is checked row by row, to name the row.
    if all(isinstance(row, dict) for row in rows) and all(
        issubclass(found, wanted)
        for name, wanted in fields.items()
        for found in {type(row.get(name, ...)) for row in rows}
    ):
        return cast(list[TypedRow], rows)  # checked by column, in a third of the time
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise DamagedRecordError("records.row_not_an_object", path=path, number=number)
        if wrong := [name for name, wanted in fields.items() if not isinstance(row.get(name, ...), wanted)]:
            raise DamagedRecordError("records.row_lacks_fields", path=path, number=number, lacking=", ".join(wrong))
    return cast(list[TypedRow], rows)


@cache
def types_of_fields(kind: type[object]) -> dict[str, tuple[type, ...]]:
    """Map each field of a TypedDict to the types that it may have. A generic counts as its outer type, such as dict."""
    return {
        name: tuple(
            one
            for part in (get_args(wanted) if isinstance(wanted, UnionType) else [wanted])
            for one in ((int, float) if part is float else [dict if is_typeddict(part) else get_origin(part) or part])
        )
        for name, wanted in get_type_hints(kind).items()
    }


def keep_jsonl(path: Path, keep: Callable[[dict[str, Any]], bool]) -> None:
    """Remove the rows for which `keep` is false, such as those after the checkpoint from which a cell resumes.

    The owner of a folder always writes a new file, because an earlier owner may have the old file open.
    """
    if not path.exists():
        return
    rows = [row for row in read_jsonl(path) if keep(row)]
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    if is_owned(path) or text.encode() != path.read_bytes():
        write_atomic(path, lambda aside: aside.write_text(text, encoding="utf-8"))


def _finite(value: object) -> object:
    """Return the value with every NaN or infinity in it replaced by None."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


PROBLEMS_FILE = "problems.jsonl"
Split = Literal["train", "test"]


class RecordedProblem(Protocol):
    """The attributes of a task's problem that are recorded."""

    @property
    def id(self) -> str: ...
    @property
    def answer(self) -> str: ...


P = TypeVar("P", bound=RecordedProblem)


class _Problem(TypedDict):
    """The required fields of a row.

    prompt: the rendered text, or the messages of a chat.
    answer: the reference answer, or "" if the task has none.
    """

    task: str
    split: str
    problem_id: str
    prompt: str | list[dict[str, str]]
    answer: str


class ProblemRow(_Problem, total=False):
    """A row of problems.jsonl.

    content: the digest of question and reference answer (`content_of`), if another tool evaluated the problem.
    """

    content: str | None


def read_problems(path: Path) -> list[ProblemRow]:
    """Return each problem once, in the order of first use, or [] if there is no file. Raises DamagedRecordError."""
    first: dict[tuple[str, str, str], ProblemRow] = {}
    for row in typed_rows(path, read_jsonl(path), ProblemRow):
        first.setdefault((row["task"], row["split"], row["problem_id"]), row)
    return list(first.values())


class ProblemsFile:
    """Writes problems.jsonl. A problem that the file already contains, e.g. since before a kill, is not repeated."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, task: str, split: Split, problems: Iterable[P], ask: Callable[[P], object]) -> None:
        """Record the problems that are new. Call this before recording the first sample that refers to them.

        ask: maps a problem to its prompt.
        """
        new = {key: one for one in problems if (key := (task, split, one.id)) not in self._known}
        if not new:
            return
        rows = (
            {"task": task, "split": split, "problem_id": one.id, "prompt": ask(one), "answer": one.answer}
            for one in new.values()
        )
        append_jsonl(self._path, rows)
        self._known.update(new)

    @cached_property
    def _known(self) -> set[tuple[str, str, str]]:
        keep_jsonl(self._path, lambda row: True)  # removes the torn end that a kill may have left
        return {(row["task"], row["split"], row["problem_id"]) for row in read_problems(self._path)}
