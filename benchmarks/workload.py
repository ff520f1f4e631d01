"""The GRPO run that both sides do: the same weights, prompts in the same order, reward, loss, optimiser and limits."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from roofline_formulas import Shape

if TYPE_CHECKING:
    from harness.config.run_spec import RunSpec
    from harness.models.language_model import LanguageModel

CLIP = 0.2
"""The clip range of the ratio, both ways, as in the preset `grpo`."""
NEVER = "<never>"
"""A token that no model knows, in the place of the end-of-sequence token: completions then run to their limit."""


@dataclass(frozen=True)
class Workload:
    """model: a `model.source`. full_length: completions cannot end before their limit. untrained: rewards are those of
    `hash_is_even`. scale: knob of the objective."""

    model: str = "builtin:tiny"
    task: str = "arithmetic"
    device: str = "cpu"
    prompts: int = 32
    samples: int = 8
    max_completion_tokens: int = 40
    learning_rate: float = 3e-4
    warmup_steps: int = 3
    micro_batch_tokens: int = 16384
    full_length: bool = False
    untrained: bool = False
    scale: str = "group_std"
    seed: int = 0
    steps: int = 30
    extra: dict[str, Any] = field(default_factory=dict)
    """More knobs of our spec."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Workload:
        return cls(**json.loads(text))

    @property
    def completions(self) -> int:
        """A step."""
        return self.prompts * self.samples

    def spec(self) -> RunSpec:
        """Ours. Nothing is measured that TRL does not measure: no KL to the start, no evaluation along the way."""
        from harness.config.resolve import Layer, resolve

        return resolve([Layer("benchmark", self.settings() | {"objective.scale": self.scale} | self.extra)], self.seed)

    def settings(self) -> dict[str, Any]:
        """The settings that all arms share, in the form of a profile."""
        limit = self.max_completion_tokens
        reward = {"correct": 1.0}
        if self.full_length or self.untrained:
            part = "benchmark_rewards:hashed" if self.untrained else "benchmark_rewards:answered_first"
            reward = {"correct": 0.0, part: 1.0}
        return {
            "model": {"source": self.model},
            "task": {"train": self.task},
            "reward": {"parts": reward},
            "algorithm": "grpo",
            "rollout": {
                "engine": "torch",
                "prompts_per_step": self.prompts,
                "samples_per_prompt": self.samples,
                "max_completion_tokens": limit,
            },
            "train": {
                "device": self.device,
                "steps": self.steps,
                "learning_rate": self.learning_rate,
                "warmup_steps": self.warmup_steps,
                "micro_batch_tokens": self.micro_batch_tokens,
                "reference_rows": 0,
                "checkpoint_every": self.steps,
            },
            "eval": {"problems": 1, "every": 0, "samples": 1, "k": [1], "max_completion_tokens": limit},
        }


def write_prompts(workload: Workload, path: Path) -> None:
    """A line for each prompt of each step, in the order in which our cell draws them: `prompt`, `answer`."""
    from evals.prompts import get_template
    from harness.run.prompts import prompt_order, training_prompts

    spec = workload.spec()
    order = prompt_order(spec.task, training_prompts(spec, {}), spec.seed)
    template = get_template(spec.task.template)
    with path.open("w", encoding="utf-8") as file:
        for step in range(1, workload.steps + 1):
            for problem in order.draw(step, workload.prompts, 0.0):
                row = {"prompt": template.render(problem.problem), "answer": problem.answer}
                file.write(json.dumps(row) + "\n")


def without_end(language_model: LanguageModel) -> None:
    """Make the model's completions run to their limit, in place: what ends them is a token that it cannot draw, since
    its vocabulary ends before it (where the vocabulary is padded: one that it has never learned to draw)."""
    model, tokenizer = language_model.model, language_model.tokenizer
    tokenizer.add_special_tokens({"eos_token": NEVER})
    model.config.eos_token_id = tokenizer.eos_token_id
    if model.generation_config is not None:
        model.generation_config.eos_token_id = tokenizer.eos_token_id


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose a workload."""
    parser.add_argument("--model", default="builtin:tiny", help="a folder, a .gguf file, or a model.source")
    parser.add_argument(
        "--untrained",
        metavar="FOLDER",
        type=Path,
        help="instead of --model: random weights in the shape of Qwen2.5-0.5B, saved in this folder if not there; "
        "texts are rewarded by their hash",
    )
    parser.add_argument("--task", default="arithmetic")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--prompts", type=int, default=32, help="a step")
    parser.add_argument("--samples", type=int, default=8, help="a prompt")
    parser.add_argument("--max-completion-tokens", type=int, default=40)
    parser.add_argument("--micro-batch-tokens", type=int, default=16384, help="ours")
    parser.add_argument("--learning-rate", type=float, default=3e-4)


def workload_of(given: argparse.Namespace) -> Workload:
    """What the options say; the untrained model is saved if it is not there."""
    if given.untrained is not None:
        if not given.untrained.exists():
            from harness.shelves.selftest.whole_cells import save_half_billion

            save_half_billion(given.untrained)
        given.model = str(given.untrained)
    return Workload(
        model=model_source(given.model),
        task=given.task,
        device=given.device,
        prompts=given.prompts,
        samples=given.samples,
        max_completion_tokens=given.max_completion_tokens,
        learning_rate=given.learning_rate,
        micro_batch_tokens=given.micro_batch_tokens,
        untrained=given.untrained is not None,
    )


def settings_of(given: argparse.Namespace) -> dict[str, Any]:
    """The options for JSON, without folders of this machine."""
    return vars(given) | {"model": Path(given.model).name, "untrained": given.untrained is not None}


def model_source(given: str) -> str:
    """A folder or a .gguf file as a `model.source`."""
    if given.endswith(".gguf") and not given.startswith("gguf:"):
        return f"gguf:{given}"
    return f"path:{given}" if Path(given).is_dir() else given


def shape_and_prompt_tokens(workload: Workload) -> tuple[Shape, float]:
    """The model's shape, and the mean tokens of a training prompt."""
    from evals.prompts import get_template
    from evals.tasks import get_task
    from harness.models.language_model import load_model

    language_model = load_model(workload.model)
    shape = Shape.of(language_model.model.config, weight_bytes=2 if workload.device.startswith("cuda") else 4)
    template = get_template(workload.spec().task.template)
    some = list(get_task(workload.task).split("train").load())[:256]
    return shape, fmean(len(language_model.encode(template.render(problem.problem))) for problem in some)
