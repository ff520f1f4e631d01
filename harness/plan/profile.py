"""A profile: the settings of a substrate, and facts about it, such as the spread that was measured under it.

A variant of a substrate `extends` its profile and states only the differences. The spread is not inherited, because it
is different with other problems or from another start.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from evals.tasks import get_task
from evals.yaml_file import load_yaml
from harness.config.resolve import Layer, laid_over
from harness.config.task import EvalSpec
from harness.errors import RefusedError
from harness.plan.sweep_file import SHIPPED, find_file, shipped
from harness.settings import dotted

_PAIRED_SD = "paired_sd_pp"
_SAMPLING_SD = "sampling_sd_pp"
_FACTS = ("description", _PAIRED_SD, _SAMPLING_SD)
"""The keys of a profile's file that are facts instead of settings."""
EXTENDS = "extends"


def find_profile(given: str, beside: Path) -> Path:
    """Return a profile's file, given its shipped name or a path, which may be relative to the sweep file's folder."""
    if given.endswith((".yaml", ".yml")) and not Path(given).is_file() and (beside.parent / given).is_file():
        return beside.parent / given
    return find_file(given, shipped(SHIPPED / "profiles"), "profile")


def read_profile(path: Path) -> dict[str, object]:
    """Return the content of a profile's file, merged with the profile that it extends.

    Raises RefusedError if the extended file is not a profile, or itself extends another one.
    """
    document = load_yaml(path)
    if EXTENDS not in document:
        return document
    given = document.pop(EXTENDS)
    if not isinstance(given, str):
        raise RefusedError("plan.extends_not_one_profile", path=path, key=EXTENDS, given=given)
    try:
        extended = find_profile(given, beside=path)
    except RefusedError as error:
        raise RefusedError("plan.in_profile", path=path, key=EXTENDS, error=error) from None
    below = load_yaml(extended)
    if EXTENDS in below:
        raise RefusedError(
            "plan.extended_profile_extends_another", path=path, key=EXTENDS, given=given, base=below[EXTENDS]
        )
    # The facts of the extended profile are dropped. The facts in the file itself stay.
    facts = {key: document.pop(key) for key in _FACTS if key in document}
    return facts | laid_over({key: value for key, value in below.items() if key not in _FACTS}, document)


def profile_layer(path: Path) -> Layer:
    """Return the settings of a profile's file, without its facts."""
    return Layer(str(path), {key: value for key, value in read_profile(path).items() if key not in _FACTS})


@dataclass(frozen=True)
class MeasuredSpread:
    """The spread of the paired difference between two arms over training seeds, as measured under a profile."""

    sd_pp: float
    """The standard deviation of the difference, in percentage points."""
    sampling_sd_pp: float
    """The part of the standard deviation that comes from sampling in the evaluation."""
    tasks: tuple[str, ...]
    """The tasks of the evaluation that measured it, which are the profile's."""
    problems: int | None
    """The number of problems per task in that evaluation; None for all problems."""
    samples: int
    """The number of samples per problem in that evaluation."""

    @classmethod
    def of(cls, path: Path) -> MeasuredSpread | None:
        """Return the spread that a profile's file states, or None if it states none.

        If the part from sampling is not stated, it is assumed to be the complete spread. Raises RefusedError for
        invalid numbers.
        """
        document, knobs = load_yaml(path), dotted(profile_layer(path).settings)
        if document.get(_PAIRED_SD) is None:
            return None
        sd_pp = _percentage_points(path, document, _PAIRED_SD)
        problems = knobs.get("eval.problems")
        samples = knobs.get("eval.samples", EvalSpec.model_fields["samples"].default)
        sampling_sd_pp = _percentage_points(path, document, _SAMPLING_SD) if _SAMPLING_SD in document else sd_pp
        if sampling_sd_pp > sd_pp:
            raise RefusedError(
                "plan.sampling_sd_too_large",
                path=path,
                key=_SAMPLING_SD,
                sampling_sd_pp=sampling_sd_pp,
                paired_key=_PAIRED_SD,
                paired_sd_pp=sd_pp,
            )
        given = knobs.get("eval.tasks", knobs.get("task.train"))
        tasks = [given] if isinstance(given, str) else given or []
        return cls(sd_pp, sampling_sd_pp, tuple(get_task(task).name for task in tasks), problems, samples)

    def sd_pp_under(self, evaluation: EvalSpec, task: str) -> float | None:
        """Return the sd to plan with under another evaluation, or None for a task that was not measured.

        If the evaluation has fewer samples or problems, their noise is added. If it has more, nothing is subtracted,
        because the measured value is itself uncertain.
        """
        if task not in self.tasks:
            return None
        # The variance from sampling is inversely proportional to problems x samples. How many problems a task has is
        # unknown here. So if one of the two evaluations uses all problems, it is assumed to have as many as the other.
        measured = self.problems or evaluation.problems or 1
        evaluated = evaluation.problems or measured
        noise = measured * self.samples / (evaluated * evaluation.samples)
        return math.sqrt(self.sd_pp**2 + self.sampling_sd_pp**2 * max(0.0, noise - 1))


def _percentage_points(path: Path, document: Mapping[str, object], key: str) -> float:
    """Return a number of percentage points from a profile's file. Raises RefusedError if the value is not one."""
    given = document[key]
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given <= 100:
        raise RefusedError("plan.not_percentage_points", path=path, key=key, given=given)
    return float(given)
