"""How often the starting weights solve each training problem: what `task.filter` goes by.

The noise is that of step 0, before training, and of no cell's seed, so that all cells that start from these weights
share the result.
"""

from __future__ import annotations

from pathlib import Path

from harness.config.hashing import pass_rates_hash
from harness.config.run_spec import RunSpec
from harness.config.task import PassRateFilter
from harness.records.files import append_jsonl, keep_jsonl, read_jsonl, write_json
from harness.run.prompts import candidates, read_correct_counts, training_prompts
from harness.run.stages import Stage, StageContext


def _make(path: Path, context: StageContext) -> None:
    """Write how many of the filter's samples of each candidate are correct. What a killed measurement had done lies
    beside `path`, and the next one goes on from there."""
    from harness.sampling.graded import Conditions, chunks, draw_graded

    spec, start = context.spec, context.start
    engine = context.engine(start)
    assert isinstance(spec.task.filter, PassRateFilter)
    problems, samples = candidates(spec), spec.task.filter.samples
    partial = path.with_suffix(".partial.jsonl")
    keep_jsonl(partial, lambda row: True)  # without the torn end that a kill may have left
    counts: dict[str, int] = {row["problem_id"]: row["correct"] for row in read_jsonl(partial)}
    done = 0
    for chunk in chunks(problems, samples):
        if not all(problem.id in counts for problem in chunk):
            drawn = draw_graded(chunk, samples, Conditions.of_training(spec), start, engine)
            correct = drawn.correct.sum(1).tolist()
            measured = {problem.id: number for problem, number in zip(chunk, correct, strict=True)}
            append_jsonl(partial, ({"problem_id": name, "correct": number} for name, number in measured.items()))
            counts |= measured
        done += len(chunk)
        context.tell_progress(done, len(problems))
    write_json(path, counts)
    partial.unlink(missing_ok=True)


def _require(spec: RunSpec, path: Path) -> None:
    training_prompts(spec, read_correct_counts(path))


PASS_RATES = Stage(
    "pass_rates",
    "measuring pass rates",
    needed=lambda spec: spec.task.filter.type != "none" and spec.pairs.type != "dataset",
    key=lambda spec: f"pass-rates-{pass_rates_hash(spec)[:16]}.json",
    make=_make,
    require=_require,
)
