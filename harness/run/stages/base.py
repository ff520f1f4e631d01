"""The evaluation of the model before training, which every report shows beside the trained arms."""

from __future__ import annotations

from pathlib import Path

from harness.config.hashing import base_evaluation_hash
from harness.records.files import write_json
from harness.run.stages import Stage, StageContext


def _make(path: Path, context: StageContext) -> None:
    from harness.run.evaluation import Evaluator
    from harness.sampling.sampler import EngineSampler

    spec, start = context.spec, context.start
    context.tell_progress(0, 0)
    evaluator = Evaluator(spec.eval, spec.seed, EngineSampler(start, context.engine(start), spec.seed))
    samples = context.samples(path)
    rows = [row for row, _ in evaluator.run(spec.eval.samples, samples, on_progress=context.tell_progress)]
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
