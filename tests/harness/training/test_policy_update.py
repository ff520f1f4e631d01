from __future__ import annotations

import copy
import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from algorithms import Coefficients, Loss, Objective, TokenBatch, policy_loss, presets
from harness.config.run_spec import RunSpec
from harness.training import policy_update
from harness.training.batch import Batch, peers_of
from harness.training.optimizer import DivergedError, mini_batches
from harness.training.policy_update import PolicyUpdate
from harness.training.update_report import StepReport, mismatch_metrics
from tests.harness.run.small import small_spec
from tests.harness.training import rollouts
from tests.harness.training.rollouts import GROUPS, SAMPLES

ZERO_REWARDS = [1.0] * SAMPLES + [0.0] * (GROUPS - 1) * SAMPLES


def spec(settings: dict[str, Any] | None = None) -> RunSpec:
    return small_spec({"train.max_grad_norm": 1e9, "train.learning_rate": 1e-3} | (settings or {}))


def update(
    settings: dict[str, Any] | None = None, rewards: list[float] | None = None
) -> tuple[PreTrainedModel, StepReport]:
    """One rollout batch on the random policy."""
    policy = rollouts.model()
    report = PolicyUpdate(policy, spec(settings), rollouts.PAD).run(rollouts.rollout(policy, rewards), step=1)
    return policy, report


