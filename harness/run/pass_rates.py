"""How often the starting weights solve each training problem: what `task.filter` goes by.

Measured once for all cells that start from the same weights, as a stage of its own. The noise is that of step 0, before
training, and of no cell's seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from evals.grading import grade
from evals.prompts import get_template
from evals.tasks import get_task
from evals.tasks.base import Problem
from harness.records.files import append_jsonl, keep_jsonl, read_json, read_jsonl, write_json
from harness.rollouts.engine import Engine, SamplingParams
from harness.rollouts.keys import random_key
from harness.run.prompt_pool import SEED_OF_ALL_CELLS, candidates
from harness.spec.run_spec import RunSpec
from harness.spec.sections.task import PassRateFilter

if TYPE_CHECKING:
    from harness.models.language_model import LanguageModel

CHUNK_SAMPLES = 1024
"""Drawn together. Fixed, whatever is there already: a resumed measurement repeats the same batches."""


def read_correct_counts(path: Path) -> dict[str, int]:
    """Problem id -> correct ones among the filter's samples, as `measure_pass_rates` left them."""
    return dict(read_json(path))


def measure_pass_rates(
    path: Path,
    spec: RunSpec,
    language_model: LanguageModel,
    engine: Engine,
    on_progress: Callable[[int, int], None],
) -> None:
    """Write to `path` how many of the filter's samples of each candidate are correct.

    on_progress: is told after each chunk how many problems of how many are measured. What a killed measurement had
    done lies beside `path`, and the next one goes on from there.
    """
    if not isinstance(spec.task.filter, PassRateFilter):
        raise ValueError("without task.filter.type=pass_rate there is nothing to measure")
    problems, samples = candidates(spec), spec.task.filter.samples
    partial = path.with_suffix(".partial.jsonl")
    keep_jsonl(partial, lambda row: True)  # without the torn end that a kill may have left
    counts: dict[str, int] = {row["problem_id"]: row["correct"] for row in read_jsonl(partial)}
    a_chunk = max(1, CHUNK_SAMPLES // samples)
    for start in range(0, len(problems), a_chunk):
        chunk = problems[start : start + a_chunk]
        if not all(problem.id in counts for problem in chunk):
            correct = _correct(chunk, samples, spec, language_model, engine)
            measured = {problem.id: number for problem, number in zip(chunk, correct, strict=True)}
            append_jsonl(partial, ({"problem_id": name, "correct": number} for name, number in measured.items()))
            counts |= measured
        on_progress(start + len(chunk), len(problems))
    write_json(path, counts)
    partial.unlink(missing_ok=True)


def _correct(
    problems: Sequence[Problem], samples: int, spec: RunSpec, language_model: LanguageModel, engine: Engine
) -> list[int]:
    """Correct completions of each problem, drawn and graded as in training."""
    import torch

    template, extract = get_template(spec.task.template), get_task(spec.task.train).extract
    keys = [
        [random_key(SEED_OF_ALL_CELLS, "rollout", example=problem.id, sample=sample) for sample in range(samples)]
        for problem in problems
    ]
    rollout = spec.rollout
    drawn = engine.generate(
        [language_model.encode(template.render(problem.problem)) for problem in problems],
        torch.tensor(keys),
        SamplingParams(rollout.max_completion_tokens, rollout.temperature, rollout.top_p, rollout.top_k, rollout.stop),
    )
    texts = [
        language_model.decode(tokens[:length])
        for tokens, length in zip(drawn.tokens.tolist(), drawn.lengths.tolist(), strict=True)
    ]
    return [
        sum(
            grade(text, problem.answer, spec.reward.grader, extract).correct
            for text in texts[row * samples : (row + 1) * samples]
        )
        for row, problem in enumerate(problems)
    ]
