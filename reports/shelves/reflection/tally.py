"""Words in completions, the tokens that wrote them, and totals by step, from which all numbers are computed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, auto
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from harness.records.tables import as_array

if TYPE_CHECKING:
    import pyarrow

FloatArray = NDArray[np.float64]

COLUMNS = ("step", "correct", "tokens")
PER_EPOCH = ("log_ratio", "clipped", "masked")


def word_pattern(words: Sequence[str]) -> re.Pattern[str]:
    """Build a case-insensitive pattern for words or phrases as whole words; the longest match wins."""
    # Longest first, because an alternation takes the first alternative that matches.
    spaced = [r"\s+".join(map(re.escape, word.split())) for word in sorted(words, key=len, reverse=True)]
    return re.compile(rf"(?<!\w)(?:{'|'.join(spaced)})(?!\w)", re.IGNORECASE)


def tokens_of_words(pattern: re.Pattern[str], text: str, chars: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which tokens [T] wrote part of a match. chars [T]: the number of characters of the text in each token."""
    ends = chars.cumsum()
    starts = ends - chars
    inside = np.zeros(len(chars), dtype=bool)
    for match in pattern.finditer(text):
        inside |= (starts < match.end()) & (ends > match.start())
    return inside


class Count(IntEnum):
    """Indices into the counts of a step."""

    TOKENS = 0
    COMPLETIONS = auto()
    RIGHT = auto()
    OCCURRENCES = auto()
    COMPLETIONS_WITH = auto()
    RIGHT_WITH = auto()


class Sum(IntEnum):
    """Indices into the sums over the tokens of one side: tokens of words, or all others."""

    RECORDED = 0
    LOGP = auto()
    ENTROPY = auto()
    ADVANTAGE = auto()
    SEEN = auto()
    """Counts a token once for each optimiser step that scored it."""
    RATIO = auto()
    BOUNDED = auto()


PER_TOKEN = {Sum.LOGP: "logp", Sum.ENTROPY: "entropy", Sum.ADVANTAGE: "advantage"}
TOKEN_COLUMNS = tuple(f"token/{name}" for name in ("chars", "update", *PER_TOKEN.values(), *PER_EPOCH))

WORD, OTHER = 0, 1
"""Indices of the sides: tokens of the words, and all other tokens."""


@dataclass(frozen=True)
class Tally:
    """The totals by step, for S steps."""

    steps: NDArray[np.int64]
    counts: FloatArray
    """[S, len(Count)]"""
    sums: FloatArray
    """[S, 2, len(Sum)] by step and side."""
    ratios: FloatArray
    """[U, 2, 2] by update and side: the number of tokens seen, and the sum of their ratios.

    The update is the index of the optimiser step on its rollout batch.
    """

    def without_words(self) -> Tally:
        """Return the tally of a word that occurs in none of these completions, so that all tokens count as others."""
        counts, sums, ratios = self.counts.copy(), np.zeros_like(self.sums), np.zeros_like(self.ratios)
        counts[:, [Count.OCCURRENCES, Count.COMPLETIONS_WITH, Count.RIGHT_WITH]] = 0
        sums[:, OTHER], ratios[:, OTHER] = self.sums.sum(axis=1), self.ratios.sum(axis=1)
        return Tally(self.steps, counts, sums, ratios)


@dataclass(frozen=True)
class CellCompletions:
    """The completions of a cell, N rows in S steps, and their V recorded tokens, concatenated.

    steps [S]: the recorded steps.
    texts, n_tokens, right [N]: by row. step [N]: the index of the row's step in `steps`.
    edges [N + 1]: where each row's recorded tokens begin and end.
    chars, token_step [V]: by recorded token. means [V]: by `Sum`.
    scored, update, ratio, bounded [W]: for each time that an optimiser step scored a token, the token's index, the
    step's index on its batch, the ratio, and whether it was clipped or masked.
    """

    texts: list[str]
    steps: NDArray[np.int64]
    step: NDArray[np.int64]
    n_tokens: FloatArray
    right: NDArray[np.bool_]
    chars: NDArray[np.int64]
    edges: NDArray[np.int64]
    token_step: NDArray[np.int64]
    means: dict[Sum, FloatArray]
    scored: NDArray[np.int64]
    update: NDArray[np.int64]
    ratio: FloatArray
    bounded: FloatArray

    @classmethod
    def of(cls, texts: list[str], table: pyarrow.Table) -> CellCompletions:
        """Build the completions from their texts and a table with COLUMNS and TOKEN_COLUMNS, in the same order."""
        import pyarrow.compute as pc

        steps, step = np.unique(_numbers(table["step"]).astype(np.int64), return_inverse=True)
        chars, updates = _Ragged.of(table["token/chars"]), _Ragged.of(table["token/update"])
        log_ratios, clipped, masked = (_Ragged.of(pc.list_flatten(table[f"token/{name}"])) for name in PER_EPOCH)
        # The values [T] of an epoch belong to the tokens of its completion, in order.
        first = chars.edges[:-1][updates.owner][log_ratios.owner]
        return cls(
            texts=texts,
            steps=steps,
            step=step,
            n_tokens=_numbers(pc.list_value_length(table["tokens"])),
            right=_numbers(table["correct"]).astype(bool),
            chars=chars.values.astype(np.int64),
            edges=chars.edges,
            token_step=step[chars.owner],
            means={place: _Ragged.of(table[f"token/{name}"]).values for place, name in PER_TOKEN.items()},
            scored=first + np.arange(len(first)) - log_ratios.edges[:-1][log_ratios.owner],
            update=updates.values.astype(np.int64)[log_ratios.owner],
            ratio=np.exp(log_ratios.values),
            bounded=np.maximum(clipped.values, masked.values),
        )


