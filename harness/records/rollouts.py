"""rollouts/*.parquet: one row for each completion of a step's rollout batch, in the order of sampling.

A row contains the completion's text, tokens, sampler log-probs, rewards and verdict. It can also record what the update
did with each token (`train.token_records_max_tokens`). These columns are null if the completion was not trained on. For
a completion of T tokens that took part in E optimiser steps, one in each epoch, they are:

    token/chars      [T] number of characters of `text` that the token completes; their sum is the length of `text`
    token/logp       [T] log-prob under the policy that sampled it, computed by the trainer before the update
    token/entropy    [T] entropy over the vocabulary before the update, in nats
    token/advantage  [T] advantage in the first epoch
    token/update     [E] number of the optimiser step on this rollout batch, from 0
    token/log_ratio  [E][T] log pi - log pi_old at the beginning of that optimiser step
    token/clipped    [E][T] whether a bound of the rule acted on the token's ratio
    token/masked     [E][T] whether the token was excluded from the policy loss

The last three are null in an epoch in which the completion contributed no gradient (advantage 0), because it was not
scored again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from harness.records.files import DamagedRecordError
from harness.records.tables import REMEDY, as_array, read_parquet, require_values
from harness.secrets import redact

if TYPE_CHECKING:
    import numpy as np
    import pyarrow
    from numpy.typing import NDArray

Item = TypeVar("Item")
_NAME = re.compile(r"\d+-(?P<last>\d+)-e(?P<epoch>\d+)")
Superseded = Callable[[int, int], bool]
MOST_UPDATES = 100_000
"""A bound on the optimiser steps on one rollout batch. No objective takes a hundredth of them."""
PER_TOKEN = ("token/logp", "token/entropy", "token/advantage")
PER_EPOCH = ("token/log_ratio", "token/clipped", "token/masked")


def write_rollouts(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Write rows as one file with page checksums. Columns that a row lacks are null in it."""
    import pyarrow
    import pyarrow.parquet

    types = _token_types()
    # A dict keeps the order in which columns first occur; a set would not.
    columns = dict.fromkeys(name for row in rows for name in row)
    table = pyarrow.table(
        {name: pyarrow.array([_shown(row.get(name)) for row in rows], type=types.get(name)) for name in columns}
    )
    pyarrow.parquet.write_table(table, path, compression="zstd", write_page_checksum=True)


def _shown(value: object) -> object:
    return redact(value) if isinstance(value, str) else value


def spread(files: Sequence[Item], most: int) -> list[Item]:
    """Return at most `most` (at least 2) items at even distances, always including the first and the last."""
    if len(files) <= most:
        return list(files)
    return [files[round(place * (len(files) - 1) / (most - 1))] for place in range(most)]


