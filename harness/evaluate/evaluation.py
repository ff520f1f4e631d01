"""An evaluation as asked for: the samples that are missing are drawn and recorded, then all of them are scored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evals.evaluate import Request, SampleRow, disagreement, grade_sample, missing_requests, regrade, scores
from evals.grading import GRADERS, grader_version
from evals.grading.extract import EXTRACTION_VERSION
from evals.prompts import get_template
from evals.sampler import Draw, Drawn, SamplingParams
from evals.tasks.base import Problem
from harness.errors import RefusedError
from harness.evaluate.conditions import Conditions
from harness.evaluate.store import SampleStore, store_folder
from harness.run.inputs import record_source
from harness.run.provenance import provenance
from harness.sampling.sampler import BudgetedSampler, EngineSampler, fitted, forced_tokens

OnProgress = Callable[[int, int, str], None]
"""(samples drawn, samples that were missing, a remark)"""


@dataclass(frozen=True)
class TaskEvaluation:
    """One task of `bench eval`. samples: of each problem. ks: of pass@k. grader: None for the task's own.
    warning: what must be said wherever scores are, e.g. that the rows are not the pinned ones."""

    conditions: Conditions
    problems: Sequence[Problem]
    samples: int
    ks: Sequence[int]
    grader: str | None = None
    warning: str | None = None

    @property
    def name(self) -> str:
        """The task's, and the thinking budget if there is one."""
        task, budget = self.conditions.task.name, self.conditions.thinking_budget_tokens
        return task if budget is None else f"{task}, thinking {budget}"

    def run(
        self,
        home: Path,
        sampler: Callable[[], EngineSampler] | None,
        on_progress: OnProgress = lambda done, total, remark: None,
    ) -> dict[str, Any]:
        """Draw what is missing, grade, score; returns the document that is kept as scores.json.

        sampler: is called if anything is to be drawn; None: nothing may be, stored text is graded again.

        Raises RefusedError if samples are missing that may not be drawn, and as `SampleStore.opened`; EvalError for a
        grader that cannot grade the task.
        """
        folder = store_folder(home, self.conditions)
        if sampler is None and not folder.exists():
            raise self._nothing_to_regrade(len(self.problems) * self.samples)
        with SampleStore.opened(folder, self.conditions) as store:
            self._draw(store, home / "cache", sampler, on_progress)
            rows = self._graded(store, again=sampler is None)
            mine = self._asked_for(rows)
            document = {
                "task": self.conditions.task.name,
                "thinking_budget_tokens": self.conditions.thinking_budget_tokens,
                "n_problems": len(self.problems),
                "n_samples": self.samples,
                "metrics": scores(mine, self.ks),
                "grader": self._grader,
                "disagreement": disagreement(mine),
                "path": str(folder),
            }
            store.write_scores(document)
        return document

    def rows(self, home: Path) -> list[SampleRow]:
        """The graded samples behind the scores, once it has run."""
        return self._asked_for(SampleStore(store_folder(home, self.conditions)).rows())

    def _asked_for(self, rows: Sequence[SampleRow]) -> list[SampleRow]:
        """Without those of more problems or samples that were asked for at another time."""
        wanted = {problem.id for problem in self.problems}
        return [row for row in rows if row["problem_id"] in wanted and row["sample"] < self.samples]

    @property
    def _grader(self) -> str:
        return self.grader or self.conditions.task.require_grader()

    def _draw(
        self,
        store: SampleStore,
        cache: Path,
        make_sampler: Callable[[], EngineSampler] | None,
        on_progress: OnProgress,
    ) -> None:
        conditions, there = self.conditions, store.rows()
        finished = {(row["problem_id"], row["sample"]) for row in there}
        requests = list(missing_requests(self.problems, get_template(conditions.template), self.samples, finished))
        if not requests:
            return
        if make_sampler is None:
            raise self._nothing_to_regrade(len(requests))
        done = correct = 0

        def record(index: int, drawn: Drawn) -> None:
            nonlocal done, correct
            row = self._grade(requests[index], drawn)
            store.append([row])
            done, correct = done + 1, correct + row["correct"]
            on_progress(done, len(requests), f"{correct / done:.1%} correct")

        # Rows of before that were graded otherwise will all be graded again, and the new ones with them.
        alike = not there or store.read_grading() == self._grading
        store.write_grading(self._grading if alike else {})
        sampler = make_sampler()
        rows = record_source(cache, conditions.task, "test")
        store.write_provenance(provenance() | {"model": sampler.language_model.account(), "problems": rows})
        draws = [Draw(request.prompt, request.problem.id, request.sample) for request in requests]
        budget = conditions.thinking_budget_tokens
        drawing = sampler if budget is None else BudgetedSampler(sampler, budget)
        decoding = self._decoding(sampler)
        remark = f"{len(finished)} are there already" if finished else "drawing"
        if decoding != conditions.decoding:
            remark += f", up to {decoding.max_completion_tokens:,} tokens, where the model's context ends"
        on_progress(done, len(requests), remark)
        drawing.draw(draws, decoding, record)

    def _decoding(self, sampler: EngineSampler) -> SamplingParams:
        conditions = self.conditions
        if not conditions.fits_context:
            return conditions.decoding
        model, budget = sampler.language_model, conditions.thinking_budget_tokens
        return fitted(
            conditions.decoding,
            model,
            get_template(conditions.template),
            conditions.task.split("test").load(),
            0 if budget is None else budget + len(forced_tokens(model)),
        )

    def _nothing_to_regrade(self, missing: int) -> RefusedError:
        return RefusedError(
            f"{self.conditions.task.name}: {missing} samples are not there, and --regrade draws none. Leave it out to "
            "draw them, or ask for fewer --problems or --samples."
        )

    def _grade(self, request: Request, drawn: Drawn) -> SampleRow:
        return grade_sample(self.conditions.task, request, drawn.text, drawn.n_tokens, drawn.truncated, self._grader)

    def _graded(self, store: SampleStore, again: bool) -> list[SampleRow]:
        """All rows of the store, graded by the grader that is asked for as it is today, and compacted."""
        rows = store.rows()
        if again or store.read_grading() != self._grading:
            task = self.conditions.task
            rows = regrade(task, task.split("test").load(), rows, self._grader)
        store.compact(rows)
        store.write_grading(self._grading)
        return rows

    @property
    def _grading(self) -> dict[str, Any]:
        """What the stored verdicts depend on."""
        return {
            "grader": self._grader,
            "graders": {name: grader_version(name) for name in sorted(GRADERS.names())},
            "extraction": {"name": self.conditions.task.extract, "version": EXTRACTION_VERSION},
        }
