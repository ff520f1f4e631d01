"""A CUDA device that is only pretended, on a build of torch without CUDA, so that code for CUDA can be rehearsed.

`Resident` is a tensor that says it lies on `cuda:0`; its numbers lie in a CPU tensor. Every operation on it passes
through `compute`, which applies CUDA's rules before the CPU computes:

* tensors of both devices do not mix, except that a CPU tensor may be a scalar or an index;
* what makes the host wait for the device, or copies from the host to it, is counted by file and line (`ledger`);
* while a graph is recorded, waiting and copying are errors; a recorded graph replays the same operations on the same
  memory (`Recording`).

torch's C++ code takes a `Resident` for a CPU tensor, so autograd needs no CUDA. Two things follow: moves between the
devices are recognised where Python asks for them (`to`, `cpu`, `tensor`), and factories that a backward formula calls
in C++ ask for CPU memory, so that while autograd runs every new tensor is taken to be the device's.

What this cannot show: streams and what runs behind the host's back, memory, the rounding and the nondeterminism of
CUDA's kernels, and whether a kernel exists.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from harness.engines.torch.decoding import exponential_noise

DEVICE = torch.device("cuda", 0)
MEMORY_BYTES = 80 * 2**30
ROOT = Path(__file__).parents[2]
PRODUCT = tuple(f"{ROOT}/{package}/" for package in ("harness", "algorithms", "evals"))

# Their results have a shape, or are a number, that only the values decide.
WAIT = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "bincount"}
WAIT |= {"equal", "is_nonzero", "repeat_interleave", "unique_dim_consecutive"}
INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}


class MixedDevicesError(RuntimeError):
    """An operation on tensors of both devices that CUDA refuses."""


class IllegalInGraphError(RuntimeError):
    """What may not happen while a graph is recorded."""


@dataclass
class Ledger:
    """How often the host waited for the device, and copied to it: counts by file and line of the product's code."""

    waits: Counter[str] = field(default_factory=Counter)
    copies: Counter[str] = field(default_factory=Counter)

    def wait(self, why: str) -> None:
        if recording is not None:
            raise IllegalInGraphError(f"{why} at {_line()} while a graph is recorded")
        self.waits[f"{_line()} {why}"] += 1

    def copy(self, host: Tensor, non_blocking: bool) -> None:
        """A copy to the device. It waits unless the memory is pinned and the caller says that it need not."""
        if recording is not None:
            raise IllegalInGraphError(f"a copy from the host at {_line()} while a graph is recorded")
        self.copies[_line()] += 1
        if not (non_blocking and is_pinned(host)):
            self.wait("copy to the device")


ledger = Ledger()
recording: Recording | None = None


def _line() -> str:
    """File and line of the innermost frame of the product; of anything but torch, where there is none."""
    other = "?"
    frame: Any = sys._getframe(2)
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(PRODUCT):
            return f"{path.removeprefix(f'{ROOT}/')}:{frame.f_lineno}"
        if other == "?" and path != __file__ and "/torch/" not in path:
            other = f"{path.rpartition('/')[2]}:{frame.f_lineno}"
        frame = frame.f_back
    return other


_pinned: dict[int, Tensor] = {}
"""Pinned host memory by address; kept, so that no other tensor comes to lie there."""


def is_pinned(tensor: Tensor) -> bool:
    return tensor.untyped_storage().data_ptr() in _pinned


def _pin(tensor: Tensor) -> Tensor:
    _pinned[tensor.untyped_storage().data_ptr()] = tensor
    return tensor


