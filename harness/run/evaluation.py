"""Evaluation of a policy by the one frozen EvalSpec of all arms, and what a cell was evaluated by before.

evaluation.json beside an evaluation's samples says under what conditions they were drawn and graded: another evaluation
of the same weights takes over what was drawn under its own conditions, and never mixes in the rest.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from evals.calibration import expected_calibration_error, reliability
from evals.evaluate import SampleRow, regrade, scores
from evals.tasks import get_task
from harness.config.hashing import conditions_of_model, evaluation_hash
from harness.config.run_spec import RunSpec
from harness.config.task import EvalSpec
from harness.plan.filing import HASH_DIGITS
from harness.processes import peak_memory_mb
from harness.records import CellRecord
from harness.records.cell import EVALUATION_FILE, EVALUATIONS
from harness.records.fence import move
from harness.records.files import read_object, write_json
from harness.records.scores import read_scores
from harness.sampling.conditions import Conditions
from harness.sampling.scoring import Policy
from harness.sampling.store import SAMPLES_FILE, SampleStore

if TYPE_CHECKING:
    import torch

    from harness.run.cell import CellLog

Row = dict[str, Any]


@dataclass(frozen=True)
class Evaluator:
    """Evaluates one policy. Noise is keyed by seed, problem and sample, so it is shared by all arms and by all
    evaluations of a run."""

    spec: EvalSpec
    seed: int
    sampler: Policy

    def run(
        self,
        samples: int,
        store: SampleStore,
        drawn_before: Callable[[Conditions], list[SampleRow]] = lambda conditions: [],
        on_progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> Iterator[tuple[Row, list[SampleRow]]]:
        """Evaluate every task; yields its scores, as fields of a row of scores.jsonl, and its samples. Samples that the
        store holds are not drawn again, nor are those `drawn_before` under the task's conditions.

        samples: a problem; one of greedy decoding, and where problems give choices, since all would be alike.
        on_progress: is told how many problems of all tasks together are done, and how many there are.

        The metric `ece` and `reliability`, the bins that it is made from (see `evals.calibration`), are None where
        samples do not show the policy's answer frequencies: at another temperature than 1, with top-p or top-k, or with
        one sample a problem.
        """
        tasks = [get_task(name) for name in self.spec.tasks]
        problems = {task.name: list(itertools.islice(task.split("test").load(), self.spec.problems)) for task in tasks}
        total, before = sum(map(len, problems.values())), 0

        def told_from(before: int) -> Callable[[int], None]:
            return lambda done: on_progress(before + done, total)

        for task in tasks:
            mine = problems[task.name]
            conditions = Conditions.of_evaluation(self.spec, task, self.seed)
            n_samples = conditions.samples(samples)
            _take_over(store, drawn_before(conditions), {problem.id for problem in mine}, n_samples, conditions)
            rows = store.fill(mine, n_samples, conditions, self.sampler, told_from(before))
            before += len(mine)
            bins = reliability(rows) if n_samples > 1 and self._draws_from_the_policy_itself else None
            fields = {
                "task": task.name,
                "metrics": {
                    **scores(rows, [k for k in self.spec.k if k <= n_samples]),
                    "ece": None if bins is None else expected_calibration_error(bins),
                },
                "reliability": bins,
                "n_problems": len(mine),
                "n_samples": n_samples,
            }
            yield fields, rows

    @property
    def _draws_from_the_policy_itself(self) -> bool:
        """Otherwise answers come more often or less often than the policy would give them."""
        return (self.spec.temperature, self.spec.top_p, self.spec.top_k) == (1.0, 1.0, 0)


def evaluate_step(
    log: CellLog,
    evaluator: Evaluator,
    step: int,
    final: bool,
    samples: int,
    generated_tokens: int,
    began_s: float,
    device: torch.device,
) -> None:
    """Evaluate a cell in training on the tasks that a step has no scores of yet. began_s: when this start of the cell
    began, by `time.perf_counter`."""
    cell, started_s = log.cell, time.perf_counter()
    scored = {row["task"] for row in cell.read_scores() if (row["step"], row["final"]) == (step, final)}
    if scored.issuperset(get_task(name).name for name in evaluator.spec.tasks):
        return
    about = {"step": step, "final": final}
    earlier = EarlierEvaluations(cell, besides=cell.path)
    for found, _ in evaluator.run(samples, log.samples(about), partial(earlier.samples, step)):
        if found["task"] not in scored:
            log.scored({**about, **found, "generated_tokens": generated_tokens})
    now_s = time.perf_counter()
    took = {"eval_s": now_s - started_s, "elapsed_s": now_s - began_s}
    log.timing({"step": step, **took, "peak_memory_mb": peak_memory_mb(device)})


def _take_over(
    store: SampleStore, drawn: list[SampleRow], problems: set[str], samples: int, conditions: Conditions
) -> None:
    """Put those of these samples that are asked for into a store that lacks them, graded as it grades."""
    there = {(row["task"], row["problem_id"], row["sample"]) for row in store.rows()} if drawn else set()
    new = [
        row
        for row in drawn
        if row["problem_id"] in problems
        and row["sample"] < samples
        and (row["task"], row["problem_id"], row["sample"]) not in there
    ]
    if new:
        task = conditions.task
        store.append(regrade(task, task.split(conditions.split).load(), new, conditions.grader))


def evaluation_document(spec: RunSpec) -> Row:
    """evaluation.json: the `hash` of the evaluation, and by task the conditions under which its samples are drawn and
    the grader that decides about them; of a checkpoint that is evaluated, what else can change a sample too."""
    tasks = {}
    for task in map(get_task, spec.eval.tasks):
        conditions = Conditions.of_evaluation(spec.eval, task, spec.seed)
        drawn = conditions.as_json(task.split(conditions.split).load())
        tasks[task.name] = {"drawn": drawn, "graded": conditions.deciding}
    model = {"model": conditions_of_model(spec)} if spec.checkpoint else {}
    return {"hash": evaluation_hash(spec), **model, "tasks": tasks}


def begin_own_evaluation(cell: CellRecord, spec: RunSpec) -> None:
    """Before a cell trains: say by what it will be evaluated. What an interrupted run of it had drawn under another
    evaluation is put aside, where it can be gone on with."""
    path = cell.path / EVALUATION_FILE
    document = evaluation_document(spec)
    if path.exists() and (other := read_object(path)) != document:
        aside = cell.path / EVALUATIONS / str(other.get("hash"))[:HASH_DIGITS]
        aside.mkdir(parents=True, exist_ok=True)
        # Its description goes last: after a kill in between, the rest follows.
        for file in (cell.path / SAMPLES_FILE, cell.scores, path):
            if file.exists():
                move(file, aside / file.name)
    write_json(path, document)


@dataclass(frozen=True)
class EarlierEvaluations:
    """Samples and curves of a cell's evaluations, whichever they were, but for the one in the folder `besides`."""

    cell: CellRecord
    besides: Path | None = None

    def samples(self, step: int, conditions: Conditions) -> list[SampleRow]:
        """Those drawn under these conditions after a step, each once, with the verdicts that they got then."""
        found: dict[tuple[str, int], SampleRow] = {}
        for folder in self._alike(conditions, "drawn"):
            for row in SampleStore(folder / SAMPLES_FILE, {"step": step}).rows():
                if row["task"] == conditions.task.name:
                    fields = {name: cast(Row, row)[name] for name in SampleRow.__annotations__}
                    found.setdefault((row["problem_id"], row["sample"]), cast(SampleRow, fields))
        return list(found.values())

    def curve(self, conditions: Conditions) -> list[Row]:
        """Scores of the evaluations along training that were drawn and graded alike, a row for each step, without
        epochs."""
        found: dict[int, Row] = {}
        for folder in self._alike(conditions, "drawn", "graded"):
            is_own = folder == self.cell.path
            rows = self.cell.own.read_scores() if is_own else read_scores(folder / "scores.jsonl")
            for row in rows:
                if not row["final"] and row["task"] == conditions.task.name:
                    found.setdefault(row["step"], {name: row[name] for name in row if name != "epoch"})
        return [found[step] for step in sorted(found)]

    def _alike(self, conditions: Conditions, *parts: str) -> Iterator[Path]:
        """Folders of evaluations whose description of the task agrees in these parts."""
        task = conditions.task
        if not any(task.name in tasks for _, tasks in self._described):
            return
        ours = {"drawn": conditions.as_json(task.split(conditions.split).load()), "graded": conditions.deciding}
        for folder, tasks in self._described:
            theirs = tasks.get(task.name)
            if theirs is not None and all(theirs.get(part) == ours[part] for part in parts):
                yield folder

    @cached_property
    def _described(self) -> list[tuple[Path, Row]]:
        folders = [self.cell.path, *sorted((self.cell.path / EVALUATIONS).glob("*"))]
        return [
            (folder, read_object(folder / EVALUATION_FILE)["tasks"])
            for folder in folders
            if folder != self.besides and (folder / EVALUATION_FILE).exists()
        ]
