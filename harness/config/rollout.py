"""The sections `rollout` and `pairs` of a run spec.

`rollout`: how completions are sampled in training. `pairs`: where a preference objective gets its chosen and rejected
completions.
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
    """Completions may have max_completion_tokens tokens from the first step on."""

    type: Literal["none"] = "none"


class StagedAtStep(Settings):
    """A lower limit on completion tokens before a given step."""

    type: Literal["at_step"] = "at_step"
    first_tokens: int = Field(ge=1, description="limit on completion tokens before `step`")
    step: int = Field(ge=2, description="the first step whose limit is max_completion_tokens")


class StagedOnConvergence(Settings):
    """A lower limit on completion tokens until the reward has converged. Once raised, the limit stays.

    Converged: the mean reward of the last window_steps exceeds that of as many steps before them by less than min_gain.
    """

    type: Literal["converged"] = "converged"
    first_tokens: int = Field(ge=1, description="limit on completion tokens before the reward has converged")
    window_steps: int = Field(10, ge=1, description="steps in each of the two windows whose mean rewards are compared")
    min_gain: float = Field(0.01, description="gain in mean reward below which the reward has converged")


Staged = Annotated[NotStaged | StagedAtStep | StagedOnConvergence, Field(discriminator="type")]


class NotPartial(Settings):
    """Each step completes all its completions."""

    type: Literal["none"] = "none"


class Slices(Settings):
    """A step adds at most one slice to each unfinished completion.

    An unfinished completion continues in the next step, under newer weights. A prompt is trained on once all its
    completions have ended.
    """

    type: Literal["slices"] = "slices"
    slice_tokens: int = Field(
        ge=1, description="most tokens that a step adds to a completion; must divide max_completion_tokens"
    )


Partial = Annotated[NotPartial | Slices, Field(discriminator="type")]


OF_ENGINE = Acts("draw", "evaluate", "start", any_trainer=True)
DECODES = Acts("draw", "start")


class RolloutSpec(Settings):
    engine: Annotated[EngineName, OF_ENGINE] = Field(
        AUTO,
        description="torch: samples from the trainer's own modules; vllm: samples from a copy of the weights, synced "
        "and checked after every update; `bench ls engines` lists all; auto = vllm on CUDA, torch on a CPU",
    )
    vllm_memory_frac: Annotated[float, Acts("draw", "evaluate", any_trainer=True), NOT_HASHED] = Field(
        0.3, gt=0, le=1, description="share of the GPU's memory for vLLM's weights and KV cache; used by vllm only"
    )
    dtype: Annotated[Literal["trainer", "float32", "bfloat16", "float16"], OF_ENGINE, YOUNGER] = Field(
        "trainer",
        description="dtype in which completions are sampled, in training and evaluation; trainer: model.dtype; any "
        "other: the engine samples from a copy of the weights in that dtype",
    )
    sampler: Literal["policy", "initial", "round", "teacher", "given"] = Field(
        "policy",
        description="who writes the completions that are trained on: policy: the current policy (online); initial: the "
        "starting weights throughout (offline); round: the policy as it was at the start of the round (iterative: "
        "expert iteration, iterative DPO); teacher: the teacher, under its own prompt; given: the task, whose own "
        "solutions cost no generated tokens",
    )
    policy_frac: Annotated[float, OnlyWith("sampler", ("teacher", "given"))] = Field(
        0.0,
        ge=0,
        le=1,
        description="share of a step's prompts that the policy itself answers, chosen anew in each step; the other "
        "completions are the teacher's or given (lambda of GKD, 2306.13649)",
    )
    round_steps: Annotated[int, OnlyWith("sampler", ("round",))] = Field(
        10, ge=2, description="rollout batches per round"
    )
    staleness_steps: Annotated[int, OnlyWith("sampler", ("policy",)), YOUNGER] = Field(
        0,
        ge=0,
        le=10_000,
        description="rollout batches by which the sampling weights lag behind the policy, as in asynchronous training; "
        "the first batches are sampled from the starting weights. 0: the current policy samples",
    )
    prompts_per_step: Annotated[int, Acts("draw", any_trainer=True)] = Field(
        32, ge=1, le=1_000_000, description="prompts per rollout batch"
    )
    samples_per_prompt: int = Field(8, ge=1, le=100_000, description="group size G")
    max_completion_tokens: Annotated[int, DECODES] = Field(
        ge=1, le=10_000_000, description="a completion is truncated at this length"
    )
    staged: Staged = NotStaged()
    partial: Annotated[Partial, YOUNGER] = NotPartial()
    max_turns: Annotated[int | None, DECODES, YOUNGER] = Field(
        None,
        ge=1,
        le=1000,
        description="most turns of a completion in training, on a task with an environment; none = the task's number, "
        "which evaluation always uses",
    )
    temperature: Annotated[float, Acts("draw", "train", "start")] = Field(
        1.0, gt=0, description="sampling temperature, also applied to both log-probs in the loss"
    )
    top_p: Annotated[float, DECODES] = Field(
        1.0, gt=0, le=1, description="must be 1 in training: the loss scores untruncated samples"
    )
    top_k: Annotated[int, DECODES] = Field(
        0, ge=0, description=("must be 0 (off) in training, for the same reason as top_p")
    )
    stop: Annotated[Listed[str], DECODES] = Field(
        (), description="strings that end a completion, in addition to the end-of-sequence token"
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
        # If the limit is a whole number of slices, it is always reached at the end of a slice.
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
    """Completions of one prompt, sampled as set in `rollout` and ranked by their reward.

    Groups whose rewards are all equal give no pairs.
    """

    type: Literal["policy"] = "policy"
    pairing: Literal["best_worst", "all"] = Field(
        "best_worst",
        description="best_worst: the best completion of a group against its worst, the earlier sample if rewards are "
        "equal; all: every two completions with unequal rewards (with a reward of 0 or 1: every correct against every "
        "incorrect one)",
    )
    max_per_prompt: Annotated[int, OnlyWith("pairing", ("all",))] = Field(
        8, ge=1, description="most pairs per prompt in a step; if there are more, a random subset of this size"
    )


class DatasetPairs(Settings):
    """A fixed set of pairs. No completions are sampled in training."""

    type: Literal["dataset"] = "dataset"
    data: Annotated[str, REFERS] = Field(
        description="a JSONL file (also searched for in $BENCH_DATA), or hub:<id>[:<config>]@<revision>; prompt, "
        "chosen and rejected as text or as messages"
    )
    split: str = Field("train", description="split of a data set on the hub")
    pairs_per_step: int = Field(
        32, ge=1, le=1_000_000, description="pairs taken from the set in each step; each pair is used once per epoch"
    )
    max_tokens: int = Field(
        1024, ge=2, le=10_000_000, description="most tokens of a prompt with its completion; the default is TRL's"
    )
    too_long: Literal["drop", "truncate"] = Field(
        "drop",
        description="what happens to pairs with a side beyond max_tokens: drop the pair, or truncate the completion; "
        "both are counted. A pair whose prompt leaves no room for a completion is always dropped",
    )


Pairs = Annotated[NoPairs | PolicyPairs | DatasetPairs, Field(discriminator="type")]
