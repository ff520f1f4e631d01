"""embeddings.jsonl: where the tokens of reflection words lie among the policy's input embeddings, before and after
training.

All lie in one plane, that of the two principal components of their embeddings before training.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

from harness.records.files import append_jsonl, read_jsonl, typed_rows, write_atomic

REFLECTION_WORDS = ("However", "Recheck", "Wait", "Aha", "Hmm", "Alternatively")
"""The authors of CISPO (MiniMax-M1, 2506.13585) name the first four."""


class EmbeddedToken(TypedDict):
    """One token; lengths are in units of the embeddings.

    word: the reflection word that it writes, alone or in part; None for one of the tokens nearest to those at the
    start. The ends of its way in the plane are measured from the centre of all tokens at the start. centre_distance: of
    its start, and moved: between its start and its end, both in all dimensions.
    """

    token: int
    text: str
    word: str | None
    start_x: float
    start_y: float
    end_x: float
    end_y: float
    centre_distance: float
    moved: float


def write_embeddings(path: Path, tokens: list[EmbeddedToken]) -> None:
    write_atomic(path, lambda aside: append_jsonl(aside, (dict(token) for token in tokens)))


def read_embeddings(path: Path) -> list[EmbeddedToken]:
    """[] without the file. Raises DamagedRecordError, naming the row, if one lacks a field."""
    return typed_rows(path, read_jsonl(path), EmbeddedToken)
