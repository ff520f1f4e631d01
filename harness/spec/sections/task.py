"""`task`: the prompts of training, and in which order they come."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from harness.spec.sections.base import Section, TaskName, TemplateName

Order = Literal["uniform", "curriculum", "prioritised"]


class NoFilter(Section):
    """Every prompt takes part."""

    type: Literal["none"] = "none"


class PassRateFilter(Section):
    """Only prompts that the starting weights solve neither too rarely nor too often; measured once, with the noise of
    no cell's seed, and shared by all arms and seeds.

    Kimi k1.5 (2501.12599, section 2.1) drops prompts that any of 8 guesses solves: samples 8, lowest 0, highest 0.
    """

    type: Literal["pass_rate"] = "pass_rate"
    samples: int = Field(8, ge=1, description="a prompt, drawn as in training")
    lowest: float = Field(0.01, ge=0, le=1, description="pass rate; default: drop prompts that no sample solves")
    highest: float = Field(0.99, ge=0, le=1, description="pass rate; default: drop prompts that every sample solves")
    problems: int | None = Field(
        None, ge=1, description="measure at most this many, the same for all seeds, and drop the others; none = all"
    )

    @model_validator(mode="after")
    def _can_keep_a_prompt(self) -> PassRateFilter:
        if not any(self.keeps(correct) for correct in range(self.samples + 1)):
            raise ValueError(
                f"lowest={self.lowest}, highest={self.highest} with samples={self.samples}: no number of correct "
                "samples lies between them. Raise highest, lower lowest, or draw more samples"
            )
        return self

    def keeps(self, correct: int) -> bool:
        """Whether a prompt stays of whose samples this many are correct."""
        return self.lowest <= correct / self.samples <= self.highest


Filter = Annotated[NoFilter | PassRateFilter, Field(discriminator="type")]


class TaskSpec(Section):
    train: TaskName = Field(description="task whose train split gives the prompts")
    template: TemplateName = Field(description="prompt template in training")
    order: Order = Field(
        "uniform",
        description="uniform: every prompt once an epoch, reshuffled each epoch; curriculum: from easy to hard by the "
        "problems' difficulty; prioritised: by 1 - the success rate so far (Kimi k1.5, 2501.12599, section 2.3.4)",
    )
    filter: Filter = NoFilter()
    pool: int | None = Field(
        None,
        ge=1,
        description="train on this many of the prompts that the filter leaves, drawn by the seed; a larger pool holds "
        "the smaller one; none = all",
    )
