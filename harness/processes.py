"""What a process knows of itself and of those that train a cell with it.

Processes that train one cell together speak through torch.distributed, and are started with torchrun's variables.

The first process runs the cell: it picks prompts, grades, decides and writes the records. What takes all of them is a
method marked `by_all`: when the first calls it, the others make the same call on the objects that they have made in the
same order. All else happens once. A single process is the same with nobody else to tell.

In a training step all know the whole batch, and each passes over its `Share` of the rows. Denominators are those of the
whole step, so losses and gradients of the shares add up to those of one process, up to rounding. Weights may be split
too, see `harness.training.split`.
"""

from __future__ import annotations

import functools
import os
import resource
import sys
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

T = TypeVar("T")
P = ParamSpec("P")
Self = TypeVar("Self")

LONGEST_WAIT = timedelta(days=7)
"""The first process may grade and evaluate for hours while the others wait. Whoever started them ends them all when one
dies, so a wait need not end by itself."""
SUMMED_AT_ONCE = 2**25
"""Numbers of one all-reduce: enough to be fast, and little beside the gradients themselves."""


class Processes:
    """A group of processes, seen from one of them. rank: its number, from 0; size: how many there are."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size
        self._shared: list[object] = []
        self._calling = False
        self._are_left = False
        """Whether the first process broke off a call, in which the others wait for it. It goes on alone, as far as that
        takes to save what it has."""
        self.split: MutableMapping[Any, Any] = WeakKeyDictionary()
        """Models of which each process holds a part -> what gathers their weights while it is called with a function,
        which it calls."""

    @staticmethod
    def here() -> Processes:
        """The group of this process: itself alone until it joins one."""
        return _here

    @classmethod
    def join(cls) -> Processes:
        """Meet the others that torchrun's variables (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT) name; alone without
        them. Waits until all are there."""
        global _here
        if "RANK" in os.environ and _here.size == 1:
            import torch
            from torch import distributed

            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
            distributed.init_process_group(backend, timeout=LONGEST_WAIT)
            _here = cls(distributed.get_rank(), distributed.get_world_size())
        return _here

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def share(self, thing: object) -> None:
        """Let `by_all` find an object's counterpart in each process: to be called in its constructor."""
        if self.size > 1:
            self._shared.append(thing)

    def serve(self, expected: type[Exception]) -> None:
        """Make the calls of the first process until it is done. expected: what a call raises in all processes alike;
        the first decides what becomes of it."""
        while (call := self._told(None)) is not None:
            number, name, args, kwargs = call
            try:
                getattr(self._shared[number], name)(*args, **kwargs)
            except expected:
                continue

    def dismiss(self) -> None:
        """Said by the first process: there is nothing more to do."""
        if self.size > 1 and self.is_first:
            self._told([None])

    def call(self, method: Callable[..., T], thing: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
        """Make a call in all processes; returns what it gives here."""
        if self.size == 1 or not self.is_first or self._calling:
            return method(thing, *args, **kwargs)
        if self._are_left:
            if self.split:  # what the others hold cannot be had any more
                raise Interrupted
            return method(thing, *args, **kwargs)
        number = next(index for index, shared in enumerate(self._shared) if shared is thing)
        self._calling = True
        try:
            self._told([(number, method.__name__, args, kwargs)])
            return method(thing, *args, **kwargs)
        except Interrupted:
            self._are_left = True
            raise
        finally:
            self._calling = False

    def sum_(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors of one dtype and device, shaped alike in all processes, by their sums over the processes: the
        same bits in each."""
        if self.size == 1:
            return
        import torch
        from torch import distributed

        waiting: list[Tensor] = []
        for index, tensor in enumerate(tensors):
            waiting.append(tensor)
            if index + 1 == len(tensors) or sum(map(torch.numel, waiting)) >= SUMMED_AT_ONCE:
                flat = torch.cat([one.flatten() for one in waiting])
                distributed.all_reduce(flat)
                parts = torch.split(flat, [one.numel() for one in waiting])
                for one, summed in zip(waiting, parts, strict=True):
                    one.copy_(summed.view(one.shape))
                waiting = []

    def passing(self, model: object, work: Callable[[], T]) -> T:
        """work(), which passes over a model; where its weights are split, all processes must do so."""
        if model not in self.split:
            return work()
        root = self.split[model]
        root.reshard()  # what was gathered before the optimiser moved the weights is stale
        result: T = root(work)
        return result

    def clip_gradient(self, weights: Sequence[nn.Parameter], max_norm: float) -> float:
        """Add up what the processes have found as the gradient of some weights, and scale it down to a norm. Returns
        its norm before."""
        from torch.nn.utils import clip_grad_norm_, clip_grads_with_norm_, get_total_norm

        gradients = [weight.grad for weight in weights if weight.grad is not None]
        if not self.split:
            self.sum_(gradients)
            return float(clip_grad_norm_(weights, max_norm))
        # FSDP2 has added them up.
        norm = gathered(get_total_norm(gradients))
        clip_grads_with_norm_(weights, max_norm, norm)
        return float(norm)

    def sum(self, value: float) -> float:
        if self.size == 1:
            return value
        import torch

        total = torch.tensor([value], dtype=torch.float64)
        self.sum_([total])
        return float(total)

    def everyones(self, value: T) -> list[T]:
        """The value of each process, by rank."""
        if self.size == 1:
            return [value]
        from torch import distributed

        values: list[Any] = [None] * self.size
        distributed.all_gather_object(values, value)
        return values

    def to_first(self, value: T) -> list[T]:
        """The value of each process, by rank; in all but the first its own alone."""
        if self.size == 1:
            return [value]
        from torch import distributed

        values: list[Any] | None = [None] * self.size if self.is_first else None
        distributed.gather_object(value, values, dst=0)
        return [value] if values is None else values

    def _told(self, said: list[Any] | None) -> Any:
        """What the first process says, which alone gives it."""
        from torch import distributed

        heard = said or [None]
        distributed.broadcast_object_list(heard, src=0)
        return heard[0]


_here = Processes()


def by_all(method: Callable[Concatenate[Self, P], T]) -> Callable[Concatenate[Self, P], T]:
    """Marks a method that all processes of a cell run whenever the first does (see `Processes.share`). Its arguments
    travel by pickle."""

    def call(self: Self, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return Processes.here().call(method, self, args, kwargs)

    functools.update_wrapper(call, method)
    return call


def is_part(value: Tensor) -> bool:
    """Whether this process holds a part of a tensor alone."""
    return hasattr(value, "full_tensor")


def gathered(value: Tensor) -> Tensor:
    """A tensor of which each process may hold a part, whole. All must call it alike."""
    whole: Tensor = value.full_tensor() if is_part(value) else value  # type: ignore[attr-defined]
    return whole


@dataclass(frozen=True)
class Share:
    """Some rows of a batch (int64 indices), and which of them each process computes."""

    of_process: list[Tensor]

    @classmethod
    def of(cls, rows: Tensor, tokens: Tensor, divisible: bool = True) -> Share:
        """Consecutive rows for each process, with about equally many tokens. tokens [N]: of all rows of the batch.
        Not divisible: the first process computes all."""
        size = Processes.here().size
        if size == 1:
            return cls([rows])
        if not divisible:
            return cls([rows, *[rows[:0]] * (size - 1)])
        ends = tokens[rows].double().cumsum(0)
        middles = ends - tokens[rows] / 2
        process = (middles * size / ends[-1:]).long().clamp(max=size - 1)
        return cls([rows[process == rank] for rank in range(size)])

    @property
    def own(self) -> Tensor:
        """The rows of this process."""
        return self.of_process[Processes.here().rank] if len(self.of_process) > 1 else self.of_process[0]

    def micro_batches(self, split: Callable[[Tensor], list[Tensor]]) -> list[Tensor]:
        """The own rows in micro-batches, as `split` makes them; then, where weights are split, as many of another
        process as it has more."""
        own = split(self.own)
        if not Processes.here().split:
            return own
        longest = max(map(split, self.of_process), key=len)
        return own + longest[len(own) :]

    def has(self, micro: Tensor) -> bool:
        """Whether a micro-batch is of own rows; another process counts the others."""
        return len(self.of_process) == 1 or bool((self.own == micro[0]).any())

    def counted(self, loss: Tensor, micro: Tensor) -> Tensor:
        """The loss of a micro-batch, or 0 with a gradient of 0 where another process counts it."""
        return loss if self.has(micro) else 0 * loss

    def exchange_(self, *tensors: Tensor) -> None:
        """Complete tensors [N, ...] on the host, in which each process has computed its own rows: with what the others
        have computed."""
        if len(self.of_process) == 1:
            return
        import torch

        every = torch.cat(self.of_process)
        others = torch.cat([rows for rank, rows in enumerate(self.of_process) if rank != Processes.here().rank])
        for tensor in tensors:
            tensor[others] = 0
            part = tensor[every]
            Processes.here().sum_([part])
            tensor[every] = part


class Interrupted(BaseException):
    """Asked to stop. Like KeyboardInterrupt not an Exception, so that no handler takes it for a failure."""


class Stopping:
    """How a running job is asked to stop, by a signal handler. It stops at once where that leaves it whole, and else as
    soon as it is whole again."""

    def __init__(self) -> None:
        self.is_asked = False
        self.is_for_good = False
        """Whether the worker is to end, and not only its job."""
        self.is_whole = True
        """False once what was held did not come to its end."""
        self._is_held = False

    def ask(self, for_good: bool = True) -> None:
        """Raise Interrupted, once, or let `held` do so."""
        asked_before, self.is_asked = self.is_asked, True
        self.is_for_good |= for_good
        if not self._is_held and not asked_before:
            raise Interrupted

    def insist(self) -> None:
        """Raise Interrupted if what is held has not ended since."""
        if self._is_held and self.is_asked:
            self._is_held = False
            raise Interrupted

    @contextmanager
    def held(self) -> Iterator[None]:
        """What must not be cut in two. Raises Interrupted at its end if that was asked for meanwhile."""
        self._is_held, self.is_whole = True, False
        try:
            yield
            self.is_whole = True
        finally:
            was_held, self._is_held = self._is_held, False
            if was_held and self.is_asked:
                raise Interrupted


_MB = 1e6
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def reset_peak_memory(device: torch.device) -> None:
    """Begin to measure anew: a worker has had other cells before, and a process begins at its parent's peak."""
    import torch

    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    # Only Linux has it, and a container may forbid it: then the peak is the process's.
    with suppress(OSError):
        _CLEAR.write_text("5")  # proc_pid_clear_refs(5): resets the peak resident set size


def peak_memory_mb(device: torch.device) -> float:
    """Since the last reset, in units of 10^6 bytes: of torch's allocator on CUDA, else of resident memory."""
    import torch

    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / _MB
    if _STATUS.exists():
        kibibytes = _STATUS.read_text().partition("VmHWM:")[2].split(maxsplit=1)[0]
        return int(kibibytes) * 1024 / _MB
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024) / _MB
