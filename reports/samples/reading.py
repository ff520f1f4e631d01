"""Samples to read, from the records of a cell: those of its evaluations, and completions drawn in training.

A sample's texts are turned into the JSON of the page at once, in the process that reads the cell, so that sixty
thousand of them never exist as objects together.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from harness.records.files import DamagedRecordError
from harness.records.rollouts import spread
from harness.records.tables import read_parquet
from reports.page.templating import readable
from reports.samples.formulas import find_formulas

if TYPE_CHECKING:
    import pyarrow

    from harness.records import CellRecord
    from harness.records.problems import ProblemRow

FINAL = "final"
TRAINING_STEPS = 8
"""If the page cannot hold all samples, it shows those of so many steps, spread over training."""
LONG_CHARACTERS = 4_000
"""Samples whose JSON is longer lie in files of their own, which the page loads when they are opened."""
HEAD_CHARACTERS = 600
"""What a long sample shows before it is opened."""

_EVAL_COLUMNS = [
    *("step", "final", "task", "problem_id", "sample", "text", "n_tokens", "truncated", "extracted", "correct"),
    *("reason", "verdicts"),
]
_ROLLOUT_COLUMNS = [
    *("step", "problem_id", "sample", "text", "tokens", "reward", "correct", "truncated"),
    *("token/chars", "token/entropy", "token/advantage", "token/log_ratio"),
]


@dataclass(frozen=True)
class Sample:
    """One sample. when: `final`, `evaluation 8` or `training 8`, with the step. problem: its number among
    `CellSamples.problems`. is_right: None if nothing graded it. n_tokens: None in records that do not say.

    long: whether `body` is so long that the page loads it by itself. body: what else the page shows, as JSON; the text
    in it is a model's, and untrusted. head: the same with the beginning of a long text; else equal to body.
    """

    when: str
    problem: int
    sample: int
    is_right: bool | None
    is_cut: bool
    graders_disagree: bool
    n_tokens: int | None
    long: bool
    head: str
    body: str


@dataclass(frozen=True)
class Problem:
    """prompt, answer: as JSON texts of their own, with formulas; None in records of versions that kept none."""

    task: str
    problem_id: str
    prompt: str | None


@dataclass(frozen=True)
class CellSamples:
    problems: list[Problem]
    samples: list[Sample]


@dataclass(frozen=True)
class Extent:
    """How many samples a cell recorded. training: by step, in order. is_whole: whether all files were looked at.
    mean_tokens: of a sample in evaluations; 0 where it is not known."""

    final: int
    curve: int
    training: dict[int, int]
    is_whole: bool = True
    mean_tokens: float = 0.0

    @property
    def n_training(self) -> int:
        return sum(self.training.values())

    @property
    def total(self) -> int:
        return self.final + self.curve + self.n_training


@dataclass(frozen=True)
class Share:
    """How many samples of each kind a page shows of one cell. steps: those of training that are shown, with so many
    completions `per_step`; None: all of them, with all of theirs."""

    final: int
    curve: int
    steps: tuple[int, ...] | None = None
    per_step: int = 0


def measure_extent(cell: CellRecord, most_files: int) -> Extent:
    """most_files: of training; of more only some are read, spread over it. Raises DamagedRecordError."""
    import pyarrow.compute as pc

    table = cell.read_evals(["sample", "final", "n_tokens"])
    finals = _are_final(table)
    counts: dict[int, int] = {}
    paths = cell.rollout_files()
    for path in spread(paths, most_files):
        for step in _steps(path):
            counts[step] = counts.get(step, 0) + 1
    n_final = int(finals.sum())
    mean_tokens = None if table is None or "n_tokens" not in table.column_names else pc.mean(table["n_tokens"]).as_py()
    return Extent(
        final=n_final,
        curve=len(finals) - n_final,
        training=dict(sorted(counts.items())),
        is_whole=len(paths) <= most_files,
        mean_tokens=mean_tokens or 0.0,
    )


def share(extents: Sequence[Extent], most: int) -> Share:
    """What each of the cells may show for all to have at most so many samples.

    All get the same share, so that what is shown of one arm can be laid beside what is shown of another. The final
    evaluation and training come first and divide it; evaluations along training get what is left.
    """
    n_final = max((one.final for one in extents), default=0)
    n_curve = max((one.curve for one in extents), default=0)
    n_training = max((one.n_training for one in extents), default=0)
    room = most // max(1, len(extents))
    final = min(n_final, max(room // 2, room - n_training))
    curve = max(0, min(n_curve, room - final - n_training))
    if n_training <= room - final:
        return Share(final, curve)
    common = sorted(set.intersection(*(set(one.training) for one in extents if one.training)))
    chosen = np.unique(np.linspace(0, len(common) - 1, min(len(common), TRAINING_STEPS)).round().astype(int))
    return Share(final, curve, tuple(common[place] for place in chosen), (room - final) // max(1, len(chosen)))


def read_samples(cell: CellRecord, shown: Share, most_files: int, most_formulas: int) -> CellSamples:
    """What the page shows of a cell; the same rows of every cell that evaluated the same problems.

    Of the problems of an evaluation all are there before a second sample of any. Raises DamagedRecordError.
    """
    reader = _Reader(cell.read_problems(), most_formulas)
    samples = [*reader.evaluated(cell, shown), *reader.trained(cell, shown, most_files)]
    return CellSamples(reader.problems, samples)


class _Reader:
    """Numbers the problems of a cell as its samples refer to them."""

    def __init__(self, rows: Iterable[ProblemRow], most_formulas: int) -> None:
        self.problems: list[Problem] = []
        self._rows = {(row["split"], row["task"], row["problem_id"]): row for row in rows}
        self._training_task = {row["problem_id"]: row["task"] for row in self._rows.values() if row["split"] == "train"}
        self._numbers: dict[tuple[str, str, str], int] = {}
        self._formulas_left = most_formulas

    def evaluated(self, cell: CellRecord, shown: Share) -> Iterator[Sample]:
        table = cell.read_evals(_EVAL_COLUMNS)
        if table is None or "text" not in table.column_names:
            return
        finals = _are_final(table)
        order = np.lexsort((np.arange(len(table)), table["sample"].to_numpy(), ~finals))
        n_final = int(finals.sum())
        kept = np.concatenate([order[:n_final][: shown.final], order[n_final:][: shown.curve]])
        for is_final, row in zip(finals[kept], table.take(kept).to_pylist(), strict=True):
            when = FINAL if is_final else f"evaluation {row['step']}"
            verdicts = _verdicts(cell, row.get("verdicts"))
            yield self._sample(
                row,
                when,
                self._number("test", row["task"], str(row["problem_id"])),
                row.get("n_tokens"),
                verdicts,
                {"extracted": row.get("extracted"), "reason": row.get("reason"), "graders": verdicts},
            )

    def trained(self, cell: CellRecord, shown: Share, most_files: int) -> Iterator[Sample]:
        paths = spread(cell.rollout_files(), most_files)
        spec = cell.spec if paths else {}
        task = str(spec.get("task", {}).get("train", ""))
        columns = [*_ROLLOUT_COLUMNS, *(f"reward/{part}" for part in spec.get("reward", {}).get("parts", {}))]
        left = dict.fromkeys(shown.steps or (), shown.per_step)
        for path in paths:
            if shown.steps is not None and left.keys().isdisjoint(_steps(path)):
                continue
            table = read_parquet(path, columns)
            if not {"step", "text", "problem_id", "sample"} <= set(table.column_names):
                continue
            if shown.steps is not None:
                kept = []
                for place, step in enumerate(table["step"].to_pylist()):
                    if left.get(step, 0):
                        left[step] -= 1
                        kept.append(place)
                table = table.take(kept)
            for row in table.to_pylist():
                tokens = row.get("tokens")
                problem_id = str(row["problem_id"])
                parts = [[name.removeprefix("reward/"), _rounded(row[name])] for name in row if "reward/" in name]
                yield self._sample(
                    row,
                    f"training {row['step']}",
                    self._number("train", self._training_task.get(problem_id, task), problem_id),
                    None if tokens is None else len(tokens),
                    [],
                    {"reward": _rounded(row.get("reward")), "rewards": parts, "tokens": _tokens(row, str(path))},
                )

    def _number(self, split: str, task: str, problem_id: str) -> int:
        key = (split, task, problem_id)
        if key not in self._numbers:
            self._numbers[key] = len(self.problems)
            row = self._rows.get(key)
            prompt = None
            if row is not None:
                asked = {"prompt": self._text(_as_text(row["prompt"])), "answer": self._text(str(row["answer"]))}
                prompt = script_json(asked)
            self.problems.append(Problem(readable(task), readable(problem_id), prompt))
        return self._numbers[key]

    def _text(self, text: str) -> dict[str, Any]:
        """A text with its formulas, as many as are left to translate."""
        text = readable(text)
        found = [*islice(find_formulas(text), self._formulas_left)]
        self._formulas_left -= len(found)
        return {"text": text, "formulas": found} if found else {"text": text}

    def _sample(
        self,
        row: dict[str, Any],
        when: str,
        problem: int,
        n_tokens: int | None,
        verdicts: list[list[Any]],
        facts: dict[str, Any],
    ) -> Sample:
        text = str(row["text"])
        shown = {name: value for name, value in facts.items() if value not in (None, [])}
        for name in ("extracted", "reason"):
            if name in shown:
                shown[name] = readable(str(shown[name]))
        body = script_json({**self._text(text), **shown})
        is_long = len(body) > LONG_CHARACTERS
        shown.pop("tokens", None)
        head = script_json({"text": readable(text[:HEAD_CHARACTERS]), "length": len(text), **shown})
        right = row.get("correct")
        return Sample(
            when=when,
            problem=problem,
            sample=int(row["sample"]),
            is_right=None if right is None else bool(right),
            is_cut=bool(row.get("truncated")),
            graders_disagree=len({vote for _, vote in verdicts}) > 1,
            n_tokens=n_tokens,
            long=is_long,
            head=head if is_long else body,
            body=body,
        )


def _steps(path: Path) -> list[int]:
    """The step of each completion in a file of training."""
    table = read_parquet(path, ["step"])
    return list(table["step"].to_pylist()) if "step" in table.column_names else []


def _are_final(table: pyarrow.Table | None) -> npt.NDArray[np.bool_]:
    """Whether each sample is one of the final evaluation, as all of `bench eval` are."""
    if table is None:
        return np.zeros(0, dtype=bool)
    if "final" not in table.column_names:
        return np.ones(len(table), dtype=bool)
    return np.asarray(table["final"].to_numpy(zero_copy_only=False), dtype=bool)


def _verdicts(cell: CellRecord, verdicts: str | None) -> list[list[Any]]:
    """What each grader said."""
    if verdicts is None:
        return []
    try:
        return [[readable(str(grader)), bool(vote)] for grader, vote in sorted(json.loads(verdicts).items())]
    except (ValueError, AttributeError):
        raise DamagedRecordError(f"{cell.evals}: a sample's verdicts are {verdicts!r}, no JSON object.") from None


def _tokens(row: dict[str, Any], path: str) -> dict[str, Any] | None:
    """What the update knew of each token; None if it was not recorded. Numbers are thousandths, so that they are short;
    the ratio is that of the last time that the completion was scored."""
    chars = row.get("token/chars")
    if not chars:
        return None
    if sum(chars) != len(row["text"]):
        raise DamagedRecordError(f"{path}: token/chars do not add up to their text. Restore the file.")
    scored = [epoch for epoch in row.get("token/log_ratio") or [] if epoch is not None]
    columns = {
        "entropy": row.get("token/entropy"),
        "advantage": row.get("token/advantage"),
        "log_ratio": scored[-1] if scored else None,
    }
    return {"chars": chars} | {name: _thousandths(values) for name, values in columns.items() if values is not None}


def _thousandths(values: Sequence[float | None]) -> list[int | None] | int | None:
    """One number if all are alike."""
    rounded = [round(1000 * one) if one is not None and math.isfinite(one) else None for one in values]
    return rounded[0] if len(set(rounded)) == 1 else rounded


def _rounded(value: float | None) -> float | None:
    return float(f"{value:.6g}") if value is not None and math.isfinite(value) else None


def _as_text(prompt: str | list[Any]) -> str:
    """Messages of a chat one below the other, each with its role."""
    if isinstance(prompt, str):
        return prompt
    return "\n\n".join(f"[{message.get('role')}] {message.get('content')}" for message in prompt)


def script_json(document: Any) -> str:
    """JSON that may stand in a script of a page: no text in it can end the script, or a line of it."""
    return _ENCODER.encode(document).replace("<", "\\u003c")


_ENCODER = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":"))
