"""Weights of earlier steps, from which completions are sampled with `rollout.staleness_steps`.

The weights of a step are stored once, next to the checkpoints, which contain only their checksum.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

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
from harness.training.states import CellProgress
from harness.training.tensors import on_host

_FOLDER = "past"


class PastWeights:
    """A frozen copy of the policy with its weights of some steps ago, in all processes of a cell.

    After every step, the first process writes the weights to `checkpoints/past/NNNNNN.safetensors`. A file is removed
    when no future step, counted from now or from a kept checkpoint, samples from it.
    """

    def __init__(self, model: PreTrainedModel, steps_back: int, checkpoints: Path | None) -> None:
        """Copy a model that has the starting weights.

        checkpoints: the cell's checkpoint folder; only the first process needs it.
        """
        self.policy = frozen_copy(model)
        self._steps_back = steps_back
        self._checkpoints = checkpoints
        self._checksums: dict[int, str] = {}
        Processes.here().share(self)

    def source_of(self, step: int) -> int:
        """Return the step whose weights `step` (from 1) samples from, or 0 for the starting weights."""
        return max(0, step - 1 - self._steps_back)

    def begin(self, step: int) -> None:
        """Load the weights that a step (from 1) samples from.

        Raises DamagedRecordError if their file is missing or damaged.
        """
        if source := self.source_of(step):
            path = self._path(source)
            # The first process checks the file before `_take_up` makes all processes read it.
            if fault := _fault(path, self._checksums[source]):
                raise DamagedRecordError(fault)
            self._take_up(path)

    @by_all
    def _take_up(self, path: Path) -> None:
        load_trained_weights(self.policy, load(path.read_bytes()))

    def keep(self, step: int, model: PreTrainedModel) -> None:
        """Write the policy's weights after a step, and remove the files that no step will sample from."""
        content = weights_as_bytes(on_host(trained_weights(model)))
        path = self._path(step)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, lambda aside: aside.write_bytes(content))
        self._checksums[step] = hashlib.blake2b(content).hexdigest()
        # Checkpoints of later steps are left from an earlier launch and will be removed, so they need no file.
        resumable = [step_of(folder) for folder in checkpoint_folders(path.parents[1]) if step_of(folder) <= step]
        needed = {one for after in (*resumable, step) for one in self._needed_after(after)}
        for old in path.parent.glob("*.safetensors"):
            if old.stem.isdecimal() and int(old.stem) not in needed:
                remove(old)
        self._checksums = {one: self._checksums[one] for one in self._needed_after(step)}

    def state_dict(self) -> dict[str, str]:
        """Return step -> checksum of the weights that later steps will sample from, with JSON's string keys."""
        return {str(step): checksum for step, checksum in self._checksums.items()}

    def load_state_dict(self, state: Mapping[str, str]) -> None:
        self._checksums = {int(step): checksum for step, checksum in state.items()}

    def _needed_after(self, step: int) -> range:
        """Return the steps whose saved weights are still needed after `step`, because later steps sample from them."""
        return range(max(1, step - self._steps_back), step + 1)

    def _path(self, step: int) -> Path:
        """Return the path of a step's file. Raises RuntimeError in a process without the checkpoint folder."""
        if self._checkpoints is None:
            raise RuntimeError("past weights are read and written by the first process of a cell")
        return _path_in(self._checkpoints, step)


def missing_past_weights(checkpoints: Path, progress: CellProgress) -> str | None:
    """Return the fault in past weights that prevents resuming from a checkpoint with this progress, or None."""
    named = progress.get("past_weights", {}).items()
    faults = (_fault(_path_in(checkpoints, int(step)), checksum) for step, checksum in named)
    return next((fault for fault in faults if fault), None)


def drop_past_weights(checkpoints: Path) -> None:
    """Remove the past weights of a finished cell."""
    remove(checkpoints / _FOLDER)


def _path_in(checkpoints: Path, step: int) -> Path:
    return checkpoints / _FOLDER / f"{step:06d}.safetensors"


def _fault(path: Path, checksum: str) -> str | None:
    if not path.is_file():
        return f"{path}: the weights of this step are not there any more"
    with path.open("rb") as handle:
        found = hashlib.file_digest(handle, "blake2b").hexdigest()
    return None if found == checksum else f"{path}: is damaged (its checksum differs)"
