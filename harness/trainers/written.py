"""The output of a program: rows of metrics and rollouts, checked as they arrive, and the checkpoints they announce.

Each start of a program writes to a separate folder, `<cell>/program/e<epoch>`. So a start that was taken for dead but
continues to run does no harm. Rows of steps that a later start has repeated are dropped.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard, TypeVar

from pydantic import ValidationError

from harness.errors import RefusedError, nearest, shown
from harness.records.files import DamagedRecordError, read_object
from harness.records.tables import REMEDY
from harness.trainers.contract import (
    CHECKPOINT,
    CONFIG_FILE,
    GENERATED,
    METRICS_FILE,
    ROLLOUTS_FILE,
    STEP,
    TRAINED,
    VERSION,
    Done,
    ProgramConfig,
)

OF_PROGRAM = "program/"
"""The prefix, in steps.jsonl, of metrics that `trainer.metrics` does not map."""
DIVERGED = ("loss", "grad_norm")
"""If one of these metrics, by bench's name or the program's, is not finite, training has diverged."""
Field = TypeVar("Field")


class ContractError(RefusedError):
    """The output of a program breaks the contract."""


class Lines:
    """Reads the lines that are appended to a file, each once it is complete, as JSON objects."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._begun = b""
        self._bytes = self._lines = 0

    def read(self, has_ended: bool = False) -> Iterator[tuple[str, dict[str, object]]]:
        """Yield the lines since the last call, each with its position in words.

        has_ended: whether the writer has ended, so that a last line without a line break counts too. Raises
        ContractError if a line is not a JSON object.
        """
        if not self.path.exists():
            return
        with self.path.open("rb") as handle:
            handle.seek(self._bytes)
            added = handle.read()
        self._bytes += len(added)
        # The text after the last line break is the beginning of a line that is still being written.
        *lines, self._begun = (self._begun + added).split(b"\n")
        if has_ended and self._begun:
            lines.append(self._begun)
            self._begun = b""
        for line in lines:
            self._lines += 1
            place = f"{self.path.name}, line {self._lines}"
            try:
                row = json.loads(line.decode())
            except ValueError as error:
                raise ContractError(
                    "trainers.line_not_json", place=place, error=error, line=shown(line.decode(errors="replace"))
                ) from None
            if not isinstance(row, dict):
                raise ContractError("trainers.line_not_an_object", place=place, line=shown(row))
            yield place, row


@dataclass(frozen=True)
class MetricsRow:
    step: int
    generated_tokens: int
    trained_tokens: int
    columns: dict[str, float | None]
    """The columns for steps.jsonl, without the counts of steps and tokens."""
    not_finite: str | None = None
    """A description of the metric that shows divergence; None if there is none."""

    @property
    def done(self) -> Done:
        """The steps and tokens up to and including this row."""
        return Done(step=self.step, generated_tokens=self.generated_tokens, trained_tokens=self.trained_tokens)


@dataclass(frozen=True)
class Announced:
    """A complete checkpoint, as announced by the program."""

    step: int
    folder: Path


