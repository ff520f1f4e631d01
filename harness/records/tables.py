"""Parquet files of records: one that is not what was written is a damaged record, whatever pyarrow calls it.

JSONL of numbers by column, for those who look at a few of many fields over thousands of rows.

Arrow reads it in a third of the time that Python's objects take, and of their memory it takes a tenth.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.records.files import DamagedRecordError, read_bytes, read_jsonl

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow
    import pyarrow.compute

REMEDY = "Restore it, or move its folder away and let `bench` make it anew."


@contextmanager
def naming_damage(path: Path) -> Iterator[None]:
    """Turn pyarrow's errors about a damaged file into a DamagedRecordError that names the file. Raises OSError if the
    file cannot be opened."""
    import pyarrow

    # That it is not there, or not ours to read, is the system's to say: pyarrow says it without its number.
    with path.open("rb"):
        pass
    try:
        yield
    # pyarrow also raises OSError for a truncated file, and UnicodeDecodeError for text that is not UTF-8.
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise DamagedRecordError(f"{path}: is damaged ({error}). {REMEDY}") from None


def read_parquet(
    path: Path, columns: Sequence[str] | None = None, where: pyarrow.compute.Expression | None = None
) -> pyarrow.Table:
    """The rows of a file, or those that `where` keeps. columns: to read, those of them that were recorded; all by
    default. Raises DamagedRecordError, also where a page that has a checksum is not what was written."""
    import pyarrow.parquet

    with naming_damage(path), pyarrow.parquet.ParquetFile(path, page_checksum_verification=True) as file:
        if columns is not None:
            recorded = set(file.schema_arrow.names)
            columns = [name for name in columns if name in recorded]
        if where is None:
            return file.read(columns)  # in a third of the time that a data set of one file takes
        return pyarrow.parquet.read_table(path, columns=columns, filters=where, page_checksum_verification=True)


def require_values(path: Path, table: pyarrow.Table, columns: Iterable[str]) -> None:
    """Raises DamagedRecordError if a row of a table that was read from `path`, or an element of a row that is a list,
    lacks a value in one of the columns."""
    import pyarrow
    import pyarrow.compute

    for name in columns:
        values = table[name]
        gaps = values.null_count
        if pyarrow.types.is_list(values.type):
            gaps += pyarrow.compute.list_flatten(values).null_count
        if gaps:
            raise DamagedRecordError(f"{path}: lacks {name} in {gaps} places. {REMEDY}")


def as_array(column: pyarrow.Array | pyarrow.ChunkedArray) -> npt.NDArray[Any]:
    """A column of numbers or of booleans [n], not copied if all are there; a missing one is NaN among floats.

    pyarrow's own `to_numpy` imports pandas, which takes 30 MB and .3 s in each process; so do its Python scalars.
    """
    import numpy as np
    import pyarrow

    values = column.combine_chunks() if isinstance(column, pyarrow.ChunkedArray) else column
    if values.null_count or pyarrow.types.is_null(values.type):
        result = np.full(len(values), np.nan)
        result[as_array(values.is_valid())] = as_array(values.drop_null().cast(pyarrow.float64()))
        return result
    if pyarrow.types.is_boolean(values.type):
        return np.from_dlpack(values.cast(pyarrow.uint8())).view(np.bool_)
    return np.from_dlpack(values)


def read_columns(path: Path) -> pyarrow.Table:
    """The complete rows of a JSONL file of flat objects, in one chunk; what a row lacks is null. No rows without the
    file. A last line without its newline is torn and dropped.

    Raises DamagedRecordError for lines that are not JSON objects, a field that holds now a number, now something
    else, or one that is given twice.
    """
    import pyarrow
    import pyarrow.json

    if not path.exists():
        return pyarrow.table({})
    text = read_bytes(path).rpartition(b"\n")[0]
    if not text.strip():
        return pyarrow.table({})
    n_lines = sum(not line.isspace() for line in text.split(b"\n") if line)
    whole = pyarrow.json.ReadOptions(use_threads=False, block_size=len(text) + 1)
    try:
        table = pyarrow.json.read_json(pyarrow.BufferReader(text), read_options=whole)
    except pyarrow.ArrowInvalid as error:
        read_jsonl(path)  # says the line of what is not a JSON object
        raise DamagedRecordError(f"{path}: is damaged ({error}). Restore the file, or move its folder away.") from None
    if len(table) != n_lines or text.startswith(BOM_UTF8):
        read_jsonl(path)
        raise DamagedRecordError(f"{path}: is damaged ({len(table)} rows in {n_lines} lines). Restore the file.")
    return table