def rollout_files(folder: Path, superseded: Superseded = lambda epoch, step: False) -> list[Path]:
    """Return the rollout files in the order of training, or [] if there is no folder.

    superseded: files for which this returns True are left out; see `harness.records.cell.CellRecord.superseded`.
    Raises DamagedRecordError if the folder is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise DamagedRecordError("records.rollouts_not_a_folder", folder=folder, remedy=REMEDY)
    paths = sorted(path for path in folder.glob("*.parquet") if not path.name.startswith("."))
    return [path for path in paths if not (stand := stand_of(path)) or not superseded(*stand)]


def file_of(first_step: int, last_step: int, epoch: int) -> str:
    """Return the name of the file that contains these steps, written by the start with this epoch."""
    # Fixed width, so that names sort in the order of steps.
    return f"{first_step:06d}-{last_step:06d}-e{epoch}.parquet"


def stand_of(path: Path) -> tuple[int, int] | None:
    """Return the writer's epoch and the last step, taken from a file's name, or None for any other name."""
    name = _NAME.fullmatch(path.stem)
    return None if name is None else (int(name["epoch"]), int(name["last"]))


def read_rollouts(
    folder: Path,
    columns: Sequence[str],
    most_files: int | None = None,
    needed: Sequence[str] = (),
    superseded: Superseded = lambda epoch, step: False,
) -> pyarrow.Table | None:
    """Return these columns of all rows in the order of training, or None if there are no rows.

    columns: a column that was not recorded is null.
    most_files: if there are more files, only this many are read, spread over training.
    needed: columns in which every row must have a value.
    superseded: as in `rollout_files`.
    Raises DamagedRecordError, naming the file, if a needed value is missing or a file cannot be read. Also raises as
    `rollout_files`.
    """
    import pyarrow

    tables = []
    paths = rollout_files(folder, superseded)
    for path in paths if most_files is None else spread(paths, most_files):
        table = _with_types(path, read_parquet(path, columns), columns)
        require_values(path, table, needed)
        if "token/chars" in columns:
            _require_tokens_agree(path, table)
        tables.append(table)
    # A column that is null throughout one file gets the type that it has in the other files.
    return pyarrow.concat_tables(tables, promote_options="permissive") if tables else None


def _with_types(path: Path, table: pyarrow.Table, columns: Sequence[str]) -> pyarrow.Table:
    """Return the columns with their types. A column that was not recorded is null.

    Raises DamagedRecordError if the values of a column do not fit its type.
    """
    import pyarrow

    types = _token_types()
    arrays = []
    for name in columns:
        values = table[name] if name in table.column_names else pyarrow.chunked_array([pyarrow.nulls(len(table))])
        try:
            arrays.append(values.cast(types[name]) if name in types else values)
        except pyarrow.ArrowException as error:
            raise DamagedRecordError("records.column_type", path=path, name=name, error=error, remedy=REMEDY) from None
    return pyarrow.table(arrays, names=list(columns))


def _require_tokens_agree(path: Path, table: pyarrow.Table) -> None:
    """Raise DamagedRecordError unless the lists of each row are as long as its tokens or its epochs require.

    A row's lists are written together, so either all or none must be present.
    """
    import numpy as np
    import pyarrow.compute as pc

    def lengths(lists: pyarrow.ChunkedArray) -> NDArray[np.int64]:
        counts: NDArray[np.int64] = np.nan_to_num(as_array(pc.list_value_length(lists))).astype(np.int64)
        return counts

    def valid(values: pyarrow.ChunkedArray) -> NDArray[np.bool_]:
        return as_array(pc.is_valid(values))

    n_tokens, n_epochs = lengths(table["token/chars"]), lengths(table["token/update"])
    scored: NDArray[np.bool_] | None = None
    of_tokens = [name for name in ("token/chars", *PER_TOKEN) if name in table.column_names]
    if "tokens" in table.column_names:
        learned_from = np.any([valid(table[name]) for name in of_tokens], axis=0)
        n_tokens = np.where(learned_from & valid(table["tokens"]), lengths(table["tokens"]), n_tokens)
    faults = [name for name in ("token/chars", "token/update") if pc.list_flatten(table[name]).null_count]
    for name in table.column_names:
        values = table[name]
        if name in of_tokens and not np.array_equal(lengths(values), n_tokens):
            faults.append(name)
        elif name in PER_EPOCH:
            epochs = pc.list_flatten(values)
            # The three columns must be null in the same epochs, namely those in which the completion was not scored
            # again.
            known = valid(epochs)
            scored = known if scored is None else scored
            if (
                not np.array_equal(lengths(values), n_epochs)
                or (lengths(epochs) != np.repeat(n_tokens, n_epochs))[known].any()
                or not np.array_equal(known, scored)
            ):
                faults.append(name)
    updates = pc.max(pc.list_flatten(table["token/update"])).as_py()
    # The lengths do not check the values. In a damaged file, a value can be any uint32.
    if updates is not None and updates >= MOST_UPDATES:
        faults.append("token/update")
    if faults:
        wrong = ", ".join(dict.fromkeys(faults))
        raise DamagedRecordError("records.tokens_disagree", path=path, column=wrong, remedy=REMEDY)


def _token_types() -> dict[str, pyarrow.DataType]:
    """Return the types of the columns that may be null or empty throughout a file."""
    import pyarrow

    reals, flags = pyarrow.list_(pyarrow.float32()), pyarrow.list_(pyarrow.bool_())
    return {
        "tokens": pyarrow.list_(pyarrow.int64()),
        "token/chars": pyarrow.list_(pyarrow.uint32()),
        **dict.fromkeys(PER_TOKEN, reals),
        "token/update": pyarrow.list_(pyarrow.uint32()),
        "token/log_ratio": pyarrow.list_(reals),
        "token/clipped": pyarrow.list_(flags),
        "token/masked": pyarrow.list_(flags),
    }
