"""The evaluation of the model before training, which every report shows next to the trained arms."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from harness.config.hashing import base_evaluation_hash
from harness.records.files import write_json
from harness.run.stages import Stage, StageContext


def _make(path: Path, context: StageContext) -> None:
    from evals.metrics import Samples
    from harness.run.evaluator import Evaluator
    from harness.sampling.sampler import EngineSampler

    spec, start = context.spec, context.start
    context.tell_progress(0, 0)
    sampler = EngineSampler(start, context.engine(start), spec.seed)
    evaluator = Evaluator(spec.eval, spec.seed, lambda: sampler)
    samples = context.samples(path)
    rows = []
    for row, drawn in evaluator.run(spec.eval.samples, samples, on_progress=context.tell_progress):
        # The samples are not kept. The noise of pass@k is computed from these counts.
        right = Counter(Samples.of(drawn).counts)
        rows.append(row | {"problems_by_right": [right[count] for count in range(row["n_samples"] + 1)]})
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
