"""Whole cells on the pretended device beside the CPU: `python -m tests.cuda.rehearse STEPS NAME...` prints what came of
each as a line of JSON. Where there is a GPU, `--real` runs the cells on it instead."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from harness.models.start import StartingPoint
from harness.records import CellRecord
from harness.run.cell import CellRun
from harness.run.learning.base import Examples
from harness.run.prompts import training_prompts
from harness.training.optimizer import ClippedOptimizer
from harness.training.sequences import PassTokens
from harness.training.update_report import GradientPasses
from tests.cuda import device
from tests.harness.run.small import ignore_progress, small_spec

FLOAT32, BFLOAT16 = {"model.dtype": "float32"}, {"model.dtype": "bfloat16"}
VARIANTS: dict[str, dict[str, Any]] = {
    "grpo": FLOAT32,
    "grpo-bfloat16": BFLOAT16,
    "ppo-own-critic": FLOAT32 | {"algorithm": "ppo"},
    "ppo-shared-critic": BFLOAT16 | {"algorithm": "ppo", "objective.critic.trunk": "shared"},
    "kl-in-loss": FLOAT32
    | {
        "objective.kl.where": "loss",
        "objective.kl.beta": 0.01,
        "objective.kl.reference": "initial",
        "train.reference_rows": 4,
        "train.updates_per_rollout": 2,
    },
    "kl-in-reward": BFLOAT16
    | {
        "objective.kl.where": "reward",
        "objective.kl.beta": 0.01,
        "objective.kl.control": "adaptive",
        "objective.kl.reference": "refreshed",
        "objective.kl.refresh_every_steps": 1,
    },
    "clip-cov": FLOAT32 | {"objective.select.type": "clip_cov", "train.updates_per_rollout": 2},
    "kl-cov": FLOAT32 | {"objective.select.type": "kl_cov", "train.updates_per_rollout": 2},
    "gmpo": FLOAT32 | {"algorithm": "gmpo"},
    "token-records": BFLOAT16 | {"train.token_records_max_tokens": 100_000},
    "lora": BFLOAT16 | {"model.lora": {"type": "lora", "rank": 4}},
    "dpo": FLOAT32 | {"algorithm": "dpo"},
    "gold-answers": FLOAT32 | {"reward.parts": {"vr_cli": 1.0, "jepo": 1.0}},
    "teacher": FLOAT32
    | {
        "algorithm": "gkd",
        "teacher.template": "solution_shown",
        "rollout.sampler": "teacher",
        "rollout.policy_frac": 0.5,
    },
    "refill": FLOAT32 | {"objective.zero_std": "refill"},
    "stop-string": FLOAT32 | {"rollout.stop": ["</answer>"]},
    "activation-checkpointing": BFLOAT16 | {"train.activation_checkpointing": True},
}
SHORT: dict[str, Any] = {
    "rollout.engine": "torch",
    "rollout.max_completion_tokens": 24,
    "train.micro_batch_tokens": 160,
    "train.checkpoint_every": 2,
    "eval.problems": 2,
    "eval.every": 0,
    "eval.samples": 2,
    "eval.max_completion_tokens": 24,
}


def cell(variant: dict[str, Any], on: str) -> dict[str, Any]:
    """The rows of a cell's steps, and how it ended."""
    spec = small_spec(SHORT | variant | {"train.device": on})
    with tempfile.TemporaryDirectory() as folder:
        record = CellRecord(Path(folder), "rehearsed", 0, "0")
        begin = partial(StartingPoint().for_training, spec, spec.model.source)
        CellRun(record, spec, begin, Examples(training_prompts(spec, {})), ignore_progress).run()
        status = record.read_status()
        return {"steps": record.read_steps(), "scores": record.read_scores(), "state": status and status["state"]}


def watch_passes(most: dict[str, int]) -> None:
    """Keep in `most` how often the host waited, and copied, in one pass with gradient: since the backward pass before
    it, or since the optimiser step began."""
    backward, zero_grad = GradientPasses.backward, ClippedOptimizer.zero_grad
    before: dict[str, int] = {}

    def now() -> dict[str, int]:
        return {"waits": device.ledger.waits.total(), "copies": device.ledger.copies.total()}

    def watched(passes: GradientPasses, loss: Tensor, tokens: PassTokens) -> None:
        backward(passes, loss, tokens)
        for name, count in now().items():
            most[name] = max(most[name], count - before[name])
        before.update(now())

    def begun(optimizer: ClippedOptimizer) -> None:
        zero_grad(optimizer)
        before.update(now())

    GradientPasses.backward = watched  # type: ignore[method-assign,assignment]
    ClippedOptimizer.zero_grad = begun  # type: ignore[method-assign,assignment]


def main(steps: int, names: list[str], real: bool) -> Iterator[dict[str, Any]]:
    """{name; cpu, cuda: rows and state; most_per_pass: waits and copies; lines: counts of both by line} for each"""
    variants = {name: VARIANTS[name] | {"train.steps": steps} for name in names}
    wanted = {name: cell(variant, "cpu") for name, variant in variants.items()}
    most: dict[str, int] = {}
    if not real:
        device.install()
        watch_passes(most)
    lines = {"waits": device.ledger.waits, "copies": device.ledger.copies}
    for name, variant in variants.items():
        most.update(waits=0, copies=0)
        for counts in lines.values():
            counts.clear()
        got = cell(variant, "cuda")
        yield {"name": name, "cpu": wanted[name], "cuda": got, "most_per_pass": most, "lines": lines}


if __name__ == "__main__":
    steps, *names = [word for word in sys.argv[1:] if word != "--real"]
    for result in main(int(steps), names, real="--real" in sys.argv):
        print(json.dumps(result), flush=True)
