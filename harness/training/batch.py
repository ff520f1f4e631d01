"""The completions of a training step, from sampling to the optimiser.

Shapes: N completions, with those of a prompt adjacent; T tokens of the longest completion. Tensors are on the CPU.
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
"""Placeholder for a tensor that a later stage fills in."""
UNSCORED = Scores(UNFILLED, UNFILLED, UNFILLED)


@dataclass(frozen=True, eq=False, kw_only=True)
class Batch:
    """The N completions of a step. Each stage of the step returns the batch with more of its fields filled."""

    # These fields are filled by sampling (harness.run.learning.writers).
    sequences: Sequences
    sampler_logps: Tensor
    """[N, T] log-probs that the sampler reported."""
    truncated: Tensor
    """Bool [N]: true if the limit on completion tokens was reached."""
    groups: Tensor
    """[N] int64, equal for completions of the same prompt."""
    max_completion_tokens: int
    """The limit on completion tokens."""
    problems: Sequence[Problem] = ()
    """[N] the problem of each row's prompt."""
    turns: Sequence[Sequence[Turn]] = ()
    """[N] the turns of each completion; empty if the task has no environment."""
    cost: GenerationCost = field(default_factory=GenerationCost)
    rollout_s: float = 0.0
    """Wall-clock time of sampling, including encoding."""
    origins: Sequence[Origin] = ()
    """[N] who wrote each completion; empty if the policy of `rollout.sampler` wrote all."""
    teacher_prompts: Sequence[Sequence[int]] = ()
    """[N] token ids of the teacher's prompts; empty if they equal the policy's prompts."""
    steps_old: Tensor | None = None
    """[N, T] int64: the number of updates between the weights that sampled a token and the weights that train on it.
    None if the current policy sampled all tokens.
    """
    drawn_tokens: int | None = None
    """Number of tokens that the step sampled, if it differs from the tokens of its completions (`rollout.partial`)."""

    # These fields are filled by grading and rewarding (harness.run.learning.rollouts).
    attempts: Sequence[Attempt] = ()
    """[N] the completions with their verdicts, as reward parts receive them."""
    rewards: Tensor = UNFILLED
    """[N] float32; NaN for a completion that could not be scored."""
    reward_columns: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Columns for records, each of [N] numbers: `reward`, and `reward/<name>` for the unweighted value of each part."""
    token_rewards: Tensor | None = None
    """[N, T] rewards of steps within completions; see `algorithms.advantages`. `prepare` adds the KL penalty."""
    rewarded_tokens: Tensor | None = None
    """[N] int64: how many first tokens of each completion affect its reward and enter the loss; None: all tokens."""
    answers: GoldAnswers | None = None
    """The gold answers for the supervised term of the loss; None if there is no such term."""
    correct: Tensor = UNFILLED
    """Bool [N]: the grader's verdict, for metrics only."""
    reward_s: float = 0.0
    """Wall-clock time of grading and rewarding."""
    refill_rounds: int = 0

    # These fields are filled by `filter_rows`.
    loss_mask: Tensor = UNFILLED
    """Bool [N, T]: completion tokens that enter the loss."""
    places: Tensor = UNFILLED
    """[N] int64: the index of each row before rows were removed."""

    # These fields are filled by `prepare`.
    scores: Scores = UNSCORED
    """The policy's scores before the first optimiser step. If `scored_while_training`, training fills them in."""
    ref_logps: Tensor | None = None
    """[N, T] log-probs under the KL's reference policy; None if the KL needs no reference model."""
    teacher_logps: Tensor | None = None
    """[N, T] log-probs under the teacher; None unless distill.where=reward."""
    returns: Tensor | None = None
    """[N, T] the critic's targets; None without a critic."""

    def __len__(self) -> int:
        return len(self.groups)

    @property
    def generated_tokens(self) -> int:
        """The number of tokens that the step sampled. Tokens of given completions do not count."""
        if self.drawn_tokens is not None:
            return self.drawn_tokens
        return int(self.sequences.lengths[self.drawn].sum())

    @property
    def drawn(self) -> Tensor:
        """Bool [N]: True for completions that a model sampled, False for given completions."""
        if not self.origins:
            return torch.ones(len(self), dtype=torch.bool)
        return torch.tensor([origin != "given" for origin in self.origins])

    @cached_property
    def for_teacher(self) -> Sequences:
        """The completions after the teacher's prompts."""
        return replace(self.sequences, prompts=self.teacher_prompts) if self.teacher_prompts else self.sequences

    def by_group(self, values: Sequence[T]) -> list[Sequence[T]]:
        """Split a sequence of N values into one sequence per prompt."""
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
        """Build a batch from completions, with the same number for each prompt.

        prompts: token ids.
        first_example: the number of the first prompt's group; further groups count up from it.
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
        """Join the rewarded rounds of a step into one batch. No two rounds may have a group with the same number."""
        if len(batches) == 1:
            return batches[0]
        columns = {own.name: _joined([getattr(batch, own.name) for batch in batches]) for own in fields(cls)}
        # NaN in token_rewards means that no step ends at this token. No step ends in padding.
        columns["token_rewards"] = _joined([batch.token_rewards for batch in batches], padding=torch.nan)
        limit, rounds = batches[0].max_completion_tokens, len(batches) - 1
        return cls(**columns | {"max_completion_tokens": limit, "refill_rounds": rounds})


def _joined(values: Sequence[Any], padding: float = 0) -> Any:
    """Join the values of one field by concatenating rows. Values without rows, such as durations, are summed."""
    first = values[0]
    if first is None or first is UNFILLED:
        return first
    if isinstance(first, Tensor):
        if first.ndim > 1:
            # Rounds may differ in width, because each is as wide as its longest completion.
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
    """Apply the knobs `overlong` and then `zero_std` to a rewarded batch, which may become empty.

    * overlong: `mask_after` masks truncated completions from the loss. `mask_before` also makes their reward NaN, so
      that it does not count in any baseline or std. `drop` removes them.
    * zero_std: concerns groups whose scored rewards are all equal. `keep` keeps them, `mask` masks them from the loss,
      and `drop` and `refill` remove them. For `refill`, `harness.run.learning.rollouts` samples more prompts.
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
    # Dropped rows do not count: a group has equal rewards if its remaining rewards are equal.
    alike = zero_std_rows(batch.rewards.masked_fill(~kept, torch.nan), batch.groups)
    if objective.zero_std == "mask":
        batch = replace(batch, loss_mask=batch.loss_mask & ~alike[:, None])
    elif objective.zero_std != "keep":
        kept = kept & ~alike
    return batch if kept.all() else batch.rows(kept.nonzero()[:, 0])


