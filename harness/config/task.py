"""The sections `task` and `eval` of a run spec.

`task`: the prompts of training and their order. `eval`: the one frozen evaluation of all arms.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from evals.prompts import get_template
from evals.tasks import get_task
from harness.config.names import FromTask, GraderName, TaskName, TemplateName
from harness.errors import InvalidError
from harness.settings import InWords, Listed, Settings
from harness.settings.marks import YOUNGER, Acts

Order = Literal["uniform", "curriculum", "prioritised"]


class NoFilter(Settings):
    """Every prompt takes part."""

    type: Literal["none"] = "none"


class PassRateFilter(Settings):
    """Only prompts that the starting weights solve neither too rarely nor too often.

    Pass rates are measured once, with the noise of no cell's seed, and shared by all arms and seeds.

    Kimi k1.5 (2501.12599, section 2.1) drops prompts that any of 8 guesses solves: samples 8, lowest 0, highest 0.
    """

    type: Literal["pass_rate"] = "pass_rate"
    samples: int = Field(8, ge=1, le=100_000, description="samples per prompt, drawn as in training")
    lowest: float = Field(0.01, ge=0, le=1, description="pass rate; default: drop prompts that no sample solves")
    highest: float = Field(0.99, ge=0, le=1, description="pass rate; default: drop prompts that every sample solves")
    problems: int | None = Field(
        None, ge=1, description="measure at most this many, the same for all seeds, and drop the others; none = all"
    )

    def contradictions(self) -> Iterator[str]:
        if not any(self.keeps(correct) for correct in range(self.samples + 1)):
            yield (
                f"lowest={self.lowest}, highest={self.highest} with samples={self.samples}: no number of correct "
                "samples lies between them. Raise highest, lower lowest, or draw more samples"
            )

    def keeps(self, correct: int) -> bool:
        """Return whether a prompt with this many correct samples stays."""
        return self.lowest <= correct / self.samples <= self.highest


Filter = Annotated[NoFilter | PassRateFilter, Field(discriminator="type")]


class TaskSpec(Settings):
    train: TaskName = Field(description="task whose train split gives the prompts")
    template: Annotated[TemplateName, FromTask(), Acts("draw", "start", any_trainer=True)] = Field(
        description="prompt template in training, or the path of one of your own (YAML)"
    )
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
    direct_frac: Annotated[float, YOUNGER] = Field(
        0.0,
        ge=0,
        le=1,
        description="share of the prompts that ask for the answer at once, drawn by the seed in each step; the others "
        "ask for steps; `template` must have modes",
    )
    retire_at: Annotated[float | None, YOUNGER] = Field(
        None,
        gt=0,
        le=1,
        description="a prompt never comes again once this share of its completions in a step is correct (ScaleRL's no "
        "positive resampling, 2510.13786: 0.9), but a step's worth of prompts stays; none = never",
    )

    def contradictions(self) -> Iterator[str]:
        if self.direct_frac and not get_template(self.template).has_modes:
            yield (
                f"direct_frac={self.direct_frac} with template={self.template}, which has no {{mode}}: all prompts "
                "would ask alike. Name a template with modes, e.g. modes_digits or qwen3, or leave direct_frac out"
            )
        if self.retire_at is not None and self.order == "curriculum":
            yield (
                f"retire_at={self.retire_at:g} with order=curriculum: the curriculum's window leaves easy prompts "
                "behind anyway. Set order to uniform or prioritised, or leave retire_at out"
            )


def _not_none(grader: object) -> object:
    """Refuse a missing grader with the remedy, before the type would refuse it without one."""
    if grader is None:
        raise InvalidError("config.first_task_without_grader")
    return grader


WATCHES = Acts("train", any_trainer=True)
"""Acts on how often training is watched. Noise is keyed, so watching changes no weight and no final score."""


class EvalSpec(Settings):
    tasks: Annotated[Listed[TaskName], FromTask(default="[task.train]")] = Field(
        min_length=1, max_length=100, description="held-out tasks; the first is the compared one"
    )
    problems: int | None = Field(None, ge=1, description="the first this many problems of each task; none = all")
    template: Annotated[TemplateName, FromTask()] = Field(
        description="prompt template in evaluation, or the path of one of your own (YAML)"
    )
    every: Annotated[int, WATCHES] = Field(
        0, ge=0, description="steps between evaluations for the learning curve; 0 = only the final one"
    )
    samples: int = Field(
        16, ge=1, le=100_000, description="samples per problem in the final evaluation; greedy decoding draws one"
    )
    curve_samples: Annotated[int, WATCHES] = Field(
        4, ge=1, le=100_000, description="samples per problem in the evaluations along the curve"
    )
    k: Annotated[Listed[int], InWords(default="powers of 2 up to eval.samples")] = Field(
        min_length=1, max_length=100, description="k of pass@k; at most eval.samples"
    )
    temperature: float = Field(1.0, ge=0, description="0 = greedy")
    top_p: float = Field(1.0, gt=0, le=1, description="nucleus sampling: the share of probability kept; 1 = off")
    top_k: int = Field(0, ge=0, description="0 = off")
    max_completion_tokens: int = Field(
        ge=1, le=10_000_000, description="a completion is cut here, and counts as truncated"
    )
    stop: Annotated[Listed[str], YOUNGER] = Field(
        (), description="strings that end a completion, besides the template's and the end token"
    )
    grader: Annotated[GraderName, BeforeValidator(_not_none), FromTask()] = Field(
        description="what compares answers with references"
    )

    @property
    def is_greedy(self) -> bool:
        """True if decoding is greedy.

        Then all samples of a problem are equal, and only one is taken, whatever `samples` and `curve_samples` are.
        """
        return self.temperature == 0

    @property
    def longest_completion_tokens(self) -> int:
        """The most tokens of a sample of any task.

        After thinking that was truncated at its budget, the answer has a limit of its own.
        """
        return self.max_completion_tokens + max(get_task(name).thinking_budget_tokens or 0 for name in self.tasks)

    def contradictions(self) -> Iterator[str]:
        for task in map(get_task, self.tasks):
            if fault := task.fault_of_mode(get_template(self.template)):
                yield f"tasks has {task.name}: {fault}"
            budget = task.thinking_budget_tokens
            if budget is not None and budget >= self.max_completion_tokens:
                yield (
                    f"tasks has {task.name} with max_completion_tokens={self.max_completion_tokens}: every completion "
                    "ends before the thinking would be cut. Lower the budget, or raise max_completion_tokens"
                )
        too_large = [k for k in self.k if not 1 <= k <= self.samples]
        if too_large:
            yield (
                f"k={too_large} with samples={self.samples}: pass@k needs 1 <= k <= samples. Raise samples or drop "
                "these k"
            )
