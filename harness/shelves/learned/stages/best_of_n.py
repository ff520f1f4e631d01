"""Best-of-n by the reward model, the yardstick for training on it (Gao, Schulman and Hilton, 2210.10760).

It shows how far the model's score and the truth diverge when the model only picks among the starting policy's
completions.
"""

from __future__ import annotations

import itertools
import statistics
from pathlib import Path

from evals.metrics.success import best_of_n, best_of_n_kl
from evals.tasks import get_task
from harness.config.hashing import base_evaluation_hash, digest
from harness.config.run_spec import RunSpec
from harness.records.files import write_json
from harness.run.stages import Stage, StageContext
from harness.shelves.learned.stages.reward_model import REWARD_MODEL, draw_graded, reward_model_hash


def _make(path: Path, context: StageContext) -> None:
    """Write the worth of the highest-scored completion among n, for n = 1, 2, 4, ... eval.samples.

    Rows are {"n", "kl_nats" (from best-of-n to the policy, an upper bound), "proxy" (its score), "correct" (its
    verdict)}, means over the problems of the first evaluation task. The samples are those of the base evaluation, so
    `correct` at n = 1 is its avg@n.
    """
    from harness.sampling.conditions import Conditions
    from harness.shelves.learned.reward_model import RewardModel

    spec, start = context.spec, context.start
    context.tell_progress(0, 0)
    engine = context.engine(start)
    reward_model = RewardModel.load(context.result_of("reward_model"), start)
    task = get_task(spec.eval.tasks[0])
    problems = list(itertools.islice(task.split("test").load(), spec.eval.problems))
    samples, store = spec.eval.samples, context.samples(path, keeps_tokens=True)
    conditions = Conditions.of_evaluation(spec.eval, task, spec.seed)
    drawn = draw_graded(problems, samples, conditions, start, engine, store)
    scores = reward_model.scores(drawn.sequences).view(-1, samples).tolist()
    correct = drawn.correct.view(-1, samples).float().tolist()
    rows = [
        {
            "n": n,
            "kl_nats": best_of_n_kl(n),
            # An average over all subsets of n samples, so that small n use all samples too.
            "proxy": statistics.fmean(best_of_n(mine, mine, n) for mine in scores),
            "correct": statistics.fmean(map(best_of_n, scores, correct, itertools.repeat(n))),
        }
        # bit_length gives the largest power of two that is not above `samples`.
        for n in (2**power for power in range(samples.bit_length()))
    ]
    write_json(path, rows)
    store.drop()


def best_of_n_hash(spec: RunSpec) -> str:
    """Return the hash of the choice among the starting weights' samples by a reward model."""
    return digest({"best_of_n": [base_evaluation_hash(spec), reward_model_hash(spec)]})


BEST_OF_N = Stage(
    "best_of_n",
    "best of n by the reward model",
    needed=REWARD_MODEL.needed,
    key=lambda spec: f"best-of-n-{best_of_n_hash(spec)[:16]}.json",
    make=_make,
    reads=("start", "reward_model"),
    for_cells=False,
    in_report=True,
)
