"""Looks at a question in sweep.json: the verdicts that were shown, their seeds and samples, and the planned looks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict


def _plain(name: str) -> str:
    """Return a name, or raise ValueError unless it names a file or folder directly in its parent."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError(f"{name!r} is not the plain name of a file or folder")
    return name


PlainName = Annotated[str, AfterValidator(_plain)]
"""A name that leads nowhere else: whoever wrote the records must not choose what else is read or deleted."""


class Part(BaseModel):
    """The base of models read from records: types are strict, and unknown fields are ignored."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", populate_by_name=True)


class Evaluation(Part):
    """The size of the final evaluation: samples per problem, and problems per task (None: all)."""

    samples: int
    problems: int | None = None


class Look(Part):
    """One occasion on which the verdicts over a complete plan were shown: a set of seeds and an evaluation of them."""

    question: str
    """See `SweepRecord.asks`."""
    contrasts: list[str] = []
    """See `SweepRecord.contrasts`."""
    seeds: list[int]
    evaluation: Evaluation | None
    planned: bool
    """Whether the design fixed this look beforehand."""
    verdicts: dict[str, str] = {}
    """Maps each arm to its verdict."""

    def is_same(self, other: Look) -> bool:
        """Return whether both looks show the same data, whatever their verdicts."""
        return all(getattr(self, key) == getattr(other, key) for key in ("question", "seeds", "evaluation"))


class PlannedLooks(Part):
    """The looks at a question that were fixed before the first of them."""

    question: str
    looks: list[int]
    """The number of seeds of each look, from the front of `seeds`."""
    seeds: list[int]
    evaluation: Evaluation | None
    looks_before: int
    """The number of looks at this question that had been taken by then."""


def related_looks(looks: Sequence[Look], question: str, contrasts: Collection[str]) -> list[Look]:
    """Return the looks at this question, and at others that share a contrast with it.

    Looks at other questions are marked as not planned, because nobody planned them for this one.
    """
    return [
        look if look.question == question else look.model_copy(update={"planned": False})
        for look in looks
        if look.question == question or not {*look.contrasts}.isdisjoint(contrasts)
    ]


def looks_at(looks: Sequence[Look], question: str, contrasts: Collection[str]) -> list[Look]:
    """Return the `related_looks`, one per set of seeds and evaluation, preferring those at this question."""
    found: dict[str, Look] = {}
    for look in related_looks(looks, question, contrasts):
        data = look.model_dump_json(include={"seeds", "evaluation"})
        # The same data under another question is one look at it, not two.
        if data not in found or found[data].question != look.question == question:
            found[data] = look
    return [*found.values()]


def first_seeds(seeds: Sequence[int], n: int) -> list[int]:
    """Return the first n seeds; if there are fewer, append the integers that follow the largest.

    A sweep that continues with more seeds thus keeps those that it has.
    """
    following = max(seeds) + 1
    return [*seeds[:n], *range(following, following + n - len(seeds))]
