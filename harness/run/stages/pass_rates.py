"""The stage that measures how often the starting weights solve each training problem, for `task.filter`.

The noise is that of step 0, before training, and does not depend on any cell's seed. So all cells that start from the
same weights share the result.
"""

from __future__ import annotations

from pathlib import Path

from harness.config.hashing import pass_rates_hash
from harness.config.run_spec import RunSpec
from harness.config.task import PassRateFilter
from harness.records.files import write_json
from harness.run.prompts import candidates, read_correct_counts, training_prompts
from harness.run.stages import Stage, StageContext


def _make(path: Path, context: StageContext) -> None:
    """Write the number of correct samples of each candidate problem."""
    from harness.sampling.conditions import Conditions
    from harness.sampling.evaluation import evaluate
    from harness.sampling.sampler import EngineSampler

    spec, start = context.spec, context.start
    assert isinstance(spec.task.filter, PassRateFilter)
    problems, conditions = candidates(spec), Conditions.of_training(spec)
    sampler = EngineSampler(start, context.engine(start), conditions.seed, conditions.stream)
    store = context.samples(path)
    samples = spec.task.filter.samples
    rows = evaluate(lambda: sampler, conditions, store, problems, samples, on_progress=context.tell_progress)
    counts = {problem.id: 0 for problem in problems}
    for row in rows:
        counts[row["problem_id"]] += row["correct"]
    write_json(path, counts)
    store.drop()


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
