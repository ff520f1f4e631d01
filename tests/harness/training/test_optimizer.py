"""Optimisers with masters, the learning rate, and how a batch is split into optimiser steps."""

from __future__ import annotations

import io
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from harness.config.model import Lora
from harness.config.train import TrainSpec
from harness.models.language_model import load_model
from harness.models.lora import add_adapters, reset_adapters
from harness.training.optimizer import (
    ClippedOptimizer,
    DivergedError,
    mini_batches,
    schedule,
)
from harness.training.supervised import warm_up_and_decay
from harness.training.torch_optimizers import layer_matrices
from tests.harness.run.small import small_spec


def weights(*values: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor(values))


def train(**settings: object) -> TrainSpec:
    return TrainSpec.model_validate({"steps": 4, "learning_rate": 0.1, "max_grad_norm": 1.0} | settings)


def test_groups_have_their_own_learning_rates_and_norms() -> None:
    """Adam's first step is the learning rate, in the direction of the gradient's sign."""
    policy, critic = weights(0.0, 0.0), weights(0.0)
    optimizer = ClippedOptimizer(train(warmup_steps=2), {"policy": [policy], "critic": [critic]})
    assert optimizer.begin(1, critic=10.0) == {"policy": 0.05, "critic": 0.5}
    assert policy.grad is not None and critic.grad is not None
    policy.grad.copy_(torch.tensor([3.0, -4.0]))
    critic.grad.fill_(0.5)
    loss, norms = optimizer.step(2.0)
    assert (loss, norms) == (2.0, {"policy": 5.0, "critic": 0.5})
    torch.testing.assert_close(policy.grad, torch.tensor([0.6, -0.8]))
    torch.testing.assert_close(critic.grad, torch.tensor([0.5]))
    torch.testing.assert_close(policy.detach(), torch.tensor([-0.05, 0.05]))
    torch.testing.assert_close(critic.detach(), torch.tensor([-0.5]))


def test_frozen_weights_are_left_out() -> None:
    trained, frozen = weights(1.0), weights(1.0)
    frozen.requires_grad_(False)
    optimizer = ClippedOptimizer(train(weight_decay=0.5), {"policy": [frozen, trained]})
    optimizer.step(0.0)
    assert float(frozen) == 1.0
    assert frozen.grad is None
    assert float(trained.detach()) < 1.0


@pytest.mark.parametrize(("loss", "gradient"), [(math.nan, 1.0), (math.inf, 1.0), (1.0, math.nan), (1.0, math.inf)])
@pytest.mark.parametrize("broken", ["policy", "critic"])
def test_nothing_moves_once_something_is_not_finite(broken: str, loss: float, gradient: float) -> None:
    groups = {"policy": [weights(1.0)], "critic": [weights(1.0)]}
    optimizer = ClippedOptimizer(train(), groups)
    groups[broken][0].grad = torch.tensor([gradient])
    with pytest.raises(DivergedError, match="the loss is" if loss != 1 else f"norm of the {broken}'s gradient"):
        optimizer.step(loss)
    assert float(groups["policy"][0].detach()) == float(groups["critic"][0].detach()) == 1.0


@pytest.mark.parametrize(("reset", "steps"), [("never", 2), ("per_rollout", 1)])
def test_momentum_lives_as_long_as_asked(reset: str, steps: int) -> None:
    optimizer = ClippedOptimizer(train(optimizer_reset=reset), {"policy": [weights(1.0)]})
    for step in (1, 2):
        optimizer.begin(step)
        optimizer.step(0.0)
    assert [int(state["step"]) for state in optimizer.state_dict()["state"].values()] == [steps]


def test_momentum_moves_weights_without_a_new_gradient() -> None:
    """They would stay if their gradient were None instead of 0."""
    policy = weights(1.0)
    optimizer = ClippedOptimizer(train(), {"policy": [policy]})
    policy.grad = torch.tensor([1.0])
    optimizer.step(0.0)
    before = float(policy.detach())
    optimizer.zero_grad()
    optimizer.step(0.0)
    assert float(policy.detach()) < before


def rounded(*values: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor(values, dtype=torch.bfloat16))


