"""The completions of a training step, from the prompt to the optimiser.

Shapes: N rows (completions), those of a prompt adjacent; T longest completion. Tensors are on the CPU.
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
from transformers import PreTrainedModel

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
from harness.training.reference import Teacher
from harness.training.sequences import Scores, Sequences, SequenceScorer

T = TypeVar("T")
Origin = Literal["policy", "teacher", "given"]

UNFILLED = torch.empty(0)
"""Placeholder for a tensor of N rows that a later stage fills in."""
UNSCORED = Scores(UNFILLED, UNFILLED, UNFILLED)


@dataclass(frozen=True, eq=False, kw_only=True)
class Batch:
    """N completions on their way through a step: each stage returns the batch with more of its fields filled."""

    # Filled when the completions are sampled (harness.run.learning.writers).
    sequences: Sequences
    sampler_logps: Tensor
    """[N, T] log-probs that the sampler reported."""
    truncated: Tensor
    """Bool [N]: ended by the limit on completion tokens."""
    groups: Tensor
    """[N] int64, equal for completions of one prompt."""
    max_completion_tokens: int
    """The limit under which they were sampled."""
    problems: Sequence[Problem] = ()
    """[N] the problem that each row's prompt poses."""
    turns: Sequence[Sequence[Turn]] = ()
    """[N] the turns of each completion; empty without an environment."""
    cost: GenerationCost = field(default_factory=GenerationCost)
    rollout_s: float = 0.0
    """Wall-clock of sampling, encoding included."""
    origins: Sequence[Origin] = ()
    """[N] who wrote each completion; empty if all come from `rollout.sampler`'s policy."""
    teacher_prompts: Sequence[Sequence[int]] = ()
    """[N] token ids of the teacher's prompts; empty if they are the policy's."""
    steps_old: Tensor | None = None
    """[N, T] int64: updates between the weights that sampled each token and those that train on it. None if the current
    policy sampled all tokens.
    """
    drawn_tokens: int | None = None
    """Tokens that the step sampled, if their number is not that of its completions (`rollout.partial`)."""

    # Filled when they are graded and rewarded (harness.run.learning.rollouts).
    attempts: Sequence[Attempt] = ()
    """[N] the completions with their verdicts, as reward parts see them."""
    rewards: Tensor = UNFILLED
    """[N] float32; NaN for a completion that could not be scored."""
    reward_columns: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Recorded columns of [N] numbers each: `reward`, and each part before its weight as `reward/<name>`."""
    token_rewards: Tensor | None = None
    """[N, T] rewards of steps within completions, to which `prepare` adds the KL; see `algorithms.advantages`."""
    rewarded_tokens: Tensor | None = None
    """[N] int64: how many tokens of each completion affect its reward and enter the loss; None for all."""
    answers: GoldAnswers | None = None
    """The gold answers in the supervised term of the loss."""
    correct: Tensor = UNFILLED
    """Bool [N]: the grader's verdict, for metrics only."""
    reward_s: float = 0.0
    """Wall-clock of grading and rewarding."""
    refill_rounds: int = 0

    # Filled by `filter_rows`.
    loss_mask: Tensor = UNFILLED
    """Bool [N, T]: completion tokens that enter the loss."""
    places: Tensor = UNFILLED
    """[N] int64: the index of each row before rows were left out."""

    # Filled by `prepare`.
    scores: Scores = UNSCORED
    """The policy's scores before the first optimiser step; filled in during training if `scored_while_training`."""
    ref_logps: Tensor | None = None
    """[N, T] log-probs under the reference policy of the objective's KL."""
    teacher_logps: Tensor | None = None
    """[N, T] log-probs under the teacher, for distill.where=reward."""
    returns: Tensor | None = None
    """[N, T] the critic's targets."""

    def __len__(self) -> int:
        return len(self.groups)

    @property
    def generated_tokens(self) -> int:
        """The number of tokens that the step sampled; given completions cost nothing."""
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
        """Split values [N] by prompt."""
        # The rows of a group are adjacent, so each group is a slice.
        sizes = torch.unique_consecutive(self.groups, return_counts=True)[1].tolist()
        ends = list(itertools.accumulate(sizes))
        return [values[end - size : end] for size, end in zip(sizes, ends, strict=True)]

    def rows(self, chosen: Tensor) -> Batch:
        """Return the chosen rows (int64 indices), in that order."""
        return replace(self, **{own.name: _rows(getattr(self, own.name), chosen) for own in fields(self)})

    @classmethod
    def of_completions(
        cls, prompts: Sequence[Sequence[int]], drawn: Completions, first_example: int, max_completion_tokens: int
    ) -> Batch:
        """Build a batch of completions, equally many per prompt (token ids).

        Groups are numbered from first_example on.
        """
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
        """Join the rewarded rounds of one step into one batch.

        Their groups must have different numbers.
        """
        if len(batches) == 1:
            return batches[0]
        columns = {own.name: _joined([getattr(batch, own.name) for batch in batches]) for own in fields(cls)}
        # NaN in token_rewards means that no step ends at a token, and none ends in padding.
        columns["token_rewards"] = _joined([batch.token_rewards for batch in batches], padding=torch.nan)
        limit, rounds = batches[0].max_completion_tokens, len(batches) - 1
        return cls(**columns | {"max_completion_tokens": limit, "refill_rounds": rounds})


