"""Evaluate a policy under the EvalSpec that all arms share, and reuse samples of a cell's earlier evaluations.

evaluation.json, next to an evaluation's samples, records how they were sampled and graded. Another evaluation of the
same weights reuses the samples whose conditions equal its own, and no others.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from evals.calibration import expected_calibration_error, reliability
from evals.evaluate import scores
from evals.samples import SampleRow
from evals.tasks import get_task
from harness.config.hashing import conditions_of_model, evaluation_hash
from harness.config.run_spec import RunSpec, recorded_spec
from harness.config.task import EvalSpec
from harness.plan.filing import HASH_DIGITS
from harness.records import CellRecord
from harness.records.cell import EVALUATION_FILE, EVALUATIONS, is_cell_directory_name
from harness.records.fence import move
from harness.records.files import read_object, write_json
from harness.records.rows import EvaluationRow, ScoreRow
from harness.records.scores import read_scores
from harness.sampling.conditions import Conditions
from harness.sampling.evaluation import evaluate
from harness.sampling.sampler import Policy
from harness.sampling.store import EVALS, SAMPLES_FILE, OnProgress, SampleStore, store_name


@dataclass(frozen=True)
class Evaluator:
    """Evaluates one policy.

    Noise is keyed by seed, problem and sample, so all arms and all evaluations of a run share it.
    """

    spec: EvalSpec
    seed: int
    policy: Policy

    def run(
        self,
        samples: int,
        store: SampleStore,
        drawn_before: Callable[[Conditions], list[SampleRow]] = lambda conditions: [],
        on_progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> Iterator[tuple[EvaluationRow, list[SampleRow]]]:
        """Evaluate every task. For each, yield its scores, as fields of a row of scores.jsonl, and its samples.

        samples: samples per problem. One is taken with greedy decoding, and for problems with choices, because further
        ones would be equal.
        store: the evaluation's samples. Those that it contains are not taken again.
        drawn_before: returns further existing samples for a task's conditions, to be reused.
        on_progress: called with the number of problems done and the number of all problems, over all tasks.

        The metric `ece` and the bins behind it, `reliability` (see `evals.calibration`), need answers that are as
        frequent as under the policy. They are None if the temperature is not 1, with top-p or top-k, or with one sample
        per problem.
        """
        tasks = [get_task(name) for name in self.spec.tasks]
        problems = {task.name: list(itertools.islice(task.split("test").load(), self.spec.problems)) for task in tasks}
        total, before = sum(map(len, problems.values())), 0

        # The function binds the present value of `before`, which the loop below changes.
        def told_from(before: int) -> OnProgress:
            return lambda done, _, remark: on_progress(before + done, total)

        for task in tasks:
            mine = problems[task.name]
            conditions = Conditions.of_evaluation(self.spec, task, self.seed)
            n_samples = conditions.samples(samples)
            earlier, tell = drawn_before(conditions), told_from(before)
            rows = evaluate(self.policy, conditions, store, mine, n_samples, earlier, tell)
            before += len(mine)
            bins = reliability(rows) if n_samples > 1 and self._draws_from_the_policy_itself else None
            fields: EvaluationRow = {
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
        """True if answers are as frequent as under the policy itself.

        Another temperature, top-p or top-k makes some answers more frequent and others less.
        """
        return (self.spec.temperature, self.spec.top_p, self.spec.top_k) == (1.0, 1.0, 0)


def evaluation_document(spec: RunSpec) -> dict[str, object]:
    """Return the contents of evaluation.json.

    They are the `hash` of the evaluation and, for each task, the conditions of its samples and the grader that judges
    them. If a checkpoint is evaluated, everything else that can change a sample is included.
    """
    tasks = {}
    for task in map(get_task, spec.eval.tasks):
        conditions = Conditions.of_evaluation(spec.eval, task, spec.seed)
        drawn = conditions.as_json(task.split(conditions.split).load())
        tasks[task.name] = {"drawn": drawn, "graded": conditions.deciding}
    model = {"model": conditions_of_model(spec)} if spec.checkpoint else {}
    return {"hash": evaluation_hash(spec), **model, "tasks": tasks}


def begin_own_evaluation(cell: CellRecord, spec: RunSpec) -> None:
    """Write how a cell will be evaluated, before it trains.

    If an interrupted run took samples under another evaluation, these are moved to that evaluation's folder, so that it
    can be continued.
    """
    path = cell.path / EVALUATION_FILE
    document = evaluation_document(spec)
    if path.exists() and (other := read_object(path)) != document:
        aside = cell.path / EVALUATIONS / str(other.get("hash"))[:HASH_DIGITS]
        aside.mkdir(parents=True, exist_ok=True)
        # evaluation.json is moved last. After a kill in between, the next start moves the rest.
        for file in (cell.path / SAMPLES_FILE, cell.scores, path):
            if file.exists():
                move(file, aside / file.name)
    write_json(path, document)


@dataclass(frozen=True)
class EarlierEvaluations:
    """The samples and curves of all evaluations of a cell, except the evaluation in the folder `besides`."""

    cell: CellRecord
    besides: Path | None = None

    def samples(self, step: int, conditions: Conditions) -> list[SampleRow]:
        """Return the samples that were taken under these conditions after a step, each once.

        They keep the verdicts that they got at that time.
        """
        found: dict[tuple[str, int], SampleRow] = {}
        for folder in _alike(self._folders, conditions, "drawn"):
            for row in SampleStore(folder / SAMPLES_FILE, {"step": step}).rows():
                if row["task"] == conditions.task.name:
                    fields = {name: cast(dict[str, object], row)[name] for name in SampleRow.__annotations__}
                    found.setdefault((row["problem_id"], row["sample"]), cast(SampleRow, fields))
        return list(found.values())

    def curve(self, conditions: Conditions) -> list[ScoreRow]:
        """Return the scores along training that were sampled and graded under the same conditions, one row per step.

        The rows have no epochs.
        """
        found: dict[int, ScoreRow] = {}
        for folder in _alike(self._folders, conditions, "drawn", "graded"):
            is_own = folder == self.cell.path
            rows = self.cell.own.read_scores() if is_own else read_scores(folder / "scores.jsonl")
            for row in rows:
                if not row["final"] and row["task"] == conditions.task.name:
                    row.pop("epoch", None)
                    # The cell's own folder comes first, so its rows take precedence.
                    found.setdefault(row["step"], row)
        return [found[step] for step in sorted(found)]

    @property
    def _folders(self) -> list[Path]:
        folders = [self.cell.path, *sorted((self.cell.path / EVALUATIONS).glob("*"))]
        return [folder for folder in folders if folder != self.besides]


def drawn_in_home(home: Path, spec: RunSpec, conditions: Conditions, besides: Path | None = None) -> list[SampleRow]:
    """Return the existing samples, each once, of the model that a spec evaluates without training.

    They were taken under these conditions and with the spec's seed, by other cells of the home that evaluate the model,
    by `bench eval`, or by the cell that trained the checkpoint.
    besides: the folder of an evaluation to leave out.
    """
    task, model = conditions.task, conditions_of_model(spec)
    patterns = (f"*/cells/*/{EVALUATION_FILE}", f"*/cells/*/{EVALUATIONS}/*/{EVALUATION_FILE}")
    folders = [path.parent for pattern in patterns for path in sorted(home.glob(pattern)) if path.parent != besides]
    alike = _alike(folders, conditions, "drawn", model=model)
    stores = [SampleStore(folder / SAMPLES_FILE, {"step": 0, "final": True}) for folder in alike]
    name = store_name(task.name, model | conditions.as_json(task.split(conditions.split).load()))
    found = sorted((home / EVALS).glob(f"*/{name}"))
    stores += [SampleStore(folder / SAMPLES_FILE) for folder in found if folder != besides]
    rows = [row for store in stores for row in store.rows() if row["task"] == task.name]
    trained = spec.checkpoint_folder
    if trained is not None and is_cell_directory_name(trained.parents[1].name):
        cell = CellRecord.at(trained.parents[1])
        # Compare as if the cell's spec evaluated this checkpoint too; nothing else may differ.
        own = recorded_spec(cell).model_copy(update={"checkpoint": spec.checkpoint})
        if conditions_of_model(own) == model:
            rows += EarlierEvaluations(cell).samples(int(read_object(trained / "checkpoint.json")["step"]), conditions)
    return [*{(row["problem_id"], row["sample"]): row for row in rows}.values()]


def _alike(
    folders: Iterable[Path], conditions: Conditions, *parts: str, model: dict[str, object] | None = None
) -> Iterator[Path]:
    """Yield the folders of evaluations whose description of the task agrees with the conditions in these parts.

    model: yield only evaluations of this model without training. None: yield any evaluation of a training cell.
    """
    task = conditions.task
    ours: dict[str, object] = {}
    for folder in folders:
        document = read_object(folder / EVALUATION_FILE) if (folder / EVALUATION_FILE).exists() else {}
        theirs = document.get("tasks", {}).get(task.name)
        if theirs is None or (model is not None and document.get("model") != model):
            continue
        # This is computed only if needed, because it digests all problems.
        ours = ours or {
            "drawn": conditions.as_json(task.split(conditions.split).load()),
            "graded": conditions.deciding,
        }
        if all(theirs.get(part) == ours[part] for part in parts):
            yield folder
