"""Evaluation: samples that a store lacks are copied from an earlier evaluation or sampled, then graded and stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from evals.evaluate import missing_draws, regrade
from evals.graders import get_grader
from evals.sampler import Draw, Drawn
from evals.samples import SampleRow
from evals.tasks.base import Problem
from harness.sampling.conditions import Conditions
from harness.sampling.sampler import Policy
from harness.sampling.store import OnProgress, SampleStore, ignore_progress

CHUNK_SAMPLES = 1024
"""The approximate number of samples in a chunk, which is sampled together."""
BLOCK_SAMPLES = 16
"""The maximum number of samples of one problem in a chunk."""


def evaluate(
    policy: Policy,
    conditions: Conditions,
    store: SampleStore,
    problems: Sequence[Problem],
    samples: int,
    drawn_before: Sequence[SampleRow] = (),
    on_progress: OnProgress = ignore_progress,
) -> list[SampleRow]:
    """Return the graded samples of each problem, in the order of problems.

    Samples that the store lacks are taken from `drawn_before` if it has them, and else sampled.

    drawn_before: samples of this policy under these conditions, possibly with verdicts of another grader.
    on_progress: called with the number of problems done and of all problems. If the store is lasting, it is called with
    the number of samples done and of samples that were missing.
    """
    there = {_key(row): row for row in store.rows() if row["task"] == conditions.task.name}
    store.record_problems(problems, conditions)
    # This comes before any row is added, because rows with verdicts of two graders must be marked for regrading.
    if store.is_lasting:
        store.begin(conditions, there.values())
    wanted = {problem.id for problem in problems}
    taken = [row for row in drawn_before if row["problem_id"] in wanted and row["sample"] < samples]
    if taken := [row for row in taken if _key(row) not in there]:
        graded = regrade(conditions.task, problems, taken, conditions.grader)
        store.append(graded)
        there |= {_key(row): row for row in graded}
    drawing = _Drawing(policy, conditions, store, problems, samples, there, on_progress)
    # Choices among given texts are deterministic, so a chunk that a kill interrupted can be repeated completely.
    one_by_one = store.is_lasting and not conditions.task.gives_choices
    there |= {_key(row): row for row in (drawing.draw_missing() if one_by_one else drawing.draw_chunks())}
    return [there[problem.id, sample] for problem in problems for sample in range(samples)]


def chunks(problems: Sequence[Problem], samples: int) -> Iterator[tuple[Sequence[Problem], range]]:
    """Yield (problems, sample numbers) of each chunk of samples that are sampled together.

    Batch size can change the last bit of a log-prob. So the chunks do not depend on which samples already exist. A
    complete block of samples does not depend on the total number of samples either: sample 3 of a problem is bitwise
    the same whether 16 or 256 samples are requested.
    """
    for first in range(0, samples, BLOCK_SAMPLES):
        block = range(first, min(samples, first + BLOCK_SAMPLES))
        size = max(1, CHUNK_SAMPLES // len(block))
        for start in range(0, len(problems), size):
            yield problems[start : start + size], block


@dataclass(frozen=True)
class _Drawing:
    """Samples what a store lacks."""

    policy: Policy
    conditions: Conditions
    store: SampleStore
    problems: Sequence[Problem]
    samples: int
    there: Mapping[tuple[str, int], SampleRow]
    """(problem id, sample number) -> the sample, for all samples that exist."""
    on_progress: OnProgress

    def draw_chunks(self) -> list[SampleRow]:
        """Sample, grade and record all samples of every chunk in which a sample is missing."""
        conditions = self.conditions
        rows: list[SampleRow] = []
        done_samples = 0
        for chunk, block in chunks(self.problems, self.samples):
            # The known samples are not passed, so `missing_draws` returns every draw of the chunk.
            draws = [one for one in missing_draws(chunk, conditions.prompts, block.stop) if one.sample in block]
            if any((one.example, one.sample) not in self.there for one in draws):
                rows += self._recorded(draws, conditions.draw(self.policy(), draws))
            done_samples += len(draws)
            remark = "chosen" if conditions.task.gives_choices else "drawn"
            self.on_progress(done_samples // self.samples, len(self.problems), remark)
        return rows

    def draw_missing(self) -> list[SampleRow]:
        """Sample all missing completions in one call. Grade and record each when it finishes.

        If the grader takes several samples per call, finished samples wait until a call is full.
        """
        conditions, there = self.conditions, self.there
        draws = list(missing_draws(self.problems, conditions.prompts, self.samples, there.keys()))
        if not draws:
            return []
        sampler = self.policy()
        params = conditions.sampling_params(sampler.language_model)
        remark = f"{len(there)} are there already" if there else "drawing"
        if params != conditions.params:
            remark += f", up to {params.max_completion_tokens:,} tokens, where the model's context ends"
        self.on_progress(0, len(draws), remark)
        ended: list[tuple[Draw, Drawn]] = []
        rows: list[SampleRow] = []

        def take(index: int, drawn: Drawn) -> None:
            ended.append((draws[index], drawn))
            if len(ended) >= get_grader(conditions.grader).at_once:
                record()

        def record() -> None:
            rows.extend(self._recorded([draw for draw, _ in ended], [drawn for _, drawn in ended]))
            ended.clear()
            self.on_progress(len(rows), len(draws), f"{sum(row['correct'] for row in rows) / len(rows):.1%} correct")

        conditions.draw(sampler, draws, params, take)
        # The last samples may not fill a call of the grader.
        if ended:
            record()
        return rows

    def _recorded(self, draws: Sequence[Draw], drawn: Sequence[Drawn]) -> list[SampleRow]:
        rows = self.conditions.graded(draws, drawn)
        if self.store.keeps_tokens:
            rows = [
                {**row, "tokens": list(one.tokens)}  # type: ignore[typeddict-unknown-key]
                for row, one in zip(rows, drawn, strict=True)
            ]
        self.store.append(rows)
        return rows


def _key(row: SampleRow) -> tuple[str, int]:
    return row["problem_id"], row["sample"]
