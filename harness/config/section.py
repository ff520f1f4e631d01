"""What all sections share: strictness, lists, and names that must be known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from evals.grading import get_grader
from evals.prompts import get_template
from evals.tasks import get_task


class Section(BaseModel):
    """Frozen and strict: an unknown key is an error, never ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def absent_fields(self) -> list[str]:
        """Fields that are no knobs at this point, since nothing reads them; they are left at their defaults."""
        return []


Item = TypeVar("Item")
# YAML has lists only; strict mode would refuse them for tuples.
Listed = Annotated[tuple[Item, ...], Field(strict=False)]


def _known_to(find: Callable[[str], object]) -> AfterValidator:
    def check(name: str) -> str:
        find(name)
        return name

    return AfterValidator(check)


TaskName = Annotated[str, _known_to(get_task)]
TemplateName = Annotated[str, _known_to(get_template)]
GraderName = Annotated[str, _known_to(get_grader)]
