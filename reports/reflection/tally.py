"""Sums over the completions of each step of a cell, from which every number on reflection words is made."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum, auto
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from reports.reflection.words import tokens_of_words

if TYPE_CHECKING:
    import pyarrow

FloatArray = NDArray[np.float64]

COLUMNS = ("step", "text", "correct", "tokens")
TOKEN_COLUMNS = (
    *("token/chars", "token/logp", "token/entropy", "token/advantage"),
    *("token/update", "token/log_ratio", "token/clipped", "token/masked"),
)


class Count(IntEnum):
    """Places in the sums of a step."""

    TOKENS = 0
    COMPLETIONS = auto()
    RIGHT = auto()
    OCCURRENCES = auto()
    COMPLETIONS_WITH = auto()
    RIGHT_WITH = auto()


class Sum(IntEnum):
    """Places in the sums over the tokens of a side."""

    RECORDED = 0
    LOGP = auto()
    ENTROPY = auto()
    ADVANTAGE = auto()
    SEEN = auto()
    """Once for each optimiser step that scored the token."""
    RATIO = auto()
    BOUNDED = auto()


WORD, OTHER = 0, 1
"""Sides: tokens of the words, and all others."""


@dataclass(frozen=True)
class Tally:
    """Of S steps: counts [S, len(Count)], sums [S, 2, len(Sum)] by side.

    ratios: by the number of the optimiser step on its rollout batch and side [U, 2, 2]: tokens seen, sum of ratios.
    """

    steps: NDArray[np.int64]
    counts: FloatArray
    sums: FloatArray
    ratios: FloatArray


def tally(table: pyarrow.Table, pattern: re.Pattern[str]) -> Tally:
    """Sums by step over the rows of COLUMNS and TOKEN_COLUMNS; what was not recorded adds nothing."""
    import pyarrow.compute as pc

    steps, step = np.unique(_numbers(table["step"]).astype(np.int64), return_inverse=True)
    texts = table["text"].to_pylist()
    found = [len(pattern.findall(text)) for text in texts]
    with_word, right = np.array(found) > 0, _numbers(table["correct"]).astype(bool)
    counts = np.zeros((len(steps), len(Count)))
    for place, values in (
        (Count.TOKENS, _numbers(pc.list_value_length(table["tokens"]))),
        (Count.COMPLETIONS, np.ones(len(texts))),
        (Count.RIGHT, right),
        (Count.OCCURRENCES, np.array(found)),
        (Count.COMPLETIONS_WITH, with_word),
        (Count.RIGHT_WITH, with_word & right),
    ):
        np.add.at(counts[:, place], step, values)
    sums, ratios = _token_sums(table, pattern, step, with_word, texts, len(steps))
    return Tally(steps, counts, sums, ratios)


def _token_sums(
    table: pyarrow.Table,
    pattern: re.Pattern[str],
    step: NDArray[np.int64],
    with_word: NDArray[np.bool_],
    texts: list[str],
    n_steps: int,
) -> tuple[FloatArray, FloatArray]:
    chars = _Ragged.of(table["token/chars"])
    side = np.full(len(chars.values), OTHER)
    for row in with_word.nonzero()[0]:
        start, end = chars.edges[row], chars.edges[row + 1]
        side[start:end][tokens_of_words(pattern, texts[row], chars.values[start:end].astype(np.int64))] = WORD
    sums = np.zeros((n_steps, 2, len(Sum)))
    at = (step[chars.owner], side)
    for place, values in (
        (Sum.RECORDED, np.ones(len(side))),
        (Sum.LOGP, _Ragged.of(table["token/logp"]).values),
        (Sum.ENTROPY, _Ragged.of(table["token/entropy"]).values),
        (Sum.ADVANTAGE, _Ragged.of(table["token/advantage"]).values),
    ):
        np.add.at(sums[:, :, place], at, values)

    updates = _Ragged.of(table["token/update"])
    log_ratios = _Ragged.of(_inner(table["token/log_ratio"]))
    bounded = _Ragged.of(_inner(table["token/clipped"])).values.astype(bool) | _Ragged.of(
        _inner(table["token/masked"])
    ).values.astype(bool)
    # An epoch's values [T] belong to the tokens of its completion, in their order.
    first = chars.edges[:-1][updates.owner][log_ratios.owner]
    token = first + np.arange(len(first)) - log_ratios.edges[:-1][log_ratios.owner]
    ratio, update = np.exp(log_ratios.values), updates.values.astype(np.int64)[log_ratios.owner]
    at = (step[chars.owner[token]], side[token])
    ratios = np.zeros((int(update.max(initial=-1)) + 1, 2, 2))
    for place, values in ((Sum.SEEN, np.ones(len(token))), (Sum.RATIO, ratio), (Sum.BOUNDED, bounded)):
        np.add.at(sums[:, :, place], at, values)
    for column, values in enumerate((np.ones(len(token)), ratio)):
        np.add.at(ratios[:, :, column], (update, side[token]), values)
    return sums, ratios


@dataclass(frozen=True)
class _Ragged:
    """Lists end to end: values [V], list i in values[edges[i] : edges[i + 1]], owner [V]: the list of each value."""

    values: FloatArray
    edges: NDArray[np.int64]
    owner: NDArray[np.int64]

    @classmethod
    def of(cls, lists: pyarrow.ChunkedArray) -> _Ragged:
        """A list that is null is empty."""
        import pyarrow.compute as pc

        lengths = _numbers(pc.fill_null(pc.list_value_length(lists), 0)).astype(np.int64)
        return cls(
            _numbers(pc.list_flatten(lists)),
            np.concatenate([[0], lengths.cumsum()]),
            np.repeat(np.arange(len(lengths)), lengths),
        )


def _inner(lists: pyarrow.ChunkedArray) -> pyarrow.ChunkedArray:
    """The lists within lists of lists, end to end."""
    import pyarrow.compute as pc

    return pc.list_flatten(lists)


def _numbers(column: pyarrow.ChunkedArray) -> FloatArray:
    return np.asarray(column.to_numpy(), dtype=np.float64)
