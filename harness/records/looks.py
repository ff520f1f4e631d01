"""Looks in sweep.json. A look is an interim or final analysis of a question, whose verdicts were shown to the user."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict


def _plain(name: str) -> str:
    """Return the name; raise ValueError if it is not the name of a file or folder directly in its parent."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError(f"{name!r} is not the plain name of a file or folder")
    return name


PlainName = Annotated[str, AfterValidator(_plain)]
"""A name without path separators. Without this check, forged records could make bench read or delete other files."""


class Part(BaseModel):
    """The base of models read from records: types are strict, and unknown fields are ignored."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", populate_by_name=True)


class Evaluation(Part):
    """The size of the final evaluation: samples per problem, and problems per task (None for all)."""

    samples: int
    problems: int | None = None


class Look(Part):
    """One look: the verdicts of a complete plan were shown, for a set of seeds and an evaluation."""

    question: str
    """See `SweepRecord.asks`."""
    contrasts: list[str] = []
    """See `SweepRecord.contrasts`."""
    seeds: list[int]
    evaluation: Evaluation | None
    planned: bool
    """True if this look was fixed in the design beforehand."""
    verdicts: dict[str, str] = {}
    """Maps each arm to its verdict."""

    def is_same(self, other: Look) -> bool:
        """Return whether both looks are at the same data, whatever their verdicts."""
        return all(getattr(self, key) == getattr(other, key) for key in ("question", "seeds", "evaluation"))


class PlannedLooks(Part):
    """The looks at a question that were planned before the first of them."""

    question: str
    looks: list[int]
    """The number of seeds of each look, counted from the front of `seeds`."""
    seeds: list[int]
    evaluation: Evaluation | None
    looks_before: int
    """The number of looks at this question that had been taken before the plan was made."""


def related_looks(looks: Sequence[Look], question: str, contrasts: Collection[str]) -> list[Look]:
    """Return the looks at this question and at other questions that share a contrast with it.

    Looks at other questions are returned as not planned, because they were not planned for this question.
    """
    return [
        look if look.question == question else look.model_copy(update={"planned": False})
        for look in looks
        if look.question == question or not {*look.contrasts}.isdisjoint(contrasts)
    ]


def looks_at(looks: Sequence[Look], question: str, contrasts: Collection[str]) -> list[Look]:
    """Return the `related_looks`, one for each set of seeds and evaluation. Looks at this question take precedence."""
    found: dict[str, Look] = {}
    for look in related_looks(looks, question, contrasts):
        data = look.model_dump_json(include={"seeds", "evaluation"})
        # A look at the same data under another question is the same look, so it counts once.
        if data not in found or found[data].question != look.question == question:
            found[data] = look
    return [*found.values()]


def first_seeds(seeds: Sequence[int], n: int) -> list[int]:
    """Return the first n seeds; if there are fewer, append the integers that follow the largest.

    A sweep that is extended by further seeds thus keeps its present seeds.
    """
    following = max(seeds) + 1
    return [*seeds[:n], *range(following, following + n - len(seeds))]
