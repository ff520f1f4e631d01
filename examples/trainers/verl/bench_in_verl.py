"""What verl imports in its own processes: advantages and a policy loss called `bench`, and the graders of the task."""

import json
import os
from typing import Any

import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import register_adv_est, register_policy_loss

from algorithms import Coefficients, Objective, StepSize, TokenBatch, advantages, policy_loss, with_overrides
from evals import get_task, grade

OBJECTIVE = with_overrides(Objective(aggregation="token_mean"), json.loads(os.environ["BENCH_OBJECTIVE"]))
POLICY = with_overrides(OBJECTIVE, {"kl.where": "none"})  # verl adds the KL and the entropy bonus itself


@register_adv_est("bench")
def bench_advantages(
    token_level_rewards: Tensor, response_mask: Tensor, index: Any, **rest: Any
) -> tuple[Tensor, Tensor]:
    """[B, T], twice: verl also expects returns. token_level_rewards [B, T]: with the KL in the reward. index [B]: equal
    for completions of one prompt."""
    names = {name: number for number, name in enumerate(dict.fromkeys(index))}
    groups = torch.tensor([names[name] for name in index], device=response_mask.device)
    nothing = token_level_rewards.new_zeros(len(groups))
    rewards = torch.where(response_mask.bool(), token_level_rewards, 0)
    found = advantages(OBJECTIVE, nothing, groups, response_mask, token_rewards=rewards)
    return found, found


@register_policy_loss("bench")
def bench_loss(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str,
    config: Any,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, Any]]:
    """A micro-batch's share of its step's loss, [], times the processes over which verl takes the mean."""
    step = config.global_batch_info
    batch = TokenBatch(
        logp=log_prob,
        old_logp=old_log_prob,
        mask=response_mask,
        advantages=advantages,
        max_completion_tokens=config.loss_scale_factor,
        step=StepSize(step.get("global_batch_size"), step.get("batch_num_tokens")),
    )
    return policy_loss(POLICY, batch, Coefficients(0.0, 0.0)).value * step.get("dp_size", 1), {}


def compute_score(data_source: str, solution_str: str, ground_truth: str, **rest: Any) -> float:
    """1 for a right answer, else 0. data_source: the task."""
    task = get_task(data_source)
    return float(grade(solution_str, ground_truth, task.require_grader(), task.extract).correct)
