"""Checks that the cells of a contrast were made alike: same versions and code, kind of machine, number of processes.

Another version or processor rounds differently, which changes a cell as much as another seed would. If the version
differs between arms, the contrast measures both. Seeds added later under a new version do no harm as long as both cells
of each pair have it, because the comparison is within pairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.words import said
from reports.measure import Analysis

if TYPE_CHECKING:
    from harness.records import CellRecord
    from reports.measure.measurements import Measurement

FIELDS = {
    "commit": "commit",
    "python": "python",
    "processor": "processor",
    "gpu": "GPU",
    "torch_threads": "threads",
    "processes": "processes",
    "sharding": "sharding",
    "program_packages": "packages of the program",
}
"""Fields of a launch's provenance that can change numbers, except `packages`, with their names in words."""
_COMMIT_DIGITS = 10

_Made = dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class Unlike:
    """A field that differs between the two cells of a pair, or whose value changed while a cell was made."""

    arm: str
    baseline: str
    field: str
    values: list[str]
    """The arm's values, in the order of use."""
    baseline_values: list[str]
    """The baseline's values, in the order of use."""
    seeds: list[int]
    """The seeds of the affected pairs."""


def made_unlike(analysis: Analysis) -> list[Unlike]:
    """Find the fields in which the cells of a pair differ, by contrast and field, in the order of the contrasts.

    Fields that an older record did not keep are ignored. Raises DamagedRecordError for unreadable launch records.
    """
    made = {(arm, m.cell.seed): _made(m.cell) for arm, measured in analysis.measurements.items() for m in measured}
    found: dict[tuple[str, str, str], Unlike] = {}
    for contrast in analysis.contrasts:
        for seed in contrast.seeds:
            one, other = _comparable(made[contrast.arm, seed], made[contrast.baseline, seed])
            for field in one:
                # A field that changed within both cells counts too: they need not have changed at the same step.
                if field in other and (one[field] != other[field] or len(one[field]) > 1):
                    empty = Unlike(contrast.arm, contrast.baseline, field, [], [], [])
                    unlike = found.setdefault((contrast.arm, contrast.baseline, field), empty)
                    unlike.seeds.append(seed)
                    unlike.values.extend(value for value in one[field] if value not in unlike.values)
                    unlike.baseline_values.extend(
                        value for value in other[field] if value not in unlike.baseline_values
                    )
    return list(found.values())


def outside_warnings(measurements: Mapping[str, Sequence[Measurement]]) -> list[str]:
    """Warn if the user's own program trained an arm: such pairs share less noise. measurements: the cells by arm."""
    arms = {arm: {one.trainer for one in cells} - {"bench"} for arm, cells in measurements.items()}
    outside = [name for name, trainers in arms.items() if trainers]
    if not outside:
        return []
    is_one = len(outside) == 1
    return [
        said(
            "reports.trained_outside_bench_trainer",
            outside=" and ".join(outside),
            words="was" if is_one else "were",
            words_2="a program" if is_one else "programs",
            union=", ".join(sorted(set().union(*arms.values()))),
        )
    ]


@dataclass(frozen=True)
class _Origin:
    """The provenance of a cell: for each field its values, in the order of the launches.

    A cell that was evaluated as part of its training was evaluated by its last launch.
    """

    training: _Made
    evaluation: _Made
    evaluated_later: bool
    """True if the cell was evaluated separately, after training."""


def _made(cell: CellRecord) -> _Origin:
    training, every = cell.own.read_starts(), cell.read_starts()
    later = cell.evaluation is not None
    return _Origin(_values(training), _values(every[len(training) :] if later else training[-1:]), later)


def _comparable(one: _Origin, other: _Origin) -> tuple[_Made, _Made]:
    """Return the fields of two cells that must agree.

    These are the fields of training. The evaluation's fields are added unless both cells were evaluated as part of
    training.
    """
    if not (one.evaluated_later or other.evaluated_later):
        return one.training, other.training
    made = [
        origin.training | {f"{field} of the evaluation": values for field, values in origin.evaluation.items()}
        for origin in (one, other)
    ]
    return made[0], made[1]


def _values(starts: Iterable[Mapping[str, object]]) -> _Made:
    """Collect the distinct values of each field over several launches."""
    found: dict[str, dict[str, None]] = {}
    for start in starts:
        recorded = {name: start[field] for field, name in FIELDS.items() if field in start}
        packages = start.get("packages")
        for name, value in (recorded | (packages if isinstance(packages, dict) else {})).items():
            text = _short_commit(value) if name == "commit" else str(value)
            found.setdefault(name, {}).setdefault(text)
    return {name: tuple(values) for name, values in found.items()}


def _short_commit(commit: object) -> str:
    digits, plus, changes = str(commit).partition("+")
    return digits[:_COMMIT_DIGITS] + plus + changes
