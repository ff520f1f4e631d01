"""One task of `bench eval`: the samples that are missing are drawn and recorded, then all of them are scored.

`<home>/evals/<model>/<task>-<hash>/` is a store of samples (`harness.sampling.store`) with two more files:
starts.jsonl, with a row for each time that samples were drawn: machine, versions and model; scores.json, of the
evaluation as last asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from evals.evaluate import disagreement, scores, standard_errors
from evals.graders import runs_code
from evals.samples import SampleRow
from evals.tasks import get_task
from evals.tasks.base import Problem
from harness.config.hashing import conditions_of_model
from harness.config.run_spec import RunSpec, recorded_spec
from harness.errors import RefusedError
from harness.plan.subject import Subject
from harness.records.cell import STARTS_FILE
from harness.records.files import write_json
from harness.run.data_checks import record_source
from harness.run.evaluator import drawn_in_home
from harness.run.provenance import append_start
from harness.sampling.code_tester import code_account
from harness.sampling.conditions import Conditions
from harness.sampling.evaluation import evaluate
from harness.sampling.judge_replies import judges_in
from harness.sampling.sampler import EngineSampler, Policy
from harness.sampling.store import EVALS, SAMPLES_FILE, OnProgress, SampleStore, ignore_progress, store_name


@dataclass(frozen=True)
class TaskEvaluation:
    """samples: of each problem. ks: of pass@k. warning: what must be said wherever scores are, e.g. that the rows are
    not the pinned ones."""

    subject: Subject
    conditions: Conditions
    problems: Sequence[Problem]
    samples: int
    ks: Sequence[int]
    warning: str | None = None

    @property
    def name(self) -> str:
        """The task's, and the thinking budget if there is one that its name does not tell."""
        task, budget = self.conditions.task.name, self._budget_beside_task
        return task if budget is None else f"{task}, thinking {budget}"

    @property
    def _budget_beside_task(self) -> int | None:
        """The thinking budget of a task that has none of its own."""
        return None if self.conditions.task.thinking_budget_tokens else self.conditions.thinking_budget_tokens

    @cached_property
    def identity(self) -> dict[str, object]:
        """What two evaluations must have in common for their samples to be mixed.

        Raises RefusedError for a model's files that are not there.
        """
        conditions = self.conditions
        return conditions_of_model(self._spec) | conditions.as_json(conditions.task.split("test").load())

    @property
    def _spec(self) -> RunSpec:
        """How the model is loaded and run, with the seed of the noise."""
        return self.subject.spec.model_copy(update={"seed": self.conditions.seed})

    def folder(self, home: Path) -> Path:
        return home / EVALS / self.subject.label / store_name(self.conditions.task.name, self.identity)

    def run(
        self,
        home: Path,
        policy: Policy | None,
        on_progress: OnProgress = ignore_progress,
        tell: Callable[[str], None] = lambda remark: None,
    ) -> dict[str, Any]:
        """Draw what is missing, grade, score; returns the document that is kept as scores.json.

        policy: its noise must be that of the conditions; None: nothing may be drawn, stored text is graded again. tell:
            is told of samples that the cell itself had drawn.

        Raises RefusedError if samples are missing that may not be drawn, and as `SampleStore.opened`; EvalError for a
        grader that cannot grade the task.
        """
        folder, conditions, total = self.folder(home), self.conditions, len(self.problems) * self.samples
        there = _keys(self.rows(home))
        before = drawn_in_home(home, self._spec, conditions, besides=folder) if len(there) < total else []
        new = _keys(self._asked_for(before)) - there
        if policy is None and len(there | new) < total:
            raise RefusedError(
                f"{conditions.task.name}: {total - len(there | new)} samples are not there, and --regrade draws none. "
                "Leave it out to draw them, or ask for fewer --problems or --samples."
            )

        def tell_waiting(sentence: str, is_away: bool) -> None:
            on_progress(0, 0, sentence)

        def begun() -> EngineSampler:
            assert policy is not None
            sampler = policy()
            account = {
                "model": sampler.language_model.account(),
                "problems": record_source(home / "cache", conditions.task, "test"),
            }
            append_start(folder / STARTS_FILE, account | code_account(runs_code(conditions.grader)))
            return sampler

        with SampleStore.opened(folder, self.identity) as store, judges_in(home, tell_waiting):
            if new:
                source = "other evaluations" if self.subject.cell is None else "the cell"
                tell(f"{self.name}: {len(new)} samples are taken over from {source}")
            elif len(there) < total and not before and self._is_the_cells_own:
                tell(
                    f"{self.name}: the cell's samples are not taken over: problems, prompts or code are not what they "
                    "were"
                )
            evaluate(cache(begun), conditions, store, self.problems, self.samples, before, on_progress)
            mine = self._asked_for(store.graded(conditions, again=policy is None))
            document = {
                "task": conditions.task.name,
                "thinking_budget_tokens": self._budget_beside_task,
                "n_problems": len(self.problems),
                "n_samples": self.samples,
                "metrics": scores(mine, self.ks),
                "standard_errors": standard_errors(mine, self.ks),
                "grader": conditions.grader,
                "disagreement": disagreement(mine),
                "path": str(folder),
            }
            write_json(folder / "scores.json", document)
        return document

    def rows(self, home: Path) -> list[SampleRow]:
        """The graded samples behind the scores, once it has run."""
        return self._asked_for(SampleStore(self.folder(home) / SAMPLES_FILE).rows())

    def _asked_for(self, rows: Sequence[SampleRow]) -> list[SampleRow]:
        """Without those of more problems or samples that were asked for at another time."""
        wanted = {problem.id for problem in self.problems}
        return [row for row in rows if row["problem_id"] in wanted and row["sample"] < self.samples]

    @property
    def _is_the_cells_own(self) -> bool:
        """Whether the cell that trained the model was evaluated under these conditions too, as its spec says."""
        cell, task = self.subject.cell, self.conditions.task
        if cell is None:
            return False
        spec = recorded_spec(cell)
        if task.name not in {get_task(name).name for name in spec.eval.tasks}:
            return False
        own = Conditions.of_evaluation(spec.eval, task, spec.seed)
        return replace(self, subject=self.subject.as_in(spec), conditions=own).identity == self.identity


def _keys(rows: Sequence[SampleRow]) -> set[tuple[str, int]]:
    return {(row["problem_id"], row["sample"]) for row in rows}