def zero_std_rows(rewards: Tensor, groups: Tensor) -> Tensor:
    """Return a bool mask [N] of the rows in groups whose scored rewards are all equal.

    Groups with at most one scored reward are included.

    rewards [N]: NaN for a completion that could not be scored.
    groups [N]: integers.
    """
    group = torch.unique(groups, return_inverse=True)[1]
    scored = ~rewards.isnan()
    count = int(group.max()) + 1 if len(group) else 0

    def extreme(fill: float, reduce: str) -> Tensor:
        values = rewards.masked_fill(~scored, fill)
        return torch.full((count,), fill, dtype=rewards.dtype).scatter_reduce(0, group, values, reduce)[group]

    # A group without scored rewards keeps the fill values, so it is included: inf >= -inf.
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
    """Score a filtered batch, add the KL penalty to its rewards, and update the coefficients' controllers.

    reference: the KL's reference policy; None if the KL needs no separate model.
    scored_while_training: whether training computes the policy's scores, so that they are left empty here.
    Returns the batch and its loss coefficients.
    """
    mask = batch.sequences.mask
    scores = Scores.empty(batch.sequences)
    if not scored_while_training:
        scorer.fill(scores, batch.sequences, torch.arange(len(mask)))
    ref_logps = None if reference is None else scorer.logps_of(reference, batch.sequences)
    teacher_logps = None
    if objective.distill.where == "reward" and teacher is not None:
        teacher_logps = scorer.logps_of(teacher.model, batch.for_teacher)
    # The coefficients are read before `observe_kl`, so that this batch's KL affects only the next batch.
    coefficients = controlled.in_force(_entropy_nats(objective, scores, mask))
    token_rewards = batch.token_rewards
    if objective.kl.where != "none" and ref_logps is not None:
        if objective.kl.where == "reward":
            penalties = kl_penalties(objective.kl, scores.logps, ref_logps, coefficients.kl, mask)
            # NaN marks tokens where no step ends, but the penalty applies to these tokens too.
            token_rewards = penalties if token_rewards is None else token_rewards.nan_to_num(0.0) + penalties
        if objective.kl.control == "adaptive" and mask.any():
            # The policy has not changed since it was scored, so its current and old log-probs are the same tensor.
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
    """Return the advantages [N, T] of a prepared batch for one pass (epoch) over it.

    The advantages come from rewards. With distill.where=reward, the teacher's advantages are added. While the critic
    warms up, all are 0.

    steps: the row indices of each optimiser step of the pass.
    Raises ValueError if distill.where=reward but the teacher has not scored the batch.
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
    """Return the number of the optimiser step that each row is in: [rows] int64. steps: the row indices of each."""
    split = torch.zeros(rows, dtype=torch.long)
    for number, own in enumerate(steps):
        split[own] = number
    return split


def _entropy_nats(objective: Objective, scores: Scores, mask: Tensor) -> float:
    """Return the mean entropy per token for the bonus's controller, or 0 if it has none or there are no tokens."""
    adaptive = objective.entropy.adaptive
    if adaptive.type == "none" or not mask.any():
        return 0.0
    per_token = scores.entropy if adaptive.estimator == "full" else -scores.logps
    return float(per_token[mask].mean())


