"""Looks at a question in sweep.json: the verdicts that were shown, over which seeds and samples, and those planned."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict


def _plain(name: str) -> str:
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError(f"{name!r} is not the plain name of a file or folder")
    return name


PlainName = Annotated[str, AfterValidator(_plain)]
"""A name that leads nowhere else: whoever wrote the records must not choose what else is read or deleted."""


class Part(BaseModel):
    """The base of what is read from records: strict, and further fields are passed over."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", populate_by_name=True)


class Evaluation(Part):
    """How much the final evaluation draws. samples: of each problem. problems: of each task; None: all."""

    samples: int
    problems: int | None = None


class Look(Part):
    """The verdicts over a complete plan were shown. A look is a set of seeds and an evaluation of them.

    question, contrasts: see `SweepRecord.asks` and `SweepRecord.contrasts`. planned: whether the design fixed it.
    verdicts: by arm.
    """

    question: str
    contrasts: list[str] = []
    seeds: list[int]
    evaluation: Evaluation | None
    planned: bool
    verdicts: dict[str, str] = {}

    def is_same(self, other: Look) -> bool:
        """Whether both show the same data, whatever was said of them."""
        return all(getattr(self, key) == getattr(other, key) for key in ("question", "seeds", "evaluation"))


class PlannedLooks(Part):
    """The looks of a question that were fixed before the first of them: how many of the `seeds` each has.

    looks_before: how many looks at this question had been taken by then.
    """

    question: str
    looks: list[int]
    seeds: list[int]
    evaluation: Evaluation | None
    looks_before: int


def related_looks(looks: Sequence[Look], question: str, contrasts: Collection[str]) -> list[Look]:
    """The looks at this question, and at others with a contrast of it, which nobody planned for this one."""
    return [
        look if look.question == question else look.model_copy(update={"planned": False})
        for look in looks
        if look.question == question or not {*look.contrasts}.isdisjoint(contrasts)
    ]


def looks_at(looks: Sequence[Look], question: str, contrasts: Collection[str]) -> list[Look]:
    """The `related_looks`, one for each set of seeds and evaluation of them: this question's, if it has one."""
    found: dict[str, Look] = {}
    for look in related_looks(looks, question, contrasts):
        data = look.model_dump_json(include={"seeds", "evaluation"})
        if data not in found or found[data].question != look.question == question:
            found[data] = look
    return [*found.values()]


def first_seeds(seeds: Sequence[int], n: int) -> list[int]:
    """The first n of these seeds, and where they are fewer those after the largest: a sweep that goes on with more
    seeds keeps those that it has."""
    following = max(seeds) + 1
    return [*seeds[:n], *range(following, following + n - len(seeds))]