class TestMasters:
    """Float32 copies of weights of a lower precision."""

    def test_float32_weights_have_none(self) -> None:
        policy = weights(1.0, 2.0)
        optimizer = ClippedOptimizer(train(), {"policy": [policy]})
        assert optimizer.state_dict()["masters"] == []
        assert optimizer._groups["policy"][0] is policy

    def test_updates_below_the_rounding_add_up(self) -> None:
        """A step of 1e-4 is lost on a bfloat16 weight of 1: the next ones are 0.0039 below and 0.0078 above."""
        policy, plain = rounded(1.0), rounded(1.0)
        optimizer = ClippedOptimizer(train(learning_rate=1e-4), {"policy": [policy]})
        lossy = torch.optim.AdamW([plain], lr=1e-4, weight_decay=0.0)
        for _ in range(100):
            optimizer.zero_grad()
            (-policy).sum().backward()  # type: ignore[no-untyped-call]
            optimizer.step(0.0)
            plain.grad = torch.tensor([-1.0], dtype=torch.bfloat16)
            lossy.step()
        assert float(plain.detach()) == 1.0
        assert float(optimizer.state_dict()["masters"][0]) == pytest.approx(1.01, abs=1e-4)
        assert float(policy.detach()) == float(torch.tensor(1.01).bfloat16()) != 1.0

    def test_are_optimised_as_float32_weights_are(self) -> None:
        policy, expected = rounded(1.0, -2.0, 0.5), weights(1.0, -2.0, 0.5)
        optimizers = [ClippedOptimizer(train(weight_decay=0.3), {"policy": [weight]}) for weight in (policy, expected)]
        for step in range(1, 4):
            seen = []
            for optimizer, weight in zip(optimizers, (policy, expected), strict=True):
                optimizer.begin(step)
                optimizer.zero_grad()
                (weight * torch.tensor([2.0, 0.25, -3.0], dtype=weight.dtype)).sum().backward()  # type: ignore[no-untyped-call]
                seen.append(optimizer.step(1.0))
            assert seen[0] == seen[1]
        assert torch.equal(optimizers[0].state_dict()["masters"][0], expected.detach())
        assert torch.equal(policy.detach(), expected.detach().bfloat16())

    def test_gradients_add_up_over_micro_batches_in_float32(self) -> None:
        """In bfloat16 256 + 1 is 256."""
        policy = rounded(1.0)
        optimizer = ClippedOptimizer(train(), {"policy": [policy]})
        for factor in [256.0] + [1.0] * 8:
            (factor * policy).sum().backward()  # type: ignore[no-untyped-call]
        assert policy.grad is not None and policy.grad.dtype == torch.float32
        assert float(policy.grad) == 264.0
        assert optimizer.step(0.0).grad_norms == {"policy": 264.0}
        optimizer.zero_grad()
        policy.sum().backward()  # type: ignore[no-untyped-call]
        assert optimizer.step(0.0).grad_norms == {"policy": 1.0}

    def test_nothing_moves_once_something_is_not_finite(self) -> None:
        policy = rounded(1.0)
        optimizer = ClippedOptimizer(train(), {"policy": [policy]})
        (policy * math.inf).sum().backward()  # type: ignore[no-untyped-call]
        with pytest.raises(DivergedError):
            optimizer.step(1.0)
        assert float(policy.detach()) == float(optimizer.state_dict()["masters"][0]) == 1.0

    def test_of_some_weights_only(self) -> None:
        """A value head stays in float32 beside a policy in bfloat16."""
        policy, head = rounded(1.0), weights(1.0)
        optimizer = ClippedOptimizer(train(), {"policy": [policy], "critic": [head]})
        (policy.float() + head).sum().backward()  # type: ignore[no-untyped-call]
        assert optimizer.step(1.0).grad_norms == {"policy": 1.0, "critic": 1.0}
        assert len(optimizer.state_dict()["masters"]) == 1
        assert float(head.detach()) == pytest.approx(0.9) and float(policy.detach()) == float(
            torch.tensor(0.9).bfloat16()
        )

    def test_a_second_optimiser_starts_from_the_weights_as_they_are(self) -> None:
        policy = rounded(1.0)
        first = ClippedOptimizer(train(), {"policy": [policy]})
        policy.sum().backward()  # type: ignore[no-untyped-call]
        first.step(0.0)
        with torch.no_grad():
            policy.fill_(5.0)
        policy.grad = None  # as the starting point does between cells
        second = ClippedOptimizer(train(), {"policy": [policy]})
        policy.sum().backward()  # type: ignore[no-untyped-call]
        assert second.step(0.0).grad_norms == {"policy": 1.0}
        assert float(policy.detach()) == float(torch.tensor(4.9).bfloat16())

    @pytest.mark.parametrize("reset", ["never", "per_rollout"])
    def test_resume_is_exact(self, reset: str) -> None:
        """Through a file, as a checkpoint holds it."""

        def updates(optimizer: ClippedOptimizer, weight: nn.Parameter, steps: range) -> None:
            for step in steps:
                optimizer.begin(step)
                optimizer.zero_grad()
                (weight * torch.tensor([0.3, -0.7, 0.1], dtype=torch.bfloat16) * step).sum().backward()  # type: ignore[no-untyped-call]
                optimizer.step(0.0)

        settings = train(learning_rate=1e-3, optimizer_reset=reset)
        unbroken = rounded(1.0, 2.0, 3.0)
        optimizer = ClippedOptimizer(settings, {"policy": [unbroken]})
        updates(optimizer, unbroken, range(1, 3))
        file = io.BytesIO()
        torch.save({"optimizer": optimizer.state_dict(), "weight": unbroken.detach()}, file)
        updates(optimizer, unbroken, range(3, 6))
        saved = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
        resumed = rounded(0.0, 0.0, 0.0)
        with torch.no_grad():
            resumed.copy_(saved["weight"])
        again = ClippedOptimizer(settings, {"policy": [resumed]})
        again.load_state_dict(saved["optimizer"])
        assert not torch.equal(saved["optimizer"]["masters"][0], saved["weight"].float())
        updates(again, resumed, range(3, 6))
        assert torch.equal(resumed, unbroken)
        assert torch.equal(again.state_dict()["masters"][0], optimizer.state_dict()["masters"][0])


