"""That each part of the training step gets what it should, seen where it makes a difference."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from algorithms import Objective, TokenBatch, policy_loss, select_tokens
from harness.training import policy_update
from harness.training.batch import Batch, pass_advantages
from harness.training.optimizer import mini_batches
from harness.training.policy_update import PolicyUpdate
from harness.training.reference import frozen_copy
from tests.harness.training import rollouts
from tests.harness.training.rollouts import GROUPS, SAMPLES
from tests.harness.training.test_policy_update import assert_close_gradient, spec, update


def test_rows_without_advantage_count_in_the_mean_over_tokens() -> None:
    """The denominators are those of all the step's rows, although no pass is made over some of them."""
    policy = rollouts.model()
    rollout = rollouts.rollout(policy)
    trained = PolicyUpdate(
        policy, spec({"algorithm": "reinforce", "objective.aggregation": "token_mean"}), rollouts.PAD
    )
    rewards = torch.where(rollout.groups < 2, rollout.rewards, rollout.rewards.mean())
    centred = rewards - rewards.mean()
    trained.run(dataclasses.replace(rollout, rewards=rewards), step=1)
    other = rollouts.model()
    for row, advantage in enumerate(centred.tolist()):
        logps = rollouts.completion_logps(other, rollout.sequences, row)
        (-advantage * logps.sum() / int(rollout.sequences.lengths.sum())).backward()
    assert_close_gradient(rollouts.gradient(policy), rollouts.gradient(other))


def test_grpo_over_tokens_counts_skipped_groups() -> None:
    policy = rollouts.model()
    rollout = rollouts.rollout(policy)
    PolicyUpdate(policy, spec({"objective.aggregation": "token_mean"}), rollouts.PAD).run(rollout, step=1)
    other = rollouts.model()
    rewards = rollout.rewards.view(GROUPS, SAMPLES)
    scaled = ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-6)).flatten()
    for row, advantage in enumerate(scaled.tolist()):
        logps = rollouts.completion_logps(other, rollout.sequences, row)
        (-advantage * logps.sum() / int(rollout.sequences.lengths.sum())).backward()
    assert_close_gradient(rollouts.gradient(policy), rollouts.gradient(other))


def test_tokens_are_selected_at_the_current_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Tensor, Tensor]] = []
    real = select_tokens

    def recording(objective: Any, logp: Tensor, old_logp: Tensor, *rest: Any, **named: Any) -> Tensor:
        seen.append((logp.clone(), old_logp.clone()))
        return real(objective, logp, old_logp, *rest, **named)

    monkeypatch.setattr(policy_update, "select_tokens", recording)
    update({"objective.select.type": "kl_cov", "train.epochs": 2})
    (first, old), (second, still_old) = seen
    assert torch.equal(first, old) and torch.equal(old, still_old)
    assert not torch.allclose(second, old)


def test_a_refreshed_reference_follows() -> None:
    policy = rollouts.model()
    settings = {"objective.kl.where": "loss", "objective.kl.reference": "refreshed", "train.learning_rate": 1e-2}
    trained = PolicyUpdate(policy, spec({**settings, "objective.kl.refresh_every_steps": 2}), rollouts.PAD)
    distances = []
    for step in (1, 2, 3):
        # On the policy's own samples of the moment, so that the first ratio is 1.
        metrics = trained.run(rollouts.rollout(policy), step).metrics
        distances.append(float(metrics["kl/k2_ref"] or 0))
    assert distances[0] == pytest.approx(0, abs=1e-6)
    assert distances[1] > 1e-4
    assert distances[2] == pytest.approx(0, abs=1e-6)


def test_the_distance_to_the_start_is_measured_without_any_penalty() -> None:
    policy = rollouts.model()
    trained = PolicyUpdate(policy, spec({"train.learning_rate": 1e-2}), rollouts.PAD, frozen_copy(policy))
    first, second = (trained.run(rollouts.rollout(policy), step).metrics for step in (1, 2))
    assert first["kl/exact_start"] == pytest.approx(0, abs=1e-6)
    assert float(second["kl/exact_start"] or 0) > 1e-4


def test_an_empty_batch_has_the_metrics_of_every_step() -> None:
    policy = rollouts.model()
    rollout = rollouts.rollout(policy)
    empty = rollout.rows(torch.tensor([], dtype=torch.long))
    trained = PolicyUpdate(policy, spec(), rollouts.PAD, frozen_copy(policy))
    assert trained.run(empty, 1).metrics.keys() == trained.run(rollout, 2).metrics.keys()


