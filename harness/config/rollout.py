"""The sections `rollout` and `pairs` of a run spec.

`rollout`: how completions are sampled in training. `pairs`: where the chosen and rejected completions of a preference
objective come from.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from harness.config.engine import AUTO, ENGINES, fields_of_other_engines
from harness.settings import InWords, Listed, OnlyWith, Settings
from harness.settings.marks import NOT_HASHED, REFERS, YOUNGER, Acts


def _known_engine(name: str) -> str:
    return name if name == AUTO else ENGINES.find(name).name


EngineName = Annotated[str, AfterValidator(_known_engine), InWords(type=lambda: " | ".join((AUTO, *ENGINES.names())))]


class NotStaged(Settings):
    """Completions may be max_completion_tokens long from the first step on."""

    type: Literal["none"] = "none"


class StagedAtStep(Settings):
    """A shorter limit up to a given step."""

    type: Literal["at_step"] = "at_step"
    first_tokens: int = Field(ge=1, description="limit of a completion before `step`")
    step: int = Field(ge=2, description="the first step with max_completion_tokens")


class StagedOnConvergence(Settings):
    """A shorter limit until the reward has converged. There is no way back.

    Converged: the mean reward of the last window_steps exceeds that of as many before them by less than min_gain.
    """

    type: Literal["converged"] = "converged"
    first_tokens: int = Field(ge=1, description="limit of a completion before the reward has converged")
    window_steps: int = Field(10, ge=1, description="steps whose mean reward is compared with that of as many before")
    min_gain: float = Field(0.01, description="in units of the reward")


Staged = Annotated[NotStaged | StagedAtStep | StagedOnConvergence, Field(discriminator="type")]


class NotPartial(Settings):
    """A step draws its completions to their end."""

    type: Literal["none"] = "none"


class Slices(Settings):
    """A step adds a slice to each completion that is under way.

    A completion that has not ended goes on in the next step, under newer weights. A prompt is trained on once the last
    of its completions has ended.
    """

    type: Literal["slices"] = "slices"
    slice_tokens: int = Field(
        ge=1, description="most tokens that a step adds to a completion; a divisor of max_completion_tokens"
    )


Partial = Annotated[NotPartial | Slices, Field(discriminator="type")]


OF_ENGINE = Acts("draw", "evaluate", "start", any_trainer=True)
DECODES = Acts("draw", "start")


class RolloutSpec(Settings):
    engine: Annotated[EngineName, OF_ENGINE] = Field(
        AUTO,
        description="torch: samples from the trainer's own modules; vllm: an engine with a copy of the weights, synced "
        "and checked after every update; `bench ls engines` lists all; auto = vllm on CUDA, torch on a CPU",
    )
    vllm_memory_frac: Annotated[float, Acts("draw", "evaluate", any_trainer=True), NOT_HASHED] = Field(
        0.3, gt=0, le=1, description="share of the GPU's memory for vLLM: its weights and KV cache; read with vllm only"
    )
    dtype: Annotated[Literal["trainer", "float32", "bfloat16", "float16"], OF_ENGINE, YOUNGER] = Field(
        "trainer",
        description="dtype in which completions are drawn, in training and evaluation; trainer: model.dtype; in "
        "another one the engine draws from a copy of the weights, rounded before it draws",
    )
    sampler: Literal["policy", "initial", "round", "teacher", "given"] = Field(
        "policy",
        description="whose completions are trained on: policy: those of the policy as it is (online); initial: of the "
        "starting weights throughout (offline); round: of the policy as it was at the start of the round (iterative: "
        "expert iteration, iterative DPO); teacher: of the teacher, under its own prompt; given: the task's own "
        "solutions, which cost no generated tokens",
    )
    policy_frac: Annotated[float, OnlyWith("sampler", ("teacher", "given"))] = Field(
        0.0,
        ge=0,
        le=1,
        description="share of a step's prompts that the policy answers itself, drawn anew in each step; the rest is "
        "the teacher's or given (lambda of GKD, 2306.13649)",
    )
    round_steps: Annotated[int, OnlyWith("sampler", ("round",))] = Field(
        10, ge=2, description="rollout batches per round"
    )
    staleness_steps: Annotated[int, OnlyWith("sampler", ("policy",)), YOUNGER] = Field(
        0,
        ge=0,
        le=10_000,
        description="rollout batches by which the weights that draw are older than the policy, as in asynchronous "
        "training; the first batches are drawn from the starting weights. 0: the policy as it is",
    )
    prompts_per_step: Annotated[int, Acts("draw", any_trainer=True)] = Field(
        32, ge=1, le=1_000_000, description="prompts of a rollout batch"
    )
    samples_per_prompt: int = Field(8, ge=1, le=100_000, description="group size G")
    max_completion_tokens: Annotated[int, DECODES] = Field(
        ge=1, le=10_000_000, description="a completion is cut here, and counts as truncated"
    )
    staged: Staged = NotStaged()
    partial: Annotated[Partial, YOUNGER] = NotPartial()
    max_turns: Annotated[int | None, DECODES, YOUNGER] = Field(
        None,
        ge=1,
        le=1000,
        description="turns of a completion in training, on a task with an environment; none = as many as the task "
        "gives, which evaluation always does",
    )
    temperature: Annotated[float, Acts("draw", "train", "start")] = Field(
        1.0, gt=0, description="temperature of sampling, and of both log-probs in the loss"
    )
    top_p: Annotated[float, DECODES] = Field(
        1.0, gt=0, le=1, description="always 1 in training, where the loss scores untruncated samples"
    )
    top_k: Annotated[int, DECODES] = Field(0, ge=0, description="always 0, off, in training, as top_p is 1")
    stop: Annotated[Listed[str], DECODES] = Field(
        (), description="strings that end a completion, besides the end-of-sequence token"
    )

    def absent_fields(self) -> list[str]:
        return fields_of_other_engines(self.engine)

    def contradictions(self) -> Iterator[str]:
        if self.top_p < 1 or self.top_k:
            yield (
                f"top_p={self.top_p}, top_k={self.top_k} in training: the loss scores tokens under the untruncated "
                "policy, so truncated sampling would bias every ratio. Set top_p: 1, top_k: 0 (evaluation may truncate)"
            )
        most = self.max_completion_tokens
        if isinstance(self.partial, Slices):
            yield from self._slices_do_not_fit(self.partial.slice_tokens, most)
        if self.staged.type != "none" and self.staged.first_tokens >= most:
            yield (
                f"staged.first_tokens={self.staged.first_tokens} with max_completion_tokens={most}: the first stage "
                "has the shorter limit. Lower first_tokens, or raise max_completion_tokens, the limit of the last stage"
            )

    def _slices_do_not_fit(self, slice_tokens: int, most: int) -> Iterator[str]:
        # A limit of whole slices is reached at the end of a slice, never within one.
        if slice_tokens >= most or most % slice_tokens:
            yield (
                f"partial.slice_tokens={slice_tokens} with max_completion_tokens={most}: a completion is made of whole "
                "slices, at least two. Choose slice_tokens among the smaller divisors of max_completion_tokens"
            )
        for field, value, needed in (("sampler", self.sampler, "policy"), ("staged.type", self.staged.type, "none")):
            if value != needed:
                yield (
                    f"partial.type=slices with {field}={value}: the policy goes on with completions of earlier steps, "
                    f"under one limit. Set {field} to {needed}, or partial.type to none"
                )


class NoPairs(Settings):
    """A policy-gradient objective learns from rewards."""

    type: Literal["none"] = "none"


class PolicyPairs(Settings):
    """Completions of one prompt, sampled as `rollout` says and ranked by their reward.

    Groups whose rewards are all equal give no pair.
    """

    type: Literal["policy"] = "policy"
    pairing: Literal["best_worst", "all"] = Field(
        "best_worst",
        description="best_worst: the best of a group against its worst, of equals those drawn first; all: every two "
        "completions of unequal reward (with a reward of 0 or 1: every correct against every incorrect one)",
    )
    max_per_prompt: Annotated[int, OnlyWith("pairing", ("all",))] = Field(
        8, ge=1, description="most pairs per prompt in a step; if there are more, some are drawn at random"
    )


class DatasetPairs(Settings):
    """A fixed set of pairs. Nothing is generated in training."""

    type: Literal["dataset"] = "dataset"
    data: Annotated[str, REFERS] = Field(
        description="a JSONL file (also looked for in $BENCH_DATA), or hub:<id>[:<config>]@<revision>; "
        "prompt, chosen, rejected as text or as messages"
    )
    split: str = Field("train", description="split of a data set on the hub")
    pairs_per_step: int = Field(
        32, ge=1, le=1_000_000, description="pairs drawn from the set for each step; each comes once per epoch"
    )
    max_tokens: int = Field(
        1024, ge=2, le=10_000_000, description="most tokens of a prompt with its completion; default: TRL"
    )
    too_long: Literal["drop", "truncate"] = Field(
        "drop",
        description="pairs with a side beyond max_tokens: drop them, or cut completions there; counted either way. A "
        "pair whose prompt leaves no room is always dropped",
    )


Pairs = Annotated[NoPairs | PolicyPairs | DatasetPairs, Field(discriminator="type")]
