"""rollouts/*.parquet: a row for each completion of a step's rollout batch, in the order in which they were drawn.

Besides its text, tokens, the sampler's log-probs, rewards and verdict, a row can hold what the update did with each of
its tokens (`train.token_records_max_tokens`); a row that was not learned from has null there. With T tokens, in a
completion that took part in E optimiser steps, one for each epoch:

    token/chars      [T] characters of `text` that the token completes; they add up to the text's length
    token/logp       [T] log-prob under the policy that drew it, by the trainer, before the update
    token/entropy    [T] entropy over the vocabulary before the update, in nats
    token/advantage  [T] in the first epoch
    token/update     [E] the number of the optimiser step on this rollout batch, from 0
    token/log_ratio  [E][T] log pi - log pi_old at that step, before it was taken
    token/clipped    [E][T] whether a bound of the rule acted on the token's ratio
    token/masked     [E][T] whether the token was taken out of the policy loss

The last three are null in an epoch in which the completion could not act (advantage 0): it was not scored again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.records.parquet import read_parquet, require_values

if TYPE_CHECKING:
    import pyarrow

PER_TOKEN = ("token/logp", "token/entropy", "token/advantage")
PER_EPOCH = ("token/log_ratio", "token/clipped", "token/masked")


def write_rollouts(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as one file; columns that a row lacks are null in it."""
    import pyarrow
    import pyarrow.parquet

    types = _token_types()
    columns = dict.fromkeys(name for row in rows for name in row)
    table = pyarrow.table(
        {name: pyarrow.array([row.get(name) for row in rows], type=types.get(name)) for name in columns}
    )
    pyarrow.parquet.write_table(table, path, compression="zstd")


def spread(paths: Sequence[Path], most: int) -> list[Path]:
    """Up to `most` of them, at least 2, at even distances: the first and the last are among them."""
    if len(paths) <= most:
        return list(paths)
    return [paths[round(place * (len(paths) - 1) / (most - 1))] for place in range(most)]


def read_rollouts(
    folder: Path, columns: Sequence[str], most_files: int | None = None, needed: Sequence[str] = ()
) -> pyarrow.Table | None:
    """These columns of all rows, step by step; a column that was not recorded is null. None if there are no rows.

    most_files: of more than so many only some are read, spread over training. needed: columns in which every row must
    have a value. Raises DamagedRecordError, naming the file, where one has none, or for a file that cannot be read.
    """
    import pyarrow

    tables = []
    paths = sorted(folder.glob("*.parquet"))
    for path in paths if most_files is None else spread(paths, most_files):
        table = read_parquet(path, columns)
        for name in columns:
            if name not in table.column_names:
                table = table.append_column(name, pyarrow.nulls(len(table), _token_types().get(name)))
        require_values(path, table, needed)
        tables.append(table.select(list(columns)))
    return pyarrow.concat_tables(tables, promote_options="permissive") if tables else None


def _token_types() -> dict[str, pyarrow.DataType]:
    """Types of the columns that may be null or empty in a whole file."""
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
