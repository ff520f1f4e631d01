"""The completions of a training step, from the prompt to the optimiser.

Shapes: N rows (completions), those of a prompt next to each other; T longest completion. Tensors are on the CPU.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from algorithms import (
    Coefficients,
    Objective,
    advantages,
    applied_entropy_coefficient,
    kl_estimate,
    kl_penalties,
    next_entropy_coefficient,
    next_kl_coefficient,
    policy_waits,
    value_targets,
)
from algorithms.distillation import DistillInLoss, DistillInReward, NoDistillation, teacher_advantages
from evals.tasks.base import Problem
from evals.tasks.environment import Turn
from harness.engines.base import Completions, GenerationCost
from harness.random_keys import permutation, random_key
from harness.rewards import Attempt
from harness.training.gold_answers import GoldAnswers
from harness.training.reference import KlReference, Teacher
from harness.training.sequences import Scorer, Scores, Sequences

T = TypeVar("T")
Origin = Literal["policy", "teacher", "given"]

UNFILLED = torch.empty(0)
"""Stands for a tensor of N rows that a later stage fills in."""
UNSCORED = Scores(UNFILLED, UNFILLED, UNFILLED)


@dataclass(frozen=True, eq=False, kw_only=True)
class Batch:
    """N completions, as far as the step has got with them: each stage returns the batch with more of its fields
    filled."""

    # Filled when the completions are drawn (harness.run.learning.writers).
    sequences: Sequences
    sampler_logps: Tensor
    """[N, T] log-probs that the sampler reported."""
    truncated: Tensor
    """Bool [N]: cut at the limit."""
    groups: Tensor
    """[N] int64, equal for completions of one prompt."""
    max_completion_tokens: int
    """The limit under which they were drawn."""
    problems: Sequence[Problem] = ()
    """[N] what the prompt of each row asks."""
    turns: Sequence[Sequence[Turn]] = ()
    """[N] the turns of each completion; empty without an environment."""
    cost: GenerationCost = field(default_factory=GenerationCost)
    rollout_s: float = 0.0
    """Wall-clock of drawing, encoding included."""
    origins: Sequence[Origin] = ()
    """[N] who wrote each completion; empty if all come from `rollout.sampler`'s policy."""
    teacher_prompts: Sequence[Sequence[int]] = ()
    """[N] token ids of the teacher's prompts; empty if they are the policy's."""
    steps_old: Tensor | None = None
    """[N, T] int64: updates between the weights that drew each token and those that learn from it; None where the
    policy as it is drew all."""
    drawn_tokens: int | None = None
    """Those that the step has drawn, where they are not those of its completions (`rollout.partial`)."""

    # Filled when they are graded and rewarded (harness.run.learning.rollouts).
    attempts: Sequence[Attempt] = ()
    """[N] the completions with their verdicts, as reward parts see them."""
    rewards: Tensor = UNFILLED
    """[N] float32; NaN for a completion that could not be scored."""
    reward_columns: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Recorded columns, [N] numbers each: `reward`, and each part before its weight as `reward/<name>`."""
    token_rewards: Tensor | None = None
    """[N, T] rewards of steps within completions, to which `prepare` adds the KL; see `algorithms.advantages`."""
    rewarded_tokens: Tensor | None = None
    """[N] int64: how many tokens of each completion affect its reward and enter the loss; None: all."""
    answers: GoldAnswers | None = None
    """The gold answers that the loss has a supervised term on."""
    correct: Tensor = UNFILLED
    """Bool [N]: the grader's verdict, for metrics only."""
    reward_s: float = 0.0
    """Wall-clock of grading and rewarding."""
    refill_rounds: int = 0

    # Filled by `filter_rows`.
    loss_mask: Tensor = UNFILLED
    """Bool [N, T]: completion tokens that enter the loss."""
    places: Tensor = UNFILLED
    """[N] int64: where each row was before rows were left out."""

    # Filled by `prepare`.
    scores: Scores = UNSCORED
    """What the policy was before the first optimiser step; filled in while training if `scored_while_training`."""
    ref_logps: Tensor | None = None
    """[N, T] log-probs under the policy that the objective's KL refers to."""
    teacher_logps: Tensor | None = None
    """[N, T] log-probs under the teacher, for distill.where=reward."""
    returns: Tensor | None = None
    """[N, T] what the critic learns."""

    def __len__(self) -> int:
        return len(self.groups)

    @property
    def generated_tokens(self) -> int:
        """Tokens that the step has sampled; given completions cost nothing."""
        if self.drawn_tokens is not None:
            return self.drawn_tokens
        return int(self.sequences.lengths[self.drawn].sum())

    @property
    def drawn(self) -> Tensor:
        """Bool [N]: True for completions sampled by a model, False for given ones."""
        if not self.origins:
            return torch.ones(len(self), dtype=torch.bool)
        return torch.tensor([origin != "given" for origin in self.origins])

    @cached_property
    def for_teacher(self) -> Sequences:
        """The completions under the teacher's prompts."""
        return replace(self.sequences, prompts=self.teacher_prompts) if self.teacher_prompts else self.sequences

    def by_group(self, values: Sequence[T]) -> list[Sequence[T]]:
        """values [N], split by prompt."""
        sizes = torch.unique_consecutive(self.groups, return_counts=True)[1].tolist()
        ends = list(itertools.accumulate(sizes))
        return [values[end - size : end] for size, end in zip(sizes, ends, strict=True)]

    def rows(self, chosen: Tensor) -> Batch:
        """The chosen rows (int64 indices), in that order."""
        return replace(self, **{own.name: _rows(getattr(self, own.name), chosen) for own in fields(self)})

    @classmethod
    def of_completions(
        cls, prompts: Sequence[Sequence[int]], drawn: Completions, first_example: int, max_completion_tokens: int
    ) -> Batch:
        """A batch of completions, equally many per prompt (token ids). Groups are numbered from first_example on."""
        samples = len(drawn.lengths) // len(prompts)
        return cls(
            sequences=Sequences([prompt for prompt in prompts for _ in range(samples)], drawn.tokens, drawn.lengths),
            sampler_logps=drawn.logps,
            truncated=drawn.truncated,
            groups=torch.arange(first_example, first_example + len(prompts)).repeat_interleave(samples),
            max_completion_tokens=max_completion_tokens,
            cost=drawn.cost,
        )

    @classmethod
    def joined(cls, batches: Sequence[Batch]) -> Batch:
        """The rewarded rounds of one step as one batch. Their groups must have different numbers."""
        if len(batches) == 1:
            return batches[0]
        columns = {own.name: _joined([getattr(batch, own.name) for batch in batches]) for own in fields(cls)}
        # NaN: no step ends in padding.
        columns["token_rewards"] = _joined([batch.token_rewards for batch in batches], padding=torch.nan)
        limit, rounds = batches[0].max_completion_tokens, len(batches) - 1
        return cls(**columns | {"max_completion_tokens": limit, "refill_rounds": rounds})