def test_a_fused_optimiser_counts_its_writes() -> None:
    """torch's does not, and engines look for new weights by the count."""
    policy = weights(1.0)
    optimizer = ClippedOptimizer(train(), {"policy": [policy]})
    assert policy.grad is not None
    policy.grad.fill_(1.0)
    before = policy._version
    optimizer.step(0.0)
    assert policy._version > before
    assert float(policy.detach()) == pytest.approx(0.9)


GRADIENTS = [torch.tensor([0.3, -0.2]), torch.tensor([-0.1, 0.4]), torch.tensor([0.5, 0.1])]


def moved(policy: nn.Parameter, gradients: list[Tensor] = GRADIENTS, **settings: object) -> Tensor:
    """The weight after a step for each gradient, none of which is clipped."""
    optimizer = ClippedOptimizer(train(**settings), {"policy": [policy]}, [policy])
    for step, gradient in enumerate(gradients, start=1):
        optimizer.begin(step)
        optimizer.zero_grad()
        assert policy.grad is not None
        policy.grad += gradient
        optimizer.step(0.0)
    return policy.detach()


def test_betas_and_eps_are_those_of_adam() -> None:
    """1412.6980, algorithm 1, written out; weight decay as in 1711.05101, algorithm 2."""
    beta1, beta2, eps, decay, rate = 0.8, 0.5, 0.03, 0.2, 0.1
    expected, mean, square = torch.tensor([1.0, -2.0]), torch.zeros(2), torch.zeros(2)
    for step, gradient in enumerate(GRADIENTS, start=1):
        mean = beta1 * mean + (1 - beta1) * gradient
        square = beta2 * square + (1 - beta2) * gradient**2
        unbiased = mean / (1 - beta1**step), square / (1 - beta2**step)
        expected = expected * (1 - rate * decay) - rate * unbiased[0] / (unbiased[1].sqrt() + eps)
    chosen = {"type": "adamw", "beta1": beta1, "beta2": beta2, "eps": eps}
    torch.testing.assert_close(moved(weights(1.0, -2.0), optimizer=chosen, weight_decay=decay), expected)


@pytest.mark.parametrize("momentum", [0.0, 0.7])
def test_sgd_adds_up_gradients_and_decay(momentum: float) -> None:
    expected, running = torch.tensor([1.0, -2.0]), torch.zeros(2)
    for gradient in GRADIENTS:
        running = momentum * running + gradient + 0.2 * expected
        expected = expected - 0.1 * running
    chosen = {"type": "sgd", "momentum": momentum}
    torch.testing.assert_close(moved(weights(1.0, -2.0), optimizer=chosen, weight_decay=0.2), expected)


