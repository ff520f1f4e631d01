"""Arguments and options that verbs share."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.console import note
from harness.errors import RefusedError, few, nearest

if TYPE_CHECKING:
    from algorithms import AnyObjective
    from harness.records import CellRecord, SweepRecord
    from reports.measure import Analysis
    from reports.report import Report

SWEEP_ARGUMENT = typer.Argument(
    help="A sweep file, the name of a shipped sweep (see `bench ls sweeps`), or the name or folder of one that was run."
)
SweepArgument = Annotated[str, SWEEP_ARGUMENT]
RunArgument = Annotated[str, typer.Argument(help="Name of a sweep that was run, its sweep file, or its folder.")]
HomeOption = Annotated[
    Path | None, typer.Option("--home", metavar="DIR", help="Where runs are kept; default $BENCH_HOME, else ./runs.")
]
# Every verb takes --home, so that scripts need not know which verbs look at runs.
UnusedHomeOption = Annotated[Path | None, typer.Option("--home", metavar="DIR", hidden=True)]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, everything else on stderr.")]
OpenOption = Annotated[bool, typer.Option("--open", help="Open the page in the browser once it is written.")]
ProfileOption = Annotated[
    str | None,
    typer.Option("--profile", metavar="P", help="Profile instead of the sweep's own: a shipped name or a file."),
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a knob in all arms; repeatable.")
]
SeedsOption = Annotated[
    int | None,
    typer.Option("--seeds", metavar="N", help="Number of seeds; if more than the sweep file has, new ones are added."),
]
EvalSamplesOption = Annotated[
    int | None,
    typer.Option(
        "--eval-samples",
        metavar="N",
        min=1,
        help="Samples per problem in the final evaluation (eval.samples). Trained cells are not trained again.",
    ),
]
ArmsOption = Annotated[str | None, typer.Option("--arms", metavar="A,B", help="Only these arms, separated by commas.")]

PluginOption = Annotated[
    list[str] | None,
    typer.Option("--plugin", metavar="MODULE", help="A plug-in module, in this folder or installed; repeatable."),
]


def _trust_code(yes: bool) -> bool:
    from harness.plugins import user_code

    user_code.trust_all(yes)
    return yes


TrustOption = Annotated[
    bool,
    typer.Option(
        "--trust-code",
        callback=_trust_code,
        help="Run code that comes with the records, though you have not run it before. Read it first.",
    ),
]

PREFIX = "objective."


def find_objective(name: str, settings: Sequence[str]) -> AnyObjective:
    """The preset, moved by `--set objective.<knob>=value`. Raises RefusedError for an unknown name, other keys and bad
    values."""
    from algorithms import active_knobs, preset, with_overrides
    from harness.plan.sweep_file import parse_settings

    objective = preset(name)
    parsed = parse_settings(settings)
    others = [key for key in parsed if not key.startswith(PREFIX)]
    if others:
        knob, value = next(iter(active_knobs(objective).items()))
        raise RefusedError(
            f"--set {others[0]}: only knobs of the objective can be set here, e.g. --set {PREFIX}{knob}={value}."
        )
    try:
        return with_overrides(objective, {key.removeprefix(PREFIX): value for key, value in parsed.items()})
    except ValueError as error:
        raise RefusedError("\n".join(f"--set: objective: {line}" for line in str(error).splitlines())) from None


def title(name: str, settings: Sequence[str]) -> str:
    """`grpo with rule.clip_high=0.28`."""
    changes = ", ".join(setting.strip().removeprefix(PREFIX) for setting in settings)
    return f"{name} with {changes}" if changes else name


def use_plugins(names: list[str] | None) -> None:
    """Let the modules of --plugin be plug-ins. Raises RefusedError for one that cannot be found or imported."""
    if names:
        from harness import plugins

        plugins.use(names, [], named_by="--plugin")


def use_recorded_plugins(runs: Iterable[Path], named: Sequence[str] = ()) -> None:
    """Let the trusted plug-ins that these sweeps ran with be in use for reading their records, besides those of
    --plugin, which the user names. See `harness.plugins.user_code`.

    A recorded plug-in that is not trusted, or not to be had as it was recorded, is left out. A note and the documents
    of the verb say so: what does not need it can still be read. Raises RefusedError for one of --plugin.
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
                plugins.use_found([*found, module], folders, for_records=True, named_by=f"plugins of {sweep.name}")
            except RefusedError as error:
                left_out[plugin.name] = f"what needs the plug-in {plugin.name} is left out: {error}"
            else:
                found.append(module)
    for name, sentence in left_out.items():
        if name not in {module.name for module in found}:
            note(f"warning: {sentence}")
            plugins.leave_out(sentence)


