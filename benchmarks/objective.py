"""Time of `advantages` and `policy_loss`, forward and backward, for every preset. Budget: 2 ms on one thread.

python benchmarks/objective.py [repetitions]

One optimiser step of 64 completions (8 prompts x 8) of at most 32 tokens, off-policy, with everything that a term could
need in the batch. The metrics are left out: they are computed once a step, not in every micro-batch.
"""

from __future__ import annotations

import statistics
import sys
import time

import torch
from machine import machine_line

from algorithms import Objective, TokenBatch, advantages, policy_loss, preset, presets

BUDGET_MS = 2.0
ROWS, TOKENS, SAMPLES = 64, 32, 8


def step_ms(objective: Objective, repetitions: int) -> float:
    """Median time of one step."""
    generator = torch.Generator().manual_seed(0)

    def normal(scale: float) -> torch.Tensor:
        return scale * torch.randn(ROWS, TOKENS, generator=generator)

    mask = torch.arange(TOKENS) < torch.randint(8, TOKENS + 1, (ROWS, 1), generator=generator)
    rewards = torch.randint(2, (ROWS,), generator=generator).float()
    groups = torch.arange(ROWS) // SAMPLES
    peers = torch.arange(ROWS).roll(1)
    peers[::SAMPLES] = torch.arange(SAMPLES - 1, ROWS, SAMPLES)
    logp = (-1 + normal(0.5)).requires_grad_()
    entropy, values = (1 + normal(0.2)).requires_grad_(), normal(0.3).requires_grad_()
    old_logp, ref_logp, sampler_logp = (logp.detach() + normal(0.1) for _ in range(3))
    token_rewards = None
    if objective.credit == "steps":
        ends = (torch.arange(TOKENS) % SAMPLES == SAMPLES - 1) & mask
        token_rewards = torch.where(ends, normal(1.0), torch.nan)

    times_s = []
    for repetition in range(repetitions + 5):
        start_s = time.perf_counter()
        advantage = advantages(
            objective, rewards, groups, mask, values.detach(), token_rewards, peers, torch.zeros_like(groups)
        )
        batch = TokenBatch(
            logp=logp,
            old_logp=old_logp,
            mask=mask,
            advantages=advantage,
            ref_logp=ref_logp,
            sampler_logp=sampler_logp,
            entropy=entropy,
            divergence=entropy,
            values=values,
            old_values=values.detach(),
            returns=rewards[:, None].expand(ROWS, TOKENS),
            groups=groups,
            max_completion_tokens=TOKENS,
        )
        torch.autograd.backward(policy_loss(objective, batch).value)
        if repetition >= 5:
            times_s.append(time.perf_counter() - start_s)
    return statistics.median(times_s) * 1e3


def main(repetitions: int = 200) -> None:
    torch.set_num_threads(1)
    print(machine_line(threads=1))
    print(f"advantages and policy_loss, forward and backward, {ROWS} x {TOKENS} tokens; median of {repetitions}")
    times_ms = {name: step_ms(preset(name, Objective), repetitions) for name in presets("policy_gradient")}
    for name, milliseconds in sorted(times_ms.items(), key=lambda item: -item[1]):
        print(f"  {name:24} {milliseconds:6.2f} ms")
    over = [name for name, milliseconds in times_ms.items() if milliseconds > BUDGET_MS]
    if over:
        sys.exit(f"over the budget of {BUDGET_MS:g} ms: {', '.join(over)}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
