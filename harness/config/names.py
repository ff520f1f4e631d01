"""The types of knobs that name a task, a template or a grader, which must be known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator

from evals.graders import get_grader
from evals.prompts import get_template
from evals.tasks import get_task
from harness.settings import InWords
from harness.settings.marks import REFERS, Hashed


def _name_of(noun: str, find: Callable[[str], object], hashed: Hashed) -> tuple[object, ...]:
    def check(name: str) -> str:
        find(name)
        return name

    return AfterValidator(check), InWords(type=lambda: f"{noun} name"), hashed


TaskName = Annotated[str, *_name_of("task", get_task, REFERS)]
TemplateName = Annotated[str, *_name_of("template", get_template, Hashed("template"))]
GraderName = Annotated[str, *_name_of("grader", get_grader, Hashed("grader"))]


@dataclass(frozen=True)
class FromTask(InWords):
    """Marks a knob whose default the task decides."""

    default: str | None = "the task's"
