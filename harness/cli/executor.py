"""Where cells run: the command-line options, and the executor that they select."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.errors import RefusedError
from harness.words import said

if TYPE_CHECKING:
    from harness.config.run_spec import RunSpec
    from harness.executors.base import Executor, ExecutorKind
    from harness.executors.slots import Slot

ExecutorOption = Annotated[
    str,
    typer.Option(
        "--executor",
        metavar="NAME",
        help=said("cli.help_executor"),
    ),
]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        "--workers",
        metavar="N",
        min=1,
        help=said("cli.help_workers"),
    ),
]
StalledAfterOption = Annotated[
    str,
    typer.Option(
        "--stalled-after",
        metavar="TIME",
        help=said("cli.help_stalled_after"),
    ),
]
STALLED_AFTER = "30m"
_SHORTEST_STALL_S = 10


@dataclass
class ChosenExecutor:
    given: str
    """The value of --executor: a name, optionally followed by a colon and an argument."""
    home: Path
    stalled_after: str = STALLED_AFTER

    @cached_property
    def kind(self) -> ExecutorKind:
        """The kind of the executor. Raises UnknownNameError."""
        from harness.executors.base import EXECUTORS

        # It is looked up on first use, because a plug-in of the sweep file may define it.
        return EXECUTORS.find(self.given.partition(":")[0])

    @cached_property
    def slots(self) -> Sequence[Slot]:
        """All slots of the executor. Raises RefusedError."""
        # They are listed on first use, because a cluster takes seconds to answer.
        return self.kind.slots(self.given.partition(":")[2])

    def on_gpu(self) -> bool:
        """Return whether a cell whose settings name no device runs on a GPU."""
        return any(slot.kind == "cuda" for slot in self.slots)

    def at_once(self, specs: Iterable[RunSpec]) -> int:
        """Return how many cells with these specs run at once if --workers is not given; at least 1."""
        from harness.executors.slots import fitting_slots, joined

        specs = list(specs)
        together = joined(self.slots, _processes_of(specs))
        # Having no suitable slot becomes an error only when the executor is opened, because all cells may be done.
        return max(1, len(fitting_slots(together, {spec.train.device for spec in specs})))

    def shortages(self, arms: Mapping[str, RunSpec], count: int) -> list[str]:
        """Return warnings about arms that may not fit into the memory of `count` slots."""
        from harness.executors.slots import choose_slots, fitting_slots, joined
        from harness.plan.memory import shortages

        devices, processes = {spec.train.device for spec in arms.values()}, _processes_of(arms.values())
        is_any = bool(fitting_slots(joined(self.slots, processes), devices))
        return shortages(arms, choose_slots(self.slots, devices, count, processes) if is_any else [])

    def opener(self, specs: Iterable[RunSpec]) -> Callable[[int], Executor]:
        """Return a function that opens the executor with slots for a given number of simultaneous jobs.

        specs: the specs of the jobs. Raises RefusedError if `stalled_after` is not a duration.
        """
        from harness.executors.base import StallGuard
        from harness.executors.slots import choose_slots

        specs = list(specs)
        devices = {spec.train.device for spec in specs}
        # The duration is parsed here instead of in `opened`, so that a mistake is reported before any work begins.
        limit_s = _seconds("--stalled-after", self.stalled_after, _SHORTEST_STALL_S)

        def opened(count: int) -> Executor:
            chosen = choose_slots(self.slots, devices, count, _processes_of(specs))
            return StallGuard(self.kind.make(chosen, self.home, "harness.run.worker"), limit_s)

        return opened


def _processes_of(specs: Iterable[RunSpec]) -> int:
    """Return the number of processes of the largest cell, which is the number of GPUs or cores that a slot needs."""
    return max((spec.train.processes for spec in specs), default=1)


def _seconds(option: str, given: str, shortest_s: int) -> int:
    """Return a duration such as `90s`, `30m` or `1h30m` in seconds.

    Raises RefusedError for anything else, and for a duration below the minimum.
    """
    found = re.fullmatch(r"(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,6})s)?", given)
    hours, minutes, rest = (int(part or 0) for part in found.groups()) if found else (0, 0, 0)
    total_s = 3600 * hours + 60 * minutes + rest
    if total_s < shortest_s:
        raise RefusedError("cli.not_a_duration", option=option, given=given, shortest_s=shortest_s)
    return total_s
