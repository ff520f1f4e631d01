"""`bench clean`: lists and deletes files in a home that no sweep refers to any more."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.console import print_json, print_table, print_text
from harness.cli.options import HomeOption, JsonOption, TrustOption
from harness.errors import BenchError, few, note
from harness.runs import home_folder, use_recorded_plugins
from harness.words import said

if TYPE_CHECKING:
    from harness.records import CellRecord, SweepRecord

DELETED = ".deleted"
YOUNG_S = 600.0
"""Younger files may belong to a run that has not yet recorded what it refers to."""


def clean(
    yes: Annotated[bool, typer.Option("--yes", help=said("cli.help_clean_yes"))] = False,
    trust_code: TrustOption = False,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """List files that no sweep refers to, with sizes; delete them with --yes.

    These are cells and evaluations of earlier forms of a question, and cached results that no cell of any sweep reads.
    If you return to an earlier form, its cells are trained again. Searches, results of `bench eval` and MLflow are left
    alone, and so are files that a process is using or that were written in the last ten minutes.

    Example: bench clean

    Example: bench clean --yes
    """
    folder = home_folder(home)
    inside = folder.resolve()
    # A link may lead out of the home; nothing outside of it is listed or deleted.
    found = [one for one in _leftovers(folder) if one.path.parent.resolve().is_relative_to(inside)]
    deleted = [one for one in found if _delete(one)] if yes else []
    total = sum(one.n_bytes for one in found)
    if json:
        rows = [
            {"path": str(one.path), "what": one.what, "bytes": one.n_bytes, "deleted": one in deleted} for one in found
        ]
        print_json({"home": str(folder), "bytes": total, "leftovers": rows})
        return
    if not found:
        print_text(f"{folder}: everything is referred to by a sweep, in use, or younger than ten minutes")
        return
    print_table(
        "",
        ["path", "what", "size"],
        [[str(one.path.relative_to(folder)), one.what, _in_words(one.n_bytes)] for one in found],
    )
    if yes:
        freed = sum(one.n_bytes for one in deleted)
        print_text(f"deleted {len(deleted)} of {len(found)}: {_in_words(freed)} freed")
    else:
        print_text(f"{len(found)} in all: {_in_words(total)}. `bench clean --yes` deletes them.")


@dataclass(frozen=True)
class Leftover:
    """A file or folder that no sweep refers to."""

    path: Path
    what: str
    """A description."""
    n_bytes: int
    cell: CellRecord | None = None
    """The cell that it is, or belongs to, and whose lease protects it; None for results in the cache."""


def _leftovers(home: Path) -> Iterator[Leftover]:
    """Yield what no sweep refers to, in the order of sweeps, and the cache last."""
    from harness.records import read_sweep

    for path in sorted(home.glob(f"*/.*{DELETED}")) + sorted(home.glob(f"*/cells/.*{DELETED}")):
        yield Leftover(path, "left by an interrupted `bench clean`", _n_bytes(path))
    sweeps: list[SweepRecord] = []
    is_known = True
    for path in sorted(home.glob("*/sweep.json")):
        try:
            sweeps.append(read_sweep(path.parent))
        except BenchError as error:
            note(f"warning: {path.parent.name} and the cache are left as they are: {error}")
            is_known = False
    # A running sweep may read any result and start any cell next, so nothing of it is touched.
    running = [sweep for sweep in sweeps if _is_running(sweep)]
    if running:
        note(f"warning: {few([sweep.name for sweep in running])} and the cache are left as they are: cells are running")
    # A sweep over a checkpoint refers to the cell that holds it.
    evaluated = [Path(sweep.checkpoint).resolve() for sweep in sweeps if sweep.checkpoint is not None]
    leftovers = [
        one
        for sweep in sweeps
        if not sweep.is_search and sweep not in running
        for one in _leftover_cells(sweep)
        if not any(one.path.resolve() in (checkpoint, *checkpoint.parents) for checkpoint in evaluated)
    ]
    yield from leftovers
    # Which results are needed is known only if every sweep can be read.
    if is_known and not running:
        going = {one.path for one in leftovers}
        made_here = [sweep for sweep in sweeps if not sweep.is_imported]
        kept = [cell for sweep in made_here for cell in [*sweep.cells, *sweep.other_cells] if cell.path not in going]
        use_recorded_plugins(sweep.path for sweep in sweeps)
        yield from _leftover_results(home, kept)


def _is_running(sweep: SweepRecord) -> bool:
    """Return whether a process holds one of the cells; it may start any other one next."""
    from harness.records.lease import is_leased

    return any(is_leased(cell.path) for cell in [*sweep.cells, *sweep.other_cells])


def _leftover_cells(sweep: SweepRecord) -> Iterator[Leftover]:
    """Yield the cells, and the evaluations of cells, that a sweep no longer asks for."""
    for cell in sweep.other_cells:
        if not _is_young(cell.path):
            yield Leftover(cell.path, f"a cell that {sweep.name} no longer asks for", _n_bytes(cell.path), cell)
    by_folder: dict[Path, list[CellRecord]] = {}
    for cell in sweep.cells:
        by_folder.setdefault(cell.path, []).append(cell)
    for folder, cells in by_folder.items():
        wanted = {cell.evaluation for cell in cells}
        for path in sorted((folder / "evaluations").glob("*")):
            if path.name not in wanted and not _is_young(path):
                yield Leftover(path, f"an evaluation that {sweep.name} no longer asks for", _n_bytes(path), cells[0])


def _leftover_results(home: Path, cells: Sequence[CellRecord]) -> Iterator[Leftover]:
    """Yield the results of stages in the cache that no cell reads.

    Yields nothing if that is unknown for one of the cells.
    """
    from harness.run.stages import STAGES

    results = [path for path in sorted((home / "cache").glob("*")) if _is_result(path.name, STAGES.names())]
    if not results:
        return
    try:
        wanted = {name for cell in cells for evaluated in {cell, cell.own} for name in _results_of(evaluated)}
    except BenchError as error:
        note(f"warning: the cache is left as it is, since it is unknown what the cells read from it: {error}")
        return
    for path in results:
        if _key(path.name) not in wanted and not _is_young(path):
            yield Leftover(path, "a shared result that no cell reads", _n_bytes(path))


def _results_of(cell: CellRecord) -> Iterator[str]:
    """Yield the names, without endings, of what a cell and its report read from the cache.

    Raises BenchError if that is unknown.
    """
    from harness.config.run_spec import recorded_spec
    from harness.run.stages import STAGES

    if (cell.evaluation_folder / "spec.json").is_file():
        spec = recorded_spec(cell)
        yield from (_key(stage.key(spec)) for stage in STAGES.all().values() if stage.needed(spec))


def _is_result(file: str, stages: Iterable[str]) -> bool:
    """Return whether a file of the cache is the result of a stage, finished or not; the cache holds other files too."""
    return any(file.startswith(f"{name.replace('_', '-')}-") for name in stages)


def _key(file: str) -> str:
    """Return a file's name without its endings."""
    return file.partition(".")[0]


