"""What is known of a batch before its first optimiser step, against the pieces that it is made of."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from algorithms import Coefficients, advantages
from harness.config.run_spec import RunSpec
from harness.training.batch import Batch, ControlledCoefficients, pass_advantages, prepare
from harness.training.critic import Critic
from harness.training.reference import KlReference, frozen_copy
from harness.training.sequences import Scorer
from tests.harness.run.small import small_spec
from tests.harness.training import rollouts
from tests.harness.training.rollouts import GROUPS, SAMPLES

KL = {"objective.kl.where": "reward", "objective.kl.beta": 0.3}


@dataclasses.dataclass
class Prepared:
    spec: RunSpec
    policy: PreTrainedModel
    reference: PreTrainedModel
    controlled: ControlledCoefficients
    result: Batch
    coefficients: Coefficients

    @property
    def mask(self) -> Tensor:
        return self.result.sequences.mask


def prepared(settings: dict[str, Any], **changes: Any) -> Prepared:
    """With a reference and a critic that differ from the policy; `changes` to the rollout."""
    spec = small_spec(settings)
    policy = rollouts.model()
    reference = frozen_copy(policy)
    critic = None
    with torch.no_grad():
        for weight in policy.parameters():
            weight.mul_(1.05)
    if spec.policy_gradient.baseline == "critic":
        critic = Critic(policy, "own")
        torch.nn.init.normal_(critic.head.weight, generator=torch.Generator().manual_seed(0))
    rollout = dataclasses.replace(rollouts.rollout(policy), **changes)
    controlled = ControlledCoefficients(spec.policy_gradient)
    kl_reference = KlReference(spec.policy_gradient.kl, policy, reference)
    scorer = Scorer(policy, critic, spec, rollouts.PAD)
    result, coefficients = prepare(rollout, spec, 1, scorer, kl_reference, controlled)
    return Prepared(spec, policy, reference, controlled, result, coefficients)


def logps(policy: PreTrainedModel, rollout: Batch) -> Tensor:
    scored = torch.zeros(rollout.sequences.completions.shape)
    for row, length in enumerate(rollout.sequences.lengths.tolist()):
        with torch.inference_mode():
            scored[row, :length] = rollouts.completion_logps(policy, rollout.sequences, row)
    return scored


def test_the_kl_in_the_reward_is_a_cost_at_every_token() -> None:
    made = prepared({"algorithm": "rloo", **KL})
    rollout = made.result
    gap = logps(made.policy, rollout) - logps(made.reference, rollout)
    assert made.result.token_rewards is not None
    torch.testing.assert_close(made.result.token_rewards, -0.3 * gap, rtol=1e-3, atol=1e-4)
    assert float(gap[made.mask].abs().mean()) > 0.01


def test_rewards_of_steps_and_the_kl_add_up() -> None:
    """NaN, no step ends here, becomes 0: the penalty is due there as well."""
    rollout = rollouts.rollout(rollouts.model())
    steps = torch.full(rollout.sequences.completions.shape, torch.nan)
    steps[:, 0] = 0.7
    settings = {"algorithm": "ppo", "objective.credit": "steps", "reward.parts.process": 1.0, **KL}
    both, kl_only = prepared(settings, token_rewards=steps), prepared({"algorithm": "ppo", **KL})
    assert both.result.token_rewards is not None and kl_only.result.token_rewards is not None
    torch.testing.assert_close(both.result.token_rewards - kl_only.result.token_rewards, steps.nan_to_num(0.0))


def test_advantages_are_those_of_the_critics_values() -> None:
    made = prepared({"algorithm": "ppo", **KL})
    rollout, scores = made.result, made.result.scores
    assert float(scores.values[made.mask].abs().max()) > 0.1
    expected = advantages(
        made.spec.policy_gradient,
        rollout.rewards,
        rollout.groups,
        made.mask,
        values=scores.values,
        token_rewards=made.result.token_rewards,
    )
    got = pass_advantages(made.result, made.spec, [torch.arange(GROUPS * SAMPLES)], step=1)
    torch.testing.assert_close(got, expected)


def test_what_is_masked_out_of_the_loss_still_counts_in_advantages() -> None:
    settings = {"algorithm": "reinforce_pp", "objective.kl.where": "none"}
    whole = prepared(settings)
    mask = whole.mask & (torch.arange(GROUPS * SAMPLES) % 3 > 0)[:, None]
    masked = prepared(settings, loss_mask=mask)
    batches = [torch.arange(GROUPS * SAMPLES)]
    torch.testing.assert_close(
        pass_advantages(masked.result, masked.spec, batches, 1), pass_advantages(whole.result, whole.spec, batches, 1)
    )


def test_each_optimiser_step_has_its_own_std() -> None:
    made = prepared({"algorithm": "magistral"})
    halves = [torch.arange(8), torch.arange(8, 16)]
    split = pass_advantages(made.result, made.spec, halves, 1)
    whole = pass_advantages(made.result, made.spec, [torch.arange(16)], 1)
    assert not torch.allclose(split, whole)
    for rows in halves:
        alone = advantages(
            made.spec.policy_gradient,
            made.result.rewards[rows],
            made.result.groups[rows],
            made.mask[rows],
        )
        torch.testing.assert_close(split[rows], alone)


def test_the_kl_controller_sees_the_batch() -> None:
    adaptive: dict[str, Any] = {"objective.kl.control": "adaptive", "objective.kl.horizon_sequences": 100}
    adaptive["objective.kl.estimator"] = "k2"
    far = prepared({**KL, **adaptive, "objective.kl.target_nats": 1e-6})
    near = prepared({**KL, **adaptive, "objective.kl.target_nats": 100.0})
    assert far.coefficients.kl == near.coefficients.kl == 0.3
    assert far.controlled.kl == pytest.approx(0.3 * (1 + 0.2 * 16 / 100))
    assert near.controlled.kl == pytest.approx(0.3 * (1 - 0.2 * 16 / 100))


@pytest.mark.parametrize("estimator", ["full", "sampled"])
def test_the_entropy_controller_sees_the_batch(estimator: str) -> None:
    adaptive = {
        "objective.entropy.bonus": 0.5,
        "objective.entropy.adaptive": {"type": "step_both_ways", "delta": 0.1, "estimator": estimator},
    }
    nats = float(prepared(adaptive).result.scores.entropy[prepared(adaptive).mask].mean())
    if estimator == "sampled":
        made = prepared(adaptive)
        nats = float(-logps(made.policy, made.result)[made.mask].mean())
    assert nats > 0.1
    above = prepared({**adaptive, "objective.entropy.adaptive.target_nats": 0.9 * nats})
    below = prepared({**adaptive, "objective.entropy.adaptive.target_nats": 1.1 * nats})
    assert (above.coefficients.entropy, below.coefficients.entropy) == (0.0, 0.5)
    assert above.controlled.entropy == pytest.approx(0.4)
    assert below.controlled.entropy == pytest.approx(0.6)
