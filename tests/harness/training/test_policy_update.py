from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from harness.spec.run_spec import RunSpec
from harness.spec.sections.train import TrainSpec
from harness.training.policy_update import (
    DivergedError,
    PolicyUpdate,
    ScoredRollout,
    UpdateReport,
    mismatch_metrics,
    schedule,
)
from tests.harness.run.small import small_spec
from tests.harness.training import rollouts
from tests.harness.training.rollouts import GROUPS, SAMPLES

ZERO_REWARDS = [1.0] * SAMPLES + [0.0] * (GROUPS - 1) * SAMPLES


def spec(settings: dict[str, Any] | None = None) -> RunSpec:
    return small_spec({"train.max_grad_norm": 1e9, "train.learning_rate": 1e-3} | (settings or {}))


def update(
    settings: dict[str, Any] | None = None, rewards: list[float] | None = None
) -> tuple[PreTrainedModel, UpdateReport]:
    """One rollout batch on the random policy."""
    policy = rollouts.model()
    report = PolicyUpdate(policy, spec(settings), rollouts.PAD).run(rollouts.rollout(policy, rewards), step=1)
    return policy, report


def naive_grpo(
    policy: PreTrainedModel,
    rollout: ScoredRollout,
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


def assert_close_gradient(got: Tensor, expected: Tensor) -> None:
    assert expected.norm() > 1e-3
    assert (got - expected).norm() < 1e-4 * expected.norm()


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
    mini_batches = [
        sorted({row // SAMPLES for row in rows.tolist()}) for rows in trained._mini_batches(rollout.groups, step=1)
    ]
    gradients = naive_grpo(expected_policy, rollout, mini_batches, learning_rate=3e-3, temperature=temperature)
    report = trained.run(rollout, step=1)
    if gradients[-1].norm() > 0:
        assert_close_gradient(rollouts.gradient(policy), gradients[-1])
    norms = [float(gradient.norm()) for gradient in gradients]
    assert report.metrics["grad_norm"] == pytest.approx(sum(norms) / len(norms), rel=1e-4)
    moved = (rollouts.weights(expected_policy) - rollouts.weights(rollouts.model())).norm()
    assert (rollouts.weights(policy) - rollouts.weights(expected_policy)).norm() < 0.01 * moved


@pytest.mark.parametrize("aggregation", ["seq_mean_token_mean", "token_mean", "constant_length"])
@pytest.mark.parametrize("updates", [1, 2])
def test_micro_batches_do_not_change_the_update(aggregation: str, updates: int) -> None:
    settings = {"objective.aggregation": aggregation, "train.updates_per_rollout": updates}
    whole, whole_report = update({**settings, "train.micro_batch_tokens": 100_000})
    split, split_report = update({**settings, "train.micro_batch_tokens": 30})
    assert_close_gradient(rollouts.gradient(split), rollouts.gradient(whole))
    moved = (rollouts.weights(whole) - rollouts.weights(rollouts.model())).norm()
    assert (rollouts.weights(split) - rollouts.weights(whole)).norm() < 0.01 * moved
    assert split_report.metrics.keys() == whole_report.metrics.keys()
    for name, value in whole_report.metrics.items():
        assert split_report.metrics[name] == pytest.approx(value, rel=1e-3, abs=1e-6), name


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


def test_weight_decay_in_closed_form() -> None:
    """AdamW (1711.05101, algorithm 2) without any gradient: the weights shrink by learning rate times decay."""
    settings = {"train.weight_decay": 0.5, "train.learning_rate": 0.01}
    policy, _ = update(settings, rewards=ZERO_REWARDS)
    expected = rollouts.weights(rollouts.model()) * (1 - 0.01 * 0.5)
    torch.testing.assert_close(rollouts.weights(policy), expected, rtol=1e-6, atol=0)


class TestMiniBatches:
    def batches(self, updates: int, epochs: int, step: int = 1, seed: int = 0) -> list[list[int]]:
        settings = {"train.updates_per_rollout": updates, "train.epochs": epochs}
        trained = PolicyUpdate(rollouts.model(), small_spec(settings, seed), rollouts.PAD)
        return [rows.tolist() for rows in trained._mini_batches(torch.arange(GROUPS).repeat_interleave(SAMPLES), step)]

    @pytest.mark.parametrize(("updates", "epochs"), [(1, 1), (2, 1), (4, 3), (1, 2)])
    def test_each_pass_holds_every_row_once_in_whole_groups(self, updates: int, epochs: int) -> None:
        batches = self.batches(updates, epochs)
        assert len(batches) == updates * epochs
        for epoch in range(epochs):
            rows = [row for batch in batches[epoch * updates : (epoch + 1) * updates] for row in batch]
            assert sorted(rows) == list(range(GROUPS * SAMPLES))
        for batch in batches:
            assert len(batch) == GROUPS * SAMPLES / updates
            groups = {row // SAMPLES for row in batch}
            assert batch == [row for row in range(GROUPS * SAMPLES) if row // SAMPLES in groups]

    def test_order_varies_with_step_epoch_and_seed(self) -> None:
        orders = [tuple(map(tuple, self.batches(4, 1, step))) for step in range(1, 30)]
        assert len(set(orders)) > 10
        both = self.batches(4, 8)
        assert len({tuple(map(tuple, both[4 * epoch : 4 * epoch + 4])) for epoch in range(8)}) > 3
        assert len({tuple(map(tuple, self.batches(4, 1, seed=seed))) for seed in range(20)}) > 5

    def test_optimiser_steps_are_counted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        policy = rollouts.model()
        trained = PolicyUpdate(policy, spec({"train.updates_per_rollout": 2, "train.epochs": 3}), rollouts.PAD)
        trained.run(rollouts.rollout(policy), step=1)
        assert {int(state["step"]) for state in trained.state_dict()["state"].values()} == {6}


class TestOptimizerReset:
    @pytest.mark.parametrize(("reset", "steps"), [("never", 2), ("per_rollout", 1)])
    def test_state_lives_as_long_as_asked(self, reset: str, steps: int) -> None:
        policy = rollouts.model()
        trained = PolicyUpdate(policy, spec({"train.optimizer_reset": reset}), rollouts.PAD)
        for step in (1, 2):
            trained.run(rollouts.rollout(policy, seed=step), step)
        assert {int(state["step"]) for state in trained.state_dict()["state"].values()} == {steps}


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


def train_spec(**settings: Any) -> TrainSpec:
    return small_spec({f"train.{name}": value for name, value in settings.items()}).train


class TestSchedule:
    def test_constant(self) -> None:
        assert [schedule(step, train_spec(steps=3)) for step in (1, 2, 3)] == [1, 1, 1]

    def test_warm_up_is_linear_and_ends_at_the_peak(self) -> None:
        train = train_spec(steps=10, warmup_steps=4)
        assert [schedule(step, train) for step in range(1, 7)] == [0.25, 0.5, 0.75, 1, 1, 1]

    def test_linear(self) -> None:
        train = train_spec(steps=6, warmup_steps=2, lr_schedule="linear")
        assert [schedule(step, train) for step in range(1, 7)] == [0.5, 1, 1, 0.75, 0.5, 0.25]

    def test_cosine(self) -> None:
        train = train_spec(steps=4, lr_schedule="cosine")
        expected = [1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2]
        assert [schedule(step, train) for step in range(1, 5)] == pytest.approx(expected)

    def test_warm_up_longer_than_the_run(self) -> None:
        assert schedule(2, train_spec(steps=2, warmup_steps=4, lr_schedule="linear")) == 0.5

    def test_is_applied_and_reported(self) -> None:
        settings = {"train.steps": 4, "train.warmup_steps": 2, "train.learning_rate": 1e-3}
        policy = rollouts.model()
        trained = PolicyUpdate(policy, spec(settings), rollouts.PAD)
        report = trained.run(rollouts.rollout(policy), step=1)
        assert report.metrics["learning_rate"] == 5e-4
        moved = (rollouts.weights(policy) - rollouts.weights(rollouts.model())).abs().max()
        assert float(moved) == pytest.approx(5e-4, rel=1e-2)  # Adam's first step is the learning rate
