"""Checkpoints: weights as safetensors, the rest of the trainer beside them. Written aside, checksummed, renamed."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from harness.records.files import read_json, write_json

KEPT = 2
FORMAT = 4
"""Raised when what a checkpoint holds changes its shape: a cell with older ones begins anew, to the same numbers."""
_OLDER_FORMAT = 3
"""Format 3 lacks the extents of the records and the digest of checkpoint.json."""
_PREFIX = "step-"


@dataclass(frozen=True)
class Checkpoint:
    """What a cell needs to go on."""

    step: int
    """The last step that is done."""
    generated_tokens: int
    """All that have been generated so far."""
    weights: dict[str, Tensor]
    """The policy's weights, without those that training leaves alone: see `trained_weights`."""
    trainer: dict[str, Any]
    """The learner's state: optimiser with its float32 masters, critic, reference, coefficients, start of the round."""
    progress: dict[str, Any]
    """JSON: what the order of prompts and the completion limit have seen."""
    records: dict[str, dict[str, int]] = field(default_factory=dict)
    """How much of each file of the cell's rows it stands on: file -> `rows` and `bytes`."""


def trained_weights(model: nn.Module) -> dict[str, Tensor]:
    """What a checkpoint holds of a model: its state without the weights that take no gradient. If the model has
    adapters, these alone are left: the base comes from `model.source` again."""
    frozen = _frozen(model)
    return {name: weight for name, weight in model.state_dict().items() if name not in frozen}


def all_finite(weights: Iterable[Tensor]) -> bool:
    """Whether no number among the weights, which are on one device, is infinite or NaN. The host waits once."""
    return bool(torch.stack([torch.isfinite(weight).all() for weight in weights]).all())


def load_trained_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Put back what `trained_weights` gave. The model must hold the starting weights.

    RuntimeError if the weights are of another model.
    """
    missing, unexpected = model.load_state_dict(weights, strict=False)
    strangers = [*(set(missing) - _frozen(model)), *unexpected]
    if strangers:
        raise RuntimeError(f"the weights are of another model: {', '.join(sorted(strangers)[:3])}")


def _frozen(model: nn.Module) -> set[str]:
    return {name for name, weight in model.named_parameters(remove_duplicate=False) if not weight.requires_grad}


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Write `folder/step-NNNNNN` so that it exists whole or not at all, then drop all but the newest two."""
    final = folder / f"{_PREFIX}{checkpoint.step:06d}"
    aside = folder / f".{final.name}.tmp"
    for torn in folder.glob(f".{_PREFIX}*.tmp"):
        shutil.rmtree(torn)
    aside.mkdir(parents=True)
    try:
        # Both libraries turn a full disk into errors of their own that do not say so; Python says ENOSPC.
        (aside / "weights.safetensors").write_bytes(_weights_as_bytes(checkpoint.weights))
        (aside / "trainer.pt").write_bytes(_trainer_as_bytes(checkpoint.trainer))
        sums = {file.name: _checksum(file) for file in sorted(aside.iterdir())}
        meta = {
            "format": FORMAT,
            "step": checkpoint.step,
            "generated_tokens": checkpoint.generated_tokens,
            "progress": checkpoint.progress,
            "records": checkpoint.records,
            "blake2b": sums,
        }
        write_json(aside / "checkpoint.json", meta | {"digest": _digest(meta)})
        shutil.rmtree(final, ignore_errors=True)
        aside.rename(final)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    for old in checkpoint_folders(folder)[:-KEPT]:
        shutil.rmtree(old)


def checkpoint_folders(folder: Path) -> list[Path]:
    """Checkpoints of a cell, oldest first."""
    return sorted(folder.glob(f"{_PREFIX}*"))


def load_latest(folder: Path) -> Checkpoint | None:
    """The newest checkpoint that is whole and of this format; None if there is none."""
    for path in reversed(checkpoint_folders(folder)):
        checkpoint = load_checkpoint(path)
        if checkpoint is not None:
            return checkpoint
    return None


def load_checkpoint(path: Path) -> Checkpoint | None:
    """The checkpoint in a folder; None if it is damaged or of another format."""
    meta = _read_meta(path)
    if meta is None:
        return None
    return Checkpoint(
        meta["step"],
        meta["generated_tokens"],
        load_file(path / "weights.safetensors"),
        torch.load(path / "trainer.pt", weights_only=True, map_location="cpu"),
        meta["progress"],
        meta.get("records", {}),
    )


def _read_meta(path: Path) -> dict[str, Any] | None:
    """checkpoint.json, or None where it or a file beside it is not what was written."""
    try:
        meta = dict(read_json(path / "checkpoint.json"))
        whole = all(_checksum(path / name) == value for name, value in meta["blake2b"].items())
        if meta["format"] == FORMAT:
            whole = whole and meta.pop("digest") == _digest(meta)
        elif meta["format"] != _OLDER_FORMAT:
            return None
    except (FileNotFoundError, ValueError, KeyError):
        return None
    return meta if whole else None


def _digest(meta: Mapping[str, Any]) -> str:
    """That of checkpoint.json, itself left out."""
    return hashlib.blake2b(json.dumps(meta, sort_keys=True).encode(), digest_size=20).hexdigest()


def _weights_as_bytes(weights: dict[str, Tensor]) -> bytes:
    """Weights on a GPU are copied to the host one by one, and never on the GPU, which may be full."""
    held: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, weight in weights.items():
        own = weight.detach().cpu().contiguous()
        storage = own.untyped_storage().data_ptr()
        # Tied weights share storage, which safetensors refuses; `load_state_dict` ties them again.
        held[name] = own.clone() if storage in storages else own
        storages.add(storage)
    return save(held)


def _trainer_as_bytes(state: dict[str, Any]) -> memoryview:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getbuffer()


def _checksum(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "blake2b").hexdigest()
