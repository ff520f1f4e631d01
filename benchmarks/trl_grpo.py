"""TRL's GRPOTrainer on a workload, in a process of its own: a user's script, with nothing of ours but the grader.

python benchmarks/trl_grpo.py WORKLOAD PROMPTS SETTINGS [WARMUP_STEPS STEPS_A_TURN]

All but PROMPTS, a file, are JSON. With the last two it takes turns (see pairs.py), without them it runs to its end; the
last line that it prints is then an account of it.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pairs import Row, StepTurns
from workload import Workload, without_end

STARTED_S = time.perf_counter()

BASE: dict[str, Any] = {
    # What is not a choice: the same run as ours, float32, and nothing besides training.
    "bf16": False,
    "gradient_checkpointing": False,
    "logging_strategy": "no",
    "save_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
    "dataloader_num_workers": 0,
    "dataloader_pin_memory": False,
    "remove_unused_columns": False,
    "shuffle_dataset": False,
    "beta": 0.0,
    "num_iterations": 1,
    "loss_type": "grpo",
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "weight_decay": 0.0,
    "max_grad_norm": 1.0,
    "lr_scheduler_type": "constant_with_warmup",
    # Choices; settings tried beside them are in trl_settings.py.
    "optim": "adamw_torch_fused",
    "micro_batches": 1,
    "attn_implementation": "sdpa",
}


class Work:
    """What each step's completions were, seen by the reward function."""

    def __init__(self, score: Callable[[str, str], float]) -> None:
        self._score = score
        self.steps: list[dict[str, float]] = []
        self.lengths: list[int] = []
        """Lengths of the last step's completions."""
        self.started_s = 0.0
        """From the start of the process's own code to the first step."""

    def reward(
        self, completions: list[Any], completion_ids: list[list[int]], answer: list[str], **_: Any
    ) -> list[float]:
        texts = [text if isinstance(text, str) else text[0]["content"] for text in completions]
        rewards = [self._score(text, right) for text, right in zip(texts, answer, strict=True)]
        self.lengths = [len(tokens) for tokens in completion_ids]
        reward = sum(rewards) / len(rewards)
        self.steps.append({"completions": len(texts), "generated_tokens": sum(self.lengths), "reward": reward})
        return rewards

    def measured(self, first: int, last: int) -> Row:
        """Means over steps, and the last step's lengths; every token that was generated is trained on."""
        steps = self.steps[first - 1 : last]
        means = {key: sum(step[key] for step in steps) / len(steps) for key in steps[0]}
        tokens = means["generated_tokens"]
        return means | {"tokens_in_loss": tokens, "tokens_trained": tokens, "lengths": self.lengths}


def scorer(workload: Workload) -> Callable[[str, str], float]:
    """(text, answer) -> reward: the one that our cell computes."""
    from benchmark_rewards import hash_is_even, starts_with_answer

    from evals.graders import grade
    from evals.tasks import get_task

    if workload.untrained:
        return hash_is_even
    if workload.full_length:
        return starts_with_answer
    task = get_task(workload.task)
    grader = task.require_grader()
    return lambda text, answer: float(grade(text, answer, grader, task.extract).correct)


def main(workload: Workload, prompts: Path, settings: dict[str, Any], warmup_steps: int = 0, turn: int = 0) -> None:
    work = Work(scorer(workload))
    turns = StepTurns(warmup_steps, turn, work.measured) if turn else None

    import torch
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    class AfterStep(TrainerCallback):  # type: ignore[misc]  # transformers is not checked
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if turns is not None:
                turns.after_step(state.global_step)

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            work.started_s = time.perf_counter() - STARTED_S

    options = BASE | settings
    micro_batches, attention = options.pop("micro_batches"), options.pop("attn_implementation")
    weights_dtype = options.pop("weights_dtype", "float32")
    model, tokenizer = load(workload, attention, getattr(torch, weights_dtype))
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder,
            use_cpu=workload.device == "cpu",
            max_steps=workload.steps,
            seed=workload.seed,
            learning_rate=workload.learning_rate,
            warmup_steps=workload.warmup_steps,
            per_device_train_batch_size=workload.completions // micro_batches,
            gradient_accumulation_steps=micro_batches,
            num_generations=workload.samples,
            max_completion_length=workload.max_completion_tokens,
            scale_rewards={"group_std": "group", "batch_std": "batch", "none": "none"}[workload.scale],
            **options,
        )
        rows = [json.loads(line) for line in prompts.read_text(encoding="utf-8").splitlines()]
        trainer = GRPOTrainer(
            model=model,
            processing_class=tokenizer,
            reward_funcs=work.reward,
            args=config,
            train_dataset=Dataset.from_list(rows),
            callbacks=[AfterStep()],
        )
        trainer.train()
    if turns is None:
        print(
            json.dumps({"steps": len(work.steps), "start_s": work.started_s, "reward_last": work.steps[-1]["reward"]})
        )


def load(workload: Workload, attention: str, dtype: Any) -> tuple[Any, Any]:
    """Model and tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from harness.config.model_source import parse_source
    from harness.models.language_model import LanguageModel, load_model

    source = parse_source(workload.model)
    if source.kind in ("builtin", "path"):
        loaded = LanguageModel(
            AutoModelForCausalLM.from_pretrained(source.path, dtype=dtype), AutoTokenizer.from_pretrained(source.path)
        )
    else:
        loaded = load_model(workload.model)
        loaded.model.to(dtype)
    loaded.model.set_attn_implementation(attention)
    if workload.full_length:
        without_end(loaded)
    return loaded.model, loaded.tokenizer


if __name__ == "__main__":
    given = sys.argv[1:]
    main(Workload.from_json(given[0]), Path(given[1]), json.loads(given[2]), *map(int, given[3:]))
