"""The sections `task` and `eval` of a run spec.

`task`: the prompts of training and their order. `eval`: the evaluation, which is the same for all arms.
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
    """All prompts are used."""

    type: Literal["none"] = "none"


class PassRateFilter(Settings):
    """Only prompts that the starting weights solve neither too rarely nor too often are used.

    Pass rates are measured once, with noise that depends on no cell's seed, and shared by all arms and seeds.

    Kimi k1.5 (2501.12599, section 2.1) drops prompts that any of 8 guesses solves: samples 8, lowest 0, highest 0.
    """

    type: Literal["pass_rate"] = "pass_rate"
    samples: int = Field(8, ge=1, le=100_000, description="samples per prompt, sampled as in training")
    lowest: float = Field(
        0.01, ge=0, le=1, description=("lowest pass rate to keep; the default drops prompts that no sample solves")
    )
    highest: float = Field(
        0.99, ge=0, le=1, description=("highest pass rate to keep; the default drops prompts that every sample solves")
    )
    problems: int | None = Field(
        None,
        ge=1,
        description=("measure at most this many prompts, the same for all seeds, and drop the rest; none = all"),
    )

    def contradictions(self) -> Iterator[str]:
        if not any(self.keeps(correct) for correct in range(self.samples + 1)):
            yield (
                f"lowest={self.lowest}, highest={self.highest} with samples={self.samples}: no number of correct "
                "samples lies between them. Raise highest, lower lowest, or draw more samples"
            )

    def keeps(self, correct: int) -> bool:
        """Return whether a prompt with this number of correct samples is kept."""
        return self.lowest <= correct / self.samples <= self.highest


Filter = Annotated[NoFilter | PassRateFilter, Field(discriminator="type")]


class TaskSpec(Settings):
    train: TaskName = Field(description="task whose train split supplies the prompts")
    template: Annotated[TemplateName, FromTask(), Acts("draw", "start", any_trainer=True)] = Field(
        description="prompt template in training, or the path of your own template (YAML)"
    )
    order: Order = Field(
        "uniform",
        description="uniform: every prompt once per epoch, reshuffled each epoch; curriculum: from easy to hard by the "
        "problems' difficulty; prioritised: with weight 1 - the success rate so far (Kimi "
        "k1.5, 2501.12599, section 2.3.4)",
    )
    filter: Filter = NoFilter()
    pool: int | None = Field(
        None,
        ge=1,
        description="train on this many of the prompts that pass the filter, chosen by the seed; a larger pool "
        "contains every smaller one; none = all",
    )
    direct_frac: Annotated[float, YOUNGER] = Field(
        0.0,
        ge=0,
        le=1,
        description="share of the prompts that ask for the answer at once, chosen by the seed in each step; the other "
        "prompts ask for steps; `template` must have modes",
    )
    retire_at: Annotated[float | None, YOUNGER] = Field(
        None,
        gt=0,
        le=1,
        description="a prompt is retired once this share of its completions in a step is correct (no positive "
        "resampling in ScaleRL, 2510.13786: 0.9), as long as enough prompts for one step remain; none = never",
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
    """Return the grader; raise an error with the remedy if it is None, which the type would refuse without a remedy."""
    if grader is None:
        raise InvalidError("config.first_task_without_grader")
    return grader


WATCHES = Acts("train", any_trainer=True)
"""Determines how often training is evaluated. Noise is keyed, so this changes no weight and no final score."""


class EvalSpec(Settings):
    tasks: Annotated[Listed[TaskName], FromTask(default="[task.train]")] = Field(
        min_length=1, max_length=100, description="held-out tasks; arms are compared on the first"
    )
    problems: int | None = Field(None, ge=1, description="use the first this many problems of each task; none = all")
    template: Annotated[TemplateName, FromTask()] = Field(
        description="prompt template in evaluation, or the path of your own template (YAML)"
    )
    every: Annotated[int, WATCHES] = Field(
        0, ge=0, description="steps between the evaluations of the learning curve; 0 = only the final evaluation"
    )
    samples: int = Field(
        16, ge=1, le=100_000, description="samples per problem in the final evaluation; greedy decoding takes one"
    )
    curve_samples: Annotated[int, WATCHES] = Field(
        4, ge=1, le=100_000, description="samples per problem in each evaluation of the learning curve"
    )
    k: Annotated[Listed[int], InWords(default="powers of 2 up to eval.samples")] = Field(
        min_length=1, max_length=100, description="values of k in pass@k; each is at most eval.samples"
    )
    temperature: float = Field(1.0, ge=0, description="0 = greedy")
    top_p: float = Field(1.0, gt=0, le=1, description="nucleus sampling: the probability mass that is kept; 1 = off")
    top_k: int = Field(0, ge=0, description="0 = off")
    max_completion_tokens: int = Field(ge=1, le=10_000_000, description="a completion is truncated at this length")
    stop: Annotated[Listed[str], YOUNGER] = Field(
        (), description="strings that end a completion, in addition to the template's and the end-of-sequence token"
    )
    grader: Annotated[GraderName, BeforeValidator(_not_none), FromTask()] = Field(
        description="what compares answers with reference answers"
    )

    @property
    def is_greedy(self) -> bool:
        """True if decoding is greedy.

        If so, all samples of a problem are equal, and only one is taken, whatever `samples` and `curve_samples` are.
        """
        return self.temperature == 0

    @property
    def longest_completion_tokens(self) -> int:
        """The most tokens that a sample of any task can have.

        If thinking is truncated at its budget, the answer after it has its own limit.
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