def sweeps_holding(paths: Iterable[Path]) -> list[Path]:
    """The folders of sweeps in which these lie: cells, or checkpoints of cells."""
    return [
        folder for path in paths for folder in list(path.resolve().parents)[:4] if (folder / "sweep.json").is_file()
    ]


def home_of(sweep: str, given: Path | None) -> Path:
    """Where the records of a sweep go: beside the folder of records that it is asked from, else as `home_folder`.

    RefusedError where --home names another place than that folder's, and for a folder that was renamed, beside which
    all cells would be trained anew.
    """
    from harness.records import read_sweep

    folder = Path(sweep).absolute()  # a link is not followed: its name and its place count
    if ".." in folder.parts:
        folder = folder.resolve()
    if not (folder / "sweep.json").is_file():
        return home_folder(given)
    home = folder.parent
    if given is not None and given.resolve() != home.resolve():
        raise RefusedError(
            f"{sweep} lies in {home}, and --home is {given}. Leave --home out, or copy the folder there."
        )
    name = read_sweep(folder).name
    if folder.name != name:
        raise RefusedError(f"{sweep}: holds the records of {name}, so its cells are not found here. Name it {name}.")
    return home


def question_in(home: Path, sweep: str, asks_anew: bool) -> str:
    """What a verb is to read the question from: the records of a sweep that was run, where only its name is given.

    asks_anew: whether options state the question too. Then a shipped sweep of that name is asked as they say.
    """
    from harness.plan.sweep_file import KEPT, SHIPPED, shipped
    from harness.records import read_sweep

    folder = home / sweep
    if Path(sweep).name != sweep or Path(sweep).suffix or (asks_anew and sweep in shipped(SHIPPED)):
        return sweep
    if not (folder / "sweep.json").is_file():
        return sweep
    record = read_sweep(folder)
    if (asked := record.asked) is None:
        return str(folder) if record.is_imported else sweep
    if not (folder / KEPT / asked.file).is_file():
        return sweep
    options = [word for setting in asked.settings for word in ("--set", setting)]
    options += ["--profile", asked.profile] if sweep in shipped(SHIPPED) else []
    options += ["--seeds", str(asked.seeds)] if asked.seeds is not None else []
    options += ["--arms", ",".join(asked.arms)] if asked.arms else []
    note(f"continuing {folder} with the options of its last run{': ' if options else ''}{shlex.join(options)}")
    return str(folder)


def home_folder(given: Path | None) -> Path:
    """Where runs are kept: --home, else $BENCH_HOME, else ./runs."""
    return given or Path(os.environ.get("BENCH_HOME") or "runs")


def arm_names(given: str | None) -> list[str]:
    """The arms of --arms; [] if it was not given, which means all."""
    if given is None:
        return []
    return words("--arms", given)


def words(option: str, given: str) -> list[str]:
    """The words between commas. Raises RefusedError if there are none."""
    found = [word.strip() for word in given.split(",") if word.strip()]
    if not found:
        raise RefusedError(f"{option} is {given!r}, but must be one or more names separated by commas.")
    return found


def whole_numbers(option: str, given: str) -> list[int]:
    """Positive integers between commas. Raises RefusedError for anything else."""
    found = words(option, given)
    if not all(word.isdecimal() and int(word) >= 1 for word in found):
        raise RefusedError(f"{option} is {given!r}, but must be positive integers separated by commas, e.g. 1,8.")
    return [int(word) for word in found]


def with_eval_samples(settings: list[str] | None, eval_samples: int | None) -> list[str]:
    """Those of --set, with that which --eval-samples stands for."""
    return [*(settings or []), *([] if eval_samples is None else [f"eval.samples={eval_samples}"])]


