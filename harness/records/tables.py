"""Parquet and JSONL files of records as tables.

JSONL of numbers is read by column, for readers that need a few of many fields over thousands of rows. Arrow takes a
third of the time and a tenth of the memory of Python objects.
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
    """Turn pyarrow's errors about a damaged file into a DamagedRecordError that names the file.

    Raises OSError if the file cannot be opened.
    """
    import pyarrow

    # Opening the file first lets the system report a missing or unreadable file: pyarrow's error has no error number.
    with path.open("rb"):
        pass
    try:
        yield
    # pyarrow also raises OSError for a truncated file, and UnicodeDecodeError for text that is not UTF-8.
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        # An error number means that the system failed, not that the content is damaged.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise DamagedRecordError("records.table_damaged", path=path, error=error, remedy=REMEDY) from None


def read_parquet(
    path: Path, columns: Sequence[str] | None = None, where: pyarrow.compute.Expression | None = None
) -> pyarrow.Table:
    """Return the rows of a file.

    columns: the columns to read; columns that were not recorded are left out. None reads all.
    where: a filter on the rows.
    Raises DamagedRecordError if the file is damaged or a page does not match its checksum.
    """
    import pyarrow.parquet

    with naming_damage(path), pyarrow.parquet.ParquetFile(path, page_checksum_verification=True) as file:
        if columns is not None:
            recorded = set(file.schema_arrow.names)
            columns = [name for name in columns if name in recorded]
        if where is None:
            # This takes a third of the time of read_table, which first builds a data set from the file.
            return file.read(columns)
        return pyarrow.parquet.read_table(path, columns=columns, filters=where, page_checksum_verification=True)


def require_values(path: Path, table: pyarrow.Table, columns: Iterable[str]) -> None:
    """Raise DamagedRecordError if one of these columns lacks a value in a row, or in an element of a row's list.

    path: the file from which the table was read.
    """
    import pyarrow
    import pyarrow.compute

    for name in columns:
        values = table[name]
        gaps = values.null_count
        if pyarrow.types.is_list(values.type):
            gaps += pyarrow.compute.list_flatten(values).null_count
        if gaps:
            raise DamagedRecordError("records.column_with_gaps", path=path, name=name, n_gaps=gaps, remedy=REMEDY)


def as_array(column: pyarrow.Array | pyarrow.ChunkedArray) -> npt.NDArray[Any]:
    """Return a column of numbers or booleans as an array [n], with NaN in place of missing values.

    The data are not copied if no value is missing. pyarrow's own `to_numpy` imports pandas, which takes 30 MB and 0.3 s
    in each process; its Python scalars do so too.
    """
    import numpy as np
    import pyarrow

    values = column.combine_chunks() if isinstance(column, pyarrow.ChunkedArray) else column
    if values.null_count or pyarrow.types.is_null(values.type):
        result = np.full(len(values), np.nan)
        result[as_array(values.is_valid())] = as_array(values.drop_null().cast(pyarrow.float64()))
        return result
    if pyarrow.types.is_boolean(values.type):
        # Arrow packs eight booleans into a byte. NumPy stores one per byte.
        return np.from_dlpack(values.cast(pyarrow.uint8())).view(np.bool_)
    return np.from_dlpack(values)


def read_columns(path: Path) -> pyarrow.Table:
    """Return the complete rows of a JSONL file of flat objects as a table in one chunk.

    Fields that a row lacks are null, and a missing file gives an empty table. A last line without a newline is torn and
    dropped. Raises DamagedRecordError if a line is not a JSON object, if a field is a number in one row and something
    else in another, or if an object has a key twice.
    """
    import pyarrow
    import pyarrow.json

    if not path.exists():
        return pyarrow.table({})
    text = read_bytes(path).rpartition(b"\n")[0]
    if not text.strip():
        return pyarrow.table({})
    n_lines = sum(not line.isspace() for line in text.split(b"\n") if line)
    # One block contains the whole file, so that types are inferred once and the result has one chunk.
    whole = pyarrow.json.ReadOptions(use_threads=False, block_size=len(text) + 1)
    try:
        table = pyarrow.json.read_json(pyarrow.BufferReader(text), read_options=whole)
    except pyarrow.ArrowInvalid as error:
        # If a line is not a JSON object, this raises an error that names the line.
        read_jsonl(path)
        raise DamagedRecordError("records.columns_damaged", path=path, error=error) from None
    if len(table) != n_lines or text.startswith(BOM_UTF8):
        read_jsonl(path)
        raise DamagedRecordError("records.row_count_differs", path=path, n_rows=len(table), n_lines=n_lines)
    return table