def peers_of(groups: Tensor, seed: int, step: int) -> Tensor:
    """Return the peer of each row, [N] int64: the index of the row that its whole group is compared with."""
    peers = torch.zeros_like(groups)
    for name in torch.unique(groups).tolist():
        rows = (groups == name).nonzero()[:, 0]
        # The key is group and step, so a group's peer does not depend on the other groups in the batch.
        key = random_key(seed, "select", step=step, example=name)
        peers[rows] = rows[permutation(len(rows), key)[0]]
    return peers


@dataclass
class ControlledCoefficients:
    """The coefficients of entropy bonus and KL. Controllers adapt them from batch to batch.

    A coefficient without a controller keeps the objective's value.
    """

    objective: Objective
    entropy: float = field(init=False)
    kl: float = field(init=False)

    def __post_init__(self) -> None:
        self.entropy = self.objective.entropy.bonus
        self.kl = 0.0 if self.objective.kl.where == "none" else self.objective.kl.beta

    def in_force(self, entropy_nats: float) -> Coefficients:
        """Return the coefficients for a batch with this policy entropy, then update the entropy controller."""
        adaptive = self.objective.entropy.adaptive
        if adaptive.type == "none":
            return Coefficients(entropy=self.entropy, kl=self.kl)
        applied = applied_entropy_coefficient(adaptive, self.entropy, entropy_nats)
        self.entropy = next_entropy_coefficient(adaptive, self.entropy, entropy_nats)
        return Coefficients(entropy=applied, kl=self.kl)

    def observe_kl(self, kl_nats: float, completions: int) -> None:
        """Update the KL controller after a batch of this many completions with this KL per token."""
        kl = self.objective.kl
        if kl.where != "none" and kl.control == "adaptive":
            self.kl = next_kl_coefficient(kl, self.kl, kl_nats, completions)

    def state_dict(self) -> dict[str, float]:
        return {"entropy": self.entropy, "kl": self.kl}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.entropy, self.kl = state["entropy"], state["kl"]