def command_line(
    verb: str,
    sweep: str,
    profile: str | None,
    settings: list[str] | None,
    seeds: int | None,
    arms: str | None = None,
) -> str:
    """The command that makes these records, for captions."""
    parts = ["bench", verb, sweep]
    parts += ["--profile", profile] if profile else []
    parts += [word for setting in settings or [] for word in ("--set", setting)]
    parts += ["--seeds", str(seeds)] if seeds is not None else []
    parts += ["--arms", arms] if arms else []
    return shlex.join(parts)


def numbers(option: str, given: str) -> list[int]:
    """Non-negative integers between commas. Raises RefusedError for anything else."""
    found = words(option, given)
    if not all(word.isdecimal() for word in found):
        raise RefusedError(f"{option} is {given!r}, but must be integers separated by commas, e.g. 0,3.")
    return [int(word) for word in found]


def run_folder(given: str, home: Path) -> Path:
    """The folder of a sweep that was run, by name, sweep file or path. Raises RefusedError if it was never run."""
    name = given
    if given.endswith((".yaml", ".yml")):
        from evals.yaml_file import load_yaml

        name = str(load_yaml(Path(given)).get("name"))  # alone: to read records, the file need not be valid any more
    from harness.records.fence import restore

    restore(home / name)
    folder = next((place for place in (home / name, Path(given)) if (place / "sweep.json").is_file()), None)
    if folder is None:
        ran = sorted(path.parent.name for path in home.glob("*/sweep.json"))
        known = f" Sweeps run there: {few(ran)}." if ran else " No sweep was run there yet."
        raise RefusedError(
            f"sweep {given!r}: no records in {home}{nearest(name, ran)}{known} Start it with `bench run`."
        )
    return folder


def read_arms(folder: Path, instead: str) -> SweepRecord:
    """The sweep of arms in a folder. RefusedError for a search, with what there is instead."""
    from harness.records import read_sweep

    record = read_sweep(folder)
    if record.is_search:
        raise RefusedError(f"{record.name} is a search, not a sweep of arms: {instead}.")
    return record


def finished_analysis(given: str, home: Path) -> Analysis:
    """What the finished cells of a sweep of arms show, with the plug-ins that it ran with. given: as in `run_folder`.

    Raises RefusedError if it was never run, for a search, if no cell is done, or if none has the metric compared.
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
            raise RefusedError(f"{error}.") from None

    analysis = reading_around_damage(record, read)
    warn_of_damage(analysis.sweep.cells)
    return analysis


def require_any_done(sweep: SweepRecord, so: str) -> None:
    """Raise RefusedError, which names the damaged cells, if no cell is done."""
    if any(cell.state == "done" for cell in sweep.cells):
        return
    damaged = [cell.reason or "" for cell in sweep.cells if cell.state == "damaged"]
    if damaged:
        raise RefusedError("\n".join([f"{sweep.name}: no cell is done and whole, so {so}.", *damaged]))
    raise RefusedError(f"{sweep.name}: no cell is done yet, so {so}. `bench run` continues it.")


def warn_of_damage(cells: Iterable[CellRecord]) -> None:
    """Warn of each damaged cell; the others are shown."""
    for cell in cells:
        if (status := cell.read_status())["state"] == "damaged":
            note(f"warning: {cell.arm}-s{cell.seed} is damaged and left out: {status['reason']}")


def finished_verdicts(given: str, home: Path) -> tuple[Analysis, Report]:
    """`finished_analysis`, and the sections of report.json that hold its verdicts, for showing them: a look."""
    from reports.page.document import verdict_document

    analysis = finished_analysis(given, home)
    document = verdict_document(analysis)
    record_look(analysis.sweep, document)
    return analysis, document


def record_look(sweep: SweepRecord, document: Report) -> None:
    """Record that the verdicts of report.json are shown, if the plan is complete. Records that cannot be written can
    still be read: a note says that this look is not counted."""
    declared = document.interactions or document.contrasts
    try:
        sweep.record_look({contrast.arm: contrast.verdict for contrast in declared})
    except OSError as error:
        note(
            f"warning: this look is not counted, since {sweep.path / 'sweep.json'} cannot be written "
            f"({error.strerror}); intervals of later looks will be too narrow."
        )
