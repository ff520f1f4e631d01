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
    """A token and its input embedding before (start) and after (end) training, in the units of the embeddings.

    Positions in the plane are relative to the mean embedding of all tokens before training.
    """

    token: int
    text: str
    word: str | None
    """The reflection word that this token spells in whole or in part; None for a nearest neighbour of such a token."""
    start_x: float
    start_y: float
    end_x: float
    end_y: float
    centre_distance: float
    """The distance of the start from the centre, over all dimensions."""
    moved: float
    """The distance between start and end, over all dimensions."""


def write_embeddings(path: Path, tokens: list[EmbeddedToken]) -> None:
    write_atomic(path, lambda aside: append_jsonl(aside, (dict(token) for token in tokens)))


def read_embeddings(path: Path) -> list[EmbeddedToken]:
    """Return the tokens in a file, or [] if there is no file.

    Raises DamagedRecordError, naming the row, if a row lacks a field.
    """
    return typed_rows(path, read_jsonl(path), EmbeddedToken)
