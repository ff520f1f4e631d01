"""What a step makes of a batch before its first optimiser step: filtering, scores, KL, advantages, coefficients."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from algorithms import Coefficients, Objective, advantages, preset
from harness.config.run_spec import RunSpec
from harness.training.batch import (
    Batch,
    ControlledCoefficients,
    filter_rows,
    pass_advantages,
    prepare,
    zero_std_rows,
)
from harness.training.policy_update import CriticModel, scored_while_training
from harness.training.reference import RenewedCopy, frozen_copy, kl_reference
from harness.training.sequences import SequenceScorer
from tests.harness.run.small import small_spec
from tests.harness.training import rollouts
from tests.harness.training.rollouts import GROUPS, SAMPLES

REWARDS = [1.0, 0, 0, 1, 0, 0, 0, 0, 1, 1, 1, 1, 0, 1, 0, 0]
"""Groups of four; the second and the third have no spread."""
TRUNCATED = torch.tensor([False, True, False, False] + [False] * 8 + [False, True, False, False])


def filtered(overlong: str = "penalise", zero_std: str = "keep", rewards: list[float] | None = None) -> Batch:
    batch = dataclasses.replace(rollouts.rollout(rollouts.model(), rewards or REWARDS), truncated=TRUNCATED)
    return filter_rows(preset("grpo", Objective, **{"overlong.type": overlong, "zero_std": zero_std}), batch)


def rows_in_loss(result: Batch) -> list[int]:
    return result.loss_mask.any(1).nonzero()[:, 0].tolist()


def test_nothing_is_taken_out_by_default() -> None:
    result = filtered()
    assert result.places.tolist() == list(range(16))
    assert torch.equal(result.loss_mask, result.sequences.mask)
    assert result.rewards.tolist() == REWARDS


def test_mask_after_keeps_the_reward() -> None:
    result = filtered("mask_after")
    assert rows_in_loss(result) == [row for row in range(16) if row not in (1, 13)]
    assert result.rewards.tolist() == REWARDS
    assert len(result) == 16


def test_mask_before_hides_the_reward_from_baselines() -> None:
    result = filtered("mask_before")
    assert rows_in_loss(result) == [row for row in range(16) if row not in (1, 13)]
    assert result.rewards.isnan().nonzero()[:, 0].tolist() == [1, 13]
    assert len(result.groups) == 16


def test_drop_removes_rows_everywhere() -> None:
    result = filtered("drop")
    assert result.places.tolist() == [row for row in range(16) if row not in (1, 13)]
    assert result.rewards.tolist() == [reward for row, reward in enumerate(REWARDS) if row not in (1, 13)]
    assert len(result.sequences.prompts) == len(result.sequences.lengths) == len(result.sampler_logps) == 14
    whole = rollouts.rollout(rollouts.model(), REWARDS)
    assert torch.equal(result.sequences.completions[1], whole.sequences.completions[2])
    assert list(result.sequences.prompts[13]) == list(whole.sequences.prompts[15])
    assert torch.equal(result.sampler_logps[12], whole.sampler_logps[14])


def test_zero_std_mask_keeps_rows_in_the_batch() -> None:
    result = filtered(zero_std="mask")
    assert rows_in_loss(result) == [0, 1, 2, 3, 12, 13, 14, 15]
    assert len(result.groups) == 16
    assert result.rewards.tolist() == REWARDS


@pytest.mark.parametrize("zero_std", ["drop", "refill"])
def test_zero_std_drop_removes_groups(zero_std: str) -> None:
    result = filtered(zero_std=zero_std)
    assert sorted(set(result.groups.tolist())) == [0, 3]
    assert result.places.tolist() == [0, 1, 2, 3, 12, 13, 14, 15]


def test_spread_is_that_of_the_rows_that_remain() -> None:
    """The only right answer of the last group was cut off: what remains is equal."""
    result = filtered("drop", zero_std="drop")
    assert sorted(set(result.groups.tolist())) == [0]
    masked = filtered("mask_before", zero_std="mask")
    assert rows_in_loss(masked) == [0, 2, 3]


def test_all_rows_can_go() -> None:
    result = filtered(zero_std="drop", rewards=[0.0] * 16)
    assert len(result.groups) == len(result.sequences.prompts) == 0
    assert result.places.tolist() == []


def test_unscored_rows_have_no_say() -> None:
    nan = float("nan")
    rewards = torch.tensor([1.0, nan, 1.0, nan, nan, 0.0, 1.0, nan, 2.0])
    groups = torch.tensor([7, 7, 7, 7, 3, 5, 5, 5, 9])
    assert zero_std_rows(rewards, groups).tolist() == [True] * 4 + [True] + [False] * 3 + [True]
    assert zero_std_rows(rewards[:0], groups[:0]).tolist() == []


def test_rows_keep_what_belongs_to_them() -> None:
    rollout = dataclasses.replace(
        rollouts.rollout(rollouts.model()), token_rewards=torch.arange(16.0)[:, None].expand(16, rollouts.WIDTH)
    )
    kept = rollout.rows(torch.tensor([0, 5, 10, 15]))
    assert kept.token_rewards is not None
    assert kept.token_rewards[:, 0].tolist() == [0, 5, 10, 15]
    assert torch.equal(kept.correct, rollout.correct[[0, 5, 10, 15]])
    assert torch.equal(kept.sequences.lengths, rollout.sequences.lengths[[0, 5, 10, 15]])


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
        critic = CriticModel(policy, "own")
        torch.nn.init.normal_(critic.head.weight, generator=torch.Generator().manual_seed(0))
    rollout = dataclasses.replace(rollouts.rollout(policy), **changes)
    controlled = ControlledCoefficients(spec.policy_gradient)
    referred = kl_reference(spec.policy_gradient.kl, policy, reference)
    referred = referred.policy if isinstance(referred, RenewedCopy) else referred
    scorer = SequenceScorer(policy, critic, spec, rollouts.PAD)
    result, coefficients = prepare(
        rollout, spec.policy_gradient, scorer, referred, controlled, scored_while_training(spec)
    )
    return Prepared(spec, policy, reference, controlled, result, coefficients)


def logps(policy: PreTrainedModel, rollout: Batch) -> Tensor:
    scored = torch.zeros(rollout.sequences.completions.shape)
    for row, length in enumerate(rollout.sequences.lengths.tolist()):
        with torch.inference_mode():
            scored[row, :length] = rollouts.completion_logps(policy, rollout.sequences, row)
    return scored


def split_advantages(made: Prepared, steps: list[Tensor]) -> Tensor:
    return pass_advantages(made.result, made.spec.policy_gradient, steps, made.spec.seed, step=1)


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
    got = split_advantages(made, [torch.arange(GROUPS * SAMPLES)])
    torch.testing.assert_close(got, expected)


def test_what_is_masked_out_of_the_loss_still_counts_in_advantages() -> None:
    settings = {"algorithm": "reinforce_pp", "objective.kl.where": "none"}
    whole = prepared(settings)
    mask = whole.mask & (torch.arange(GROUPS * SAMPLES) % 3 > 0)[:, None]
    masked = prepared(settings, loss_mask=mask)
    batches = [torch.arange(GROUPS * SAMPLES)]
    torch.testing.assert_close(split_advantages(masked, batches), split_advantages(whole, batches))


def test_each_optimiser_step_has_its_own_std() -> None:
    made = prepared({"algorithm": "magistral"})
    halves = [torch.arange(8), torch.arange(8, 16)]
    split = split_advantages(made, halves)
    whole = split_advantages(made, [torch.arange(16)])
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


ADAPTIVE = {"entropy.adaptive.type": "step_both_ways", "entropy.adaptive.delta": 0.1}


def test_fixed_ones_stay() -> None:
    fixed = ControlledCoefficients(
        preset("grpo", Objective, **{"entropy.bonus": 0.01, "kl.where": "loss", "kl.beta": 0.04})
    )
    assert fixed.in_force(5.0) == Coefficients(entropy=0.01, kl=0.04)
    fixed.observe_kl(10.0, 256)
    assert fixed.in_force(0.0) == Coefficients(entropy=0.01, kl=0.04)
    assert ControlledCoefficients(preset("grpo", Objective)).in_force(1.0) == Coefficients(0.0, 0.0)


def test_the_bonus_is_applied_before_it_is_stepped() -> None:
    """Skywork-OR1 (2505.22312), eq. 3.2: c_0 = 0 is applied in the first step."""
    controlled = ControlledCoefficients(preset("grpo", Objective, **ADAPTIVE))
    applied = [controlled.in_force(entropy).entropy for entropy in (0.1, 0.1, 0.3, 0.1)]
    assert applied == pytest.approx([0.0, 0.1, 0.0, 0.1])


def test_kl_follows_its_target() -> None:
    controlled = ControlledCoefficients(
        preset(
            "grpo", Objective, **{"kl.where": "loss", "kl.beta": 0.1, "kl.control": "adaptive", "kl.target_nats": 0.05}
        )
    )
    controlled.observe_kl(1.0, 1000)
    assert controlled.in_force(0.0).kl == pytest.approx(0.1 * (1 + 0.2 * 1000 / 10_000))


def test_state_is_carried() -> None:
    objective = preset("grpo", Objective, **ADAPTIVE, **{"kl.where": "loss", "kl.control": "adaptive"})
    one, other = ControlledCoefficients(objective), ControlledCoefficients(objective)
    one.in_force(0.0)
    one.observe_kl(3.0, 500)
    other.load_state_dict(one.state_dict())
    assert other.in_force(0.0) == one.in_force(0.0) != ControlledCoefficients(objective).in_force(0.0)
