"""The cells that imported runs form. Sources of one run are merged, and partial runs are refused."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from evals.metrics import Samples, metrics_for
from evals.sampler import ks_of
from evals.samples import SampleRow
from harness.errors import RefusedError, few, nearest
from harness.records.scores import METRIC_PREFIX, Matching, Names, match_problems
from harness.shelves.imports.base import ImportedRun, ImportedSample, Score

TRAINING = "training"
LAST_TENTH = "reward_last_tenth"
"""The task and the metric of runs without evaluations: the mean training reward over their last tenth."""
ACCURACIES = ("acc", "accuracy", "exact_match", "score", "mean_score", "reward", LAST_TENTH)
"""Foreign metrics that are compared without being named, in order of preference."""

Cells = dict[tuple[str, int | None], ImportedRun]
"""Runs by arm and seed; the seed is None if unknown."""


def gathered(runs: Sequence[ImportedRun]) -> tuple[Cells, dict[str, Matching]]:
    """Merge runs into cells, and return them with the matching of problems by task.

    Raises RefusedError as `merged`, `match_cells`, `add_training_scores` and `require_whole`.
    """
    # The order matters: problems must have their common ids before cells can be compared problem by problem.
    cells = merged(runs)
    matching = match_cells(cells)
    add_training_scores(cells.values())
    require_whole(cells)
    return cells, matching


def match_cells(cells: Cells) -> dict[str, Matching]:
    """Give each problem one id in all cells, and return the matching by task.

    Problems that not all cells have are dropped, and so are the scores that the sources computed over them. Raises
    RefusedError as `match_problems`, and if two problems of a cell share an id.
    """
    sides: dict[str, dict[str, dict[str, str | None]]] = {}
    for cell, run in cells.items():
        for sample in run.samples:
            known = sides.setdefault(sample.task, {}).setdefault(cell_name(cell), {})
            if known.setdefault(sample.problem_id, sample.content) != sample.content:
                raise RefusedError(
                    "shelves.imports.problem_id_repeated",
                    source=run.source,
                    task=sample.task,
                    problem_id=sample.problem_id,
                    cell=_called(run),
                )
    found = {task: match_problems(task, of_cells) for task, of_cells in sides.items()}
    # The sources' own scores also cover the problems that were dropped, so they no longer describe what is compared.
    partial = {task for task, (one, _) in found.items() if one.by == "content" and one.matched < one.of}
    for cell, run in cells.items():
        names: dict[str, Names] = {task: of.get(cell_name(cell), {}) for task, (_, of) in found.items()}
        run.samples = [
            replace(sample, problem_id=names[sample.task][sample.problem_id])
            for sample in run.samples
            if sample.problem_id in names[sample.task]
        ]
        run.scores = [score for score in run.scores if score.task not in partial]
    return {task: matching for task, (matching, _) in found.items()}


def merged(runs: Sequence[ImportedRun]) -> Cells:
    """Merge the runs of each arm and seed.

    Raises RefusedError, naming both sources, if two sources contradict each other.
    """
    cells: Cells = {}
    for run in runs:
        assert run.arm is not None
        cell = cells.setdefault((run.arm, run.seed), run)
        if cell is not run:
            _add(cell, run)
    for cell in cells.values():
        cell.samples = [*_once({(s.task, s.step, s.problem_id, s.sample): [] for s in cell.samples}, cell)]
        # Equal scores from several sources are kept once. `_add` has refused different ones.
        cell.scores = [*{(s.task, s.metric, s.step): s for s in cell.scores}.values()]
    return cells


def _once(places: Mapping[tuple[object, ...], list[ImportedSample]], cell: ImportedRun) -> Iterable[ImportedSample]:
    """Return the samples of a cell, grouped by their key. Raises RefusedError if one occurs twice."""
    for sample in cell.samples:
        found = places[sample.task, sample.step, sample.problem_id, sample.sample]
        found.append(sample)
        if len(found) > 1:
            raise RefusedError(
                "shelves.imports.sample_repeated",
                source=cell.source,
                sample=sample.sample,
                problem_id=sample.problem_id,
                task=sample.task,
                cell=_called(cell),
                apart=_APART,
            )
    return itertools.chain.from_iterable(places.values())


def _add(cell: ImportedRun, run: ImportedRun) -> None:
    """Merge a run into the cell. Raises RefusedError if they contradict each other."""
    known = {(one.task, one.metric, one.step): one.value for one in cell.scores}
    for score in run.scores:
        if not _alike(known.get((score.task, score.metric, score.step), score.value), score.value):
            raise _contradiction(cell, run, f"{score.metric} of {score.task}")
    for step, fields in run.steps.items():
        mine = cell.steps.setdefault(step, {})
        for name, value in fields.items():
            if not _alike(mine.setdefault(name, value), value):
                raise _contradiction(cell, run, f"{name} at step {step}")
    for knob, value in run.config.items():
        if cell.config.setdefault(knob, value) != value:
            raise _contradiction(cell, run, f"the setting {knob}")
    cell.scores += run.scores
    cell.samples += run.samples


def _alike(one: float, other: float) -> bool:
    """Return whether two values agree up to a logger's rounding: TensorBoard keeps 32-bit floats."""
    return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-9)


