"""`bench compare`: any two arms or runs, whether or not one sweep contains both."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from harness.cli.console import print_json, print_table, print_text
from harness.cli.options import HomeOption, JsonOption, TrustOption, knob_text
from harness.cli.verb import Reader, added
from harness.errors import RefusedError, few, nearest, note
from harness.runs import home_folder, run_folder, use_recorded_plugins, warn_of_damage
from harness.words import said

if TYPE_CHECKING:
    from harness.config.run_spec import RunSpec
    from harness.records import CellRecord, SweepRecord
    from harness.records.files import DamagedRecordError, ProblemRow
    from harness.records.scores import Matching
    from reports.measure.measurements import TaskMetric
    from reports.page.comparison import Group
    from reports.report import ContrastRow

Read = TypeVar("Read")
# A seed fixes the order of prompts and the noise of samples, but if one of these knobs differs, samples differ too.
_MEANING_OF_A_SEED = ("model.source", "model.cold_start", "task.train", "task.template")
# These knobs of the evaluation do not change final scores.
_NOT_OF_FINAL_SCORES = ("eval.every", "eval.curve_samples", "eval.k", "eval.tasks")


@dataclass(frozen=True)
class Runs:
    """The cells that a name on the command line refers to, and their sweep."""

    label: str
    """The name as given on the command line, or the cell's folder."""
    sweep: SweepRecord
    cells: list[CellRecord]

    def setting_aside(self, error: DamagedRecordError) -> Runs:
        """Return the same runs; if the error names one of their cells, that cell is `damaged`."""
        cells = [replace(cell, fault=str(error)) if cell.is_named_in(error) else cell for cell in self.cells]
        return replace(self, cells=cells)


