"""The processes that train one cell together, requests to stop a process, and its peak memory.

The processes of a cell communicate through torch.distributed and are started with torchrun's environment variables.
Rank 0 ("the first") runs the cell: it picks prompts, grades, decides and writes the records. Work that needs all ranks
is a method marked `by_all`. When rank 0 calls it, the others make the same call on their counterparts of the object.
Everything else happens only in rank 0. With a world size of 1, a `by_all` method is an ordinary method.

In a training step, every rank has the complete batch and computes its `RowShare` of the rows. Denominators are those of
the complete step, so except for rounding, the losses and gradients of the shares add up to those of a single process.
Weights may be split too; see `harness.training.split`.
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
from typing import TYPE_CHECKING, Any, Concatenate, NoReturn, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

T = TypeVar("T")
P = ParamSpec("P")
Self = TypeVar("Self")

LONGEST_WAIT = timedelta(days=7)
"""The timeout of collectives. Rank 0 may grade and evaluate for hours while the others wait.

If one process dies, the parent process ends all of them, so a shorter timeout is not needed.
"""
SUMMED_AT_ONCE = 2**25
"""The number of elements per all-reduce. It is large enough to be fast, and small compared with the gradients."""


class Interrupted(BaseException):
    """The job was asked to stop.

    Like KeyboardInterrupt it is not an Exception, so that no handler treats it as a failure.
    """


class Stopping:
    """A request from a signal handler that a running job stop.

    The job stops at once, except inside `held`. There it stops at the end of the block, when its state is consistent
    again.
    """

    def __init__(self) -> None:
        self.is_asked = False
        self.is_for_good = False
        """True if the worker must end too, not only its job."""
        self.is_whole = True
        """True if the job's state is consistent. False during a `held` block, and after one that did not reach its end.
        """
        self.signs_of_life = 0
        """A counter that a job increases while it waits for another program, so that the wait does not look like a
        hang.
        """
        self._is_held = False
        self._is_stopped = False
        """True if Interrupted was raised. Work after that, such as writing a checkpoint, is not stopped again."""

    def stop(self) -> NoReturn:
        self._is_stopped = True
        raise Interrupted

    def ask(self, for_good: bool = True) -> None:
        """Request a stop: raise Interrupted, but only once. Inside `held`, it is raised at the end of the block."""
        self.is_asked = True
        self.is_for_good |= for_good
        if not self._is_held and not self._is_stopped:
            self.stop()

    def insist(self) -> None:
        """Raise Interrupted now if a `held` block has not ended since `ask`."""
        if self._is_held and self.is_asked:
            self._is_held = False
            self.stop()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Run a block that must not be interrupted.

        Raises Interrupted at its end if a stop was requested during the block.
        """
        # is_whole stays False if the block raises. The state is then only partly updated, and must not be saved as a
        # checkpoint.
        self._is_held, self.is_whole = True, False
        try:
            yield
            self.is_whole = True
        finally:
            was_held, self._is_held = self._is_held, False
            if was_held and self.is_asked:
                self.stop()

    @contextmanager
    def delayed(self) -> Iterator[None]:
        """Delay stops as `held` does, for a block that leaves the job's state unchanged if `insist` interrupts it."""
        was_held, self._is_held = self._is_held, True
        try:
            yield
        finally:
            self._is_held = was_held
        if self.is_asked and not (was_held or self._is_stopped):
            self.stop()

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Allow Interrupted at once in this part of a `delayed` block."""
        was_held, self._is_held = self._is_held, False
        try:
            if self.is_asked:
                self.stop()
            yield
        finally:
            self._is_held = was_held


class Processes:
    """A process group, as seen by one of its processes.

    rank: the number of the process, from 0.
    size: the world size.
    """

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size
        self._shared: list[object] = []
        self._calling = False
        self.stopping = Stopping()
        """How others ask this process to stop. All processes of the group are asked at about the same time."""
        self.split: MutableMapping[object, Any] = WeakKeyDictionary()
        """Maps each model whose weights are split to its FSDP2 root.

        If the root is called with a function, it gathers the weights and calls the function.
        """

    @staticmethod
    def here() -> Processes:
        """Return the group of this process, which has size 1 until it joins one."""
        return _here

    @classmethod
    def join(cls, stopping: Stopping | None = None) -> Processes:
        """Join the group that torchrun's variables describe, and wait until all ranks have joined.

        The variables are RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Without them, the group has size 1.
        stopping: how others ask this process to stop.
        """
        global _here
        if "RANK" in os.environ and _here.size == 1:
            import torch
            from torch import distributed

            # gloo is used next to NCCL, to transfer objects and numbers on the host.
            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
            distributed.init_process_group(backend, timeout=LONGEST_WAIT)
            _here = cls(distributed.get_rank(), distributed.get_world_size())
        _here.stopping = stopping or Stopping()
        return _here

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def share(self, thing: object) -> None:
        """Register an object, so that `by_all` finds its counterpart in each process.

        Call this in the constructor. All processes must construct such objects in the same order.
        """
        if self.size > 1:
            self._shared.append(thing)

    def serve(self, expected: type[Exception]) -> None:
        """Repeat the calls of rank 0 until rank 0 dismisses this process.

        expected: an exception, in addition to Interrupted, that a call raises in all processes and that rank 0 handles.
        """
        # Stops are delayed, because rank 0 decides when the loop ends.
        with suppress(Interrupted), self.stopping.delayed():
            while (call := self._told(None)) is not None:
                number, name, args, kwargs = call
                with suppress(expected, Interrupted):
                    getattr(self._shared[number], name)(*args, **kwargs)

    def dismiss(self) -> None:
        """Tell the other ranks that no more calls follow. This has an effect only in rank 0."""
        if self.size > 1 and self.is_first:
            self._told([None])

    def call(self, method: Callable[Concatenate[Self, P], T], thing: Self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a method in all processes. Return the result of this process."""
        # A by_all method may call another one. The other ranks then make the nested call by themselves.
        if self.size == 1 or not self.is_first or self._calling:
            return method(thing, *args, **kwargs)
        number = next(index for index, shared in enumerate(self._shared) if shared is thing)
        # If one process stopped within the call, the others could not continue.
        with self.stopping.delayed():
            self._told([(number, method.__name__, args, kwargs)])
            self._calling = True
            try:
                return method(thing, *args, **kwargs)
            finally:
                self._calling = False

    def interruptible(self, work: Callable[[], T]) -> list[T]:
        """Call work() in each process. Return the results by rank.

        If a process is asked to stop during the call, it stops at once, and Interrupted is raised in all processes.
        """
        mine: list[T] = []
        # An interrupted process must still reach `everyones`, because the others would wait for it.
        with suppress(Interrupted), self.stopping.at_once():
            mine.append(work())
        every = self.everyones(mine)
        if not all(every):
            self.stopping.stop()
        return [one for (one,) in every]

    def sum_(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over the processes, with the same bits in each process.

        All tensors must have the same dtype and device, and the same shapes in all processes.
        """
        if self.size == 1:
            return
        import torch
        from torch import distributed

        waiting: list[Tensor] = []
        for index, tensor in enumerate(tensors):
            waiting.append(tensor)
            if index + 1 == len(tensors) or sum(map(torch.numel, waiting)) >= SUMMED_AT_ONCE:
                # Many tensors are combined in one all-reduce, because each small one would cost the full latency.
                flat = torch.cat([one.flatten() for one in waiting])
                distributed.all_reduce(flat)
                parts = torch.split(flat, [one.numel() for one in waiting])
                for one, summed in zip(waiting, parts, strict=True):
                    one.copy_(summed.view(one.shape))
                waiting = []

    def passing(self, model: object, work: Callable[[], T]) -> T:
        """Call work(), which runs passes over a model. Return its result.

        If the model's weights are split, all processes must make this call together.
        """
        if model not in self.split:
            return work()
        root = self.split[model]
        # Weights that were gathered before the optimiser step are out of date.
        root.reshard()
        result: T = root(work)
        return result

    def clip_gradient(self, weights: Sequence[nn.Parameter], max_norm: float) -> float:
        """Sum the gradient of some weights over the processes and clip it to a maximal norm.

        Returns the norm before clipping.
        """
        from torch.nn.utils import clip_grad_norm_, clip_grads_with_norm_, get_total_norm

        gradients = [weight.grad for weight in weights if weight.grad is not None]
        if not self.split:
            self.sum_(gradients)
            return float(clip_grad_norm_(weights, max_norm))
        # FSDP2 has already summed the gradients.
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
        """Return the value of each process, by rank. All processes must call this."""
        if self.size == 1:
            return [value]
        from torch import distributed

        values = [value] * self.size  # replaced by those of all ranks
        distributed.all_gather_object(values, value)
        return values

    def to_first(self, value: T) -> list[T]:
        """Return the values of all processes by rank in rank 0, and only the own value in other ranks."""
        if self.size == 1:
            return [value]
        from torch import distributed

        values = [value] * self.size if self.is_first else None
        distributed.gather_object(value, values, dst=0)
        return [value] if values is None else values

    def _told(self, said: list[object] | None) -> Any:
        """Broadcast a message from rank 0. Only rank 0 passes one; the others pass None."""
        from torch import distributed

        # broadcast_object_list writes to the list that it gets, in every rank except the source.
        heard = said or [None]
        distributed.broadcast_object_list(heard, src=0)
        return heard[0]


_here = Processes()


def by_all(method: Callable[Concatenate[Self, P], T]) -> Callable[Concatenate[Self, P], T]:
    """Mark a method that all processes of a cell run whenever rank 0 calls it (see `Processes.share`).

    Its arguments are pickled.
    """

    def call(self: Self, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return Processes.here().call(method, self, *args, **kwargs)

    functools.update_wrapper(call, method)
    return call


def is_part(value: Tensor) -> bool:
    """Return whether this process has only a part of a tensor (a DTensor)."""
    return hasattr(value, "full_tensor")


def gathered(value: Tensor) -> Tensor:
    """Return the complete tensor, which may be split among the processes. All ranks must call this together."""
    whole: Tensor = value.full_tensor() if is_part(value) else value  # type: ignore[attr-defined]
    return whole


@dataclass(frozen=True)
class RowShare:
    """The rows of a batch (int64 indices), divided among the processes."""

    of_process: list[Tensor]

    @classmethod
    def of(cls, rows: Tensor, tokens: Tensor, divisible: bool = True) -> RowShare:
        """Give each process consecutive rows with about the same number of tokens.

        tokens: [N], the number of tokens of each row of the batch.
        divisible: if False, rank 0 computes all rows.
        """
        size = Processes.here().size
        if size == 1:
            return cls([rows])
        if not divisible:
            return cls([rows, *[rows[:0]] * (size - 1)])
        ends = tokens[rows].double().cumsum(0)
        # A row goes to the process whose share of the tokens contains the row's middle, so each process gets
        # consecutive rows.
        middles = ends - tokens[rows] / 2
        process = (middles * size / ends[-1:]).long().clamp(max=size - 1)
        return cls([rows[process == rank] for rank in range(size)])

    @property
    def own(self) -> Tensor:
        return self.of_process[Processes.here().rank] if len(self.of_process) > 1 else self.of_process[0]

    def micro_batches(self, split: Callable[[Tensor], list[Tensor]]) -> list[Tensor]:
        """Return this process's rows in micro-batches, as divided by `split`.

        If weights are split, all processes need the same number of micro-batches. Micro-batches of another process are
        then added, and `counted` gives them no weight.
        """
        own = split(self.own)
        if not Processes.here().split:
            return own
        longest = max(map(split, self.of_process), key=len)
        return own + longest[len(own) :]

    def has(self, micro: Tensor) -> bool:
        """Return whether a micro-batch consists of this process's rows. If not, another process counts it."""
        return len(self.of_process) == 1 or bool((self.own == micro[0]).any())

    def counted(self, loss: Tensor, micro: Tensor) -> Tensor:
        """Return the loss of a micro-batch, or 0 with a gradient of 0 if another process counts the micro-batch."""
        # 0 * loss keeps the graph: with split weights, every process must run the backward pass of every micro-batch.
        return loss if self.has(micro) else 0 * loss

    def exchange_(self, *tensors: Tensor) -> None:
        """Fill in the rows of other processes, in place.

        tensors: [N, ...] on the host, in which each process has computed its own rows.
        """
        if len(self.of_process) == 1:
            return
        import torch

        every = torch.cat(self.of_process)
        others = torch.cat([rows for rank, rows in enumerate(self.of_process) if rank != Processes.here().rank])
        for tensor in tensors:
            # Only one process computes each row, and the others add zeros, so the sum is exact.
            tensor[others] = 0
            part = tensor[every]
            Processes.here().sum_([part])
            tensor[every] = part


_MB = 1e6
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def reset_peak_memory(device: torch.device) -> None:
    """Reset the peak memory of this process.

    A worker may have run other cells before, and a process inherits the peak of its parent.
    """
    import torch

    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    # Only Linux has this file, and a container may forbid writing it. The peak is then that of the process's whole
    # life.
    with suppress(OSError):
        # proc_pid_clear_refs(5): 5 resets the peak resident set size.
        _CLEAR.write_text("5")


def peak_memory_mb(device: torch.device) -> float:
    """Return the peak memory since the last reset, in 10^6 bytes.

    On CUDA it is the peak of torch's allocator, otherwise that of resident memory.
    """
    import torch

    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / _MB
    if _STATUS.exists():
        kibibytes = _STATUS.read_text().partition("VmHWM:")[2].split(maxsplit=1)[0]
        return int(kibibytes) * 1024 / _MB
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # ru_maxrss is in bytes on macOS and in KiB on Linux.
    return peak * (1 if sys.platform == "darwin" else 1024) / _MB
