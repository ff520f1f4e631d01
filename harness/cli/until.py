"""`bench run NAME --until verdict`: look at more and more seeds, as planned, until every contrast is settled.

A look is an interim or final analysis, whose verdicts are shown.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from harness.errors import RefusedError, UnknownNameError, note
from harness.words import said

if TYPE_CHECKING:
    from harness.records import SweepRecord

ENDS = ("verdict",)
UNSETTLED = frozenset({"inconclusive", "no_test"})

UntilOption = Annotated[
    str | None,
    typer.Option(
        "--until",
        metavar="verdict",
        help=said("cli.help_until"),
    ),
]
MostSeedsOption = Annotated[
    int | None,
    typer.Option(
        "--most-seeds",
        metavar="N",
        min=3,
        max=10_000,
        help=said("cli.help_most_seeds"),
    ),
]


def require_one_plan_of_seeds(until: str | None, most_seeds: int | None, seeds: int | None) -> None:
    """Raise RefusedError if the options about the number of seeds contradict each other."""
    if until is None:
        if most_seeds is not None:
            raise RefusedError("cli.most_seeds_without_until", most_seeds=most_seeds)
        return
    if until not in ENDS:
        raise RefusedError("cli.unknown_end", error=UnknownNameError("end", until, ENDS))
    if seeds is not None:
        raise RefusedError("cli.seeds_with_until", seeds=seeds, until=until)


def command_until(command: str, until: str | None, most_seeds: int | None) -> str:
    """Return the command of a run, including the options of its design."""
    if until is not None:
        command += f" --until {until}"
    return command if most_seeds is None else f"{command} --most-seeds {most_seeds}"


def looks_to_take(record: SweepRecord, looks: Sequence[int]) -> list[int]:
    """Return the remaining looks of a design, as numbers of seeds.

    If the last look taken settled every contrast, or was the last one planned, it is repeated.
    """
    taken = {len(look.seeds): look.verdicts for look in record.looks if look.question == record.asks and look.planned}
    # A settled look is evaluated again, so that the run ends with its report.
    left = [n for n in looks if n not in taken or is_settled(taken[n].values())]
    return left or [looks[-1]]


def goes_on(record: SweepRecord) -> bool:
    """Judge this look, record it and print the result. Return whether another look is needed.

    If nothing could be measured, no further look is needed: the report gives the reason.
    """
    from harness.records.sweep import reading_around_damage
    from reports.measure.interactions import declared_contrasts
    from reports.measure.measurements import MetricError, read_measurements

    design = record.design
    if design is None or not any(cell.state == "done" for cell in record.cells):
        return False
    try:
        record, contrasts = reading_around_damage(
            record, lambda sweep: (sweep, declared_contrasts(sweep, read_measurements(sweep)))
        )
    except MetricError:
        return False
    looks, seeds = design.looks, len(record.seeds)
    verdicts = {contrast.arm: contrast.verdict for contrast in contrasts}
    # The look is recorded before it is shown, because every look that was shown must be in the records.
    record.record_look(verdicts)
    note(_sentence(looks, seeds, verdicts))
    return seeds < looks[-1] and not is_settled(verdicts.values())


def is_settled(verdicts: Collection[str]) -> bool:
    return not UNSETTLED & {*verdicts}


def _sentence(looks: Sequence[int], seeds: int, verdicts: Mapping[str, str]) -> str:
    """Return a sentence on this look, with its number, its seeds and its verdicts."""
    left = looks[-1] - seeds
    rest = f"{left} more are not needed" if is_settled(verdicts.values()) else f"at most {left} more"
    found = ", ".join(f"{arm} {verdict.replace('_', ' ')}" for arm, verdict in verdicts.items())
    return f"look {looks.index(seeds) + 1} of {len(looks)}, {seeds} seeds{f' ({rest})' if left else ''}: {found}"
