"""embeddings.jsonl: tokens of reflection words among the policy's input embeddings, before and after training.

All coordinates lie in the plane of the two principal components of these embeddings before training.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

from harness.records.files import append_jsonl, read_jsonl, typed_rows, write_atomic

REFLECTION_WORDS = ("However", "Recheck", "Wait", "Aha", "Hmm", "Alternatively")
"""The first four are named by the authors of CISPO (MiniMax-M1, arXiv 2506.13585)."""


class EmbeddedToken(TypedDict):
    """One token and its position before (start) and after (end) training, in units of the embeddings.

    Positions in the plane are relative to the centre of all tokens before training.
    """

    token: int
    text: str
    word: str | None
    """The reflection word that the token writes, whole or in part; None for a nearest token of such a token."""
    start_x: float
    start_y: float
    end_x: float
    end_y: float
    centre_distance: float
    """The distance of the start from the centre, in all dimensions."""
    moved: float
    """The distance between start and end, in all dimensions."""


def write_embeddings(path: Path, tokens: list[EmbeddedToken]) -> None:
    write_atomic(path, lambda aside: append_jsonl(aside, (dict(token) for token in tokens)))


def read_embeddings(path: Path) -> list[EmbeddedToken]:
    """Return the tokens in a file, or [] without the file.

    Raises DamagedRecordError, naming the row, if a row lacks a field.
    """
    return typed_rows(path, read_jsonl(path), EmbeddedToken)
