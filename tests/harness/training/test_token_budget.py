"""What happens where memory runs out: the same as if the budget had been smaller from the start."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from harness.errors import RefusedError
from harness.training.optimizer import TokenBudget
from harness.training.policy_update import PolicyUpdate
from harness.training.preference_update import PreferenceUpdate
from harness.training.reference import frozen_copy, measure
from harness.training.sequences import Scores, SequenceScorer, score_completions
from harness.training.update_report import StepReport
from tests.harness.run.small import small_spec
from tests.harness.training import rollouts
from tests.harness.training.pair_batches import moved_model, pair_batch
from tests.refusals import refuses

pytestmark = pytest.mark.slow


def limited(model: PreTrainedModel, tokens: int) -> PreTrainedModel:
    """Memory for passes of so many tokens, from now on."""
    score_completions(model, rollouts.sequences(), torch.arange(1), 1.0, rollouts.PAD)  # what is found out once a model

    def check(module: torch.nn.Module, args: tuple[Tensor, ...]) -> None:
        if args[0].numel() > tokens:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nmore about it")

    model.get_decoder().get_input_embeddings().register_forward_pre_hook(check)
    return model


class Failing:
    """Runs out of memory once, in the backward pass number `at`; with 0, never. A model with a hook is not computed in
    blocks, and these round differently."""

    def __init__(self, model: PreTrainedModel, at: int) -> None:
        self._passes = itertools.count(1)
        self._at = at
        # Layer 1 comes first in a backward pass; when the gradient of layer 0 is asked for, its own is there.
        model.get_decoder().layers[0].register_full_backward_hook(self._hook)

    def _hook(self, *call: Any) -> None:
        if next(self._passes) == self._at:
            raise torch.OutOfMemoryError("CUDA out of memory.")


def policy_update(
    settings: dict[str, Any], prepare: Callable[[PreTrainedModel], Any] = lambda model: None
) -> tuple[PreTrainedModel, StepReport, PolicyUpdate]:
    policy = rollouts.model()
    rollout = rollouts.rollout(policy)
    prepare(policy)
    spec = small_spec({"train.learning_rate": 1e-3} | settings)
    update = PolicyUpdate(policy, spec, rollouts.PAD, frozen_copy(policy))
    return policy, update.run(rollout, step=1), update


def assert_same(one: tuple[PreTrainedModel, StepReport, Any], other: tuple[PreTrainedModel, StepReport, Any]) -> None:
    assert torch.equal(rollouts.weights(one[0]), rollouts.weights(other[0]))
    assert torch.equal(rollouts.gradient(one[0]), rollouts.gradient(other[0]))
    assert one[1].metrics == other[1].metrics
    assert one[1].micro_batch_tokens == other[1].micro_batch_tokens


SETTINGS: dict[str, dict[str, Any]] = {
    "one step": {},
    "old log-probs, reference, two steps": {
        "objective.kl.where": "loss",
        "objective.kl.beta": 0.5,
        "train.updates_per_rollout": 2,
        "train.epochs": 2,
    },
    "critic": {"algorithm": "ppo"},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_policy_update_is_that_of_the_smaller_budget(name: str) -> None:
    wanted = SETTINGS[name] | {"train.reference_rows": 6}
    got = policy_update(wanted | {"train.micro_batch_tokens": 100}, lambda policy: limited(policy, 60))
    assert got[1].micro_batch_tokens == 50
    expected = policy_update(wanted | {"train.micro_batch_tokens": 50})
    assert_same(got, expected)
    (note,) = got[1].notes
    assert note.startswith(
        "out of memory with 100 tokens per pass (CUDA out of memory. Tried to allocate 2 GiB): going on"
    )
    assert "going on with 50," in note
    assert expected[1].notes == []
    moved = (rollouts.weights(got[0]) - rollouts.weights(rollouts.model())).abs().max()
    assert moved > 1e-4


@pytest.mark.parametrize("at", [1, 2])
def test_a_gradient_that_was_begun_is_forgotten(at: int) -> None:
    got = policy_update({"train.micro_batch_tokens": 50}, lambda policy: Failing(policy, at))
    expected = policy_update({"train.micro_batch_tokens": 25}, lambda policy: Failing(policy, at=0))
    assert got[1].micro_batch_tokens == 25
    assert torch.equal(rollouts.gradient(got[0]), rollouts.gradient(expected[0]))
    assert torch.equal(rollouts.weights(got[0]), rollouts.weights(expected[0]))
    assert got[1].metrics["loss"] == expected[1].metrics["loss"]


def test_half_of_half() -> None:
    got = policy_update({"train.micro_batch_tokens": 400}, lambda policy: limited(policy, 30))
    assert got[1].micro_batch_tokens == 25
    assert len(got[1].notes) > 1
    assert_same(got, policy_update({"train.micro_batch_tokens": 25}))


def test_the_smaller_budget_stays_also_after_a_resume() -> None:
    settings = {"train.micro_batch_tokens": 100}
    policy, _, update = policy_update(settings, lambda policy: limited(policy, 60))
    second = rollouts.rollout(rollouts.model(), seed=1)
    resumed = rollouts.model()
    resumed.load_state_dict(policy.state_dict())
    continued = PolicyUpdate(
        resumed, small_spec({"train.learning_rate": 1e-3} | settings), rollouts.PAD, frozen_copy(rollouts.model())
    )
    continued.load_state_dict(copy.deepcopy(update.state_dict()))
    there, here = update.run(second, step=2), continued.run(second, step=2)
    assert (there.micro_batch_tokens, here.micro_batch_tokens) == (50, 50)
    assert there.notes == here.notes == []
    assert there.metrics == here.metrics
    assert torch.equal(rollouts.weights(resumed), rollouts.weights(policy))


@pytest.mark.parametrize("settings", [{}, {"objective.link": "kto"}, {"train.updates_per_rollout": 2}])
def test_a_preference_update_is_that_of_the_smaller_budget(settings: dict[str, Any]) -> None:
    def updated(budget_tokens: int, memory_tokens: int) -> tuple[PreTrainedModel, StepReport, PreferenceUpdate]:
        policy, start = moved_model(), frozen_copy(rollouts.model())
        spec = small_spec({"algorithm": "dpo", "train.micro_batch_tokens": budget_tokens} | settings)
        limited(start, memory_tokens)
        update = PreferenceUpdate(limited(policy, memory_tokens), spec, rollouts.PAD, None, start)
        return policy, update.run(pair_batch(), step=1), update

    got = updated(100, 60)
    assert got[1].micro_batch_tokens == 50
    assert len(got[1].notes) == 1
    assert_same(got, updated(50, 1000))
    assert got[2].state_dict()["budget"] == {"micro_batch_tokens": 50}
    fresh = PreferenceUpdate(
        moved_model(), small_spec({"algorithm": "dpo"}), rollouts.PAD, None, frozen_copy(rollouts.model())
    )
    fresh.load_state_dict(got[2].state_dict())
    assert fresh.run(pair_batch(), step=2).micro_batch_tokens == 50


def test_a_gradient_of_pairs_that_was_begun_is_forgotten() -> None:
    gradients = []
    for budget_tokens, fails_at in ((50, 2), (25, 0)):
        policy, start = moved_model(), frozen_copy(rollouts.model())
        spec = small_spec({"algorithm": "dpo", "train.micro_batch_tokens": budget_tokens})
        pairs = pair_batch()
        Failing(policy, fails_at)
        update = PreferenceUpdate(policy, spec, rollouts.PAD, None, start)
        logps = torch.zeros(pairs.sequences.completions.shape)
        report = update.run(replace(pairs, ref_logps=logps), step=1)
        assert report.micro_batch_tokens == 25
        gradients.append(rollouts.gradient(policy))
    assert torch.equal(*gradients)


def test_scores_and_measurements_are_those_of_the_smaller_budget() -> None:
    policy, start, made = moved_model(), rollouts.model(), rollouts.sequences()
    budgets = TokenBudget(100), TokenBudget(50)
    results = []
    for budget, model in zip(budgets, (limited(copy.deepcopy(policy), 60), policy), strict=True):
        scores = Scores.empty(made)
        scorer = SequenceScorer(model, None, small_spec(), rollouts.PAD)
        scorer.budget = budget
        scorer.fill(scores, made, torch.arange(16))
        measured = measure(scorer, start, made, torch.arange(0, 16, 2))
        results.append([scores.logps, scores.entropy, scorer.logps_of(start, made), *measured])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))
    assert budgets[0].tokens == 50
    assert results[0][0].abs().sum() > 0


class TestRefused:
    def test_where_the_split_is_part_of_the_objective(self) -> None:
        with refuses(RefusedError, "training.out_of_memory_in_objective", tokens=100):
            policy_update(
                {"objective.aggregation": "micro_token_mean", "train.micro_batch_tokens": 100},
                lambda policy: limited(policy, 60),
            )

    def test_a_row_that_does_not_fit(self) -> None:
        with refuses(RefusedError, "training.out_of_memory"):
            policy_update(
                {"train.micro_batch_tokens": 100, "train.reference_rows": 0}, lambda policy: limited(policy, 4)
            )

    def test_pairs_that_belong_together(self) -> None:
        policy, start = moved_model(), frozen_copy(rollouts.model())
        spec = small_spec({"algorithm": "dpo", "objective.matching": "sorted"})
        update = PreferenceUpdate(limited(policy, 60), spec, rollouts.PAD, start, start)
        with refuses(RefusedError, "training.out_of_memory"):
            update.run(pair_batch(), step=1)


def test_other_errors_pass() -> None:
    def work(micros: list[Tensor]) -> None:
        raise RuntimeError("another")

    budget = TokenBudget(8)
    with pytest.raises(RuntimeError, match="another"):
        budget.run(lambda tokens: [torch.arange(1)], work)
    assert budget.tokens == 8


def test_a_budget_is_lowered_until_there_are_more_micro_batches() -> None:
    """A repetition of the same passes would run out again."""
    tried: list[int] = []

    def split(tokens: int) -> list[Tensor]:
        return [torch.arange(8)] if tokens > 20 else [torch.arange(4), torch.arange(4, 8)]

    def work(micros: list[Tensor]) -> int:
        tried.append(len(micros))
        if len(micros) == 1:
            raise torch.OutOfMemoryError
        return 7

    budget = TokenBudget(100)
    assert budget.run(split, work) == 7
    assert (tried, budget.tokens, len(budget.notes())) == ([1, 2], 12, 1)
    assert budget.notes() == []
