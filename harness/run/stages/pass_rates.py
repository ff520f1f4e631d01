"""How often the starting weights solve each training problem: what `task.filter` goes by.

Measured once for all cells that start from the same weights, as a stage of its own. The noise is that of step 0, before
training, and of no cell's seed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from harness.config.run_spec import RunSpec
from harness.config.task import PassRateFilter
from harness.engines.base import Engine
from harness.records.files import append_jsonl, keep_jsonl, read_jsonl, write_json
from harness.run.prompts import candidates
from harness.sampling.graded import Conditions, chunks, draw_graded

if TYPE_CHECKING:
    from harness.models.language_model import LanguageModel


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
    done = 0
    for chunk in chunks(problems, samples):
        if not all(problem.id in counts for problem in chunk):
            drawn = draw_graded(chunk, samples, Conditions.of_training(spec), language_model, engine)
            correct = drawn.correct.sum(1).tolist()
            measured = {problem.id: number for problem, number in zip(chunk, correct, strict=True)}
            append_jsonl(partial, ({"problem_id": name, "correct": number} for name, number in measured.items()))
            counts |= measured
        done += len(chunk)
        on_progress(done, len(problems))
    write_json(path, counts)
    partial.unlink(missing_ok=True)
