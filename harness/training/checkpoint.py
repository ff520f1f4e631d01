"""Checkpoints: weights as safetensors, the rest of the trainer beside them. Written aside, checksummed, renamed.

That of step 0 holds neither: it refers to the model that the cell starts with.
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
from harness.training.tensors import on_host

KEPT = 2
FORMAT = 6
"""Raised when the format of checkpoints changes: a cell with older ones starts again, and gives the same numbers."""
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
    """What a cell needs to go on."""

    step: int
    """The last step that is done."""
    generated_tokens: int
    """All that have been generated so far."""
    weights: dict[str, Tensor]
    """The policy's weights, without those that training leaves alone: see `trained_weights`. None at the start."""
    trainer: dict[str, Any]
    """The learner's state: optimiser with its float32 masters, critic, reference, coefficients, start of the round."""
    progress: dict[str, Any]
    """JSON: what the order of prompts and the completion limit have seen, how many tokens a teacher has scored, and the
    checksums of past weights that are sampled from."""
    records: Counted = field(default_factory=dict)
    """How much of each of the cell's files it stands on; see `harness.records.cell.CellRecord.count`."""
    epoch: int = 0
    """The number of the start that wrote it."""

    @property
    def is_start(self) -> bool:
        """Whether it refers to the model that the cell starts with, and a learner that has learned nothing."""
        return not self.weights


def trained_weights(model: nn.Module) -> dict[str, Tensor]:
    """What a checkpoint holds of a model: its state without the weights that take no gradient. If the model has
    adapters, these alone are left: the base comes from `model.source` again."""
    frozen = _frozen(model)
    return {name: weight for name, weight in model.state_dict().items() if name not in frozen}


def all_finite(weights: Iterable[Tensor]) -> bool:
    """Whether no number among the weights, which are on one device, is infinite or NaN. The host waits once."""
    largest = torch._foreach_norm([weight.detach() for weight in weights if weight.is_floating_point()], torch.inf)
    return bool(torch.stack([norm.float() for norm in largest]).isfinite().all())


def load_trained_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Put back what `trained_weights` gave. The model must hold the starting weights.

    RuntimeError if the weights are of another model.
    """
    missing, unexpected = model.load_state_dict(parts_of(model, weights), strict=False)
    strangers = [*(set(missing) - _frozen(model)), *unexpected]
    if strangers:
        raise RuntimeError(f"the weights are of another model: {', '.join(sorted(strangers)[:3])}")


def _frozen(model: nn.Module) -> set[str]:
    return {name for name, weight in model.named_parameters(remove_duplicate=False) if not weight.requires_grad}


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Write `folder/step-NNNNNN`, so that it is on the disk whole or not at all, then drop all but the newest two.

    Checkpoints of earlier starts of the cell, of later steps, are dropped too: their steps are trained again.
    """
    final = checkpoint_path(folder, checkpoint.step)
    folder.mkdir(parents=True, exist_ok=True)

    def write(aside: Path) -> None:
        checksums = {}
        if not checkpoint.is_start:
            # safetensors, too, would turn a full disk into an error of its own.
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
    found = checkpoint_folders(folder)
    beyond = [path for path in found if step_of(path) > checkpoint.step]
    for old in [*beyond, *[path for path in found if path not in beyond][:-KEPT]]:
        remove(old)


def checkpoint_folders(folder: Path) -> list[Path]:
    """Checkpoints of a cell, oldest first. Anything else that lies there is passed over."""
    return sorted(path for path in folder.glob(f"{_PREFIX}*") if path.name.removeprefix(_PREFIX).isdecimal())


def checkpoint_path(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step lies among those of its cell."""
    return folder / f"{_PREFIX}{step:06d}"


def step_of(path: Path) -> int:
    return int(path.name.removeprefix(_PREFIX))


def load_latest(
    folder: Path,
    fault: Callable[[Checkpoint], str | None] = lambda checkpoint: None,
    passed_over: Callable[[str], None] = lambda reason: None,
) -> Checkpoint | None:
    """The newest checkpoint that can be used; None if there is none.

    fault: what else keeps one from being used. passed_over: is told, for each that is newer, why it cannot be used.
    Raises UnusableCheckpointError if none can be used and at least one is damaged: it may be restored.
    """
    damaged: UnusableCheckpointError | None = None
    for path in reversed(checkpoint_folders(folder)):
        try:
            checkpoint = load_checkpoint(path)
        except OtherFormatError as error:
            passed_over(str(error))
            continue
        except UnusableCheckpointError as error:
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
    """A checkpoint that is not what was written."""


class OtherFormatError(UnusableCheckpointError):
    """A checkpoint of another version of bench."""


def load_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in a folder. Raises UnusableCheckpointError if it cannot be used."""
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
    # What torch and safetensors raise for a file that is not theirs is not said: RuntimeError, EOFError and others.
    except KeyError as error:
        raise _unusable(path, f"checkpoint.json lacks {error}") from None
    except (OSError, DamagedRecordError, SafetensorError, UnpicklingError, RuntimeError, EOFError) as error:
        raise _unusable(path, str(error).partition("\n")[0]) from None


def _read_meta(path: Path) -> dict[str, Any]:
    """checkpoint.json, after the checksums of all files."""
    meta = read_object(path / "checkpoint.json")
    if isinstance(meta["format"], int) and meta["format"] != FORMAT:
        raise OtherFormatError(f"{path}: is of another version of bench (format {meta['format']})")
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
    return UnusableCheckpointError(
        f"{path}: is damaged ({fault}). Restore it, or delete {path.parent}: the next run then trains the "
        "cell from the start."
    )


def _digest(meta: Mapping[str, object]) -> str:
    """That of checkpoint.json, itself left out."""
    return hashlib.blake2b(json.dumps(meta, sort_keys=True).encode(), digest_size=20).hexdigest()


def weights_as_bytes(weights: dict[str, Tensor]) -> bytes:
    """The content of a file of weights that are on the host."""
    held: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, weight in weights.items():
        own = weight.detach().contiguous()
        storage = own.untyped_storage().data_ptr()
        # Tied weights share storage, which safetensors refuses; `load_state_dict` ties them again.
        held[name] = own.clone() if storage in storages else own
        storages.add(storage)
    return save(held)


class _Checked:
    """A new file that is written from beginning to end, and the checksum of what was written.

    torch writes a tensor at a time, so that a state takes no memory a second time. Where a write fails, as on a full
    disk, torch raises an error of its own; leaving the context raises that of the write.
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
