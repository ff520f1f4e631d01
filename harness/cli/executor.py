"""Where cells run: the options that say so, and the executor that they choose."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.errors import RefusedError

if TYPE_CHECKING:
    from harness.config.run_spec import RunSpec
    from harness.executors.base import Executor, ExecutorKind
    from harness.executors.slots import Slot

ExecutorOption = Annotated[
    str,
    typer.Option(
        "--executor",
        metavar="NAME",
        help="Where cells run (`bench ls executors`): local; ray, the Ray cluster that this machine is part of; "
        "ray:HOST:PORT, another one.",
    ),
]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        "--workers",
        metavar="N",
        min=1,
        help="Cells, or trials, at once; default: one on each GPU, or on each CPU core. More than there are GPUs share "
        "them.",
    ),
]
StalledAfterOption = Annotated[
    str,
    typer.Option(
        "--stalled-after",
        metavar="TIME",
        help="End a job that makes no progress for so long, e.g. 90s or 2h, and start it once more; then it is failed.",
    ),
]
STALLED_AFTER = "30m"
_SHORTEST_STALL_S = 10


@dataclass
class ChosenExecutor:
    """What --executor names. It is looked up when it is first needed, for a plug-in of the sweep file may give it, and
    asked for its slots when something depends on them, for a cluster takes its time."""

    given: str
    home: Path
    stalled_after: str = STALLED_AFTER

    @cached_property
    def kind(self) -> ExecutorKind:
        """Raises UnknownNameError."""
        from harness.executors.base import EXECUTORS

        return EXECUTORS.find(self.given.partition(":")[0])

    @cached_property
    def slots(self) -> Sequence[Slot]:
        """Raises RefusedError."""
        return self.kind.slots(self.given.partition(":")[2])

    def on_gpu(self) -> bool:
        """Whether a cell that leaves its device open runs on a GPU."""
        return any(slot.kind == "cuda" for slot in self.slots)

    def at_once(self, specs: Iterable[RunSpec]) -> int:
        """How many cells of these specs run at once where --workers is not given. That there is no slot for any is said
        when one is to be opened: all cells may be done."""
        from harness.executors.slots import fitting_slots, joined

        specs = list(specs)
        together = joined(self.slots, _processes_of(specs))
        return max(1, len(fitting_slots(together, {spec.train.device for spec in specs})))

    def shortages(self, arms: Mapping[str, RunSpec], count: int) -> list[str]:
        """What to say of arms that may not fit into the memory of so many slots."""
        from harness.executors.slots import choose_slots, fitting_slots, joined
        from harness.plan.memory import shortages

        devices, processes = {spec.train.device for spec in arms.values()}, _processes_of(arms.values())
        is_any = bool(fitting_slots(joined(self.slots, processes), devices))
        return shortages(arms, choose_slots(self.slots, devices, count, processes) if is_any else [])

    def opener(self, specs: Iterable[RunSpec]) -> Callable[[int], Executor]:
        """Opens it with slots for so many jobs of these specs at once. RefusedError for a `stalled_after` that is no
        time."""
        from harness.executors.base import StallGuard
        from harness.executors.slots import choose_slots

        specs = list(specs)
        devices = {spec.train.device for spec in specs}
        limit_s = _seconds("--stalled-after", self.stalled_after, _SHORTEST_STALL_S)

        def opened(count: int) -> Executor:
            chosen = choose_slots(self.slots, devices, count, _processes_of(specs))
            return StallGuard(self.kind.make(chosen, self.home, "harness.run.worker"), limit_s)

        return opened


def _processes_of(specs: Iterable[RunSpec]) -> int:
    """A slot has as many GPUs, or cores, as the largest of the cells has processes."""
    return max((spec.train.processes for spec in specs), default=1)


def _seconds(option: str, given: str, shortest_s: int) -> int:
    """How long `90s`, `30m` or `1h30m` is. Raises RefusedError for anything else, and for less than the shortest."""
    found = re.fullmatch(r"(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,6})s)?", given)
    hours, minutes, rest = (int(part or 0) for part in found.groups()) if found else (0, 0, 0)
    total_s = 3600 * hours + 60 * minutes + rest
    if total_s < shortest_s:
        raise RefusedError(
            f"{option} is {given!r}, but must be a time of at least {shortest_s} s: 90s, 30m, 2h or 1h30m."
        )
    return total_s