def _joined(values: Sequence[Any], padding: float = 0) -> Any:
    """Join the values of one field: the rows one after another, or the sum if it has no rows, such as a duration."""
    first = values[0]
    if first is None or first is UNFILLED:
        return first
    if isinstance(first, Tensor):
        if first.ndim > 1:
            # Each round is only as wide as its own longest completion.
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
    """Return the chosen rows of a field's value, or the value itself if it has no rows."""
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
    """Apply the knobs `overlong` and then `zero_std` to a rewarded batch, which can become empty.

    overlong: `mask_after` takes truncated completions out of the loss only. `mask_before` also makes their reward NaN,
    so that no baseline or std sees it. `drop` removes them. zero_std: groups whose scored rewards are all equal are
    kept, masked out of the loss, or removed. `drop` and `refill` remove them; for `refill` more are sampled, see
    `harness.run.learning.rollouts`.
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
    # Dropped rows are hidden from the comparison: a group is judged by the rewards that remain.
    alike = zero_std_rows(batch.rewards.masked_fill(~kept, torch.nan), batch.groups)
    if objective.zero_std == "mask":
        batch = replace(batch, loss_mask=batch.loss_mask & ~alike[:, None])
    elif objective.zero_std != "keep":
        kept = kept & ~alike
    return batch if kept.all() else batch.rows(kept.nonzero()[:, 0])


def zero_std_rows(rewards: Tensor, groups: Tensor) -> Tensor:
    """Return a bool [N] mask of the rows of groups whose scored rewards are all equal.

    That includes groups with one scored reward or none. rewards [N], NaN if a completion could not be scored; groups
    [N] integers.
    """
    group = torch.unique(groups, return_inverse=True)[1]
    scored = ~rewards.isnan()
    count = int(group.max()) + 1 if len(group) else 0

    def extreme(fill: float, reduce: str) -> Tensor:
        values = rewards.masked_fill(~scored, fill)
        return torch.full((count,), fill, dtype=rewards.dtype).scatter_reduce(0, group, values, reduce)[group]

    # A group without scored rewards keeps the fill values, and inf >= -inf holds.
    return extreme(torch.inf, "amin") >= extreme(-torch.inf, "amax")


def prepare(
    batch: Batch,
    objective: Objective,
    scorer: SequenceScorer,
    reference: PreTrainedModel | None,
    controlled: ControlledCoefficients,
    scored_while_training: bool,
    teacher: Teacher | None = None,
) -> tuple[Batch, Coefficients]:
    """Score a filtered batch unless training will, put the KL into its rewards, and update the controllers.

    reference: the policy that the objective's KL refers to, if it needs a model of its own. Returns the batch and the
    coefficients in force for it.
    """
    mask = batch.sequences.mask
    scores = Scores.empty(batch.sequences)
    if not scored_while_training:
        scorer.fill(scores, batch.sequences, torch.arange(len(mask)))
    ref_logps = None if reference is None else scorer.logps_of(reference, batch.sequences)
    teacher_logps = None
    if objective.distill.where == "reward" and teacher is not None:
        teacher_logps = scorer.logps_of(teacher.model, batch.for_teacher)
    # Read before `observe_kl`, so that this batch's KL changes the coefficient of the next batch only.
    coefficients = controlled.in_force(_entropy_nats(objective, scores, mask))
    token_rewards = batch.token_rewards
    if objective.kl.where != "none" and ref_logps is not None:
        if objective.kl.where == "reward":
            penalties = kl_penalties(objective.kl, scores.logps, ref_logps, coefficients.kl, mask)
            # NaN marks tokens where no step ends; the penalty is due at them too.
            token_rewards = penalties if token_rewards is None else token_rewards.nan_to_num(0.0) + penalties
        if objective.kl.control == "adaptive" and mask.any():
            # The policy has not moved since it was scored, so current and old log-probs are the same tensor.
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
    """Return the advantages [N, T] of a prepared batch for one pass over it.

    steps: the row indices of each optimiser step of the pass. The advantages come from rewards, plus the teacher's with
    distill.where=reward. Raises ValueError if the teacher has not scored the batch.
    """
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
    """Return the number of each row's optimiser step, [rows] int64; steps: the row indices of each."""
    split = torch.zeros(rows, dtype=torch.long)
    for number, own in enumerate(steps):
        split[own] = number
    return split


