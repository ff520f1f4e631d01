"""The runs in a home: their folders, the plug-ins they used, and the results of their finished cells."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import RefusedError, few, nearest, note

if TYPE_CHECKING:
    from harness.records import CellRecord, SweepRecord
    from reports.measure import Analysis
    from reports.report import Report


def home_folder(given: Path | None) -> Path:
    """Return the folder that contains all runs: --home, else $BENCH_HOME, else ./runs."""
    return given or Path(os.environ.get("BENCH_HOME") or "runs")


def home_of(sweep: str, given: Path | None) -> Path:
    """Return the home of a sweep: the parent folder if `sweep` is a folder of records, else `home_folder`.

    Raises RefusedError if --home names a folder other than the parent. Raises RefusedError if the folder was renamed,
    because all cells would be trained again next to it.
    """
    from harness.records import read_sweep

    # absolute() is used instead of resolve(), because a link's own name and folder count.
    folder = Path(sweep).absolute()
    if ".." in folder.parts:
        folder = folder.resolve()
    if not (folder / "sweep.json").is_file():
        return home_folder(given)
    home = folder.parent
    if given is not None and given.resolve() != home.resolve():
        raise RefusedError("bench.sweep_outside_home", folder=sweep, home=home, given=given)
    name = read_sweep(folder).name
    if folder.name != name:
        raise RefusedError("bench.folder_name_differs", folder=sweep, sweep_name=name)
    return home


def run_folder(given: str, home: Path) -> Path:
    """Return the folder of a sweep, given its name, sweep file or path.

    Raises RefusedError if the sweep was never run.
    """
    name = given
    if given.endswith((".yaml", ".yml")):
        from evals.yaml_file import load_yaml

        # Only the name is read, so that records stay readable if the sweep file is no longer valid.
        name = str(load_yaml(Path(given)).get("name"))
    from harness.records.fence import restore

    restore(home / name)
    folder = next((place for place in (home / name, Path(given)) if (place / "sweep.json").is_file()), None)
    if folder is None:
        ran = sorted(path.parent.name for path in home.glob("*/sweep.json"))
        known = f" Sweeps run there: {few(ran)}." if ran else " No sweep was run there yet."
        raise RefusedError("bench.no_records_of_sweep", given=given, home=home, nearest=nearest(name, ran), known=known)
    return folder


def sweeps_holding(paths: Iterable[Path]) -> list[Path]:
    """Return the sweep folders that contain these cells or checkpoints."""
    return [
        folder for path in paths for folder in list(path.resolve().parents)[:4] if (folder / "sweep.json").is_file()
    ]


def use_recorded_plugins(runs: Iterable[Path], named: Sequence[str] = ()) -> None:
    """Load the trusted plug-ins that these sweeps used, to read their records.

    Plug-ins that the user names with --plugin are loaded too. A recorded plug-in is left out if it is not trusted, or
    not available as recorded (see `harness.plugins.user_code`). A note and the verb's output say so, and everything
    that does not need it can still be read. Raises RefusedError for a faulty plug-in of --plugin.
    """
    from harness import plugins
    from harness.plan.sweep_file import KEPT, KEPT_CODE
    from harness.records import read_sweep

    sweeps = {run: read_sweep(run) for run in dict.fromkeys(runs)}
    asked = [Path(sweep.asked.folder) for sweep in sweeps.values() if sweep.asked is not None]
    folders = [*asked, Path.cwd(), *(run / KEPT / KEPT_CODE for run in sweeps)]
    found = [plugins.find_user_module(name, [Path.cwd()], "--plugin") for name in dict.fromkeys(named)]
    plugins.use_found(found, folders, for_records=bool(sweeps), named_by="--plugin")
    left_out = {}
    for run, sweep in sweeps.items():
        for plugin in sweep.plugins:
            if plugin.name in {module.name for module in found}:
                continue
            try:
                module = plugins.find_recorded(plugin.name, plugin.digest, run / KEPT / KEPT_CODE)
                # The plug-ins are loaded one at a time, so that a faulty one leaves out only itself.
                plugins.use_found([*found, module], folders, for_records=True, named_by=f"plugins of {sweep.name}")
            except RefusedError as error:
                left_out[plugin.name] = f"what needs the plug-in {plugin.name} is left out: {error}"
            else:
                found.append(module)
    for name, sentence in left_out.items():
        # Another sweep may have supplied a usable copy of a plug-in that was left out before.
        if name not in {module.name for module in found}:
            note(f"warning: {sentence}")
            plugins.leave_out(sentence)


def read_arms(folder: Path, instead: str) -> SweepRecord:
    """Return the sweep in a folder, which must have arms.

    instead: what a search offers in place of arms; the error names it. Raises RefusedError for a search.
    """
    from harness.records import read_sweep

    record = read_sweep(folder)
    if record.is_search:
        raise RefusedError("bench.search_without_arms", search=record.name, instead=instead)
    return record


def finished_analysis(given: str, home: Path) -> Analysis:
    """Return the analysis of the finished cells of a sweep with arms, using the sweep's plug-ins.

    given: a name, sweep file or path, as in `run_folder`. Raises RefusedError if it was never run, if it is a search,
    if no cell is done, or if no cell has the compared metric.
    """
    from harness.records.sweep import reading_around_damage
    from reports.measure import analyse
    from reports.measure.measurements import MetricError
    from reports.processes import process_count

    folder = run_folder(given, home)
    use_recorded_plugins([folder])
    record = read_arms(folder, "its best setting is judged by the sweep that confirms it")

    def read(sweep: SweepRecord) -> Analysis:
        require_any_done(sweep, "nothing is known")
        try:
            return analyse(sweep, processes=process_count(len(sweep.cells)))
        except MetricError as error:
            raise RefusedError("bench.in_metric", error=error) from None

    analysis = reading_around_damage(record, read)
    warn_of_damage(analysis.sweep.cells)
    return analysis


def require_any_done(sweep: SweepRecord, so: str) -> None:
    """Raise RefusedError if no cell is done. The message lists the damaged cells."""
    if any(cell.state == "done" for cell in sweep.cells):
        return
    damaged = [cell.reason or "" for cell in sweep.cells if cell.state == "damaged"]
    if damaged:
        more = "".join(f"\n{line}" for line in damaged)
        raise RefusedError("bench.no_whole_cell_done", sweep=sweep.name, consequence=so, more=more)
    raise RefusedError("bench.no_cell_done", sweep=sweep.name, consequence=so)


def warn_of_damage(cells: Iterable[CellRecord]) -> None:
    for cell in cells:
        if (status := cell.read_status())["state"] == "damaged":
            note(f"warning: {cell.arm}-s{cell.seed} is damaged and left out: {status['reason']}")


def finished_verdicts(given: str, home: Path) -> tuple[Analysis, Report]:
    """Return `finished_analysis` and the sections of report.json that contain its verdicts.

    The verdicts are about to be shown, so this counts as a look.
    """
    from reports.page.document import verdict_document

    analysis = finished_analysis(given, home)
    document = verdict_document(analysis)
    record_look(analysis.sweep, document)
    return analysis, document


def record_look(sweep: SweepRecord, document: Report) -> None:
    """Record that the verdicts of report.json are shown, if the plan is complete.

    If sweep.json cannot be written, a note says that this look is not counted.
    """
    declared = document.interactions or document.contrasts
    try:
        sweep.record_look({contrast.arm: contrast.verdict for contrast in declared})
    except OSError as error:
        note(
            f"warning: this look is not counted, since {sweep.path / 'sweep.json'} cannot be written "
            f"({error.strerror}); intervals of later looks will be too narrow."
        )