def _joined(values: Sequence[Any], padding: float = 0) -> Any:
    """The rows of a field's values, one after another; the sum of a field that has none, such as the time it took."""
    first = values[0]
    if first is None or first is UNFILLED:
        return first
    if isinstance(first, Tensor):
        if first.ndim > 1:
            longest = max(value.shape[1] for value in values)
            values = [pad(value, (0, longest - value.shape[1]), value=padding) for value in values]
        return torch.cat(list(values))
    if isinstance(first, Sequences | GoldAnswers):
        return type(first).joined(values)
    if isinstance(first, Scores):
        return Scores(*(_joined([getattr(value, own.name) for value in values]) for own in fields(Scores)))
    if isinstance(first, Mapping):
        return {name: _joined([value[name] for value in values]) for name in first}
    if isinstance(first, Sequence):
        return [one for value in values for one in value]
    return sum(values[1:], first)


def _rows(value: Any, chosen: Tensor) -> Any:
    """The chosen rows of a field's value; the value itself if it has no rows."""
    if isinstance(value, Tensor):
        return value if value is UNFILLED else value[chosen]
    if isinstance(value, Sequences | GoldAnswers):
        return value.rows(chosen)
    if isinstance(value, Scores):
        return Scores(*(_rows(tensor, chosen) for tensor in (value.logps, value.entropy, value.values)))
    if isinstance(value, Mapping):
        return {name: _rows(column, chosen) for name, column in value.items()}
    if isinstance(value, Sequence) and value:
        return [value[row] for row in chosen.tolist()]
    return value