def _entropy_nats(objective: Objective, scores: Scores, mask: Tensor) -> float:
    """Return the mean entropy per token that steers the adaptive bonus, or 0 for an empty batch."""
    adaptive = objective.entropy.adaptive
    if adaptive.type == "none" or not mask.any():
        return 0.0
    per_token = scores.entropy if adaptive.estimator == "full" else -scores.logps
    return float(per_token[mask].mean())


def peers_of(groups: Tensor, seed: int, step: int) -> Tensor:
    """Return for each row the row with which its whole group is compared, [N] int64."""
    peers = torch.zeros_like(groups)
    for name in torch.unique(groups).tolist():
        rows = (groups == name).nonzero()[:, 0]
        # Keyed by group and step, so a group's peer does not depend on the other groups in the batch.
        key = random_key(seed, "select", step=step, example=name)
        peers[rows] = rows[permutation(len(rows), key)[0]]
    return peers


@dataclass
class ControlledCoefficients:
    """Coefficients of the entropy bonus and the KL, adapted from batch to batch by a measurement.

    Fixed coefficients keep the objective's values.
    """

    objective: Objective
    entropy: float = field(init=False)
    kl: float = field(init=False)

    def __post_init__(self) -> None:
        self.entropy = self.objective.entropy.bonus
        self.kl = 0.0 if self.objective.kl.where == "none" else self.objective.kl.beta

    def in_force(self, entropy_nats: float) -> Coefficients:
        """Return the coefficients for a batch with this policy entropy, then step the entropy controller."""
        adaptive = self.objective.entropy.adaptive
        if adaptive.type == "none":
            return Coefficients(entropy=self.entropy, kl=self.kl)
        applied = applied_entropy_coefficient(adaptive, self.entropy, entropy_nats)
        self.entropy = next_entropy_coefficient(adaptive, self.entropy, entropy_nats)
        return Coefficients(entropy=applied, kl=self.kl)

    def observe_kl(self, kl_nats: float, completions: int) -> None:
        """Let the KL controller take its step after a batch of `completions` completions with this KL per token."""
        kl = self.objective.kl
        if kl.where != "none" and kl.control == "adaptive":
            self.kl = next_kl_coefficient(kl, self.kl, kl_nats, completions)

    def state_dict(self) -> dict[str, float]:
        return {"entropy": self.entropy, "kl": self.kl}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.entropy, self.kl = state["entropy"], state["kl"]
