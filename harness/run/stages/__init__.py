"""Stages: results that cells share and that are therefore made once, before the cells.

A stage is a file in this folder or in a shelf. Its result is stored in the cache, under a name that depends on
everything that can change it, so that cells of any sweep can find it. Some results are read by the cells, others only
by the report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.config.run_spec import RunSpec
from harness.executors.base import Event
from harness.plugins import Kind

if TYPE_CHECKING:
    from harness.engines.base import Engine
    from harness.models.language_model import LanguageModel
    from harness.models.start import StartingPoint
    from harness.run.learning.base import CompletionScorer
    from harness.sampling.store import SampleStore

CELL = "cell"
"""The kind of a job that runs a cell instead of a stage."""


@dataclass(frozen=True)
class StageContext:
    spec: RunSpec
    home: Path
    starting_point: StartingPoint
    phase: str
    tell: Callable[[Event], None]
    """Called with the fields of `harness.executors.base.Progress`."""

    @property
    def start(self) -> LanguageModel:
        """The weights from which reinforcement learning starts."""
        return self.starting_point.get(self.spec, source_of_start(self.spec, self.home))

    def engine(self, start: LanguageModel) -> Engine:
        from harness.engines.base import make_engine

        return make_engine(self.spec.rollout, start)

    def samples(self, path: Path, keeps_tokens: bool = False) -> SampleStore:
        """Open the store of the samples that a stage takes for the result at this path.

        The samples are kept for a resume until the result is written.
        """
        from harness.sampling.store import SampleStore

        store = SampleStore(path.with_suffix(".samples.jsonl"), keeps_tokens=keeps_tokens)
        store.mend()
        return store

    def result_of(self, stage: str) -> Path:
        return result_path(find_stage(stage), self.spec, self.home)

    def tell_progress(self, done: int, total: int, remark: str = "") -> None:
        self.tell({"phase": self.phase, "step": done, "steps": total, "done_frac": done / total if total else 0.0})


def _no_scorer(result: Path | None, spec: RunSpec, start: LanguageModel) -> CompletionScorer:
    raise ValueError("this stage makes no scorer of completions")


@dataclass(frozen=True)
class Stage:
    name: str
    phase: str
    """A short description of the activity, shown to the user."""
    needed: Callable[[RunSpec], bool]
    """Returns whether a cell of this spec needs the result."""
    key: Callable[[RunSpec], str]
    """Returns the result's name in the cache."""
    make: Callable[[Path, StageContext], None]
    """Writes the result to the path, completely or not at all."""
    reads: tuple[str, ...] = ("start",)
    """The stages whose results this stage reads."""
    for_cells: bool = True
    """True if cells wait for the result. If not, it is made when the report needs it."""
    remark: Callable[[Path], str | None] = lambda path: None
    """Returns what a user should know about a result, or None."""
    require: Callable[[RunSpec, Path], None] = lambda spec, path: None
    """Raises RefusedError if the result is insufficient for a cell, e.g. has too few prompts."""
    require_data: Callable[[RunSpec], object] = lambda spec: None
    """Raises RefusedError, before the first stage runs, if the stage's data are missing."""
    require_model: Callable[[RunSpec, LanguageModel], None] = lambda spec, start: None
    """Raises RefusedError if the result cannot be made with a model, e.g. because of the model's context."""
    scorer: Callable[[Path | None, RunSpec, LanguageModel], CompletionScorer] = _no_scorer
    """Maps (result, spec, starting weights) to the scorer of the reward parts that name this stage. The result is None
    if the stage was not needed.
    """
    in_report: bool = False
    """True if sweep.json contains the results, by arm, in the field with the stage's name."""


STAGES: Kind[Stage] = Kind(
    "stage", lambda thing: isinstance(thing, Stage), __name__, "bench ls stages", summary_of=lambda stage: stage.phase
)


def find_stage(name: str) -> Stage:
    return STAGES.find(name)


def result_path(stage: Stage, spec: RunSpec, home: Path) -> Path:
    return home / "cache" / stage.key(spec)


def lease_folder(result: Path) -> Path:
    """Return the folder for the lease of the process that makes the result at this path."""
    return result.parent / "leases" / result.name


def stages_of_cell(spec: RunSpec) -> list[Stage]:
    """Return the stages that a cell of this spec waits for, each after the stages that it reads.

    A cell that evaluates another cell's checkpoint waits for none.
    """
    if spec.checkpoint_folder is not None:
        return []
    return [stage for stage in _in_order(STAGES.all().values()) if stage.for_cells and stage.needed(spec)]


def _in_order(stages: Iterable[Stage]) -> Iterator[Stage]:
    # Stages are sorted by name, so that the result does not depend on the order in which files were found.
    waiting = {stage.name: stage for stage in sorted(stages, key=lambda stage: stage.name)}
    while waiting:
        free = [stage for stage in waiting.values() if not any(name in waiting for name in stage.reads)]
        for stage in free:
            yield waiting.pop(stage.name)


def inputs_of_stage(stage: Stage, spec: RunSpec) -> list[Stage]:
    """Return the stages whose results a stage needs for this spec, each after the stages that it reads."""
    # A stage may read one that this spec does not need, such as a cold start.
    read = [one for name in stage.reads if (one := find_stage(name)).needed(spec)]
    return [*dict.fromkeys(first for one in read for first in (*inputs_of_stage(one, spec), one))]


def inputs_of_cell(spec: RunSpec, home: Path) -> dict[str, Path]:
    """Return the paths of the results that a cell reads, by stage."""
    return {stage.name: result_path(stage, spec, home) for stage in stages_of_cell(spec)}


def input_remarks(spec: RunSpec, home: Path) -> Iterator[str]:
    """Yield what a user should know about the results that a cell reads."""
    for stage in stages_of_cell(spec):
        if remark := stage.remark(result_path(stage, spec, home)):
            yield remark


def require_enough(spec: RunSpec, home: Path) -> None:
    """Raise RefusedError if too few prompts or pairs are left for a step, so that not every cell has to fail."""
    for stage in stages_of_cell(spec):
        stage.require(spec, result_path(stage, spec, home))


def source_of_start(spec: RunSpec, home: Path) -> str:
    """Return the `model.source` of the weights from which reinforcement learning starts.

    If a stage prepares the weights, this is a folder in the cache.
    """
    return _prepared("start", spec, home) or spec.model.source


def source_of_teacher(spec: RunSpec, home: Path) -> str | None:
    """Return the `model.source` of the teacher, or None if there is none or the starting weights teach."""
    if spec.teacher.type == "none" or spec.start_teaches:
        return None
    return _prepared("teacher", spec, home) or spec.teacher.source


def _prepared(stage: str, spec: RunSpec, home: Path) -> str | None:
    """Return the `model.source` of the weights that a stage prepares, or None if the spec does not need the stage."""
    found = find_stage(stage)
    return f"path:{result_path(found, spec, home).resolve()}" if found.needed(spec) else None