@dataclass
class Metrics:
    folder: Path
    done: Done
    """The steps and tokens at the checkpoint that the start resumed from; later those it has reached."""
    names: Mapping[str, str]
    """Maps bench's names of metrics to the program's."""
    counts_trained: bool = False
    """True if a budget needs `trained_tokens`."""

    def __post_init__(self) -> None:
        self._lines = Lines(self.folder / METRICS_FILE)
        self._is_first = True
        self._missing: str | None = None

    def read(self, has_ended: bool = False) -> Iterator[MetricsRow | Announced]:
        """Yield the rows and checkpoints that were written since the last call. Raises ContractError."""
        for place, row in self._lines.read(has_ended):
            if CHECKPOINT in row:
                yield self._announced(place, row)
            else:
                step = self._step(place, row)
                self.done = step.done
                yield step

    def told_missing(self) -> str | None:
        """Return a sentence on metrics that `names` maps and the first row lacks, or None. It is returned only once."""
        sentence, self._missing = self._missing, None
        return sentence

    def _announced(self, place: str, row: dict[str, object]) -> Announced:
        """Return the checkpoint that a row announces. Raises ContractError."""
        step, name = row.get(STEP), row[CHECKPOINT]
        if set(row) != {STEP, CHECKPOINT} or not isinstance(name, str) or not _is_count(step):
            raise ContractError("trainers.announcement_malformed", place=place)
        if step > self.done.step:
            raise ContractError("trainers.checkpoint_of_another_step", place=place, step=step, last_step=self.done.step)
        # The path is resolved first: with `..` or a link, it could lead out of the output folder, and old checkpoints
        # are deleted.
        folder = (self.folder / name).resolve()
        if folder == self.folder.resolve() or not folder.is_relative_to(self.folder.resolve()):
            raise ContractError("trainers.checkpoint_outside_folder", place=place, checkpoint=name, folder=self.folder)
        if not folder.is_dir():
            raise ContractError("trainers.checkpoint_missing", place=place, folder=folder)
        return Announced(step, folder)

    def _step(self, place: str, row: dict[str, object]) -> MetricsRow:
        """Return a checked row of metrics, with its columns renamed to bench's names. Raises ContractError."""
        # There may be no gap and no repetition: a resumed program must continue after `done`, and only one process may
        # write.
        expected = self.done.step + 1
        step = row.get(STEP)
        if step != expected or not _is_count(step):
            went = f"goes from step {self.done.step} to {shown(step)}"
            raise ContractError(
                f"{place}: {went}, but rows go up by one, and the next is {expected}. "
                + (
                    "Resume from the step of `done` in the config file, and let only one of the program's processes "
                    "write metrics"
                    if _is_count(step) and step < expected
                    else "Write a row for each step"
                )
            )
        counts = {}
        for name in (GENERATED, *((TRAINED,) if self.counts_trained or TRAINED in row else ())):
            before, count = getattr(self.done, name), row.get(name)
            if not _is_count(count):
                raise ContractError("trainers.count_malformed", place=place, count=name, given=shown(count))
            if count < before:
                raise ContractError("trainers.count_falls", place=place, count=name, before=before, given=count)
            counts[name] = count
        metrics: dict[str, float | None] = {}
        for name, value in row.items():
            if value is not None and not isinstance(value, int | float):
                raise ContractError("trainers.metric_not_a_number", place=place, metric=name, given=shown(value))
            if name not in (STEP, GENERATED, TRAINED):
                metrics[name] = value
        if self._is_first:
            self._is_first = False
            self._compare_names(metrics)
        ours = {theirs: name for name, theirs in self.names.items()}
        columns = {ours.get(name, f"{OF_PROGRAM}{name}"): _finite(value) for name, value in metrics.items()}
        broken = [
            name
            for name, value in metrics.items()
            if value is not None and not math.isfinite(value) and (name in DIVERGED or ours.get(name) in DIVERGED)
        ]
        why = f"{broken[0]} is {metrics[broken[0]]} at step {step}" if broken else None
        return MetricsRow(step, counts[GENERATED], counts.get(TRAINED, self.done.trained_tokens), columns, why)

    def _compare_names(self, metrics: Mapping[str, object]) -> None:
        """Store a sentence if the first row lacks a mapped metric."""
        for ours, theirs in self.names.items():
            if theirs not in metrics:
                self._missing = (
                    f"trainer.metrics maps {ours} to {theirs}, which the first row of {METRICS_FILE} lacks"
                    f"{nearest(theirs, metrics)} It has {', '.join(metrics) or 'no metrics'}."
                )


