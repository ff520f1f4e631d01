"""The evaluation of the model before training, which every report shows beside the trained arms."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from harness.config.hashing import base_evaluation_hash
from harness.records.files import write_json
from harness.run.stages import Stage, StageContext


def _make(path: Path, context: StageContext) -> None:
    from harness.run.evaluation import Evaluator

    spec, start = context.spec, context.start
    context.tell_progress(0, 0)
    evaluator = Evaluator(spec.eval, spec.seed, start, context.engine(start))
    samples = context.samples(path)
    rows = [*evaluator.run(spec.eval.samples, samples)]
    right = Counter[tuple[str, str]]()
    for sample in samples.rows():
        right[sample["task"], sample["problem_id"]] += sample["correct"]
    for row in rows:
        # The samples do not stay, and the noise of pass@k is in these counts.
        counts = Counter(count for (task, _), count in right.items() if task == row["task"])
        row["problems_by_right"] = [counts[count] for count in range(row["n_samples"] + 1)]
    write_json(path, [{"step": 0, "final": False, **row, "generated_tokens": 0} for row in rows])
    samples.drop()


BASE = Stage(
    "base",
    "evaluating the base model",
    needed=lambda spec: True,
    key=lambda spec: f"base-{base_evaluation_hash(spec)[:16]}.json",
    make=_make,
    for_cells=False,
)
