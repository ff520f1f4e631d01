"""Checkpoints: weights as safetensors and the trainer's state, with checksums.

A checkpoint is written to a temporary folder, which is then renamed. The checkpoint of step 0 contains neither weights
nor state: it refers to the model that the cell starts with.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, BinaryIO, cast

import torch
import xxhash
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from harness.records.counted import Counted
from harness.records.fence import remove
from harness.records.files import DamagedRecordError, read_object, write_folder, write_json
from harness.training.split import parts_of
from harness.training.states import CellProgress, TrainerState
from harness.training.tensors import on_host

KEPT = 2
"""Number of a cell's newest checkpoints that are kept."""
FORMAT = 6
"""Increased when the checkpoint format changes. A cell with older checkpoints restarts, and gives the same numbers."""
_PREFIX = "step-"
_FILES = ("weights.safetensors", "trainer.pt")
_FIELDS = {
    "format": int,
    "is_start": bool,
    "step": int,
    "epoch": int,
    "generated_tokens": int,
    "progress": dict,
    "records": dict,
    "xxh3_128": dict,
}


@dataclass(frozen=True)
class Checkpoint:
    """Everything that a cell needs to resume."""

    step: int
    """The last completed step."""
    generated_tokens: int
    """The number of tokens generated so far."""
    weights: dict[str, Tensor]
    """The policy's weights, without frozen ones (see `trained_weights`); empty before the first step."""
    trainer: TrainerState
    """The learner's state: optimiser with float32 masters, critic, reference, coefficients, weights at round start."""
    progress: CellProgress
    records: Counted = field(default_factory=dict)
    """How much of each of the cell's files this checkpoint covers; see `harness.records.cell.CellRecord.count`."""
    epoch: int = 0
    """The number of the cell's launch that wrote this checkpoint."""

    @property
    def is_start(self) -> bool:
        """True if this is the checkpoint before the first step, which refers to the cell's starting model."""
        return not self.weights


def trained_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the part of a model's state that a checkpoint stores: everything except frozen weights.

    For a model with adapters these are the adapters, because the base is loaded again from `model.source`.
    """
    frozen = _frozen(model)
    return {name: weight for name, weight in model.state_dict().items() if name not in frozen}


def all_finite(weights: Iterable[Tensor]) -> bool:
    """Return whether all weights are finite. They must be on one device, for which the host waits once."""
    # The largest absolute value is finite exactly if all values are, because inf and NaN propagate to it.
    largest = torch._foreach_norm([weight.detach() for weight in weights if weight.is_floating_point()], torch.inf)
    return bool(torch.stack([norm.float() for norm in largest]).isfinite().all())


def load_trained_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load the weights from `trained_weights` into a model that has the starting weights.

    Raises RuntimeError if the weights belong to another model.
    """
    missing, unexpected = model.load_state_dict(parts_of(model, weights), strict=False)
    # `strict=False`, because frozen weights are missing on purpose. Other missing or unknown names are errors.
    strangers = [*(set(missing) - _frozen(model)), *unexpected]
    if strangers:
        raise RuntimeError(f"the weights are of another model: {', '.join(sorted(strangers)[:3])}")