@dataclass
class WrittenRollouts:
    """Reads the completions of one start, as rows for rollouts/*.parquet."""

    folder: Path

    def __post_init__(self) -> None:
        self._lines = Lines(self.folder / ROLLOUTS_FILE)
        self._drawn: dict[tuple[int, str], int] = {}
        self._waiting: list[tuple[int, dict[str, object]]] = []
        """The rows that wait for the metrics of their step, each with the step."""
        self._given = 0

    def of_step(self, step: int) -> list[dict[str, object]]:
        """Return the rows of a step whose metrics were read. Raises ContractError, also for rows of an earlier step."""
        self._waiting += [self._checked(place, row) for place, row in self._lines.read()]
        self._given = step
        found = [row for own, row in self._waiting if own == step]
        # The program may be ahead of its metrics. Rows of later steps wait for their metrics.
        self._waiting = [(own, row) for own, row in self._waiting if own > step]
        return found

    def _checked(self, place: str, row: dict[str, object]) -> tuple[int, dict[str, object]]:
        """Return the step and the checked row of a completion, numbered within its problem and step."""

        def field_of(name: str, kind: type[Field]) -> Field:
            if not isinstance(value := row.get(name), kind):
                raise ContractError(
                    "trainers.completion_lacks_field", place=place, field=name, given=shown(value), type=kind.__name__
                )
            return value

        problem_id, text, correct = field_of("problem_id", str), field_of("text", str), field_of("correct", bool)
        step, reward = row.get(STEP), row.get("reward")
        if not _is_count(step) or not isinstance(reward, int | float | None):
            raise ContractError("trainers.completion_without_step", place=place)
        if step <= self._given:
            raise ContractError("trainers.completion_too_late", place=place, step=step, metrics_file=METRICS_FILE)
        key = (step, problem_id)
        self._drawn[key] = sample = self._drawn.get(key, -1) + 1
        known = {STEP: step, "problem_id": problem_id, "text": text, "correct": correct, "sample": sample}
        return step, known | {"reward": None if reward is None else _finite(float(reward))}


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


@dataclass
class ProgramTotals:
    """The valid output of all starts of a cell's program so far."""

    steps: dict[int, tuple[MetricsRow, list[dict[str, object]]]]
    """Maps each step to its row of metrics and its completions."""
    checkpoints: dict[int, Path]
    diverged: str | None

    @classmethod
    def by(
        cls, program: Path, names: Mapping[str, str], counts_trained: bool, superseded: Callable[[int, int], bool]
    ) -> ProgramTotals:
        """Return the output of all starts.

        program: the folder that contains the folders of the starts.
        superseded: (epoch, step) -> whether a later start has repeated that step.
        The output of a start after it broke the contract is ignored.
        """
        written = cls({}, {}, None)
        # Epochs are zero-padded, so the starts are in order, and later output replaces earlier output.
        for folder in sorted(program.glob("e*/")):
            if (folder / CONFIG_FILE).exists():
                written._add(folder, names, counts_trained, superseded)
        return written

    def _add(
        self, folder: Path, names: Mapping[str, str], counts_trained: bool, superseded: Callable[[int, int], bool]
    ) -> None:
        epoch, config = epoch_of(folder), read_config(folder / CONFIG_FILE)
        metrics, rollouts = Metrics(folder, config.done, names, counts_trained), WrittenRollouts(folder)
        with suppress(ContractError):
            for news in metrics.read():
                if superseded(epoch, news.step):
                    continue
                if isinstance(news, Announced):
                    self.checkpoints[news.step] = news.folder
                elif news.not_finite:
                    self.diverged = news.not_finite
                    return
                else:
                    self.steps[news.step] = news, rollouts.of_step(news.step)
                    self.diverged = None


def read_config(path: Path) -> ProgramConfig:
    """Return the config file of an earlier start.

    Raises RefusedError if its contract is newer, DamagedRecordError if it is damaged.
    """
    document = read_object(path)
    if _is_count(version := document.get("contract")) and version > VERSION:
        raise RefusedError("trainers.newer_contract", path=path, version=version, our_version=VERSION)
    try:
        return ProgramConfig.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise DamagedRecordError(
            "trainers.config_damaged", path=path, where=where, fault=first["msg"], remedy=REMEDY
        ) from None


def folder_of(program: Path, epoch: int) -> Path:
    return program / f"e{epoch:04d}"


def epoch_of(folder: Path) -> int:
    return int(folder.name.removeprefix("e"))
