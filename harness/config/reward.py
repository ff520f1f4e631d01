"""`reward`: parts and their weights, and the options of those parts that have some."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Literal

from pydantic import Field, model_validator

from algorithms.objective import Credit
from evals.tasks import get_task
from harness.config.section import GraderName, Section
from harness.errors import nearest
from harness.rewards.parts import PARTS
from harness.rewards.user_function import is_reference


class FormatOptions(Section):
    """Of the part `format`."""

    pattern: Literal["think_answer", "work_hash"] = Field(
        "think_answer",
        description="<think>..</think><answer>..</answer>; or work, then # and a number (arithmetic)",
    )


class KimiLengthOptions(Section):
    """Of the part `kimi_length`."""

    from_step: int = Field(1, ge=1, description="the part is 0 before this step (Kimi k1.5 starts without it)")


class MagistralLengthOptions(Section):
    """Of the part `magistral_length`."""

    cache_frac: float = Field(
        0.2,
        gt=0,
        le=1,
        description="share of rollout.max_completion_tokens over which the penalty grows to its full size",
    )
    penalty: float = Field(-0.1, le=0, description="at the limit; default: Magistral (2506.10910)")


class LanguageOptions(Section):
    """Of the part `language`."""

    target: Literal["latin", "cyrillic", "greek", "arabic", "hebrew", "devanagari", "hangul", "han"] = Field(
        "latin", description="script whose share of the words is rewarded"
    )


class NoiseOptions(Section):
    """Of the part `correct`: an imperfect verifier. The true verdict is logged beside it."""

    false_positive_rate: float = Field(
        0.0, ge=0, le=1, description="share of wrong answers that training takes as right"
    )
    false_negative_rate: float = Field(
        0.0, ge=0, le=1, description="share of right answers that training takes as wrong"
    )

    @property
    def acts(self) -> bool:
        return self.false_positive_rate > 0 or self.false_negative_rate > 0


class RewardModelOptions(Section):
    """Of the part `reward_model`: a Bradley-Terry model of the verdict, trained once on completions of the starting
    weights and shared by all arms and seeds."""

    prompts: int = Field(512, ge=10, description="training prompts whose completions it learns from; a tenth held out")
    samples_per_prompt: int = Field(8, ge=2, description="completions a prompt, drawn as in training")
    label_noise_rate: float = Field(0.0, ge=0, lt=0.5, description="share of pairs whose better side is mistaken")
    steps: int = Field(200, ge=1)
    batch_size: int = Field(32, ge=1, description="pairs an optimiser step")
    learning_rate: float = Field(1e-3, gt=0, description="peak; warms up over 5 % of the steps, then falls to 2 %")
    seed: int = Field(0, ge=0)


class RewardSpec(Section):
    parts: dict[str, float] = Field(
        {"correct": 1.0},
        min_length=1,
        description="reward parts and their weights, whose sum is the reward; `correct` weighs 1 unless it is set",
    )
    grader: GraderName | None = Field(None, description="grader behind the part `correct`; none: the task's own")
    format: FormatOptions = FormatOptions()
    kimi_length: KimiLengthOptions = KimiLengthOptions()
    magistral_length: MagistralLengthOptions = MagistralLengthOptions()
    language: LanguageOptions = LanguageOptions()
    noise: NoiseOptions = NoiseOptions()
    reward_model: RewardModelOptions = RewardModelOptions()

    @model_validator(mode="after")
    def _parts_exist(self) -> RewardSpec:
        unknown = [name for name in self.parts if name not in PARTS and not is_reference(name)]
        if unknown:
            raise ValueError(
                f"unknown parts {', '.join(unknown)}{nearest(unknown[0], PARTS)} Known: {', '.join(PARTS)}, and "
                "module:function for one of your own"
            )
        return self

    @model_validator(mode="after")
    def _options_have_their_part(self) -> RewardSpec:
        for name in self.absent_fields():
            options = getattr(self, name)
            changed = [field for field, value in options if value != type(options).model_fields[field].default]
            if changed:
                part = PART_OF_OPTIONS[name]
                raise ValueError(
                    f"{name}.{changed[0]}={getattr(options, changed[0])} has no effect without the part {part}: "
                    f"give reward.parts.{part} a weight, or leave it out"
                )
        return self

    def absent_fields(self) -> list[str]:
        return [name for name, part in PART_OF_OPTIONS.items() if part not in self.parts]


PART_OF_OPTIONS: Mapping[str, str] = MappingProxyType(
    {
        "format": "format",
        "kimi_length": "kimi_length",
        "magistral_length": "magistral_length",
        "language": "language",
        "noise": "correct",
        "reward_model": "reward_model",
    }
)
"""Field of the section with options -> the part that they belong to."""


def reward_problems(reward: RewardSpec, credit: Credit, task_name: str) -> Iterator[str]:
    """What the section cannot know by itself: whether the task has steps, and whether the objective needs them."""
    if "process" in reward.parts and get_task(task_name).written_steps is None:
        yield (
            f"reward.parts.process with task.train={task_name}: this task does not say what a step is. Train on "
            "arithmetic, or leave the part out"
        )
    if credit == "steps" and not reward.parts.get("process"):
        yield (
            "objective.credit=steps without reward.parts.process: no step has a reward. Give reward.parts.process a "
            "weight, or set objective.credit to completion"
        )