def _contradiction(cell: ImportedRun, run: ImportedRun, what: str) -> RefusedError:
    return RefusedError(
        "shelves.imports.runs_contradict",
        source=cell.source,
        other=run.source,
        cell=_called(cell),
        what=what,
        apart=_APART,
    )


_APART = "Two runs may have one name: tell them apart by {arm} and {seed} in the path, or by --runs."


def add_training_scores(cells: Iterable[ImportedRun]) -> None:
    """Add each run's training reward as its score, if no run was evaluated.

    Raises RefusedError if a run's reward is unknown or not in [0, 1].
    """
    runs = [*cells]
    if any(run.samples or run.scores for run in runs):
        return
    for run in runs:
        rewards = [fields["reward/mean"] for _, fields in sorted(run.steps.items()) if "reward/mean" in fields]
        if not rewards or not 0 <= min(rewards) <= max(rewards) <= 1:
            why = (
                "no training reward either"
                if not rewards
                else f"a training reward from {min(rewards):g} to {max(rewards):g}"
            )
            raise RefusedError("shelves.imports.no_evaluation", source=run.source, why=why)
        last = rewards[-max(1, len(rewards) // 10) :]
        run.scores.append(Score(TRAINING, LAST_TENTH, statistics.fmean(last)))


@dataclass(frozen=True)
class Evaluated:
    """One run's evaluation of one task after a step."""

    task: str
    step: int | None
    """None for the end."""
    samples: list[ImportedSample]
    given: dict[str, float]
    """The metrics that the source reports."""

    @property
    def n(self) -> int:
        """The number of samples of each problem; 0 if only metrics are known."""
        return len(self.samples) // len(self.problems) if self.samples else 0

    @property
    def problems(self) -> list[str]:
        return [*dict.fromkeys(sample.problem_id for sample in self.samples)]

    def metrics(self, ks: Sequence[int]) -> dict[str, float | None]:
        """Compute the metrics from the samples, next to those that the source reports."""
        if not self.samples:
            return dict(self.given)
        rows = Samples.of(map(_sample_row, self.samples))
        # Only metrics whose fields every sample has can be computed.
        known = ["avg@n", "se_problems_pp", "se_samples_pp", *(f"{name}{k}" for name in ("pass@", "pass^") for k in ks)]
        if all(sample.n_tokens is not None for sample in self.samples):
            known += ["mean_tokens", "mean_tokens_correct", "mean_tokens_incorrect"]
        if all(sample.truncated is not None for sample in self.samples):
            known.append("truncated_frac")
        computed = {name: metric.value(rows, k) for name, (metric, k) in metrics_for(ks).items() if name in known}
        # A metric computed from samples wins over the source's own value.
        return self.given | computed


def _sample_row(sample: ImportedSample) -> SampleRow:
    """Build a row as our own evaluations record it.

    Unknown fields get a value that no metric of `Evaluated` looks at.
    """
    return SampleRow(
        task=sample.task,
        problem_id=sample.problem_id,
        sample=sample.sample,
        text=sample.text or "",
        n_tokens=sample.n_tokens or 0,
        truncated=bool(sample.truncated),
        extracted=sample.extracted,
        correct=sample.correct,
        reason="",
        verdicts="{}",
        reasons="{}",
        faulty_steps=None,
        turns=None,
    )


def evaluations(run: ImportedRun) -> list[Evaluated]:
    """Return the evaluations in the order of training, with the end last.

    At the end each task has one evaluation: the last step's, if none is marked as final.
    """
    found: dict[tuple[str, int | None], Evaluated] = {}

    def at(task: str, step: int | None) -> Evaluated:
        return found.setdefault((task, step), Evaluated(task, step, [], {}))

    for sample in run.samples:
        at(sample.task, sample.step).samples.append(sample)
    for score in run.scores:
        at(score.task, score.step).given[score.metric] = score.value
    for task in dict.fromkeys(task for task, _ in found):
        if (task, None) not in found:
            last = max(step for of, step in found if of == task and step is not None)
            found[task, None] = replace(found.pop((task, last)), step=None)
    return sorted(found.values(), key=lambda one: (one.step is None, one.step or 0))


def final(run: ImportedRun) -> dict[str, Evaluated]:
    return {one.task: one for one in evaluations(run) if one.step is None}


def require_whole(cells: Cells) -> None:
    """Raise RefusedError if a final evaluation is incomplete, naming the cell, the task and the problem.

    It is incomplete if it lacks a task or a problem that another has, or has fewer samples of one problem than of
    others.
    """
    finals = {cell_name(cell): final(run) for cell, run in cells.items()}
    wanted: dict[str, tuple[str, dict[str, None]]] = {}
    for name, tasks in finals.items():
        for task, evaluated in tasks.items():
            # The first cell with a task sets its problems; each later cell must have the same ones.
            first, problems = wanted.setdefault(task, (name, dict.fromkeys(evaluated.problems)))
            counts = dict.fromkeys(evaluated.problems, 0)
            for sample in evaluated.samples:
                counts[sample.problem_id] += 1
            if counts and min(counts.values()) < max(counts.values()):
                fewest, most = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
                raise RefusedError(
                    "shelves.imports.sample_counts_differ",
                    cell=name,
                    n_fewest=counts[fewest],
                    fewest=fewest,
                    task=task,
                    n_most=counts[most],
                    most=most,
                )
            for one, other, lacks in (
                (name, first, problems.keys() - counts.keys()),
                (first, name, counts.keys() - problems.keys()),
            ):
                if lacks:
                    raise RefusedError(
                        "shelves.imports.problem_missing",
                        cell=one,
                        problem=min(lacks),
                        task=task,
                        other=other,
                        n_problems=len(lacks),
                    )
    for name, tasks in finals.items():
        if missing := [task for task in wanted if task not in tasks]:
            raise RefusedError(
                "shelves.imports.task_missing", cell=name, missing=missing[0], other=wanted[missing[0]][0]
            )


def warnings(cells: Cells) -> list[str]:
    """Return a sentence for each reason to doubt a comparison of these cells. None of them refuses it."""
    return [*_unlike_ends(cells), *_unpaired(cells)]


def _unlike_ends(cells: Cells) -> list[str]:
    """Return a sentence if runs were last evaluated after different steps, e.g. because one was interrupted."""
    last = {
        cell_name(cell): max(
            (
                step
                for step in [*(one.step for one in run.samples), *(one.step for one in run.scores)]
                if step is not None
            ),
            default=None,
        )
        for cell, run in cells.items()
    }
    known = {name: step for name, step in last.items() if step is not None}
    if len({*known.values()}) < 2:
        return []
    fewest, most = min(known, key=known.__getitem__), max(known, key=known.__getitem__)
    return [
        f"{fewest} was last evaluated after step {known[fewest]}, {most} after step {known[most]}: these evaluations "
        "are compared all the same. A run that was cut off must end first"
    ]


def _unpaired(cells: Cells) -> list[str]:
    """Return a sentence if an arm lacks a seed that another has."""
    known = sorted({seed for _, seed in cells if seed is not None})
    if any(seed is None for _, seed in cells):
        return []
    lacking = {arm: [str(seed) for seed in known if (arm, seed) not in cells] for arm, _ in cells}
    said = [f"{arm} has no seed {few(seeds)}" for arm, seeds in lacking.items() if seeds]
    remedy = "arms are paired over the seeds that both have. Add the missing runs if they exist"
    return [f"{'; '.join(said)}: {remedy}"] if said else []


def cell_name(cell: tuple[str, int | None]) -> str:
    arm, seed = cell
    return arm if seed is None else f"{arm} seed {seed}"


def _called(run: ImportedRun) -> str:
    return cell_name((str(run.arm), run.seed))


def compared_metric(cells: Cells, asked: str | None, ks: Sequence[int]) -> str:
    """Return the full name of the metric by which arms are compared.

    Raises RefusedError if a cell lacks it or its value is not in [0, 1]. Raises it too if no metric is requested and no
    accuracy is known.
    """
    finals = {cell_name(cell): final(run) for cell, run in cells.items()}
    metrics = {name: {task: one.metrics(ks) for task, one in tasks.items()} for name, tasks in finals.items()}
    tasks = next(iter(metrics.values()))
    if asked is None:
        for task, known in tasks.items():
            for metric in ("pass@1", *ACCURACIES):
                if metric in known:
                    return compared_metric(cells, f"{METRIC_PREFIX}{task}.{metric}", ks)
        there = [f"{METRIC_PREFIX}{task}.{metric}" for task, known in tasks.items() for metric in known]
        raise RefusedError("shelves.imports.metric_not_clear", known=few(there))
    task, _, metric = asked.removeprefix(METRIC_PREFIX).rpartition(".")
    # Without a task in its name, a metric belongs to the first task.
    task = task or next(iter(tasks))
    for name, by_task in metrics.items():
        value = by_task.get(task, {}).get(metric)
        if not asked.startswith(METRIC_PREFIX) or value is None:
            there = [f"{METRIC_PREFIX}{one}.{known}" for one in by_task for known in by_task[one]]
            raise RefusedError(
                "shelves.imports.no_such_metric",
                cell=name,
                metric=asked,
                nearest=nearest(asked, there),
                known=few(there),
            )
        if not 0 <= value <= 1:
            raise RefusedError("shelves.imports.metric_not_a_fraction", cell=name, metric=asked, value=value)
    return f"{METRIC_PREFIX}{task}.{metric}"


def common_ks(cells: Cells) -> list[int]:
    """Return the k of pass@k that every final evaluation has samples for; [] if only metrics are known."""
    numbers = [one.n for run in cells.values() for one in final(run).values() if one.n]
    return list(ks_of(min(numbers))) if numbers else []
