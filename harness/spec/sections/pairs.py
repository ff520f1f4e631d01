"""`pairs`: where the chosen and rejected completions of a preference objective come from."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from harness.spec.sections.base import Section


class NoPairs(Section):
    """A policy-gradient objective learns from rewards."""

    type: Literal["none"] = "none"


class PolicyPairs(Section):
    """Completions of one prompt, drawn as `rollout` says and ranked by their reward. Groups whose rewards are all equal
    give no pair."""

    type: Literal["policy"] = "policy"
    pairing: Literal["best_worst", "all"] = Field(
        "best_worst",
        description="best_worst: the best of a group against its worst, of equals those drawn first; all: every two "
        "completions of unequal reward (with a reward of 0 or 1: every correct against every incorrect one)",
    )
    max_per_prompt: int = Field(
        8, ge=1, description="pairs of one prompt in a step; where there are more, a draw of them"
    )

    @model_validator(mode="after")
    def _one_pair_needs_no_cap(self) -> PolicyPairs:
        unset = type(self).model_fields["max_per_prompt"].default
        if self.pairing == "best_worst" and self.max_per_prompt != unset:
            raise ValueError(
                f"max_per_prompt={self.max_per_prompt} has no effect with pairing=best_worst, which makes one pair a "
                "prompt: set pairing to all, or leave it out"
            )
        return self

    def absent_fields(self) -> list[str]:
        return ["max_per_prompt"] if self.pairing == "best_worst" else []


class DatasetPairs(Section):
    """A fixed set of pairs. Nothing is generated in training."""

    type: Literal["dataset"] = "dataset"
    data: str = Field(
        description="a JSONL file (also looked for in $BENCH_DATA), or hub:<id>[:<config>]@<revision>; "
        "prompt, chosen, rejected as text or as messages"
    )
    split: str = Field("train", description="of a data set on the hub")
    pairs_per_step: int = Field(32, ge=1, description="of the set, each once an epoch")
    max_tokens: int = Field(1024, ge=2, description="of a prompt with its completion; default: TRL")
    too_long: Literal["drop", "truncate"] = Field(
        "drop",
        description="pairs with a side beyond max_tokens: drop them, or cut completions there; counted either way. A "
        "pair whose prompt leaves no room is always dropped",
    )


Pairs = Annotated[NoPairs | PolicyPairs | DatasetPairs, Field(discriminator="type")]