def naive_grpo(
    policy: PreTrainedModel,
    rollout: Batch,
    mini_batches: list[list[int]],
    learning_rate: float,
    temperature: float,
    clip: float = 0.2,
) -> list[Tensor]:
    """GRPO (2402.03300, without KL) row by row and token by token; the gradient of each optimiser step."""
    optimizer = torch.optim.AdamW(policy.parameters(), lr=learning_rate, weight_decay=0.0)
    rewards = rollout.rewards.view(GROUPS, SAMPLES)
    scale = rewards.std(1, keepdim=True) + 1e-6
    advantages = ((rewards - rewards.mean(1, keepdim=True)) / scale).flatten().tolist()
    with torch.no_grad():
        old = [
            rollouts.completion_logps(policy, rollout.sequences, row, temperature) for row in range(GROUPS * SAMPLES)
        ]
    gradients = []
    for groups in mini_batches:
        optimizer.zero_grad()
        rows = [row for row in range(GROUPS * SAMPLES) if row // SAMPLES in groups]
        for row in rows:
            ratio = (rollouts.completion_logps(policy, rollout.sequences, row, temperature) - old[row]).exp()
            surrogate = torch.minimum(ratio * advantages[row], ratio.clamp(1 - clip, 1 + clip) * advantages[row])
            (-surrogate.mean() / len(rows)).backward()  # type: ignore[no-untyped-call]
        gradients.append(rollouts.gradient(policy))
        optimizer.step()
    return gradients


def assert_close_gradient(got: Tensor, expected: Tensor, tolerance: float = 1e-4) -> None:
    assert expected.norm() > 1e-3
    assert (got - expected).norm() < tolerance * expected.norm()


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize(("updates", "epochs"), [(1, 1), (2, 1), (4, 1), (1, 2), (2, 2)])
def test_agrees_with_a_naive_implementation(updates: int, epochs: int, temperature: float) -> None:
    """Groups without advantage are in the denominators though no pass is made over them."""
    settings = {
        "train.updates_per_rollout": updates,
        "train.epochs": epochs,
        "train.learning_rate": 3e-3,
        "rollout.temperature": temperature,
    }
    policy, expected_policy = rollouts.model(), rollouts.model()
    rollout = rollouts.rollout(policy)
    trained = PolicyUpdate(policy, spec(settings), rollouts.PAD)
    batches = [
        sorted({row // SAMPLES for row in rows.tolist()})
        for epoch in range(epochs)
        for rows in mini_batches(rollout.groups, spec(settings), step=1, epoch=epoch)
    ]
    gradients = naive_grpo(expected_policy, rollout, batches, learning_rate=3e-3, temperature=temperature)
    report = trained.run(rollout, step=1)
    if gradients[-1].norm() > 0:
        assert_close_gradient(rollouts.gradient(policy), gradients[-1])
    norms = [float(gradient.norm()) for gradient in gradients]
    assert report.metrics["grad_norm"] == pytest.approx(sum(norms) / len(norms), rel=1e-4)
    moved = (rollouts.weights(expected_policy) - rollouts.weights(rollouts.model())).norm()
    assert (rollouts.weights(policy) - rollouts.weights(expected_policy)).norm() < 0.01 * moved


TERMS: dict[str, dict[str, Any]] = {
    "seq_mean_token_mean": {},
    "token_mean": {"objective.aggregation": "token_mean"},
    "constant_length": {"objective.aggregation": "constant_length"},
    "group_token_mean": {"objective.aggregation": "group_token_mean"},
    "kl in the loss": {"objective.kl.where": "loss", "objective.kl.beta": 0.5, "train.epochs": 2},
    "kl in the reward": {"objective.kl.where": "reward", "objective.kl.beta": 0.5, "train.epochs": 2},
    "entropy bonus": {"objective.entropy.bonus": 0.1},
    "selection": {
        "objective.select.type": "clip_cov",
        "objective.select.fraction": 0.2,
        "objective.select.cov_low": -100.0,
        "objective.select.cov_high": 100.0,
    },
    "sequence penalty": {"algorithm": "kimi_k1_5", "train.epochs": 2},
    "critic": {"algorithm": "ppo", "train.epochs": 2},
    "shared critic": {"algorithm": "ppo", "objective.critic.trunk": "shared", "train.epochs": 2},
    "mini-batch std": {"algorithm": "magistral", "objective.zero_std": "keep"},
    "clipped before the mean": {"algorithm": "gmpo", "train.epochs": 2},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "updates"),
    [*((name, 2) for name in TERMS), *((name, 1) for name in ("seq_mean_token_mean", "kl in the loss", "critic"))],
)
def test_micro_batches_do_not_change_the_update(name: str, updates: int) -> None:
    settings = {**TERMS[name], "train.updates_per_rollout": updates}
    whole, whole_report = update({**settings, "train.micro_batch_tokens": 100_000})
    split, split_report = update({**settings, "train.micro_batch_tokens": 30})
    assert_close_gradient(rollouts.gradient(split), rollouts.gradient(whole), tolerance=1e-3)
    moved = (rollouts.weights(whole) - rollouts.weights(rollouts.model())).norm()
    assert (rollouts.weights(split) - rollouts.weights(whole)).norm() < 0.02 * moved
    assert split_report.metrics.keys() == whole_report.metrics.keys()
    for metric, value in whole_report.metrics.items():
        expected = None if value is None else pytest.approx(value, rel=5e-3, abs=2e-5)
        assert split_report.metrics[metric] == expected, metric


def test_the_bnpo_aggregation_does_depend_on_micro_batches() -> None:
    settings = {"objective.aggregation": "micro_token_mean"}
    whole, _ = update({**settings, "train.micro_batch_tokens": 100_000})
    split, _ = update({**settings, "train.micro_batch_tokens": 30})
    gap = (rollouts.gradient(split) - rollouts.gradient(whole)).norm()
    assert gap > 0.01 * rollouts.gradient(whole).norm()


class TestTerms:
    """That a term acts in the training step, and as it should."""

    def gradient_with(self, settings: dict[str, Any]) -> Tensor:
        return rollouts.gradient(update(settings)[0])

    def test_kl_pulls_back_to_the_start(self) -> None:
        settings = {"objective.kl.where": "loss", "objective.kl.estimator": "k2", "train.epochs": 8}
        _, loose = update({**settings, "objective.kl.beta": 1e-6})
        _, tight = update({**settings, "objective.kl.beta": 50.0})
        assert float(tight.metrics["kl/k2_old"] or 0) < 0.5 * float(loose.metrics["kl/k2_old"] or 0)

    def test_kl_in_the_reward_is_none_at_the_start(self) -> None:
        """The policy is its own reference then, so all penalties are 0."""
        plain = self.gradient_with({})
        penalised = self.gradient_with({"objective.kl.where": "reward", "objective.kl.beta": 10.0})
        assert_close_gradient(penalised, plain)

    def test_an_entropy_bonus_raises_the_entropy(self) -> None:
        policy = rollouts.model()
        trained = PolicyUpdate(policy, spec({"objective.entropy.bonus": 5.0}), rollouts.PAD)
        before, after = (
            trained.run(rollouts.rollout(policy, ZERO_REWARDS), step).metrics["entropy/full"] for step in (1, 2)
        )
        assert float(after or 0) > float(before or 0)

    def test_masked_rows_stay_in_the_denominator(self) -> None:
        """mask_after: half of the rows are out of the loss; the others weigh as before."""
        policy = rollouts.model()
        rollout = rollouts.rollout(policy)
        kept = torch.arange(GROUPS * SAMPLES) < GROUPS * SAMPLES // 2
        masked = dataclasses.replace(rollout, loss_mask=rollout.loss_mask & kept[:, None])
        PolicyUpdate(policy, spec(), rollouts.PAD).run(masked, step=1)
        got = rollouts.gradient(policy)
        halves = dataclasses.replace(rollout, rewards=torch.where(kept, rollout.rewards, torch.nan))
        other = rollouts.model()
        PolicyUpdate(other, spec(), rollouts.PAD).run(halves, step=1)
        assert_close_gradient(got, rollouts.gradient(other))

    def test_an_empty_batch_takes_no_step(self) -> None:
        policy = rollouts.model()
        rollout = rollouts.rollout(policy)
        empty = rollout.rows(torch.tensor([], dtype=torch.long))
        trained = PolicyUpdate(policy, spec({"train.weight_decay": 0.5}), rollouts.PAD)
        report = trained.run(empty, step=1)
        assert torch.equal(rollouts.weights(policy), rollouts.weights(rollouts.model()))
        assert report.metrics["optimizer_steps"] == 0
        assert trained.state_dict()["optimizer"]["state"] == {}
        full = PolicyUpdate(rollouts.model(), spec(), rollouts.PAD).run(rollout, step=1)
        assert report.metrics.keys() == full.metrics.keys()

    @pytest.mark.slow
    def test_every_preset_survives_an_empty_batch(self) -> None:
        policy = rollouts.model()
        empty = rollouts.rollout(policy).rows(torch.tensor([], dtype=torch.long))
        for algorithm in presets("policy_gradient"):
            asked = spec({"algorithm": algorithm, "train.epochs": 2})
            PolicyUpdate(policy, asked, rollouts.PAD, teacher=rollouts.model()).run(empty, step=1)
            assert torch.equal(rollouts.weights(policy), rollouts.weights(rollouts.model())), algorithm

    def test_random_peers_are_the_same_for_a_whole_group(self) -> None:
        metrics = update({"algorithm": "brpo"})[1].metrics
        assert metrics["adv/abs_mean"] is not None
        rollout = rollouts.rollout(rollouts.model())
        peers = peers_of(rollout.groups, seed=0, step=1).view(GROUPS, SAMPLES)
        assert (peers == peers[:, :1]).all()
        assert (peers // SAMPLES == torch.arange(GROUPS)[:, None]).all()
        drawn = {tuple(peers_of(rollout.groups, seed=0, step=step).tolist()) for step in range(1, 20)}
        assert len(drawn) > 10

    def test_advantages_by_pass_rate(self) -> None:
        metrics = update()[1].metrics
        assert metrics["adv/abs_mean_at_rate_0"] == 0
        assert metrics["adv/abs_mean_at_rate_1"] is None
        assert float(metrics["adv/abs_mean_at_rate_below_half"] or 0) > 0
        assert float(metrics["adv/abs_mean_at_rate_below_1"] or 0) > 0
        assert metrics["adv/abs_mean_at_rate_below_quarter"] is None


class TestSkippedGroups:
    def test_are_counted(self) -> None:
        policy = rollouts.model()
        rollout = rollouts.rollout(policy)
        metrics = PolicyUpdate(policy, spec(), rollouts.PAD).run(rollout, step=1).metrics
        assert metrics["groups_skipped"] == 1
        trained = [row for row in range(GROUPS * SAMPLES) if row // SAMPLES != 1]
        assert metrics["tokens_in_loss"] == int(rollout.sequences.lengths[trained].sum())

    def test_entropy_and_mismatch_are_over_all_rows(self) -> None:
        """Metrics do not change their population with what can be skipped."""
        _, some = update()
        _, none = update(rewards=ZERO_REWARDS)
        for name in ("entropy/full", "mismatch/ratio_mean", "mismatch/k1"):
            assert some.metrics[name] == pytest.approx(none.metrics[name], abs=1e-5)

    @pytest.mark.parametrize("updates", [1, 2])
    def test_a_step_of_nothing_but_skipped_groups_moves_nothing_at_first(self, updates: int) -> None:
        policy, report = update({"train.updates_per_rollout": updates}, rewards=ZERO_REWARDS)
        assert torch.equal(rollouts.weights(policy), rollouts.weights(rollouts.model()))
        metrics = report.metrics
        assert metrics["groups_skipped"] == GROUPS
        assert (metrics["loss"], metrics["grad_norm"], metrics["tokens_in_loss"]) == (0, 0, 0)
        assert metrics["entropy/full"] == pytest.approx(float(metrics["entropy/full"] or 0))
        assert float(metrics["entropy/full"] or 0) > 0

    def test_has_the_metrics_of_every_step(self) -> None:
        """A metric that does not exist at a step is null; readers of steps.jsonl need not ask whether it is there."""
        _, trained = update()
        _, skipped = update(rewards=ZERO_REWARDS)
        assert skipped.metrics.keys() == trained.metrics.keys()

    def test_does_the_same_after_a_resume(self) -> None:
        """Adam's momentum acts although the gradient is zero: also where no gradient was ever made in this process."""
        unbroken = rollouts.model()
        trained = PolicyUpdate(unbroken, spec({"train.weight_decay": 0.1}), rollouts.PAD)
        first, second = rollouts.rollout(unbroken), rollouts.rollout(unbroken, ZERO_REWARDS, seed=1)
        trained.run(first, step=1)
        resumed = rollouts.model()
        resumed.load_state_dict(unbroken.state_dict())
        continued = PolicyUpdate(resumed, spec({"train.weight_decay": 0.1}), rollouts.PAD)
        continued.load_state_dict(copy.deepcopy(trained.state_dict()))
        before = rollouts.weights(unbroken).clone()
        trained.run(second, step=2)
        continued.run(second, step=2)
        assert not torch.equal(rollouts.weights(unbroken), before)
        assert torch.equal(rollouts.weights(resumed), rollouts.weights(unbroken))


def test_the_rule_is_checked_in_the_first_step_that_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that was dropped whole takes none, and a resumed cell has taken its own."""
    checked: list[bool] = []

    def spy(objective: Objective, tokens: TokenBatch, coefficients: Coefficients, is_first: bool) -> Loss:
        checked.append(is_first)
        return policy_loss(objective, tokens, coefficients, is_first)

    monkeypatch.setattr(policy_update, "policy_loss", spy)
    policy = rollouts.model()
    rollout, trained = rollouts.rollout(policy), PolicyUpdate(policy, spec(), rollouts.PAD)
    trained.run(rollout.rows(torch.tensor([], dtype=torch.long)), step=1)
    for step, is_first in ((2, True), (3, False)):
        trained.run(rollout, step)
        assert set(checked) == {is_first}
        checked.clear()
    resumed = PolicyUpdate(policy, spec(), rollouts.PAD)
    resumed.load_state_dict(copy.deepcopy(trained.state_dict()))
    resumed.run(rollout, step=4)
    assert set(checked) == {False}


def test_weight_decay_in_closed_form() -> None:
    """AdamW (1711.05101, algorithm 2) without any gradient: the weights shrink by learning rate times decay."""
    settings = {"train.weight_decay": 0.5, "train.learning_rate": 0.01}
    policy, _ = update(settings, rewards=ZERO_REWARDS)
    expected = rollouts.weights(rollouts.model()) * (1 - 0.01 * 0.5)
    torch.testing.assert_close(rollouts.weights(policy), expected, rtol=1e-6, atol=0)


def test_optimiser_steps_are_counted() -> None:
    policy = rollouts.model()
    trained = PolicyUpdate(policy, spec({"train.updates_per_rollout": 2, "train.epochs": 3}), rollouts.PAD)
    trained.run(rollouts.rollout(policy), step=1)
    assert {int(state["step"]) for state in trained.state_dict()["optimizer"]["state"].values()} == {6}


class TestOptimizerReset:
    @pytest.mark.parametrize(("reset", "steps"), [("never", 2), ("per_rollout", 1)])
    def test_state_lives_as_long_as_asked(self, reset: str, steps: int) -> None:
        policy = rollouts.model()
        trained = PolicyUpdate(policy, spec({"train.optimizer_reset": reset}), rollouts.PAD)
        for step in (1, 2):
            trained.run(rollouts.rollout(policy, seed=step), step)
        assert {int(state["step"]) for state in trained.state_dict()["optimizer"]["state"].values()} == {steps}


class TestClipping:
    def test_bounds_the_gradient(self) -> None:
        _, free = update()
        norm = float(free.metrics["grad_norm"] or 0)
        clipped, report = update({"train.max_grad_norm": norm / 4})
        assert float(rollouts.gradient(clipped).norm()) == pytest.approx(norm / 4, rel=1e-4)
        assert report.metrics["grad_norm"] == pytest.approx(norm, rel=1e-5)
        assert (report.metrics["grad_clipped_frac"], free.metrics["grad_clipped_frac"]) == (1, 0)


class TestDivergence:
    def test_a_policy_without_probabilities(self) -> None:
        policy = rollouts.model()
        rollout = rollouts.rollout(policy)
        with torch.no_grad():
            policy.get_input_embeddings().weight.fill_(math.nan)
        with pytest.raises(DivergedError):
            PolicyUpdate(policy, spec(), rollouts.PAD).run(rollout, step=1)

    def test_an_infinite_gradient_leaves_the_weights(self) -> None:
        policy = rollouts.model()
        rollout = rollouts.rollout(policy)
        next(policy.parameters()).register_hook(lambda gradient: gradient * math.inf)
        with pytest.raises(DivergedError, match="norm"):
            PolicyUpdate(policy, spec(), rollouts.PAD).run(rollout, step=1)
        assert torch.equal(rollouts.weights(policy), rollouts.weights(rollouts.model()))


class TestMetrics:
    def test_mismatch_is_none_where_sampler_and_trainer_agree(self) -> None:
        _, report = update()
        assert report.metrics["mismatch/ratio_mean"] == pytest.approx(1, abs=1e-5)
        assert report.metrics["mismatch/ratio_max"] == pytest.approx(1, abs=1e-4)
        assert report.metrics["mismatch/k1"] == pytest.approx(0, abs=1e-5)

    def test_mismatch_in_closed_form(self) -> None:
        metrics = mismatch_metrics(torch.tensor([0.0, math.log(0.5)]), torch.tensor([math.log(0.5), math.log(0.5)]))
        assert metrics["mismatch/ratio_mean"] == pytest.approx(1.5)
        assert metrics["mismatch/ratio_max"] == pytest.approx(2)
        assert metrics["mismatch/k1"] == pytest.approx(-math.log(2) / 2)

    @pytest.mark.slow
    @pytest.mark.parametrize("temperature", [1.0, 0.7])
    @pytest.mark.parametrize("updates", [1, 2])
    def test_entropy_is_that_of_the_policy_that_sampled(self, updates: int, temperature: float) -> None:
        policy = rollouts.model()
        made = rollouts.sequences()
        total = count = 0.0
        for row, prompt in enumerate(made.prompts):
            length = int(made.lengths[row])
            with torch.inference_mode():
                logits = policy(torch.tensor([[*prompt, *made.completions[row, :length].tolist()]])).logits[0]
            distribution = torch.softmax(logits[len(prompt) - 1 : -1].double() / temperature, -1)
            total += float(-(distribution * distribution.log()).sum())
            count += length
        _, report = update({"train.updates_per_rollout": updates, "rollout.temperature": temperature})
        assert report.metrics["entropy/full"] == pytest.approx(total / count, rel=1e-5)

    def test_ratio_is_one_in_a_single_step_and_moves_in_a_second_pass(self) -> None:
        _, once = update()
        assert once.metrics["ratio/max"] == 1
        assert once.metrics["kl/k3_old"] == 0
        _, twice = update({"train.epochs": 2})
        assert float(twice.metrics["ratio/max"] or 0) > 1.001
        assert float(twice.metrics["kl/k3_old"] or 0) > 0

    def test_advantages_of_group_std(self) -> None:
        """Two of four right: half the rewards' distance, in units of their sample std of sqrt(1/3)."""
        policy = rollouts.model()
        rewards = [1.0, 1, 0, 0] * GROUPS
        rollout = rollouts.rollout(policy, rewards)
        metrics = PolicyUpdate(policy, spec(), rollouts.PAD).run(rollout, step=1).metrics
        size = 0.5 / (math.sqrt(1 / 3) + 1e-6)
        signs = (rollout.rewards * 2 - 1).repeat_interleave(rollout.sequences.lengths)
        assert metrics["adv/abs_mean"] == pytest.approx(size, rel=1e-5)
        assert metrics["adv/mean"] == pytest.approx(size * float(signs.mean()), rel=1e-4, abs=1e-6)
        assert metrics["adv/std"] == pytest.approx(size * float(signs.std()), rel=1e-5)


def test_the_schedule_is_applied_and_reported() -> None:
    settings = {"train.steps": 4, "train.warmup_steps": 2, "train.learning_rate": 1e-3}
    policy = rollouts.model()
    trained = PolicyUpdate(policy, spec(settings), rollouts.PAD)
    report = trained.run(rollouts.rollout(policy), step=1)
    assert report.metrics["learning_rate"] == 5e-4
    moved = (rollouts.weights(policy) - rollouts.weights(rollouts.model())).abs().max()
    assert float(moved) == pytest.approx(5e-4, rel=1e-2)  # Adam's first step is the learning rate
