"""Weights of earlier steps, from which `rollout.staleness_steps` lets completions be drawn: each lies on the disk once,
beside the checkpoints, which hold its checksum alone."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load
from transformers import PreTrainedModel

from harness.processes import Processes, by_all
from harness.records.fence import remove
from harness.records.files import DamagedRecordError, write_atomic
from harness.training.checkpoint import (
    checkpoint_folders,
    load_trained_weights,
    step_of,
    trained_weights,
    weights_as_bytes,
)
from harness.training.reference import frozen_copy
from harness.training.tensors import on_host

PROGRESS = "past_weights"
"""The key of their checksums in a checkpoint's progress."""
_FOLDER = "past"


class PastWeights:
    """A frozen copy of the policy, which holds its weights of some steps ago; in all processes of a cell.

    After every step the first process writes the weights to `checkpoints/past/NNNNNN.safetensors`. A file goes when
    neither the steps to come nor those after a checkpoint that is kept draw from it.
    """

    def __init__(self, model: PreTrainedModel, steps_back: int, checkpoints: Path | None) -> None:
        """model holds the starting weights. checkpoints: the cell's folder of them, which the first process needs."""
        self.policy = frozen_copy(model)
        self._steps_back = steps_back
        self._checkpoints = checkpoints
        self._checksums: dict[int, str] = {}
        Processes.here().share(self)

    def source_of(self, step: int) -> int:
        """The step (from 1) after which the weights were what this step's completions are drawn from; 0: the start."""
        return max(0, step - 1 - self._steps_back)

    def begin(self, step: int) -> None:
        """Take up the weights that a step (from 1) draws from. Raises DamagedRecordError if their file is not there any
        more, or is not what was written."""
        if source := self.source_of(step):
            path = self._path(source)
            if fault := _fault(path, self._checksums[source]):
                raise DamagedRecordError(fault)
            self._take_up(path)

    @by_all
    def _take_up(self, path: Path) -> None:
        load_trained_weights(self.policy, load(path.read_bytes()))

    def keep(self, step: int, model: PreTrainedModel) -> None:
        """Write the weights that the policy has after a step, and drop those that nobody will draw from."""
        content = weights_as_bytes(on_host(trained_weights(model)))
        path = self._path(step)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, lambda aside: aside.write_bytes(content))
        self._checksums[step] = hashlib.blake2b(content).hexdigest()
        resumable = [step_of(folder) for folder in checkpoint_folders(path.parents[1]) if step_of(folder) <= step]
        needed = {one for after in (*resumable, step) for one in self._needed_after(after)}
        for old in path.parent.glob("*.safetensors"):
            if old.stem.isdecimal() and int(old.stem) not in needed:
                remove(old)
        self._checksums = {one: self._checksums[one] for one in self._needed_after(step)}

    def state_dict(self) -> dict[str, Any]:
        """JSON: the checksums of the weights that the steps to come draw from, by their step."""
        return {str(step): checksum for step, checksum in self._checksums.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._checksums = {int(step): checksum for step, checksum in state.items()}

    def _needed_after(self, step: int) -> range:
        """The weights that the steps after this one draw from, of those that exist by then."""
        return range(max(1, step - self._steps_back), step + 1)

    def _path(self, step: int) -> Path:
        """Raises RuntimeError in a process that has no folder."""
        if self._checkpoints is None:
            raise RuntimeError("past weights are read and written by the first process of a cell")
        return _path_in(self._checkpoints, step)


def missing_past_weights(checkpoints: Path, progress: Mapping[str, Any]) -> str | None:
    """Why a cell cannot go on from a checkpoint with this progress, as far as past weights go; None if it can."""
    named = progress.get(PROGRESS, {}).items()
    faults = (_fault(_path_in(checkpoints, int(step)), checksum) for step, checksum in named)
    return next((fault for fault in faults if fault), None)


def drop_past_weights(checkpoints: Path) -> None:
    """Remove what a cell that is done needs no more."""
    remove(checkpoints / _FOLDER)


def _path_in(checkpoints: Path, step: int) -> Path:
    return checkpoints / _FOLDER / f"{step:06d}.safetensors"


def _fault(path: Path, checksum: str) -> str | None:
    if not path.is_file():
        return f"{path}: the weights of this step are not there any more"
    with path.open("rb") as handle:
        found = hashlib.file_digest(handle, "blake2b").hexdigest()
    return None if found == checksum else f"{path}: is damaged (its checksum differs)"
