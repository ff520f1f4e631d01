"""Evaluation: samples that a store lacks are taken over from elsewhere or sampled anew, then graded and kept."""

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
"""About this many samples are sampled together."""
BLOCK_SAMPLES = 16
"""A chunk holds at most this many samples of one problem."""


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

    What the store lacks is taken from `drawn_before`, else sampled anew. drawn_before: samples of this policy under
    these conditions, perhaps with verdicts of another grader. on_progress: called with the problems that are done, of
    all. If the store is lasting, it is called with samples, of those that were missing.
    """
    there = {_key(row): row for row in store.rows() if row["task"] == conditions.task.name}
    store.record_problems(problems, conditions)
    # Before any row is added: rows with verdicts of two graders must be marked for grading again.
    if store.is_lasting:
        store.begin(conditions, there.values())
    wanted = {problem.id for problem in problems}
    taken = [row for row in drawn_before if row["problem_id"] in wanted and row["sample"] < samples]
    if taken := [row for row in taken if _key(row) not in there]:
        graded = regrade(conditions.task, problems, taken, conditions.grader)
        store.append(graded)
        there |= {_key(row): row for row in graded}
    drawing = _Drawing(policy, conditions, store, problems, samples, there, on_progress)
    # Choices among given texts are always the same, so a chunk that a kill interrupted can be repeated as a whole.
    one_by_one = store.is_lasting and not conditions.task.gives_choices
    there |= {_key(row): row for row in (drawing.draw_missing() if one_by_one else drawing.draw_chunks())}
    return [there[problem.id, sample] for problem in problems for sample in range(samples)]


def chunks(problems: Sequence[Problem], samples: int) -> Iterator[tuple[Sequence[Problem], range]]:
    """Yield the problems, and the numbers of their samples, that are sampled together.

    The size of a batch can decide the last bit of a log-prob. So a chunk does not depend on which samples exist
    already. Once it is whole, it does not depend on the total number of samples either. Sample 3 of a problem is bit
    for bit the same as one of 16 and as one of 256.
    """
    for first in range(0, samples, BLOCK_SAMPLES):
        block = range(first, min(samples, first + BLOCK_SAMPLES))
        size = max(1, CHUNK_SAMPLES // len(block))
        for start in range(0, len(problems), size):
            yield problems[start : start + size], block


@dataclass(frozen=True)
class _Drawing:
    """The sampling of what a store lacks."""

    policy: Policy
    conditions: Conditions
    store: SampleStore
    problems: Sequence[Problem]
    samples: int
    there: Mapping[tuple[str, int], SampleRow]
    """The samples that exist, by problem and number."""
    on_progress: OnProgress

    def draw_chunks(self) -> list[SampleRow]:
        """Sample, grade and record every chunk that lacks a sample, as a whole."""
        conditions = self.conditions
        rows: list[SampleRow] = []
        done_samples = 0
        for chunk, block in chunks(self.problems, self.samples):
            # Without the known samples as an argument, `missing_draws` lists every draw: a chunk is repeated as a
            # whole.
            draws = [one for one in missing_draws(chunk, conditions.prompts, block.stop) if one.sample in block]
            if any((one.example, one.sample) not in self.there for one in draws):
                rows += self._recorded(draws, conditions.draw(self.policy(), draws))
            done_samples += len(draws)
            remark = "chosen" if conditions.task.gives_choices else "drawn"
            self.on_progress(done_samples // self.samples, len(self.problems), remark)
        return rows

    def draw_missing(self) -> list[SampleRow]:
        """Sample the missing completions in one go; grade and record each as it finishes.

        Samples whose grader reads several at once wait for each other.
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
        # The last samples do not fill a call of the grader.
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
