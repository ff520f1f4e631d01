"""The names that other tools use for the numbers of a training step and of an evaluation, whichever logger wrote them.

Names are those of TRL 1.16 (`GRPOTrainer`, `DPOTrainer`) and verl 0.9. A logger may prefix them with `train/`. A name
outside the table is kept as `theirs/<name>`: it is recorded and enters none of our figures.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from harness.shelves.imports.base import RESULTS, ImportedRun, Score, finite

OURS = {
    # TRL
    "reward": "reward/mean",
    "reward_std": "reward/std",
    "frac_reward_zero_std": "reward/frac_zero_std",
    "completions/mean_length": "len/mean",
    "completions/clipped_ratio": "len/truncated_frac",
    "entropy": "entropy/full",
    "loss": "loss",
    "grad_norm": "grad_norm",
    "learning_rate": "learning_rate",
    # verl
    "critic/score/mean": "reward/mean",
    "response_length/mean": "len/mean",
    "response_length/clip_ratio": "len/truncated_frac",
    "actor/entropy": "entropy/full",
    "actor/entropy_loss": "entropy/full",
    "actor/pg_loss": "loss",
    "actor/grad_norm": "grad_norm",
}
"""Their name -> the column of steps.jsonl that means the same.

TRL's and verl's entropies are means over tokens of the entropy over the vocabulary. verl's score is the reward before
its KL penalty.
"""

_LOGGER = re.compile(r"^train/")
_EVALUATION = re.compile(r"^(?:eval[/_]|validation/)")
_OF_TASK = re.compile(r"^(?:val(?:-core|-aux)?/(?:test_score/)?|test_score/)")
_OF_SPEED = re.compile(r"(?:^|_|/)(?:runtime|samples_per_second|steps_per_second|epoch|stderr|time)$")
_MEAN_OF = re.compile(r"^(?P<task>.+)/(?P<metric>[^/]+/(?:mean|best|maj|worst)@\d+(?:/\w+)?)$")


def log(run: ImportedRun, step: int, values: Mapping[str, object]) -> None:
    """Add the values that a tool logged after a training step, except those that are not finite numbers."""
    for name, value in finite(values.items()).items():
        name = _LOGGER.sub("", name)
        if (score := score_of(name)) is not None:
            if not _OF_SPEED.search(name):
                run.scores.append(Score(*score, value, step))
        else:
            run.steps.setdefault(step, {})[OURS.get(name, f"theirs/{name}")] = value


def score_of(name: str) -> tuple[str, str] | None:
    """Return the task and metric of a logged number, or None for a number of training.

    verl names the task: `val/test_score/openai/gsm8k`, or `val-core/openai/gsm8k/acc/mean@1` for acc/mean@1.
    `eval_reward` and `eval/reward` are the reward of `results`.
    """
    if before := _EVALUATION.match(name):
        return RESULTS, metric_name(name[before.end() :])
    before = _OF_TASK.match(name)
    if before is None:
        return None
    rest = name[before.end() :]
    if found := _MEAN_OF.match(rest):
        return found["task"], metric_name(found["metric"])
    return rest, "score"


def metric_name(name: str) -> str:
    """Replace full stops, which separate task and metric in `eval.final.<task>.<metric>`."""
    return name.replace(".", "_")