def test_later_passes_have_their_own_mini_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """With mini_batch_std the advantages of a pass depend on how that pass is split."""
    splits: list[list[list[int]]] = []

    def recording(batch: Batch, objective: Objective, steps: list[Tensor], seed: int, step: int) -> Tensor:
        splits.append([rows.tolist() for rows in steps])
        return pass_advantages(batch, objective, steps, seed, step)

    monkeypatch.setattr(policy_update, "pass_advantages", recording)
    settings = {"algorithm": "magistral", "train.updates_per_rollout": 2, "train.epochs": 4}
    policy = rollouts.model()
    rollout = rollouts.rollout(policy, [1.0, 0, 0, 1] * GROUPS)
    PolicyUpdate(policy, spec(settings), rollouts.PAD).run(rollout, step=1)
    expected = [[rows.tolist() for rows in mini_batches(rollout.groups, spec(settings), 1, e)] for e in range(4)]
    assert splits == expected
    assert len({str(split) for split in splits}) > 1


def test_the_samplers_mismatch_is_corrected() -> None:
    """Half of the sampler's probabilities are half as large: tokens there weigh twice as much."""
    policy = rollouts.model()
    rollout = rollouts.rollout(policy)
    correction = {"objective.sampler_correction": {"type": "token_truncate", "weight_max": 10.0}}
    PolicyUpdate(policy, spec(), rollouts.PAD).run(rollout, step=1)
    plain = rollouts.gradient(policy).clone()
    shifted = dataclasses.replace(rollout, sampler_logps=rollout.sampler_logps - math.log(2.0))
    other = rollouts.model()
    PolicyUpdate(other, spec(correction), rollouts.PAD).run(shifted, step=1)
    assert_close_gradient(rollouts.gradient(other), 2 * plain)


@pytest.mark.slow
class TestCritic:
    def test_learns_the_returns(self) -> None:
        """The same batch again and again: explained variance rises from 0 to near 1."""
        policy = rollouts.model()
        settings = {"algorithm": "ppo", "objective.kl.where": "none", "train.learning_rate": 3e-3}
        settings |= {"objective.critic.lam": 1.0, "objective.critic.value_clip": None}
        trained = PolicyUpdate(policy, spec({**settings, "objective.critic.warmup_steps": 1000}), rollouts.PAD)
        rollout = rollouts.rollout(policy)
        variances = [trained.run(rollout, step).metrics["value/explained_variance"] for step in range(1, 41)]
        assert float(variances[0] or 0) == pytest.approx(0, abs=1e-6)
        assert float(variances[-1] or 0) > 0.5

    def test_warm_up_leaves_the_policy(self) -> None:
        policy = rollouts.model()
        settings = {"algorithm": "ppo", "objective.critic.warmup_steps": 1}
        trained = PolicyUpdate(policy, spec(settings), rollouts.PAD)
        trained.run(rollouts.rollout(policy), step=1)
        assert torch.equal(rollouts.weights(policy), rollouts.weights(rollouts.model()))
        trained.run(rollouts.rollout(policy), step=2)
        assert not torch.equal(rollouts.weights(policy), rollouts.weights(rollouts.model()))

    @pytest.mark.parametrize("trunk", ["own", "shared"])
    def test_nothing_moves_the_policy_in_a_warm_up(self, trunk: str) -> None:
        """Neither weight decay nor, through a shared trunk, the value loss."""
        policy = rollouts.model()
        settings = {"algorithm": "ppo", "objective.critic.warmup_steps": 2, "objective.critic.trunk": trunk}
        trained = PolicyUpdate(policy, spec({**settings, "train.weight_decay": 0.5}), rollouts.PAD)
        for step in (1, 2):
            assert trained.run(rollouts.rollout(policy), step).metrics["learning_rate"] == 0
        assert torch.equal(rollouts.weights(policy), rollouts.weights(rollouts.model()))
        assert trained.critic is not None and float(trained.critic.head.bias.detach().abs()) > 0

    def test_values_are_clipped_around_those_of_the_rollout(self) -> None:
        """They leave the old ones in later passes over a batch only."""

        def clip_frac(epochs: int) -> float:
            settings = {"algorithm": "ppo", "objective.critic.value_clip": 0.001, "train.epochs": epochs}
            return float(update(settings)[1].metrics["value/clip_frac"] or 0)

        assert clip_frac(1) == 0
        assert clip_frac(4) > 0.1

    def test_its_learning_rate_is_its_own(self) -> None:
        def critic_moved(factor: float) -> Tensor:
            policy = rollouts.model()
            settings = {"algorithm": "ppo", "objective.critic.learning_rate_factor": factor}
            trained = PolicyUpdate(policy, spec(settings), rollouts.PAD)
            trained.run(rollouts.rollout(policy), step=1)
            assert trained.critic is not None
            return trained.critic.head.bias.detach()

        assert float(critic_moved(4.0)) == pytest.approx(4 * float(critic_moved(1.0)), rel=1e-3)


def test_the_loss_is_told_how_many_micro_batches_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int | None] = []
    real = policy_loss

    def recording(objective: Any, batch: TokenBatch, *rest: Any) -> Any:
        counts.append(batch.step and batch.step.micro_batches)
        return real(objective, batch, *rest)

    monkeypatch.setattr(policy_update, "policy_loss", recording)
    update({"train.micro_batch_tokens": 40})
    assert counts == [len(counts)] * len(counts)
    assert len(counts) > 1
