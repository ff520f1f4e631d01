"""A profile: the settings of a substrate, and what its file says of itself, such as the spread measured there.

A variant of a substrate `extends` its profile and states only what differs. The spread is not inherited: it is another
one on other problems, or from another start.
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
"""Keys of a profile's file that describe the profile and are no settings."""
EXTENDS = "extends"


def find_profile(given: str, beside: Path) -> Path:
    """Find the file of a profile by its shipped name or its path, which may be relative to the sweep file's folder."""
    if given.endswith((".yaml", ".yml")) and not Path(given).is_file() and (beside.parent / given).is_file():
        return beside.parent / given
    return find_file(given, shipped(SHIPPED / "profiles"), "profile")


def read_profile(path: Path) -> dict[str, object]:
    """Read a profile's file as if it stated what it extends too.

    Raises RefusedError if the extended file is no profile, or extends another one itself.
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
    # Facts of the extended profile are dropped; those of the file itself stay.
    facts = {key: document.pop(key) for key in _FACTS if key in document}
    return facts | laid_over({key: value for key, value in below.items() if key not in _FACTS}, document)


def profile_layer(path: Path) -> Layer:
    """Return the settings of a profile's file."""
    return Layer(str(path), {key: value for key, value in read_profile(path).items() if key not in _FACTS})


@dataclass(frozen=True)
class MeasuredSpread:
    """How much the paired difference of two arms varies over training seeds, as measured under a profile."""

    sd_pp: float
    """The standard deviation of the difference, in percentage points."""
    sampling_sd_pp: float
    """The part of it that comes from the samples of an evaluation."""
    tasks: tuple[str, ...]
    """The tasks of that evaluation, which is the profile's own."""
    problems: int | None
    """Its problems of each task; None for all of a task."""
    samples: int
    """Its samples of each problem."""

    @classmethod
    def of(cls, path: Path) -> MeasuredSpread | None:
        """Read what a profile's file says; None if nothing was measured.

        If the part of sampling is left out, it is taken to be all of the spread. Raises RefusedError for anything but
        such numbers.
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
        """Return the sd to plan with under another evaluation; None for a task that was not measured.

        The noise that fewer samples or problems add is added. More of them reduce nothing, since the measured sd is
        uncertain itself.
        """
        if task not in self.tasks:
            return None
        # The variance of sampling is inverse to problems x samples. How many problems a task has is not known here, so
        # an evaluation of all problems counts as the number of the other.
        measured = self.problems or evaluation.problems or 1
        evaluated = evaluation.problems or measured
        noise = measured * self.samples / (evaluated * evaluation.samples)
        return math.sqrt(self.sd_pp**2 + self.sampling_sd_pp**2 * max(0.0, noise - 1))


def _percentage_points(path: Path, document: Mapping[str, object], key: str) -> float:
    """Return a number of percentage points from a profile's file. Raises RefusedError for anything else."""
    given = document[key]
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given <= 100:
        raise RefusedError("plan.not_percentage_points", path=path, key=key, given=given)
    return float(given)