def tally(rollouts: CellCompletions, pattern: re.Pattern[str], rows: Sequence[int]) -> Tally:
    """Compute the totals by step for the words that match. Unrecorded tokens contribute nothing.

    rows: the rows to search. They must include all rows with a match.
    """
    found = np.zeros(len(rollouts.texts))
    side = np.full(len(rollouts.chars), OTHER)
    for row in rows:
        text, tokens = rollouts.texts[row], slice(rollouts.edges[row], rollouts.edges[row + 1])
        found[row] = len(pattern.findall(text))
        side[tokens][tokens_of_words(pattern, text, rollouts.chars[tokens])] = WORD
    right, with_word, n_steps = rollouts.right, found > 0, len(rollouts.steps)
    counts: dict[Count, FloatArray | NDArray[np.bool_]] = {
        Count.TOKENS: rollouts.n_tokens,
        Count.COMPLETIONS: np.ones(len(found)),
        Count.RIGHT: right,
        Count.OCCURRENCES: found,
        Count.COMPLETIONS_WITH: with_word,
        Count.RIGHT_WITH: with_word & right,
    }
    # Combine step and side in one index, so that one bincount sums over both.
    place, scored = 2 * rollouts.token_step + side, side[rollouts.scored]
    scored_place, updates = place[rollouts.scored], int(rollouts.update.max(initial=-1)) + 1
    sums = {
        Sum.RECORDED: _sums(place, np.ones(len(side)), 2 * n_steps),
        **{name: _sums(place, values, 2 * n_steps) for name, values in rollouts.means.items()},
        Sum.SEEN: _sums(scored_place, np.ones(len(scored)), 2 * n_steps),
        Sum.RATIO: _sums(scored_place, rollouts.ratio, 2 * n_steps),
        Sum.BOUNDED: _sums(scored_place, rollouts.bounded, 2 * n_steps),
    }
    ratios = [
        _sums(2 * rollouts.update + scored, values, 2 * updates) for values in (np.ones(len(scored)), rollouts.ratio)
    ]
    return Tally(
        rollouts.steps,
        np.stack([_sums(rollouts.step, counts[name], n_steps) for name in Count], axis=-1),
        np.stack([sums[name] for name in Sum], axis=-1).reshape(n_steps, 2, len(Sum)),
        np.stack(ratios, axis=-1).reshape(updates, 2, 2),
    )


def _sums(places: NDArray[np.int64], values: FloatArray | NDArray[np.bool_], count: int) -> FloatArray:
    """Sum the values [V] by their index in `places`, giving [count]."""
    return np.bincount(places, weights=values, minlength=count).astype(np.float64)


@dataclass(frozen=True)
class _Ragged:
    """Concatenated lists: list i is values[edges[i] : edges[i + 1]], and owner [V] is the list of each value."""

    values: FloatArray
    edges: NDArray[np.int64]
    owner: NDArray[np.int64]

    @classmethod
    def of(cls, lists: pyarrow.ChunkedArray) -> _Ragged:
        """Flatten lists. A null list counts as empty."""
        import pyarrow.compute as pc

        lengths = np.nan_to_num(_numbers(pc.list_value_length(lists))).astype(np.int64)
        return cls(
            _numbers(pc.list_flatten(lists)),
            np.concatenate([[0], lengths.cumsum()]),
            np.repeat(np.arange(len(lengths)), lengths),
        )


def _numbers(column: pyarrow.ChunkedArray) -> FloatArray:
    return as_array(column).astype(np.float64)