def _is_young(path: Path) -> bool:
    """Return whether a path, or a file in it, was written in the last `YOUNG_S`."""
    # A file that vanishes meanwhile shows that a process works here: that counts as young.
    now_s = time.time()
    with contextlib.suppress(FileNotFoundError):
        return any(now_s - one.stat().st_mtime < YOUNG_S for one in [path, *path.rglob("*")])
    return True


def _n_bytes(path: Path) -> int:
    """Return the size of a file, or of all files in a folder; 0 if it vanishes meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        return sum(one.lstat().st_size for one in [path, *path.rglob("*")] if not one.is_dir())
    return 0


def _delete(leftover: Leftover) -> bool:
    """Delete a leftover; return False if another process has taken the cell meanwhile."""
    from harness.records.lease import LeaseTakenError, hold_lease

    path = leftover.path
    aside = path.with_name(f".{path.name}{DELETED}")
    try:
        # The rename comes first, so that nobody finds a half-deleted folder.
        with hold_lease(leftover.cell.path) if leftover.cell is not None else contextlib.nullcontext():
            path.rename(aside)
    except (LeaseTakenError, FileNotFoundError):
        return False
    if aside.is_dir() and not aside.is_symlink():
        shutil.rmtree(aside)
    else:
        aside.unlink()
    return True


def _in_words(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.1f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:.1f} MB"