class Resident(torch.Tensor):
    """A tensor on the pretended device. `inner` holds its numbers."""

    inner: Any  # a Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, inner: Tensor) -> Resident:
        outer = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=inner.device,
        )
        outer.inner = inner
        return outer

    device = property(lambda self: DEVICE)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)

    def get_device(self) -> int:
        return 0

    def data_ptr(self) -> int:
        return int(self.inner.data_ptr())

    def tolist(self) -> Any:
        ledger.wait("tolist")
        return self.inner.tolist()

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")

    def pin_memory(self, *args: Any) -> Tensor:
        raise RuntimeError("cannot pin 'torch.cuda.FloatTensor'; only dense CPU tensors can be pinned")

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if id(self) not in memo:
            twin = Resident(self.inner.clone()).requires_grad_(self.requires_grad)
            if isinstance(self, torch.nn.Parameter):
                twin._is_param = True
            memo[id(self)] = twin
        return memo[id(self)]  # type: ignore[no-any-return]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.detach().cpu().__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def __repr__(self, **kwargs: Any) -> str:  # type: ignore[override]
        return f"Resident({self.inner!r})"

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        """With it a module's weights are swapped for those on the device, which keeps them tied."""
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], *_: Any) -> Resident:
        return Resident(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # type: ignore[override]
        return compute(func, args, kwargs or {})


class _EveryOperation(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees operations without a tensor of the device too: what makes one, or moves one there."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


def _inner(value: Any) -> Any:
    if isinstance(value, Resident):
        return value.inner
    if isinstance(value, (list, tuple)):
        return type(value)(map(_inner, value))
    return value


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Any operation: checked by CUDA's rules, computed on the CPU, its results on the device where CUDA has them."""
    name = func.overloadpacket.__name__
    given = [*_tensors(args), *_tensors(kwargs.values())]
    residents = [tensor for tensor in given if isinstance(tensor, Resident)]
    asked = kwargs.get("device")
    wanted = torch.device(asked).type if asked is not None else None
    in_backward = not given and wanted == "cpu" and torch._C._current_graph_task_id() != -1
    if not residents and wanted != "cuda" and not in_backward:
        return func(*args, **kwargs)

    if name == "copy_":
        if not isinstance(args[0], Resident):
            return _to_host(args[0], args[1], bool(args[2]) if len(args) > 2 else kwargs.get("non_blocking", False))
        if not isinstance(args[1], Resident):
            ledger.copy(args[1], bool(args[2]) if len(args) > 2 else kwargs.get("non_blocking", False))
    elif name in ("to", "_to_copy") and not residents:
        ledger.copy(args[0], kwargs.get("non_blocking", False))
    else:
        _check(name, func, args, given)

    if asked is not None:
        kwargs = kwargs | {"device": torch.device("cpu")}
    inner_args, inner_kwargs = _inner(args), {key: _inner(value) for key, value in kwargs.items()}
    if func is torch.ops.aten.mm.dtype:
        func = _mm_unrounded
    if recording is not None:
        recording.before(func, inner_args, inner_kwargs)
    out = func(*inner_args, **inner_kwargs)
    if recording is not None:
        recording.after(func, inner_args, inner_kwargs, out)
    known = {id(tensor.inner): tensor for tensor in residents}
    if isinstance(out, Tensor):
        return known.get(id(out)) if id(out) in known else Resident(out)
    if isinstance(out, (list, tuple)):
        made = [known.get(id(one), one) for one in out]
        return type(out)(Resident(one) if type(one) is Tensor else one for one in made)
    return out


def _check(name: str, func: Any, args: Any, given: list[Tensor]) -> None:
    strangers = [tensor for tensor in given if tensor.dim() > 0 and not isinstance(tensor, Resident)]
    if name in INDEXED:
        for index in args[1]:
            if isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8):
                ledger.wait(name)
        if isinstance(args[0], Resident):
            values = args[2] if len(args) > 2 else None
            for tensor in strangers:
                if tensor is not values:
                    ledger.copy(tensor, non_blocking=False)
            strangers = [tensor for tensor in strangers if tensor is values]
    if strangers:
        sides = ", ".join(f"{tensor.device.type}{list(tensor.shape)}" for tensor in given)
        raise MixedDevicesError(f"{func} of {sides} at {_line()}")
    if given and not isinstance(given[0], Resident) and name.endswith("_"):
        raise MixedDevicesError(f"{func} writes what is on the device into a CPU tensor at {_line()}")
    if name in WAIT:
        ledger.wait(name)


def _to_host(host: Tensor, resident: Resident, non_blocking: bool) -> Tensor:
    """Without waiting only into pinned memory, which may be read after an event that was recorded later."""
    if recording is not None or not (non_blocking and is_pinned(host)):
        ledger.wait("copy to the host")
    return host.copy_(resident.inner)


def _mm_unrounded(one: Tensor, other: Tensor, dtype: torch.dtype) -> Tensor:
    """A CPU has no product of half-precision matrices whose sums stay as they are."""
    return one.to(dtype) @ other.to(dtype)


_mm_unrounded._schema = torch.ops.aten.mm.default._schema  # type: ignore[attr-defined]


class Recording:
    """A CUDA graph: the operations of a step. Recording undoes what they wrote; replaying computes them again, on the
    tensors that they had and into those that they gave."""

    def __init__(self) -> None:
        self._tape: list[tuple[Callable[..., Any], Any, Any, list[Tensor]]] = []
        self._written: list[tuple[Tensor, Tensor]] = []

    def before(self, func: Any, args: Any, kwargs: Any) -> None:
        for place, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = args[place] if place < len(args) else kwargs.get(argument.name)
                for tensor in _tensors([value]):
                    self._written.append((tensor, tensor.clone()))

    def after(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        self._tape.append((func, args, kwargs, list(_tensors([out]))))

    def undo(self) -> None:
        for tensor, before in reversed(self._written):
            tensor.copy_(before)
        self._written = []

    def replay(self) -> None:
        with _disable_current_modes():
            for func, args, kwargs, outs in self._tape:
                for out, new in zip(outs, _tensors([func(*args, **kwargs)]), strict=True):
                    if out.data_ptr() != new.data_ptr():
                        out.copy_(new)

    def reset(self) -> None:
        self._tape = []


@contextlib.contextmanager
def record(graph: Recording, *args: Any, **kwargs: Any) -> Iterator[None]:
    global recording
    if recording is not None:
        raise IllegalInGraphError("a graph is recorded while another one is")
    recording = graph
    try:
        yield
    finally:
        recording = None
        graph.undo()


class Stream:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def wait_stream(self, other: Stream) -> None:
        pass

    def synchronize(self) -> None:
        ledger.wait("Stream.synchronize")


class Event(Stream):
    """Marks a place in a stream. All work is done when it is issued, so times are those of the host."""

    def record(self, *args: Any) -> None:
        import time

        self._at_s = time.perf_counter()

    def elapsed_time(self, later: Event) -> float:
        return 1e3 * (later._at_s - self._at_s)


def install() -> None:
    """From now on this process has a CUDA device, for good."""
    # Each is a function of its own: torch keeps a table of them.
    replaced: dict[str, Any] = {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "set_device": lambda device: None,
        "current_device": lambda: 0,
        "device": lambda device: contextlib.nullcontext(),
        "synchronize": lambda *args: ledger.wait("torch.cuda.synchronize"),
        "empty_cache": lambda: None,
        "get_device_properties": lambda *args: SimpleNamespace(total_memory=MEMORY_BYTES, major=9, minor=0),
        "get_device_capability": lambda *args: (9, 0),
        "set_per_process_memory_fraction": lambda share: None,
        "get_device_name": lambda *args: "pretended",
        "reset_peak_memory_stats": lambda *args: None,
        "max_memory_allocated": lambda *args: 0,
        "mem_get_info": lambda *args: (MEMORY_BYTES, MEMORY_BYTES),
        "get_rng_state": lambda *args: torch.zeros(1, dtype=torch.uint8),
        "set_rng_state": lambda *args: None,
        "MemPool": lambda *args: SimpleNamespace(id=(0, 1)),
        "Stream": Stream,
        "Event": Event,
        "current_stream": lambda *args: Stream(),
        "stream": lambda stream: contextlib.nullcontext(),
        "CUDAGraph": Recording,
        "graph": record,
        "is_current_stream_capturing": lambda: recording is not None,
    }
    for name, stand_in in replaced.items():
        setattr(torch.cuda, name, stand_in)
    for name in ("tensor", "as_tensor"):
        setattr(torch, name, _made_on_host(getattr(torch, name)))
    for name in ("empty", "zeros", "empty_like"):
        setattr(torch, name, _pinning(getattr(torch, name)))
    torch.Tensor.new_tensor = lambda self, data, **kwargs: torch.tensor(  # type: ignore[method-assign]
        data, **({"dtype": self.dtype, "device": self.device} | kwargs)
    )
    torch.Tensor.to = _moving(torch.Tensor.to)  # type: ignore[method-assign]
    torch.Tensor.cpu = lambda self, *args: self.to("cpu")  # type: ignore[method-assign]
    torch.Tensor.pin_memory = lambda self, *args: _pin(self.clone())  # type: ignore[method-assign]
    torch.Tensor.is_pinned = lambda self, *args: is_pinned(self)  # type: ignore[method-assign]
    # The kernel is compiled for a real GPU.
    kernel: Any = SimpleNamespace(
        first_arrivals=lambda p, keys, position: (exponential_noise(keys, position, p.shape[-1]) / p).argmin(-1)
    )
    sys.modules["harness.engines.torch.cuda_noise"] = kernel
    _EveryOperation().__enter__()  # type: ignore[no-untyped-call]


def _made_on_host(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """torch.tensor fills its result below the dispatcher, then moves it."""

    def made(data: Any, *args: Any, device: Any = None, **kwargs: Any) -> Tensor:
        if isinstance(data, Resident):
            return data if device is None else data.to(device)
        host = make(data, *args, **kwargs)
        return host if device is None else host.to(device)

    return made


def _pinning(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Memory can be pinned only where there is CUDA."""

    def made(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Tensor:
        tensor = make(*args, **kwargs)
        return _pin(tensor) if pin_memory else tensor

    return made


def _moving(to: Callable[..., Any]) -> Callable[..., Any]:
    """Tensor.to, which knows on which side a tensor is."""

    def moved(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], Tensor):
            args = (args[0].device, args[0].dtype, *args[1:])
        copy = kwargs.pop("copy", False)
        device, dtype, non_blocking, _ = torch._C._nn._parse_to(*args, **kwargs)
        on_device = isinstance(self, Resident)
        if device is None or (device.type == "cuda") == on_device:
            return to(self, dtype or self.dtype, copy=copy)
        if on_device:
            if self.requires_grad and torch.is_grad_enabled():
                raise NotImplementedError("a gradient through a move from the pretended device")
            ledger.wait("copy to the host")
            return self.inner.to(dtype or self.dtype, copy=True).detach()
        ledger.copy(self, non_blocking)
        host = self.detach().to(dtype or self.dtype, copy=True)
        return Resident(host)

    return moved
