"""Tensors in nested values: changed one by one, or moved between host and device in few copies.

A complete state is copied from a GPU through a pinned buffer, which needs no memory on the GPU.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

V = TypeVar("V")

PACKED_ALIGNMENT_BYTES = 16
"""Tensors start at multiples of this in a byte buffer, because views in other dtypes must be aligned."""
STAGING_BYTES = 2**28
"""Size of the pinned buffer for copies from a GPU."""


def on_device(value: V, device: torch.device) -> V:
    """Move all tensors in a value from the host to a device. If the device is a CPU, return the value itself.

    All tensors are moved in one copy from pinned memory. The host does not wait for it.

    value: dataclasses, dicts, lists and tuples that contain tensors.
    """
    if device.type == "cpu":
        return value
    tensors: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return tensor

    # The first walk lists the tensors. The second replaces them by the moved tensors in the same order.
    with_tensors(value, note)
    sizes = [-(-tensor.nbytes // PACKED_ALIGNMENT_BYTES) * PACKED_ALIGNMENT_BYTES for tensor in tensors]
    ends = list(itertools.accumulate(sizes, initial=0))
    packed = torch.empty(ends[-1], dtype=torch.uint8, pin_memory=True)
    for tensor, part in zip(tensors, _parts(packed, tensors, ends), strict=True):
        part.copy_(tensor)
    sent = iter(_parts(packed.to(device, non_blocking=True), tensors, ends))
    moved: V = with_tensors(value, lambda tensor: next(sent))
    return moved


def to_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Move tensors with the same dtype and device to the host in one copy, for which the host waits."""
    if not tensors or tensors[0].device.type == "cpu":
        return list(tensors)
    flat = torch.cat([tensor.flatten() for tensor in tensors]).cpu()
    parts = torch.split(flat, [tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]


def _parts(packed: Tensor, tensors: Sequence[Tensor], ends: Sequence[int]) -> list[Tensor]:
    """Return views of packed bytes, each with the shape and dtype of one of the tensors."""
    return [
        packed[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for tensor, start in zip(tensors, ends[:-1], strict=True)
    ]


def with_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return the value with `change` applied to each tensor in it, in a fixed order."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: with_tensors(one, change) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        items = (with_tensors(one, change) for one in value)
        # A named tuple takes its fields as arguments. Other sequences take an iterable.
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{own.name: with_tensors(getattr(value, own.name), change) for own in fields(value)})
    return value


def on_host(state: V) -> V:
    """Return the state with all tensors copied to the host.

    The host waits each time that the pinned buffer is full, and at the end.

    state: dataclasses, dicts, lists and tuples that contain tensors, which may be on a GPU.
    """
    staging: Tensor | None = None
    waiting: list[tuple[Tensor, Tensor]] = []
    end = 0

    def drain() -> None:
        nonlocal end
        if waiting:
            # Copies into the buffer are asynchronous, so it may be read only when they are done.
            torch.cuda.synchronize()
        for target, staged in waiting:
            target.copy_(staged)
        waiting.clear()
        end = 0

    def moved(tensor: Tensor) -> Tensor:
        nonlocal staging, end
        if tensor.device.type == "cpu":
            return tensor
        if staging is None:
            staging = torch.empty(STAGING_BYTES, dtype=torch.uint8, pin_memory=True)
        host = torch.empty(tensor.shape, dtype=tensor.dtype)
        # A tensor that is larger than the buffer is copied in pieces.
        at_once = STAGING_BYTES // tensor.element_size()
        pieces = (torch.split(flat, at_once) for flat in (host.view(-1), tensor.detach().reshape(-1)))
        for target, piece in zip(*pieces, strict=True):
            begin = -(-end // PACKED_ALIGNMENT_BYTES) * PACKED_ALIGNMENT_BYTES
            if begin + target.nbytes > STAGING_BYTES:
                drain()
                begin = 0
            end = begin + target.nbytes
            staged = staging[begin:end].view(target.dtype)
            staged.copy_(piece, non_blocking=True)
            waiting.append((target, staged))
        return host

    on_the_host: V = with_tensors(state, moved)
    drain()
    return on_the_host