def compare(
    treatment: Annotated[
        str,
        typer.Argument(help=said("cli.help_compare_treatment")),
    ],
    baseline: Annotated[str, typer.Argument(help=said("cli.help_compare_baseline"))],
    metric: Annotated[
        str | None,
        typer.Option("--metric", metavar="M", help=said("cli.help_compare_metric")),
    ] = None,
    margin_pp: Annotated[
        float | None,
        typer.Option("--margin-pp", metavar="PP", min=0, help=said("cli.help_compare_margin_pp")),
    ] = None,
    alpha: Annotated[float, typer.Option("--alpha", metavar="A", help=said("cli.help_compare_alpha"))] = 0.05,
    trust_code: TrustOption = False,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Compare any two arms or runs, paired by seed where possible.

    Runs are paired by seed if the same seed fixes the same randomness in both; otherwise the comparison is unpaired and
    says why. Results from other tools are read the way `bench import` reads them. If they name no seeds, they are
    paired by problem.

    Example: bench compare std_norm/no_std clip_high/symmetric

    Example: bench compare tuned.eval base.eval
    """
    if not 0 < alpha < 1:
        raise RefusedError("cli.alpha_out_of_range", alpha=alpha)
    if margin_pp is not None and not math.isfinite(margin_pp):
        raise RefusedError("cli.margin_not_finite", margin_pp=margin_pp)
    folder = home_folder(home)
    # Records made from another tool's results live only as long as the comparison.
    with TemporaryDirectory() as aside:
        sides = [
            _runs(given, folder, Path(aside) / name, metric)
            for name, given in {"treatment": treatment, "baseline": baseline}.items()
        ]
        _compare(sides, metric, margin_pp, alpha, json)


def _compare(sides: list[Runs], metric: str | None, margin_pp: float | None, alpha: float, json: bool) -> None:
    """Compare two sides by the metric, and print the row, the verdict and what differs."""
    from harness.cli.report import print_judgement
    from harness.plan.gate import ABSENT
    from reports.measure.measurements import MetricError, TaskMetric
    from reports.page.comparison import Group, compare_groups
    from reports.page.headline import answer
    from reports.page.verdict import verdict_details, verdict_sentence

    use_recorded_plugins(side.sweep.path for side in sides)
    wanted = metric or sides[0].sweep.metric

    def compared(sides: list[Runs]) -> tuple[list[Group], ContrastRow, dict[str, tuple[object, object]]]:
        """Return the two groups, the row that compares them, and the knobs that differ."""
        differs = _knobs_that_differ(*sides)
        metrics = [TaskMetric.parse(wanted, side.sweep) for side in sides]
        _require_same_task(sides, [parsed.task for parsed in metrics])
        # Over one checkpoint the evaluation itself may be the question, so its knobs may differ.
        if not _evaluate_one_checkpoint(sides):
            _require_same_evaluation(differs, metrics[0].task)
        matching, names = _matched_problems(sides, metrics)
        groups = [
            Group(side.label, side.cells, parsed, own) for side, parsed, own in zip(sides, metrics, names, strict=True)
        ]
        for side, group in zip(sides, groups, strict=True):
            for measurement in group.measurements:
                measurement.cell.require_whole()
            _require_measured(side, group, wanted)
        row = compare_groups(
            *groups,
            metric=wanted,
            alpha=alpha,
            margin_pp=margin_pp if margin_pp is not None else sides[0].sweep.margin_pp,
            unlike=_unlike_seeds(sides, differs),
            matching=matching,
        )
        return groups, row, differs

    try:
        sides, (groups, row, differs) = _reading_around_damage(sides, compared)
    except MetricError as error:
        raise RefusedError(str(error)) from None
    for side in sides:
        warn_of_damage(side.cells)
    if json:
        knobs = [{"knob": knob, "treatment": pair[0], "baseline": pair[1]} for knob, pair in differs.items()]
        print_json(row.as_json() | {"differs": knobs})
        return
    if differs:
        labels = ["knob", *(side.label for side in sides)]
        print_table("", labels, [[knob, knob_text(one), knob_text(other)] for knob, (one, other) in differs.items()])
    # A knob that exists on one side only follows from another knob, which is counted.
    decided = [knob for knob, pair in differs.items() if ABSENT not in pair]
    if len(decided) > 1:
        note(f"warning: {len(decided)} knobs differ, so the difference cannot be put down to one of them")
    print_text(answer([row]))
    print_judgement(row.verdict, verdict_sentence(row))
    for group in groups:
        for m in group.scored:
            if m.cell.flags:
                seed, flags = m.cell.seed, ", ".join(m.cell.flags)
                print_text(f"flagged: {group.label} seed {seed}: {flags}, scored at step {m.cell.step}")
    if not row.paired:
        print_text(f"unpaired: {row.why_unpaired}")
    for detail in verdict_details(row):
        print_text(f"note: {detail}")


def _reading_around_damage(sides: list[Runs], read: Callable[[list[Runs]], Read]) -> tuple[list[Runs], Read]:
    """Read the sides, leaving out cells that prove damaged; return the sides and the result.

    Raises DamagedRecordError if anything else is damaged, or no cell of a side is left.
    """
    from harness.records.files import DamagedRecordError

    while True:
        try:
            return sides, read(sides)
        except DamagedRecordError as error:
            whole = [side.setting_aside(error) for side in sides]
            # Without a change the next round would find the same fault.
            if whole == sides or any(all(cell.fault for cell in side.cells) for side in whole):
                raise
            sides = whole


def _runs(given: str, home: Path, aside: Path, metric: str | None) -> Runs:
    """Return the runs that a name refers to: a cell's folder, SWEEP/ARM, or results of another tool.

    aside: where the records of results of another tool are written. metric: as given by --metric.
    """
    from harness.records import read_sweep
    from harness.records.cell import is_cell_directory_name

    if _is_foreign(given):
        return _imported(given, aside, metric)
    path = Path(given).resolve()
    if (path / "status.json").is_file():
        if not is_cell_directory_name(path.name):
            raise RefusedError("cli.not_a_cell_folder", given=given)
        folder = path.parents[1]
        if not (folder / "sweep.json").is_file():
            raise RefusedError("cli.cell_without_sweep", given=given, path=folder / "sweep.json")
        sweep = read_sweep(folder)
        # Read as the question reads it, which may be under another evaluation than the cell's own.
        return Runs(path.name, sweep, [sweep.cell_at(path)])
    name, slash, arm = given.rpartition("/")
    sweep = read_sweep(run_folder(name if slash else given, home))
    if not slash or arm not in sweep.arms:
        hint = nearest(arm, sweep.arms) if slash else "."
        raise RefusedError("cli.no_arm_named", given=given, nearest=hint, sweep=sweep.name, arms=few(sweep.arms))
    return Runs(given, sweep, [cell for cell in sweep.cells if cell.arm == arm])


def _is_foreign(given: str) -> bool:
    """Return whether it names results of another tool: a file, an address, a pattern, or a folder that is not ours."""
    path = Path(given)
    ours = any((place / name).is_file() for place in (path, path.parent) for name in ("status.json", "sweep.json"))
    return "{" in given or "#" in given or path.is_file() or (path.is_dir() and not ours)


def _imported(given: str, aside: Path, metric: str | None) -> Runs:
    """Return the runs in results of another tool. Raises RefusedError if they have several arms."""
    reader = next(added(Reader), None)
    if reader is None:
        raise RefusedError("cli.not_a_run", given=given)
    sweep = reader.read(given, aside, metric)
    if len(sweep.arms) > 1:
        raise RefusedError("cli.several_arms_imported", given=given, arms=few(sweep.arms))
    return Runs(given, sweep, sweep.cells)


def _require_same_task(sides: list[Runs], tasks: list[str]) -> None:
    """Raise RefusedError if the two sides were measured on different tasks or different rows."""
    treatment, baseline = sides
    # A metric without a task in its name means the first task of each side.
    task, other = tasks
    if task != other:
        shared = [name for name in treatment.sweep.tasks if name in baseline.sweep.tasks]
        remedy = f"Name one with --metric eval.final.TASK.NAME; both were on {', '.join(shared)}"
        raise RefusedError(
            "cli.tasks_differ",
            treatment=treatment.label,
            treatment_task=task,
            baseline=baseline.label,
            baseline_task=other,
            remedy=remedy if shared else "No task is in both",
        )
    # Tasks of a user's own can share a name, so their data is compared too.
    one, another = ({row.digest for row in side.sweep.data_of(task)} for side in sides)
    if one and another and not one & another:
        origins = [", ".join(row.origin for row in side.sweep.data_of(task)) for side in sides]
        raise RefusedError(
            "cli.task_rows_differ",
            task=task,
            treatment=treatment.label,
            treatment_origin=origins[0],
            baseline=baseline.label,
            baseline_origin=origins[1],
        )


def _matched_problems(
    sides: list[Runs], metrics: list[TaskMetric]
) -> tuple[Matching | None, list[dict[str, str] | None]]:
    """Match the problems of two sides if another tool named those of one.

    Returns the matching, and for each side its ids of matched problems mapped to the ids that both share. Ids of our
    own tasks need no matching, unless a task's problems changed.
    """
    from harness.records.scores import match_problems

    task = metrics[0].task
    if not any(side.sweep.is_imported for side in sides):
        _require_same_answers(sides, task)
        return None, [None, None]
    known = {side.label: _contents(side, metric) for side, metric in zip(sides, metrics, strict=True)}
    if not all(known.values()):
        return None, [None, None]  # a side has scores, but no samples
    matching, names = match_problems(task, known)
    for label, other in itertools.permutations(known):
        if matching.by == "id" and (lacks := known[other].keys() - known[label].keys()):
            raise RefusedError("cli.problem_not_sampled", label=label, problem=min(lacks), n_problems=len(lacks))
    return matching, [names[side.label] for side in sides]


def _contents(side: Runs, metric: TaskMetric) -> dict[str, str | None]:
    """Map the ids of the problems with final samples to the digest of their content.

    It is None for our own runs, whose prompts hold the template too.
    """
    from reports.measure.measurements import Measurement

    found: dict[str, str | None] = {}
    for cell in side.cells:
        samples = Measurement(cell, metric).final_samples
        contents = {row["problem_id"]: row.get("content") for row in _problems(cell, metric.task)}
        found |= {name: contents.get(name) for name in (() if samples is None else samples.problems)}
    return found


def _problems(cell: CellRecord, task: str) -> list[ProblemRow]:
    """Return the problems of a task that a cell was evaluated on."""
    return [row for row in cell.read_problems() if (row["task"], row["split"]) == (task, "test")]


def _require_same_answers(sides: list[Runs], task: str) -> None:
    """Raise RefusedError if one problem has different reference answers on the two sides."""
    # The prompts of one problem differ with the template; its reference answer does not.
    one, other = (
        {row["problem_id"]: row["answer"] for cell in side.cells for row in _problems(cell, task)} for side in sides
    )
    differ = [problem for problem, answer in one.items() if other.get(problem, answer) != answer]
    if differ:
        raise RefusedError(
            "cli.answers_differ",
            task=task,
            problem=differ[0],
            treatment_answer=knob_text(one[differ[0]]),
            treatment=sides[0].label,
            baseline_answer=knob_text(other[differ[0]]),
            baseline=sides[1].label,
            n_problems=len(differ),
        )


def _require_measured(side: Runs, group: Group, metric: str) -> None:
    """Raise RefusedError if a side has no finished cell, or none with the metric."""
    done = group.measurements
    if not done:
        states = ", ".join(sorted({cell.state for cell in group.cells}))
        damaged = [cell.reason or "" for cell in group.cells if cell.state == "damaged"]
        remedy = [] if len(damaged) == len(group.cells) else [_how_to_run(side)]
        more = "".join(f"\n{line}" for line in (*damaged, *remedy))
        raise RefusedError("cli.no_cell_of_arm_done", label=group.label, states=states, more=more)
    if not group.scored:
        metrics = {name for one in done if one.final is not None for name in one.final["metrics"]}
        recorded = sorted(filter(side.sweep.compares_arms, metrics))
        name = metric.rpartition(".")[2]
        if name in recorded:
            raise RefusedError("cli.metric_not_finite", label=group.label, metric=metric)
        raise RefusedError(
            "cli.metric_not_recorded",
            label=group.label,
            metric=metric,
            nearest=nearest(name, recorded),
            known=few(recorded),
        )


def _how_to_run(side: Runs) -> str:
    """Return advice on how to get finished cells of a side."""
    if side.sweep.is_search:
        return (
            f"Name one setting of the search by its trial, e.g. {side.sweep.name}/trial_0; the "
            "default is trial 0, where it lies in the ranges."
        )
    return f"Let `bench run {side.sweep.name}` finish it first."


def _knobs_that_differ(treatment: Runs, baseline: Runs) -> dict[str, tuple[object, object]]:
    """Map each knob that differs to its values on both sides."""
    from harness.plan.gate import imported_settings_that_differ, values_that_differ

    foreign = [side.sweep.is_imported for side in (treatment, baseline)]
    if all(foreign):
        one, other = (side.cells[0].spec["imported"] for side in (treatment, baseline))
        return imported_settings_that_differ(one, other)
    # Another tool's settings have names of their own: how they differ from ours is unknown.
    if any(foreign):
        return {}
    # Within a group only the seed differs, so one cell stands for all.
    specs = {name: _spec(side) for name, side in (("treatment", treatment), ("baseline", baseline))}
    return {knob: (values["treatment"], values["baseline"]) for knob, values in values_that_differ(specs).items()}


def _spec(side: Runs) -> RunSpec:
    """Return the settings of a side's first cell that was started and is not damaged."""
    from harness.config.run_spec import recorded_spec

    whole = (cell for cell in side.cells if cell.fault is None)
    cell = next((cell for cell in whole if (cell.path / "spec.json").is_file()), None)
    if cell is None:
        raise RefusedError("cli.no_cell_started", label=side.label, remedy=_how_to_run(side))
    return recorded_spec(cell)


def _evaluate_one_checkpoint(sides: Sequence[Runs]) -> bool:
    """Return whether neither side was trained and the weights are the same: then the evaluation is the question."""
    from harness.config.hashing import weights_fingerprint

    if any(side.sweep.is_imported for side in sides):
        return False
    specs = [_spec(side) for side in sides]
    return all(spec.checkpoint for spec in specs) and len({*map(weights_fingerprint, specs)}) == 1


def _require_same_evaluation(differs: Mapping[str, tuple[object, object]], task: str) -> None:
    """Raise RefusedError if the two sides were evaluated differently: their scores do not compare."""
    unlike = [
        f"{knob} ({knob_text(one)} against {knob_text(other)})"
        for knob, (one, other) in differs.items()
        if knob.startswith("eval.") and knob not in _NOT_OF_FINAL_SCORES
    ]
    if unlike:
        raise RefusedError("cli.evaluations_differ", task=task, differences=", ".join(unlike))


def _unlike_seeds(sides: list[Runs], differs: Mapping[str, tuple[object, object]]) -> str | None:
    """Say why one seed means other samples on the two sides, or return None if it means the same."""
    # Arms of one sweep share the meaning of a seed by design.
    if sides[0].sweep.path == sides[1].sweep.path:
        return None
    unlike = [knob for knob in differs if knob.startswith(_MEANING_OF_A_SEED)]
    return f"{', '.join(unlike)} differ, so that a seed means other draws in each" if unlike else None
