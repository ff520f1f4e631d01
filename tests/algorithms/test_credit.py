from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from algorithms import Objective, advantages, preset

NAN = math.nan


def by_steps(scale: str = "group_std", ddof: int = 1) -> Objective:
    knobs = {"baseline": "group_mean", "scale": scale, "aggregation": "token_mean", "credit": "steps"}
    return Objective.model_validate(knobs | ({"scale_ddof": ddof, "scale_eps": 1e-6} if scale != "none" else {}))


def tensor(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


step_reward = st.sampled_from([NAN, NAN, 0.0, 0.0, 1.0, 0.1])
Row = tuple[float, int, list[float], list[bool]]
rows_of_steps = st.lists(
    st.tuples(
        st.sampled_from([0.0, 1.0, 0.1, NAN]),  # reward
        st.sampled_from([3, 7]),  # group
        st.lists(step_reward, min_size=5, max_size=5),
        st.lists(st.booleans(), min_size=5, max_size=5),  # mask
    ),
    min_size=1,
    max_size=8,
)


def tensors(rows: list[Row]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rewards, groups, steps, mask = zip(*rows, strict=True)
    return tensor(rewards), torch.tensor(groups), torch.tensor(mask), tensor(steps)


def slow_step_advantages(rows: list[Row], scale: str, ddof: int) -> Tensor:
    """Row by row and step by step, straight from the definition."""
    steps: list[dict[int, float]] = []  # for each row: token -> reward of the step that ends there
    for reward, _, token_rewards, mask in rows:
        places = [t for t in range(5) if mask[t]] if not math.isnan(reward) else []
        ends = {t: token_rewards[t] for t in places if not math.isnan(token_rewards[t])}
        if places:
            ends[places[-1]] = ends.get(places[-1], 0.0) + reward
        steps.append(ends)
    result = []
    for (_, group, _, mask), ends in zip(rows, steps, strict=True):
        pool = [x for row, other in zip(rows, steps, strict=True) if row[1] == group for x in other.values()]
        mean = sum(pool) / max(1, len(pool))
        variance = sum((x - mean) ** 2 for x in pool) / max(1, len(pool) - ddof)
        divisor = math.sqrt(variance) + 1e-6 if scale == "group_std" else 1.0
        result.append(
            [sum((x - mean) / divisor for end, x in ends.items() if end >= t) if mask[t] else 0 for t in range(5)]
        )
    return tensor(result)


@pytest.mark.parametrize(("scale", "ddof"), [("group_std", 0), ("group_std", 1), ("none", 1)])
@settings(max_examples=60, deadline=None)
@given(rows=rows_of_steps)
def test_agrees_with_the_definition(scale: str, ddof: int, rows: list[Row]) -> None:
    rewards, groups, mask, token_rewards = tensors(rows)
    result = advantages(by_steps(scale, ddof), rewards, groups, mask, token_rewards=token_rewards)
    torch.testing.assert_close(result, slow_step_advantages(rows, scale, ddof), rtol=1e-8, atol=1e-8)


def test_two_completions_by_hand() -> None:
    """Steps 1, 0, 1 + 1 and 0, 0: mean 0.6, sum of squares 3.2."""
    token_rewards = tensor([[1.0, NAN, 0.0, 1.0], [NAN, 0.0, NAN, NAN]])
    mask = tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
    std = math.sqrt(3.2 / 4) + 1e-6
    result = advantages(by_steps(), tensor([1, 0]), torch.tensor([0, 0]), mask, token_rewards=token_rewards)
    expected = tensor([[0.4 - 0.6 + 1.4, -0.6 + 1.4, -0.6 + 1.4, 1.4], [-1.2, -1.2, -0.6, 0]])
    torch.testing.assert_close(result, expected / std)


@pytest.mark.parametrize("scale", ["none", "group_std"])
def test_a_completion_that_is_one_step_has_its_outcome_advantage(scale: str) -> None:
    rewards, groups = tensor([1, 0, 0, 1, 0.5]), torch.tensor([0, 0, 0, 1, 1])
    mask = torch.arange(4) < torch.tensor([3, 4, 1, 2, 2])[:, None]
    outcome = Objective.model_validate(by_steps(scale).model_dump() | {"credit": "completion"})
    expected = advantages(outcome, rewards, groups, mask)
    torch.testing.assert_close(advantages(by_steps(scale), rewards, groups, mask), expected)
    nowhere = torch.full((5, 4), NAN)
    torch.testing.assert_close(advantages(by_steps(scale), rewards, groups, mask, token_rewards=nowhere), expected)


def test_steps_of_equal_reward_get_exactly_zero() -> None:
    token_rewards = tensor([[0.1, NAN, 0.0], [0.1, 0.1, 0.0]])
    result = advantages(
        by_steps(), tensor([0.1, 0.1]), torch.tensor([0, 0]), torch.ones(2, 3), token_rewards=token_rewards
    )
    assert (result == 0).all()


@settings(max_examples=30, deadline=None)
@given(rows=rows_of_steps, shift=st.floats(-5, 5))
def test_a_shift_of_all_steps_changes_nothing(rows: list[Row], shift: float) -> None:
    """Where every last token is a step of its own, so that the completion's reward is not shifted beside it."""
    rewards, groups, mask, token_rewards = tensors(rows)
    ends = mask & (mask.flip(1).cumsum(1).flip(1) == 1)
    token_rewards = torch.where(ends, token_rewards.nan_to_num(0), token_rewards)
    before = advantages(by_steps(), rewards, groups, mask, token_rewards=token_rewards)
    after = advantages(by_steps(), rewards, groups, mask, token_rewards=token_rewards + shift)
    torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-5)


def test_returns_to_go_without_a_baseline() -> None:
    """REINFORCE++: the reward of the completion and of the tokens still to come; a hole is passed over."""
    rewards, mask = tensor([1, 2]), tensor([[1, 1, 0, 1], [1, 1, 0, 0]])
    token_rewards = tensor([[-0.1, -0.2, 9, -0.3], [0.5, -0.5, 9, 9]])
    objective = preset("dr_grpo", baseline="none")
    result = advantages(objective, rewards, torch.tensor([0, 1]), mask, token_rewards=token_rewards)
    torch.testing.assert_close(result, tensor([[0.4, 0.5, 0, 0.7], [2, 1.5, 0, 0]]))


def test_a_token_without_a_number_is_refused_unless_steps_are_asked_for() -> None:
    rewards, groups, mask = tensor([1, NAN, 0]), torch.tensor([0, 0, 0]), tensor([[1, 1], [1, 1], [1, 0]])
    token_rewards = tensor([[0, 0], [0, NAN], [0, NAN]])  # not scored, and not in the mask
    assert advantages(preset("dr_grpo"), rewards, groups, mask, token_rewards=token_rewards).isfinite().all()
    token_rewards[0, 1] = NAN
    with pytest.raises(ValueError, match=r"NaN token_rewards in rows \[0\]; NaN says .* only credit=steps"):
        advantages(preset("dr_grpo"), rewards, groups, mask, token_rewards=token_rewards)
    assert advantages(by_steps(), rewards, groups, mask, token_rewards=token_rewards).isfinite().all()


@pytest.mark.parametrize(
    ("token_rewards", "complaint"),
    [
        ([0.0, 0.0], r"token_rewards has shape \[2\]; it must be that of mask, \[1, 2\]"),
        ([[0.0, -math.inf]], r"infinite token_rewards in rows \[0\]"),
    ],
)
def test_token_rewards_must_fit(token_rewards: object, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        advantages(by_steps(), tensor([1.0]), torch.tensor([0]), torch.ones(1, 2), token_rewards=tensor(token_rewards))
