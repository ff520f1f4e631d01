"""bench's policy loss, as prime-rl's `trainer.loss.import_path`."""

import json
from typing import Any

from algorithms import Coefficients, Objective, TokenBatch, policy_loss, with_overrides


def bench_loss(inputs: Any, objective: str) -> Any:
    """The sum of a completion's token losses, which prime-rl divides by the tokens of the step. inputs: prime-rl's
    LossInputs, all tensors [T]; objective: the objective's knobs, as JSON."""
    from prime_rl.trainer.rl.loss import LossOutputs

    if inputs.loss_weights is not None and (inputs.loss_weights[inputs.loss_mask] != 1).any():
        raise ValueError("bench_loss does not support token weights: use the algorithm grpo")
    point = with_overrides(Objective(aggregation="token_mean"), json.loads(objective))
    summed = with_overrides(point, {"aggregation": "seq_mean_token_sum"})  # of one completion
    sampler = inputs.inference_logprobs[None]
    batch = TokenBatch(
        logp=inputs.trainer_logprobs[None],
        old_logp=sampler,
        sampler_logp=sampler,
        mask=inputs.loss_mask[None],
        advantages=inputs.advantages[None],
    )
    return LossOutputs(policy_loss(summed, batch, Coefficients(0.0, 0.0)).value, {})
