"""The types of knobs whose value is the name of a task, a template or a grader. The name must exist."""

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
    """Return the metadata of a knob whose value is a name: the check, its type in words, and how it is hashed."""

    def check(name: str) -> str:
        # `find` raises for an unknown name. The check returns the name itself, because a path must be hashed by its
        # content.
        find(name)
        return name

    return AfterValidator(check), InWords(type=lambda: f"{noun} name"), hashed


TaskName = Annotated[str, *_name_of("task", get_task, REFERS)]
TemplateName = Annotated[str, *_name_of("template", get_template, Hashed("template"))]
GraderName = Annotated[str, *_name_of("grader", get_grader, Hashed("grader"))]


@dataclass(frozen=True)
class FromTask(InWords):
    """Marks a knob whose default comes from the task."""

    default: str | None = "the task's"
