"""What all sections share: strictness, lists, and names that must be known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from evals.graders import get_grader
from evals.prompts import get_template
from evals.tasks import get_task

LARGEST_NUMBER = 1e30
"""The largest size of a knob's value; its inverse is the smallest. Beyond them a 32-bit number multiplied once is
infinite or 0."""


class Section(BaseModel):
    """Frozen and strict: an unknown key is an error, never ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def absent_fields(self) -> list[str]:
        """Fields that are not knobs at this point, since nothing reads them; they are left at their defaults."""
        return []


Item = TypeVar("Item")
# YAML has lists only; strict mode would refuse them for tuples.
Listed = Annotated[tuple[Item, ...], Field(strict=False)]


@dataclass(frozen=True)
class InWords:
    """Marks a field about which its declaration does not say all: for tables of knobs. type: asked when a table is
    made, since plug-ins may add choices."""

    type: Callable[[], str] | None = None
    default: str | None = None


def _name_of(noun: str, find: Callable[[str], object]) -> tuple[AfterValidator, InWords]:
    def check(name: str) -> str:
        find(name)
        return name

    return AfterValidator(check), InWords(type=lambda: f"{noun} name")


TaskName = Annotated[str, *_name_of("task", get_task)]
TemplateName = Annotated[str, *_name_of("template", get_template)]
GraderName = Annotated[str, *_name_of("grader", get_grader)]
OF_TASK = InWords(default="the task's")
