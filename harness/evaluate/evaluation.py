"""One task of `bench eval`: take and record the missing samples, then score all samples.

`<home>/evals/<model>/<task>-<hash>/` is a store of samples (`harness.sampling.store`) with two more files. starts.jsonl
has a row for each start of sampling, with machine, versions and model. scores.json is the result of the last request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from evals.evaluate import disagreement, scores, standard_errors
from evals.graders import account_of
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
from harness.sampling.conditions import Conditions
from harness.sampling.evaluation import evaluate
from harness.sampling.sampler import EngineSampler, Policy
from harness.sampling.services import services_in
from harness.sampling.store import EVALS, SAMPLES_FILE, OnProgress, SampleStore, ignore_progress, store_name


@dataclass(frozen=True)
class TaskEvaluation:
    """The evaluation of one model on one task, under fixed conditions."""

    subject: Subject
    conditions: Conditions
    problems: Sequence[Problem]
    samples: int
    ks: Sequence[int]
    warning: str | None = None
    """A warning to show next to the scores, e.g. that the rows differ from the pinned ones."""
    allow_code: bool = False

    @property
    def name(self) -> str:
        """The task's name, followed by the thinking budget if the name does not contain it."""
        task, budget = self.conditions.task.name, self._budget_beside_task
        return task if budget is None else f"{task}, thinking {budget}"

    @property
    def _budget_beside_task(self) -> int | None:
        """The thinking budget, if the task itself does not set one; otherwise None."""
        return None if self.conditions.task.thinking_budget_tokens else self.conditions.thinking_budget_tokens

    @cached_property
    def identity(self) -> dict[str, object]:
        """The conditions that must be equal in two evaluations that share samples.

        Raises RefusedError if files of the model are missing.
        """
        conditions = self.conditions
        return conditions_of_model(self._spec) | conditions.as_json(conditions.task.split("test").load())

    @property
    def _spec(self) -> RunSpec:
        """The spec with which the model is loaded and run, with the seed of the noise."""
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
        """Take the missing samples, grade and score. Return the document that is stored as scores.json.

        policy: samples with the noise of the conditions. With None, nothing is sampled, and the stored samples are
        regraded.
        tell: called with a remark on samples that are reused, or on why the cell's own samples are not.
        Raises RefusedError if samples are missing and must not be taken, and as `SampleStore.opened`. Raises EvalError
        if the grader cannot grade the task.
        """
        folder, conditions, total = self.folder(home), self.conditions, len(self.problems) * self.samples
        there = _keys(self.rows(home))
        # Searching the home costs time, so it is skipped if this store is complete.
        before = drawn_in_home(home, self._spec, conditions, besides=folder) if len(there) < total else []
        new = _keys(self._asked_for(before)) - there
        if policy is None and len(there | new) < total:
            raise RefusedError(
                "evaluate.samples_not_stored", task=conditions.task.name, n_missing=total - len(there | new)
            )

        def tell_waiting(sentence: str, is_away: bool) -> None:
            on_progress(0, 0, sentence)

        def begun() -> EngineSampler:
            # Called only if samples are missing. Without a policy, this was refused above.
            assert policy is not None
            sampler = policy()
            account = {
                "model": sampler.language_model.account(),
                "problems": record_source(home / "cache", conditions.task, "test"),
            }
            append_start(folder / STARTS_FILE, account | account_of([conditions.grader]))
            return sampler

        lent = services_in(home, self.allow_code, tell_waiting)
        with SampleStore.opened(folder, self.identity) as store, lent:
            if new:
                source = "other evaluations" if self.subject.cell is None else "the cell"
                tell(f"{self.name}: {len(new)} samples are taken over from {source}")
            elif len(there) < total and not before and self._is_the_cells_own:
                tell(
                    f"{self.name}: the cell's samples are not taken over: problems, prompts or code are not what they "
                    "were"
                )
            # cache: the model is loaded for the first missing sample, and only once.
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
        """Return the graded samples that the scores are computed from, once the evaluation has run."""
        return self._asked_for(SampleStore(self.folder(home) / SAMPLES_FILE).rows())

    def _asked_for(self, rows: Sequence[SampleRow]) -> list[SampleRow]:
        """Return the rows without those of problems or samples that only earlier requests included."""
        wanted = {problem.id for problem in self.problems}
        return [row for row in rows if row["problem_id"] in wanted and row["sample"] < self.samples]

    @property
    def _is_the_cells_own(self) -> bool:
        """True if the spec of the cell that trained the model evaluates it under the same conditions."""
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