def _frozen(model: nn.Module) -> set[str]:
    return {name for name, weight in model.named_parameters(remove_duplicate=False) if not weight.requires_grad}


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Write `folder/step-NNNNNN` atomically, then remove all but the newest KEPT checkpoints.

    Checkpoints of later steps, which earlier launches of the cell left, are removed too. Those steps are trained again.
    """
    final = checkpoint_path(folder, checkpoint.step)
    folder.mkdir(parents=True, exist_ok=True)

    def write(aside: Path) -> None:
        checksums = {}
        if not checkpoint.is_start:
            # safetensors' own writer would turn a full disk into another error, so its bytes are written through
            # `_Checked` too.
            with _Checked(aside / "weights.safetensors") as file:
                file.write(weights_as_bytes(on_host(checkpoint.weights)))
                checksums["weights.safetensors"] = file.checksum
            with _Checked(aside / "trainer.pt") as file:
                torch.save(on_host(checkpoint.trainer), cast(BinaryIO, file))
                checksums["trainer.pt"] = file.checksum
        meta = {
            "format": FORMAT,
            "is_start": checkpoint.is_start,
            "step": checkpoint.step,
            "epoch": checkpoint.epoch,
            "generated_tokens": checkpoint.generated_tokens,
            "progress": checkpoint.progress,
            "records": checkpoint.records,
            "xxh3_128": checksums,
        }
        write_json(aside / "checkpoint.json", meta | {"digest": _digest(meta)})

    write_folder(final, write, replaces=True)
    # Old checkpoints are removed only after the new one is on disk, so that a crash always leaves one.
    found = checkpoint_folders(folder)
    beyond = [path for path in found if step_of(path) > checkpoint.step]
    for old in [*beyond, *[path for path in found if path not in beyond][:-KEPT]]:
        remove(old)


def checkpoint_folders(folder: Path) -> list[Path]:
    """Return the checkpoint folders in a folder, oldest first. Anything else in the folder is ignored."""
    return sorted(path for path in folder.glob(f"{_PREFIX}*") if path.name.removeprefix(_PREFIX).isdecimal())


def checkpoint_path(folder: Path, step: int) -> Path:
    """Return the path of a step's checkpoint in the cell's folder of checkpoints."""
    return folder / f"{_PREFIX}{step:06d}"


def step_of(path: Path) -> int:
    return int(path.name.removeprefix(_PREFIX))


def load_latest(
    folder: Path,
    fault: Callable[[Checkpoint], str | None] = lambda checkpoint: None,
    passed_over: Callable[[str], None] = lambda reason: None,
) -> Checkpoint | None:
    """Return the newest usable checkpoint, or None if there is none.

    fault: returns a further reason why a checkpoint is unusable, or None.
    passed_over: called with the reason for each unusable checkpoint that is skipped.
    Raises UnusableCheckpointError if no checkpoint is usable and at least one is damaged, because a damaged checkpoint
    may be restored.
    """
    damaged: UnusableCheckpointError | None = None
    for path in reversed(checkpoint_folders(folder)):
        try:
            checkpoint = load_checkpoint(path)
        except OtherFormatError as error:
            passed_over(str(error))
            continue
        except UnusableCheckpointError as error:
            # The error is about the newest damaged checkpoint, because restoring that one saves the most steps.
            damaged = damaged or error
            passed_over(str(error))
            continue
        reason = fault(checkpoint)
        if reason is None:
            return checkpoint
        passed_over(f"{path}: {reason}")
    if damaged is not None:
        raise damaged
    return None


class UnusableCheckpointError(DamagedRecordError):
    """A checkpoint whose files are damaged."""


class OtherFormatError(UnusableCheckpointError):
    """A checkpoint written by another version of bench."""


def load_checkpoint(path: Path) -> Checkpoint:
    """Load the checkpoint in a folder.

    Raises UnusableCheckpointError if it is damaged, and OtherFormatError if another version of bench wrote it.
    """
    try:
        meta = _read_meta(path)
        is_start = meta["is_start"]
        return Checkpoint(
            meta["step"],
            meta["generated_tokens"],
            {} if is_start else load_file(path / "weights.safetensors"),
            {} if is_start else torch.load(path / "trainer.pt", weights_only=True, map_location="cpu"),
            meta["progress"],
            meta["records"],
            meta["epoch"],
        )
    except UnusableCheckpointError:
        raise
    # torch and safetensors do not document what they raise for a foreign file: RuntimeError, EOFError and others.
    except KeyError as error:
        raise _unusable(path, f"checkpoint.json lacks {error}") from None
    except (OSError, DamagedRecordError, SafetensorError, UnpicklingError, RuntimeError, EOFError) as error:
        raise _unusable(path, str(error).partition("\n")[0]) from None


def _read_meta(path: Path) -> dict[str, Any]:
    """Verify the checksums of all files and return the content of checkpoint.json."""
    meta = read_object(path / "checkpoint.json")
    # The format is checked first, because another version may compute the digest differently.
    if isinstance(meta["format"], int) and meta["format"] != FORMAT:
        raise OtherFormatError("training.other_format", path=path, format=meta["format"])
    if meta.pop("digest") != _digest(meta):
        raise _unusable(path, "the checksum of checkpoint.json differs")
    for name, kind in _FIELDS.items():
        if not isinstance(meta[name], kind):
            raise _unusable(path, f"checkpoint.json holds something else as {name!r}")
    for name in () if meta["is_start"] else _FILES:
        if _checksum(path / name) != meta["xxh3_128"].get(name):
            raise _unusable(path, f"the checksum of {name} differs")
    if meta["step"] != step_of(path):
        raise _unusable(path, f"it is of step {meta['step']}")
    return meta


def _unusable(path: Path, fault: str) -> UnusableCheckpointError:
    return UnusableCheckpointError("training.checkpoint_damaged", path=path, fault=fault, folder=path.parent)


def _digest(meta: Mapping[str, object]) -> str:
    """Return the digest of checkpoint.json's content. `meta` must not contain the digest itself."""
    return hashlib.blake2b(json.dumps(meta, sort_keys=True).encode(), digest_size=20).hexdigest()


def weights_as_bytes(weights: dict[str, Tensor]) -> bytes:
    """Return weights, which must be on the host, in the format of a safetensors file."""
    held: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, weight in weights.items():
        own = weight.detach().contiguous()
        storage = own.untyped_storage().data_ptr()
        # safetensors refuses tied weights, which share storage, so they are cloned. Loading them keeps the tie.
        held[name] = own.clone() if storage in storages else own
        storages.add(storage)
    return save(held)


class _Checked:
    """A new file that computes the checksum of its content while it is written.

    torch writes one tensor at a time, so no second copy of a state is in memory. If a write fails, for example because
    the disk is full, torch raises another error. Leaving the context raises the original error instead.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._digest = xxhash.xxh3_128()
        self._error: OSError | None = None

    def __enter__(self) -> _Checked:
        return self

    def __exit__(self, *raised: object) -> None:
        self._file.close()
        if self._error is not None:
            raise self._error

    @property
    def checksum(self) -> str:
        return self._digest.hexdigest()

    def write(self, content: bytes | memoryview) -> int:
        try:
            written = self._file.write(content)
        except OSError as error:
            self._error = error
            raise
        self._digest.update(content)
        return written

    def flush(self) -> None:
        self._file.flush()


def _checksum(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, xxhash.xxh3_128).hexdigest()
