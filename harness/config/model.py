"""The sections `model` and `teacher` of a run spec.

`model`: the policy's starting weights, and its preparation for reinforcement learning. `teacher`: the model from which
the policy is distilled.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, field_validator

from evals.prompts import get_template
from evals.tasks import get_task
from harness.config.names import TemplateName
from harness.errors import InvalidError
from harness.settings import Listed, Settings
from harness.settings.fields import LARGEST_NUMBER
from harness.settings.marks import REFERS, YOUNGER, Acts

MIXED_DEMONSTRATIONS = "demonstrations:arithmetic"
"""The data of a cold start with careful solutions, hasty answers and slips in turn."""

SOLUTIONS_OF = "solutions:"
"""The prefix of a cold start's data that consists of a task's solutions. The task's name follows it."""


class NoColdStart(Settings):
    """Reinforcement learning starts from the model as it is."""

    type: Literal["none"] = "none"


class SupervisedColdStart(Settings):
    """Supervised fine-tuning on demonstrations before reinforcement learning; cached and shared by arms and seeds."""

    type: Literal["sft"] = "sft"
    data: Annotated[str, REFERS] = Field(
        description="`demonstrations:arithmetic`, `solutions:<task>` (the solutions in the task's train split), or a "
        "JSONL file with `problem` and `solution` per line"
    )
    template: TemplateName = Field("plain", description="prompt template that frames each problem")
    steps: int = Field(1000, ge=1, le=10_000_000, description="optimiser steps")
    batch_size: int = Field(64, ge=1, le=1_000_000, description="demonstrations per optimiser step")
    learning_rate: float = Field(
        1e-3, gt=0, le=LARGEST_NUMBER, description="peak; warms up over 5 % of the steps, then falls to 2 %"
    )
    weight_decay: float = Field(0.01, ge=0, le=LARGEST_NUMBER, description="weight decay of AdamW")
    max_completion_tokens: int = Field(
        256, ge=1, le=10_000_000, description=("demonstrations with more tokens are left out")
    )
    direct_frac: Annotated[float, YOUNGER] = Field(
        0.0,
        ge=0,
        le=1,
        description="share of demonstrations whose prompt asks for the answer at once and whose steps are left out; "
        "the other prompts ask for steps (fusion of thinking modes, Qwen3, 2505.09388); `template` must have modes",
    )
    stop_frac: Annotated[float, YOUNGER] = Field(
        0.0,
        ge=0,
        le=1,
        description="share of demonstrations whose steps are truncated at a random token, followed by the template's "
        "`thinking.stop` and the answer; only the answer is trained on",
    )
    seed: int = Field(0, ge=0, description="seed of the order of demonstrations, the same for all cells")

    @field_validator("data")
    @classmethod
    def _task_is_known(cls, data: str) -> str:
        if data.startswith(SOLUTIONS_OF):
            get_task(data.removeprefix(SOLUTIONS_OF))
        return data

    def contradictions(self) -> Iterator[str]:
        if self.direct_frac + self.stop_frac > 1:
            yield (
                f"direct_frac={self.direct_frac} with stop_frac={self.stop_frac}: they are shares of the same "
                "demonstrations. Lower one of them, so that they add up to 1 at most"
            )
        if self.direct_frac and not get_template(self.template).has_modes:
            yield (
                f"direct_frac={self.direct_frac} with template={self.template}, which has no {{mode}}: steps or none "
                "would be shown for the same prompt. Name a template with modes, e.g. modes_digits or qwen3"
            )
        if self.leaves_steps_out and self.data == MIXED_DEMONSTRATIONS:
            yield (
                f"data={self.data} with direct_frac={self.direct_frac}, stop_frac={self.stop_frac}: half of these "
                "demonstrations have no steps to leave out. Set data to solutions:arithmetic, or both shares to 0"
            )

    @property
    def leaves_steps_out(self) -> bool:
        """True if some demonstrations lose all or some of their steps. If so, all demonstrations must have steps."""
        return self.direct_frac > 0 or self.stop_frac > 0


ColdStart = Annotated[NoColdStart | SupervisedColdStart, Field(discriminator="type")]


class NoLora(Settings):
    """All weights are trained."""

    type: Literal["none"] = "none"


class Lora(Settings):
    """Low-rank adapters are trained; the model's weights are frozen (Hu et al. 2106.09685). Needs the extra `lora`."""

    type: Literal["lora"] = "lora"
    rank: int = Field(32, ge=1, le=100_000, description="rank of the adapters")
    alpha: float = Field(64.0, gt=0, description="the adapters' product is scaled by alpha / rank")
    target_modules: Listed[str] = Field(
        ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        min_length=1,
        description="names of the linear layers that get adapters",
    )


LoraChoice = Annotated[NoLora | Lora, Field(discriminator="type")]


OF_ALL = Acts("train", "evaluate", "start", any_trainer=True)
"""Has an effect on the model, whether it is trained or evaluated."""


class ModelSpec(Settings):
    source: Annotated[str, REFERS] = Field(description="builtin:tiny, hf:<id>[@revision], path:<dir>, gguf:<file>")
    dtype: Annotated[Literal["auto", "float32", "bfloat16"], OF_ALL] = Field(
        "auto",
        description="dtype of computation; the optimiser always uses float32. auto = bfloat16 on CUDA, float32 on a "
        "CPU",
    )
    head_dtype: Annotated[Literal["model", "float32"], OF_ALL, YOUNGER] = Field(
        "model",
        description="dtype of the matrix product in the output head of the policy, its copies and its teacher, in "
        "training and sampling; model: as model.dtype; float32: float32, even if the other layers are bfloat16",
    )
    chat_template: Annotated[Literal["auto", "tokenizer", "plain"], OF_ALL] = Field(
        "auto",
        description="what formats a chat prompt; tokenizer: the tokenizer's own template; plain: the messages, joined "
        "by blank lines; auto = the tokenizer's template if it has one, else plain",
    )
    trust_remote_code: Annotated[bool, OF_ALL] = Field(
        False, description="run code that comes with the model; read it first"
    )
    lora: LoraChoice = NoLora()
    cold_start: ColdStart = NoColdStart()

    @field_validator("dtype", mode="before")
    @classmethod
    def _trains_without_loss_scaling(cls, dtype: object) -> object:
        # The check runs in `before` mode, because the Literal would refuse float16 without giving the reason.
        if dtype == "float16":
            raise InvalidError("config.float16_training")
        return dtype


class NoTeacher(Settings):
    """No teacher."""

    type: Literal["none"] = "none"


class ModelTeacher(Settings):
    """A frozen model with the student's vocabulary.

    It scores completions (objective.distill) or writes them (rollout.sampler).
    """

    type: Literal["model"] = "model"
    source: Annotated[str | None, REFERS] = Field(
        None,
        description="the weights, given as in model.source; none = the student's starting weights (self-distillation)",
    )
    template: TemplateName | None = Field(
        None,
        description="prompt template of the teacher, which may contain {solution} in addition to {problem}; none = "
        "task.template",
    )
    cold_start: ColdStart = NoColdStart()


TeacherChoice = Annotated[NoTeacher | ModelTeacher, Field(discriminator="type")]