def filter_rows(objective: Objective, batch: Batch) -> Batch:
    """What is learned from: the knobs `overlong` and then `zero_std`, applied to a rewarded batch. It can be empty.

    overlong: `mask_after` takes truncated completions out of the loss only; `mask_before` also makes their reward NaN,
    so that no baseline or std sees it; `drop` removes them. zero_std: groups whose scored rewards are all equal are
    kept, masked out of the loss, or removed (`drop`; `refill`, whose other half is to draw more, see
    `harness.run.learning.rollouts`).
    """
    truncated, kept = batch.truncated, torch.ones_like(batch.truncated)
    mask = batch.sequences.mask
    if batch.rewarded_tokens is not None:
        mask = mask & (torch.arange(mask.shape[1]) < batch.rewarded_tokens[:, None])
    batch = replace(batch, loss_mask=mask, places=torch.arange(len(batch)))
    match objective.overlong.type:
        case "mask_after":
            batch = replace(batch, loss_mask=batch.loss_mask & ~truncated[:, None])
        case "mask_before":
            batch = replace(
                batch,
                loss_mask=batch.loss_mask & ~truncated[:, None],
                rewards=batch.rewards.masked_fill(truncated, torch.nan),
            )
        case "drop":
            kept = ~truncated
    alike = zero_std_rows(batch.rewards.masked_fill(~kept, torch.nan), batch.groups)
    if objective.zero_std == "mask":
        batch = replace(batch, loss_mask=batch.loss_mask & ~alike[:, None])
    elif objective.zero_std != "keep":
        kept = kept & ~alike
    return batch if kept.all() else batch.rows(kept.nonzero()[:, 0])


def zero_std_rows(rewards: Tensor, groups: Tensor) -> Tensor:
    """Bool [N]: the rows of groups whose scored rewards are all equal, which includes groups with one or none.

    rewards [N], NaN for what could not be scored; groups [N] integers.
    """
    group = torch.unique(groups, return_inverse=True)[1]
    scored = ~rewards.isnan()
    count = int(group.max()) + 1 if len(group) else 0

    def extreme(fill: float, reduce: str) -> Tensor:
        values = rewards.masked_fill(~scored, fill)
        return torch.full((count,), fill, dtype=rewards.dtype).scatter_reduce(0, group, values, reduce)[group]

    return extreme(torch.inf, "amin") >= extreme(-torch.inf, "amax")


def prepare(
    batch: Batch,
    objective: Objective,
    scorer: Scorer,
    reference: KlReference,
    controlled: ControlledCoefficients,
    scored_while_training: bool,
    teacher: Teacher | None = None,
) -> tuple[Batch, Coefficients]:
    """Score a filtered batch unless training will, put the KL into its rewards, let the controllers see it. Returns the
    batch and the coefficients in force for it."""
    mask = batch.sequences.mask
    scores = Scores.empty(batch.sequences)
    if not scored_while_training:
        scorer.fill(scores, batch.sequences, torch.arange(len(mask)))
    ref_logps = None if reference.policy is None else scorer.logps_of(reference.policy, batch.sequences)
    teacher_logps = None
    if objective.distill.where == "reward" and teacher is not None:
        teacher_logps = scorer.logps_of(teacher.model, batch.for_teacher)
    coefficients = controlled.in_force(_entropy_nats(objective, scores, mask))
    token_rewards = batch.token_rewards
    if objective.kl.where != "none" and ref_logps is not None:
        if objective.kl.where == "reward":
            penalties = kl_penalties(objective.kl, scores.logps, ref_logps, coefficients.kl, mask)
            # NaN marks tokens where no step ends; the penalty is due at them too.
            token_rewards = penalties if token_rewards is None else token_rewards.nan_to_num(0.0) + penalties
        if objective.kl.control == "adaptive" and mask.any():
            estimates = kl_estimate(objective.kl.estimator, scores.logps, ref_logps, scores.logps)
            controlled.observe_kl(float(estimates[mask].mean()), len(mask))
    returns = None
    if objective.baseline == "critic":
        returns = value_targets(objective, batch.rewards, mask, scores.values, token_rewards)
    prepared = replace(
        batch,
        scores=scores,
        ref_logps=ref_logps,
        teacher_logps=teacher_logps,
        token_rewards=token_rewards,
        returns=returns,
    )
    return prepared, coefficients