class TestMuon:
    def test_turns_a_gradient_into_the_nearest_rotation(self) -> None:
        """Jordan (2024): of U S V' the iteration leaves U S' V' with S' between about 0.7 and 1.2. Each entry then has
        the size 0.2 x the learning rate on average (2502.16982, equation 4)."""
        generator = torch.Generator().manual_seed(0)
        gradient = torch.randn(24, 40, generator=generator) * torch.logspace(-1, 0, 24)[:, None] / 40
        start = torch.randn(24, 40, generator=generator)
        policy = nn.Parameter(start.clone())
        step = start - moved(policy, [gradient], optimizer={"type": "muon"}, learning_rate=0.01)
        left, _, right = torch.linalg.svd(gradient, full_matrices=False)
        size = 0.01 * 0.2 * math.sqrt(40)
        along = torch.linalg.multi_dot([left.T, step, right.T]) / size
        assert float(along.diagonal().min()) > 0.6 and float(along.diagonal().max()) < 1.3
        assert float((along - along.diagonal().diag()).abs().max()) < 0.1

    def test_moves_the_matrices_of_layers_and_adamw_the_rest(self) -> None:
        found = {}
        for kind in ("adamw", "muon"):
            model = load_model("builtin:tiny").model
            start = {name: weight.detach().clone() for name, weight in model.named_parameters()}
            optimizer = ClippedOptimizer(
                train(optimizer={"type": kind}), {"policy": model.parameters()}, layer_matrices(model)
            )
            optimizer.begin(1)
            for index, weight in enumerate(model.parameters()):
                assert weight.grad is not None
                weight.grad.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(index)) / 100)
            optimizer.step(0.0)
            found[kind] = {name: weight.detach() - start[name] for name, weight in model.named_parameters()}
        alike = {name for name, step in found["adamw"].items() if torch.equal(step, found["muon"][name])}
        matrices = {name for name in found["adamw"] if ".layers." in name and name.endswith("proj.weight")}
        assert len(matrices) == 14 and alike == found["adamw"].keys() - matrices

    def test_matrices_of_adapters_are_matrices(self) -> None:
        model = add_adapters(load_model("builtin:tiny").model, Lora(rank=2))
        reset_adapters(model, seed=0)
        names = {id(weight): name for name, weight in model.named_parameters()}
        trained = [names[id(weight)] for weight in layer_matrices(model) if weight.requires_grad]
        assert len(trained) == 28 and all("lora_" in name for name in trained)


@pytest.mark.parametrize("kind", ["adamw", "sgd", "muon"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_optimiser_resumes_exactly(kind: str, dtype: torch.dtype) -> None:
    """Through a file, as a checkpoint holds it."""
    generator = torch.Generator().manual_seed(0)
    start = {"matrix": torch.randn(4, 6, generator=generator), "vector": torch.randn(6, generator=generator)}
    gradients = [torch.randn(4, 6, generator=generator) for _ in range(4)]
    settings = train(optimizer={"type": kind}, learning_rate=1e-2)

    def made() -> tuple[dict[str, nn.Parameter], ClippedOptimizer]:
        own = {name: nn.Parameter(value.to(dtype)) for name, value in start.items()}
        return own, ClippedOptimizer(settings, {"policy": own.values()}, [own["matrix"]])

    def train_on(own: dict[str, nn.Parameter], optimizer: ClippedOptimizer, steps: range) -> None:
        for step in steps:
            optimizer.begin(step + 1)
            optimizer.zero_grad()
            for weight in own.values():
                assert weight.grad is not None
                weight.grad += gradients[step] if weight.ndim == 2 else gradients[step][0]
            optimizer.step(0.0)

    unbroken, optimizer = made()
    train_on(unbroken, optimizer, range(2))
    file = io.BytesIO()
    torch.save({"optimizer": optimizer.state_dict(), "weights": {n: w.detach() for n, w in unbroken.items()}}, file)
    train_on(unbroken, optimizer, range(2, 4))
    saved = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    resumed, again = made()
    with torch.no_grad():
        for name, weight in resumed.items():
            weight.copy_(saved["weights"][name])
    again.load_state_dict(saved["optimizer"])
    train_on(resumed, again, range(2, 4))
    for name, weight in resumed.items():
        assert torch.equal(weight, unbroken[name]), name


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


def test_warm_up_and_decay() -> None:
    """5 % of 100 steps up, then down along the line that ends at step 101, but never below 2 %."""
    factors = [warm_up_and_decay(step, 100) for step in (1, 3, 5, 6, 51, 98, 99, 100)]
    assert factors == pytest.approx([0.2, 0.6 * 0.98, 0.96, 0.95, 0.5, 0.03, 0.02, 0.02])


GROUPS, SAMPLES = 4, 4


class TestMiniBatches:
    def batches(self, updates: int, epochs: int, step: int = 1, seed: int = 0) -> list[list[int]]:
        settings = {"train.updates_per_rollout": updates, "train.epochs": epochs}
        groups = torch.arange(GROUPS).repeat_interleave(SAMPLES)
        return [
            rows.tolist()
            for epoch in range(epochs)
            for rows in mini_batches(groups, small_spec(settings, seed), step, epoch)
        ]

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

    @pytest.mark.parametrize(("groups", "sizes"), [(0, []), (1, [1]), (3, [1, 1, 1]), (4, [1, 1, 1, 1])])
    def test_fewer_groups_than_steps(self, groups: int, sizes: list[int]) -> None:
        """Some groups were dropped: no optimiser step is taken on nothing."""
        spec = small_spec({"train.updates_per_rollout": 4})
        assert [len(rows) for rows in mini_batches(torch.arange(groups), spec, 1, 0)] == sizes

    def test_groups_that_do_not_divide(self) -> None:
        spec = small_spec({"train.updates_per_rollout": 2})
        assert sorted(len(rows) for rows in mini_batches(torch.tensor([5, 7, 9]), spec, 1, 0)) == [1, 2]
