"""scores.jsonl: one row per task and evaluation of a cell. `<task>.json`: the result of lm-eval for one of its tasks.

The metrics of a final evaluation are named `eval.final.<task>.<name>`. Problems of several evaluations are matched by
the content of their questions if it is known, otherwise by their ids.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from harness.errors import RefusedError, few
from harness.records.files import DamagedRecordError, read_jsonl, typed_rows
from harness.records.looks import Part
from harness.records.rows import Bin, ScoreRow


def read_scores(path: Path) -> list[ScoreRow]:
    """Return the rows in the order of writing, or [] if there is no file.

    Raises DamagedRecordError, naming the row, if a row or a bin of its `reliability` lacks a field, or if a metric is
    not a number.
    """
    rows = typed_rows(path, read_jsonl(path), ScoreRow)
    for number, row in enumerate(rows, start=1):
        require_bins(f"{path}, row {number}", row)
        if wrong := [name for name, value in row["metrics"].items() if not isinstance(value, int | float | None)]:
            raise DamagedRecordError("records.metric_not_a_number", path=path, number=number, metrics=", ".join(wrong))
    return rows


def require_bins(place: str, row: Mapping[str, object]) -> None:
    """Raise DamagedRecordError, naming the place of the row, if a bin of its `reliability` lacks a field.

    A row has no bins if the policy did not generate its samples.
    """
    bins = row.get("reliability") or []
    if not isinstance(bins, list):
        raise DamagedRecordError("records.reliability_not_a_list", place=place)
    typed_rows(Path(f"{place}, reliability"), bins, Bin)


# The other JSON files next to lm-eval's results in a folder of `bench eval`.
_NO_TASKS = frozenset({"spec", "provenance", "lease", "grading", "scores"})


def lm_eval_files(folder: Path) -> list[Path]:
    """Return the `<task>.json` files of lm-eval's tasks in an output folder of `bench eval`, sorted by name."""
    return [path for path in sorted(folder.glob("*.json")) if path.stem not in _NO_TASKS]


METRIC_PREFIX = "eval.final."

_OF_K_SAMPLES = ("pass@", "pass^", "maj@")
_OF_ALL_SAMPLES = ("avg@n", "cons@n")


def accuracy_names(ks: Iterable[int]) -> list[str]:
    """Return the names of the accuracy metrics of an evaluation with these values of k."""
    return [*(f"{name}{k}" for name in _OF_K_SAMPLES for k in ks), *_OF_ALL_SAMPLES]


LEAST_MATCHED = 0.5
"""Evaluations that share a smaller fraction of their problems are refused, because their data differ too much."""

Contents = Mapping[str, str | None]
"""Maps the problem ids of one evaluation to digests of the problems' contents; None for an unknown content."""
Names = dict[str, str]
"""Maps the ids that one evaluation gives to the matched problems to ids that all evaluations share."""


class Matching(Part):
    """The result of matching a task's problems across several evaluations."""

    by: Literal["content", "id"]
    matched: int
    """The number of problems that every evaluation has."""
    of: int
    """The number of problems that at least one evaluation has."""
    repeated: int = 0
    """The number of matched problems that repeat the content of another problem. They are matched in the order of their
    ids.
    """

    @property
    def sentence(self) -> str:
        said = f"Problems are matched by {self.by}: {self.matched} of {self.of}"
        if self.by == "id":
            return f"{said}; their texts are not known on every side."
        left_out = f"; {self.of - self.matched} that not all have are left out" if self.matched < self.of else ""
        repeats = f"; {self.repeated} repeat another and are matched in the order of ids" if self.repeated else ""
        return f"{said}{left_out}{repeats}."

    def as_row(self) -> dict[str, object]:
        """Return the value of the field `problems` of a contrast in report.json."""
        return {"matched_by": self.by, "matched": self.matched, "of": self.of, "sentence": self.sentence}


def content_of(*parts: object) -> str:
    """Return a digest of JSON values that ignores differences in line ends, surrounding blanks and Unicode form."""
    text = json.dumps(_normal(parts), sort_keys=True, ensure_ascii=False)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _normal(value: object) -> object:
    """Return a JSON value with the differences removed that `content_of` ignores."""
    if isinstance(value, str):
        return unicodedata.normalize("NFC", value.replace("\r\n", "\n")).strip()
    if isinstance(value, Mapping):
        return {key: _normal(one) for key, one in value.items()}
    return [_normal(one) for one in value] if isinstance(value, list | tuple) else value


def match_problems(task: str, sides: Mapping[str, Contents]) -> tuple[Matching, dict[str, Names]]:
    """Match the problems of several evaluations of a task, and map the ids of each evaluation to those of the first.

    Problems are matched by content if every evaluation knows the contents of all its problems. Otherwise they are
    matched by id, and the caller must check that all evaluations have the same ids. Raises RefusedError if the known
    contents show that an id stands for different problems, or if too few problems are shared.
    """
    if any(content is None for contents in sides.values() for content in contents.values()):
        _require_agreement(task, sides)
        of = set[str]().union(*sides.values())
        matched = [one for one in of if all(one in contents for contents in sides.values())]
        return Matching(by="id", matched=len(matched), of=len(of)), {
            side: {one: one for one in contents} for side, contents in sides.items()
        }
    keyed = {side: _by_content(contents) for side, contents in sides.items()}
    first = next(iter(keyed.values()))
    every = set[tuple[str, int]]().union(*keyed.values())
    shared = [key for key in first if all(key in own for own in keyed.values())]
    if len(shared) < LEAST_MATCHED * len(every):
        raise RefusedError(
            "records.few_problems_in_common",
            sides=few([*sides]),
            n_shared=len(shared),
            n_problems=len(every),
            task=task,
        )
    # A key is (content, rank), so a repeated content is matched once for each repetition.
    names = {side: {own[key]: first[key] for key in shared} for side, own in keyed.items()}
    repeated = sum(rank > 0 for _, rank in shared)
    return Matching(by="content", matched=len(shared), of=len(every), repeated=repeated), names


def _by_content(contents: Contents) -> dict[tuple[str, int], str]:
    """Map (content, rank) to an id. The rank numbers problems of equal content, shorter ids first, so that 9 < 10."""
    found: dict[str, list[str]] = {}
    for one, content in contents.items():
        found.setdefault(str(content), []).append(one)
    return {
        (content, rank): one
        for content, ids in found.items()
        for rank, one in enumerate(sorted(ids, key=lambda one: (len(one), one)))
    }


def _require_agreement(task: str, sides: Mapping[str, Contents]) -> None:
    """Raise RefusedError if one id has different contents in two evaluations."""
    seen: dict[str, tuple[str, str]] = {}
    for side, contents in sides.items():
        for one, content in contents.items():
            if content is not None and seen.setdefault(one, (side, content))[1] != content:
                raise RefusedError(
                    "records.problem_ids_ambiguous", other=seen[one][0], side=side, problem=one, task=task
                )