def pass_advantages(batch: Batch, objective: Objective, steps: Sequence[Tensor], seed: int, step: int) -> Tensor:
    """[N, T] advantages of a prepared batch for a pass that is split into these optimiser steps (row indices): from
    rewards, plus the teacher's with distill.where=reward."""
    if policy_waits(objective, step):
        return torch.zeros(batch.sequences.completions.shape)
    of_rewards = advantages(
        objective,
        batch.rewards,
        batch.groups,
        batch.sequences.mask,
        values=batch.scores.values if objective.baseline == "critic" else None,
        token_rewards=batch.token_rewards,
        peers=peers_of(batch.groups, seed, step) if objective.baseline == "random_peer" else None,
        mini_batches=optimizer_step_of_row(len(batch), steps),
    )
    match objective.distill:
        case NoDistillation():
            return of_rewards
        case DistillInLoss(verifier_coef=weight):
            return weight * of_rewards
        case DistillInReward(verifier_coef=weight) as distill:
            if batch.teacher_logps is None:
                raise ValueError("distill.where=reward, but the teacher has not scored the batch")
            taught = teacher_advantages(distill, batch.scores.logps, batch.teacher_logps, batch.sequences.mask)
            return weight * of_rewards + taught


def optimizer_step_of_row(rows: int, steps: Sequence[Tensor]) -> Tensor:
    """[rows] int64: the number of the optimiser step (row indices each) that a row belongs to."""
    split = torch.zeros(rows, dtype=torch.long)
    for number, own in enumerate(steps):
        split[own] = number
    return split


def _entropy_nats(objective: Objective, scores: Scores, mask: Tensor) -> float:
    """The entropy that steers the adaptive bonus, a mean over tokens; 0 for an empty batch."""
    adaptive = objective.entropy.adaptive
    if adaptive.type == "none" or not mask.any():
        return 0.0
    per_token = scores.entropy if adaptive.estimator == "full" else -scores.logps
    return float(per_token[mask].mean())


def peers_of(groups: Tensor, seed: int, step: int) -> Tensor:
    """[N] int64: for each row the row of its group with which the whole group is compared."""
    peers = torch.zeros_like(groups)
    for name in torch.unique(groups).tolist():
        rows = (groups == name).nonzero()[:, 0]
        key = random_key(seed, "select", step=step, example=name)
        peers[rows] = rows[permutation(len(rows), key)[0]]
    return peers


@dataclass
class ControlledCoefficients:
    """Coefficients of the entropy bonus and of the KL that follow a measurement from batch to batch; fixed ones stay
    where the objective puts them."""

    objective: Objective
    entropy: float = field(init=False)
    kl: float = field(init=False)

    def __post_init__(self) -> None:
        self.entropy = self.objective.entropy.bonus
        self.kl = 0.0 if self.objective.kl.where == "none" else self.objective.kl.beta

    def in_force(self, entropy_nats: float) -> Coefficients:
        """The coefficients for a batch whose policy has this entropy. The entropy controller takes its step after
        it."""
        adaptive = self.objective.entropy.adaptive
        if adaptive.type == "none":
            return Coefficients(entropy=self.entropy, kl=self.kl)
        applied = applied_entropy_coefficient(adaptive, self.entropy, entropy_nats)
        self.entropy = next_entropy_coefficient(adaptive, self.entropy, entropy_nats)
        return Coefficients(entropy=applied, kl=self.kl)

    def observe_kl(self, kl_nats: float, completions: int) -> None:
        """Let the KL controller take its step after a batch of so many completions with this KL per token."""
        kl = self.objective.kl
        if kl.where != "none" and kl.control == "adaptive":
            self.kl = next_kl_coefficient(kl, self.kl, kl_nats, completions)

    def state_dict(self) -> dict[str, float]:
        return {"entropy": self.entropy, "kl": self.kl}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.entropy, self.kl = state["entropy"], state["kl"]
