from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.config.rollout import RolloutSpec
from harness.run.prompts import CompletionLimit


def limit(**staged: Any) -> CompletionLimit:
    """First 16 tokens, then 32."""
    given = {"staged": {"first_tokens": 16, **staged}} if staged else {}
    return CompletionLimit(RolloutSpec.model_validate({"max_completion_tokens": 32, **given}))


def converging(**settings: Any) -> CompletionLimit:
    return limit(**{"type": "converged", "window_steps": 3, "min_gain": 0.1, **settings})


def tokens_of_steps(of: CompletionLimit, rewards: list[float], first_step: int = 1) -> list[int]:
    """The limits of the steps with these mean rewards."""
    tokens = []
    for step, reward in enumerate(rewards, first_step):
        tokens.append(of.tokens)
        of.observe(step, reward)
    return tokens


def test_the_limit_without_stages_and_with_one_at_a_step() -> None:
    assert tokens_of_steps(limit(), [0.0] * 20) == [32] * 20
    assert tokens_of_steps(limit(type="at_step", step=4), [0.0] * 6) == [16, 16, 16, 32, 32, 32]


@pytest.mark.parametrize(("gain", "converged"), [(0.125, False), (0.09375, True)])
def test_the_windows_are_adjacent_and_the_gain_is_of_their_means(gain: float, converged: bool) -> None:
    """Exact binary fractions on both sides of min_gain; the single rewards jump by far more."""
    of = converging()
    tokens_of_steps(of, [0.0, 0.75, 0.0, 0.0, 0.75 + 3 * gain, 0.0])
    assert (of.tokens == 32) is converged


def test_a_gain_that_reaches_min_gain_is_enough() -> None:
    of = converging(min_gain=0.25)
    tokens_of_steps(of, [0.0, 0.0, 0.0, 0.25, 0.25, 0.25])
    assert of.tokens == 16


@given(st.lists(st.floats(0, 1), min_size=6, max_size=30))
def test_there_is_no_way_back(rewards: list[float]) -> None:
    tokens = tokens_of_steps(converging(), rewards)
    assert tokens == sorted(tokens)
    expected = next(
        (
            end
            for end in range(6, len(rewards))
            if (math.fsum(rewards[end - 3 : end]) - math.fsum(rewards[end - 6 : end - 3])) / 3 < 0.1
        ),
        len(rewards),
    )
    assert tokens.count(16) == expected


def test_a_step_in_which_nothing_could_be_scored_does_not_count() -> None:
    scored = [0.0, 0.0, 0.0, 0.25, 0.25, 0.25, 0.25]
    unscored = [0.0, math.nan, 0.0, 0.0, 0.25, math.nan, 0.25, 0.25, 0.25]
    tokens = tokens_of_steps(converging(), unscored)
    of_scored = [limit for limit, reward in zip(tokens, unscored, strict=True) if not math.isnan(reward)]
    assert of_scored == tokens_of_steps(converging(), scored)


@given(st.lists(st.floats(0, 1), max_size=20), st.integers(0, 20))
def test_continues_from_its_state(rewards: list[float], kill: int) -> None:
    unbroken, killed, resumed = converging(), converging(), converging()
    tokens_of_steps(killed, rewards[:kill])
    resumed.load_state_dict(json.loads(json.dumps(killed.state_dict())))
    rest = tokens_of_steps(resumed, rewards[kill:], kill + 1)
    assert tokens_of_steps(unbroken, rewards)[kill:] == rest
