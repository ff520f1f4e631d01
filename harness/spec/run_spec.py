"""The resolved run spec: every knob of one cell, with every default written out. Dotted field names are the knobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from algorithms import Objective
from evals.grading import get_grader
from evals.prompts import get_template
from evals.tasks import get_task
from harness.errors import nearest
from harness.rewards.parts import PARTS


class Section(BaseModel):
    """Frozen and strict: an unknown key is an error, never ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


Item = TypeVar("Item")
# YAML has lists only; strict mode would refuse them for tuples.
Listed = Annotated[tuple[Item, ...], Field(strict=False)]


def _known_to(find: Callable[[str], object]) -> AfterValidator:
    def check(name: str) -> str:
        find(name)
        return name

    return AfterValidator(check)


TaskName = Annotated[str, _known_to(get_task)]
TemplateName = Annotated[str, _known_to(get_template)]
GraderName = Annotated[str, _known_to(get_grader)]


class NoColdStart(Section):
    """Reinforcement learning starts from the model as it is."""

    type: Literal["none"] = "none"


class SupervisedColdStart(Section):
    """Supervised fine-tuning on demonstrations before reinforcement learning; cached and shared by arms and seeds."""

    type: Literal["sft"] = "sft"
    data: str = Field(description="`demonstrations:arithmetic`, or a JSONL file with `problem` and `solution` a line")
    template: TemplateName = Field("plain", description="prompt template that frames each problem")
    steps: int = Field(1000, ge=1)
    batch_size: int = Field(64, ge=1, description="demonstrations an optimiser step")
    learning_rate: float = Field(1e-3, gt=0, description="peak; warms up over 5 % of the steps, then falls to 2 %")
    weight_decay: float = Field(0.01, ge=0)
    max_completion_tokens: int = Field(256, ge=1, description="longer demonstrations are left out")
    seed: int = Field(0, ge=0)


ColdStart = Annotated[NoColdStart | SupervisedColdStart, Field(discriminator="type")]


class ModelSpec(Section):
    source: str = Field(description="builtin:tiny, hf:<id>[@revision], path:<dir>, gguf:<file>")
    dtype: Literal["float32"] = Field("float32", description="dtype of weights and computation")
    cold_start: ColdStart = NoColdStart()


class TaskSpec(Section):
    train: TaskName = Field(description="task whose train split gives the prompts")
    template: TemplateName = Field(description="prompt template in training")
    order: Literal["uniform"] = Field("uniform", description="every prompt once an epoch, reshuffled each epoch")


class RewardSpec(Section):
    parts: dict[str, float] = Field(
        {"correct": 1.0}, min_length=1, description="reward parts and their weights; the sum is the reward"
    )
    grader: GraderName = Field(description="grader behind the part `correct`")

    @model_validator(mode="after")
    def _parts_exist(self) -> RewardSpec:
        unknown = [name for name in self.parts if name not in PARTS]
        if unknown:
            raise ValueError(
                f"unknown parts {', '.join(unknown)}{nearest(unknown[0], PARTS)} Known: {', '.join(PARTS)}"
            )
        return self


class RolloutSpec(Section):
    engine: Literal["torch"] = "torch"
    prompts_per_step: int = Field(32, ge=1)
    samples_per_prompt: int = Field(8, ge=1, description="group size G")
    max_completion_tokens: int = Field(ge=1)
    temperature: float = Field(1.0, gt=0, description="of sampling and of both log-probs in the loss")
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0, description="0 = off")
    stop: Listed[str] = Field((), description="strings that end a completion, besides the end-of-sequence token")

    @model_validator(mode="after")
    def _sampling_matches_training(self) -> RolloutSpec:
        if self.top_p < 1 or self.top_k:
            raise ValueError(
                f"top_p={self.top_p}, top_k={self.top_k} in training: the loss scores tokens under the untruncated "
                "policy, so truncated sampling would bias every ratio. Set top_p: 1, top_k: 0 (evaluation may truncate)"
            )
        return self


class TrainSpec(Section):
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$", description="auto = cuda where there is one")
    steps: int = Field(ge=1, description="rollout batches; budget.tokens may end the cell earlier")
    updates_per_rollout: int = Field(
        1, ge=1, description="mini-batches a pass, of whole groups, one optimiser step each"
    )
    epochs: int = Field(1, ge=1, description="passes over each rollout batch")
    learning_rate: float = Field(gt=0)
    lr_schedule: Literal["constant", "linear", "cosine"] = Field("constant", description="to zero at train.steps")
    warmup_steps: int = Field(0, ge=0, description="rollout batches of linear warm-up")
    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: float = Field(1.0, gt=0)
    micro_batch_tokens: int = Field(16384, ge=1, description="padded tokens a forward pass; bounds memory")
    optimizer_reset: Literal["never", "per_rollout"] = "never"
    checkpoint_every: int = Field(10, ge=1, description="steps between checkpoints")


class EvalSpec(Section):
    tasks: Listed[TaskName] = Field(min_length=1, description="held-out tasks; the first is the compared one")
    problems: int | None = Field(None, ge=1, description="the first this many problems of each task; none = all")
    template: TemplateName = Field(description="prompt template in evaluation")
    every: int = Field(0, ge=0, description="steps between evaluations for the learning curve; 0 = only the final one")
    samples: int = Field(16, ge=1, description="samples a problem in the final evaluation")
    curve_samples: int = Field(4, ge=1, description="samples a problem in the evaluations along the curve")
    k: Listed[int] = Field(min_length=1, description="k of pass@k; at most eval.samples")
    temperature: float = Field(1.0, ge=0, description="0 = greedy")
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0, description="0 = off")
    max_completion_tokens: int = Field(ge=1)
    grader: GraderName

    @model_validator(mode="after")
    def _k_within_samples(self) -> EvalSpec:
        too_large = [k for k in self.k if not 1 <= k <= self.samples]
        if too_large:
            raise ValueError(
                f"k={too_large} with samples={self.samples}: pass@k needs 1 <= k <= samples. Raise samples or drop "
                "these k"
            )
        return self


class BudgetSpec(Section):
    tokens: int | None = Field(
        default=None, ge=1, description="generated tokens that arms are matched on; none = train.steps"
    )


class RunSpec(Section):
    """Everything that one cell does."""

    model: ModelSpec
    task: TaskSpec
    reward: RewardSpec
    rollout: RolloutSpec
    objective: Objective
    train: TrainSpec
    eval: EvalSpec
    budget: BudgetSpec = BudgetSpec()
    seed: int = Field(ge=0)

    @model_validator(mode="after")
    def _updates_split_whole_groups(self) -> RunSpec:
        prompts, updates = self.rollout.prompts_per_step, self.train.updates_per_rollout
        if prompts % updates:
            raise ValueError(
                f"rollout.prompts_per_step={prompts} with train.updates_per_rollout={updates}: mini-batches hold whole "
                f"groups and equally many. Choose updates_per_rollout among the divisors of {prompts}"
            )
        return self

    @property
    def optimizer_steps_per_rollout(self) -> int:
        return self.train.updates_per_rollout * self.train.epochs
