"""One task of `bench eval`: the samples that are missing are drawn and recorded, then all of them are scored.

`<home>/evals/<model>/<task>-<hash>/` is a store of samples (`harness.sampling.store`) with two more files:
starts.jsonl, with a row for each time that samples were drawn: machine, versions and model; scores.json, of the
evaluation as last asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from evals.evaluate import SampleRow, disagreement, missing_requests, regrade, scores, standard_errors
from evals.grading.unit_tests import runs_code
from evals.sampler import SamplingParams
from evals.tasks import get_task
from evals.tasks.base import Problem
from harness.config.run_spec import recorded_spec
from harness.errors import RefusedError
from harness.plan.subject import Subject
from harness.records.cell import STARTS_FILE
from harness.records.files import write_json
from harness.run.data_checks import record_source
from harness.run.evaluation import EarlierEvaluations
from harness.run.provenance import append_start
from harness.sampling.code_tester import code_account
from harness.sampling.conditions import Conditions, fitted
from harness.sampling.judge_replies import judges_in
from harness.sampling.sampler import BudgetedSampler, ConversingSampler, EngineSampler
from harness.sampling.store import EVALS, SAMPLES_FILE, OnProgress, SampleStore, store_name


def ignore_progress(done: int, total: int, remark: str) -> None:
    pass


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
    def identity(self) -> dict[str, Any]:
        """What two evaluations must have in common for their samples to be mixed.

        Raises RefusedError for a model's files that are not there.
        """
        conditions = self.conditions
        return self.subject.conditions(conditions.seed) | conditions.as_json(conditions.task.split("test").load())

    def folder(self, home: Path) -> Path:
        return home / EVALS / self.subject.label / store_name(self.conditions.task.name, self.identity)

    def run(
        self,
        home: Path,
        sampler: Callable[[], EngineSampler] | None,
        on_progress: OnProgress = ignore_progress,
        tell: Callable[[str], None] = lambda remark: None,
    ) -> dict[str, Any]:
        """Draw what is missing, grade, score; returns the document that is kept as scores.json.

        sampler: is called if anything is to be drawn, and its noise must be that of the conditions; None: nothing may
            be, stored text is graded again. tell: is told of samples that the cell itself had drawn.

        Raises RefusedError if samples are missing that may not be drawn, and as `SampleStore.opened`; EvalError for a
        grader that cannot grade the task.
        """
        folder = self.folder(home)

        def tell_waiting(sentence: str, is_away: bool) -> None:
            on_progress(0, 0, sentence)

        if sampler is None and not folder.exists() and not self._drawn_by_the_cell[0]:
            raise self._nothing_to_regrade(len(self.problems) * self.samples)
        with SampleStore.opened(folder, self.identity) as store, judges_in(home, tell_waiting):
            self._take_over(store, tell)
            store.record_problems(self.problems, self.conditions)
            self._draw(store, home / "cache", sampler, on_progress)
            mine = self._asked_for(store.graded(self.conditions, again=sampler is None))
            document = {
                "task": self.conditions.task.name,
                "thinking_budget_tokens": self._budget_beside_task,
                "n_problems": len(self.problems),
                "n_samples": self.samples,
                "metrics": scores(mine, self.ks),
                "standard_errors": standard_errors(mine, self.ks),
                "grader": self.conditions.grader,
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

    def _draw(
        self,
        store: SampleStore,
        cache: Path,
        make_sampler: Callable[[], EngineSampler] | None,
        on_progress: OnProgress,
    ) -> None:
        conditions, there = self.conditions, store.rows()
        finished = {(row["problem_id"], row["sample"]) for row in there}
        requests = list(missing_requests(self.problems, conditions.prompts, self.samples, finished))
        if not requests:
            return
        if make_sampler is None:
            raise self._nothing_to_regrade(len(requests))
        done = correct = 0

        def count(row: SampleRow) -> None:
            nonlocal done, correct
            done, correct = done + 1, correct + row["correct"]
            on_progress(done, len(requests), f"{correct / done:.1%} correct")

        store.begin(conditions, there)
        sampler = make_sampler()
        rows = record_source(cache, conditions.task, "test")
        account = {"model": sampler.language_model.account(), "problems": rows} | code_account(
            runs_code(conditions.grader)
        )
        append_start(store.path.with_name(STARTS_FILE), account)
        budget = conditions.thinking_budget_tokens
        params = self._params(sampler)
        remark = f"{len(finished)} are there already" if finished else "drawing"
        if params != conditions.params:
            remark += f", up to {params.max_completion_tokens:,} tokens, where the model's context ends"
        on_progress(done, len(requests), remark)
        if conditions.task.gives_choices:
            store.fill(self.problems, self.samples, conditions, sampler, self._told(on_progress))
            return
        drawing: EngineSampler | BudgetedSampler | ConversingSampler = sampler
        if conditions.task.environment is not None:
            problems = {problem.id: problem for problem in self.problems}
            drawing = sampler.in_turns(conditions.task.environment, problems)
        elif budget is not None:
            drawing = sampler.within(budget, conditions.prompts.thinking)
        store.draw(requests, conditions, drawing, params, count)

    def _told(self, on_progress: OnProgress) -> Callable[[int], None]:
        return lambda done: on_progress(done, len(self.problems), "chosen")

    def _params(self, sampler: EngineSampler) -> SamplingParams:
        conditions = self.conditions
        if not conditions.fits_context:
            return conditions.params
        model, budget = sampler.language_model, conditions.thinking_budget_tokens
        problems = conditions.task.split("test").load()
        stop = conditions.prompts.thinking.stop
        other_tokens = 0 if budget is None else budget + len(model.encode_text(stop))
        return fitted(conditions.params, model, conditions.prompts, problems, other_tokens)

    def _nothing_to_regrade(self, missing: int) -> RefusedError:
        return RefusedError(
            f"{self.conditions.task.name}: {missing} samples are not there, and --regrade draws none. Leave it out to "
            "draw them, or ask for fewer --problems or --samples."
        )

    def _take_over(self, store: SampleStore, tell: Callable[[str], None]) -> None:
        """Put samples that the cell itself drew under these conditions into the store, unless it has all it needs."""
        there = store.rows()
        if len(self._asked_for(there)) == len(self.problems) * self.samples:
            return
        drawn, remark = self._drawn_by_the_cell
        known = {(row["problem_id"], row["sample"]) for row in there}
        new = [row for row in drawn if (row["problem_id"], row["sample"]) not in known]
        if new:
            conditions, task = self.conditions, self.conditions.task
            problems = task.split("test").load()
            graded = regrade(task, problems, new, conditions.grader)
            referred = {row["problem_id"] for row in new}
            store.begin(conditions, there)
            store.record_problems([problem for problem in problems if problem.id in referred], conditions)
            store.append(graded)
            remark = f"{len(new)} samples are taken over from the cell"
        if remark:
            tell(f"{self.name}: {remark}")

    @cached_property
    def _drawn_by_the_cell(self) -> tuple[list[SampleRow], str]:
        """The samples that the cell's evaluations drew under these conditions, and why there are none where one could
        wonder."""
        cell, checkpoint, conditions = self.subject.cell, self.subject.checkpoint_step, self.conditions
        if cell is None or checkpoint is None:
            return [], ""
        spec = recorded_spec(cell)
        as_trained = self.subject.as_in(spec)
        if as_trained.conditions(spec.seed) != self.subject.conditions(conditions.seed):
            return [], ""
        found = EarlierEvaluations(cell).samples(checkpoint, conditions)
        if not found and conditions.task.name in {get_task(name).name for name in spec.eval.tasks}:
            own = Conditions.of_evaluation(spec.eval, conditions.task, spec.seed)
            if replace(self, subject=as_trained, conditions=own).identity == self.identity:
                return [], "the cell's samples are not taken over: problems, prompts or code are not what they were"
        return found, ""
