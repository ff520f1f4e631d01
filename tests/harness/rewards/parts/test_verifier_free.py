from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from evals.grading import Verdict
from harness.rewards import Attempt
from harness.rewards.parts.verifier_free import (
    LOG_GROWTH_LIMIT,
    Jepo,
    Majority,
    OwnLogp,
    RandomReward,
    VrCli,
    gold_columns,
    log_mean_exp,
    perplexity_improvement,
)
from tests.harness.rewards.attempts import PROBLEM, SUM, attempt, context, part_rewards


def vote(*answers: str | None) -> list[float]:
    return Majority().rewards([attempt(verdict=Verdict(False, answer, "mismatch")) for answer in answers], context())


def test_own_logp() -> None:
    assert OwnLogp().rewards([attempt(mean_logp=-0.5), attempt(mean_logp=-2.0)], context()) == [-0.5, -2.0]


@pytest.mark.parametrize(
    ("answers", "rewards"),
    [
        (("42", "41", "42"), [1, 0, 1]),
        (("42",), [1]),
        (("1000", "1e3", "1,000", "7"), [1, 1, 1, 0]),  # one number
        (("many", "many", "few"), [1, 1, 0]),
        (("1", "2", "1", "2", "3"), [0.5, 0.5, 0.5, 0.5, 0]),
        (("1", "2", "3", "4"), [0.25, 0.25, 0.25, 0.25]),
        ((None, None, "7"), [0, 0, 1]),  # a missing answer is not a vote
        ((None, None), [0, 0]),
    ],
)
def test_majority(answers: tuple[str | None, ...], rewards: list[float]) -> None:
    assert vote(*answers) == rewards


def test_majority_asks_no_verifier() -> None:
    group = [attempt(verdict=Verdict(True, "42", "match")), *[attempt(verdict=Verdict(False, "0", "mismatch"))] * 2]
    assert Majority().rewards(group, context()) == [0, 1, 1]


MANY = 1000
LOGPS = st.lists(st.floats(-40, 0), min_size=2, max_size=8)


def drawn(seed: int = 0, step: int = 1, problem: Any = PROBLEM, **options: Any) -> list[float]:
    group = [attempt(problem=problem, sample=sample) for sample in range(MANY)]
    return part_rewards(RandomReward, group, context({"random": 1.0}, seed=seed, step=step, random=options))


def test_a_random_reward_is_a_draw_of_its_own_for_each_completion() -> None:
    assert drawn() == drawn()
    assert drawn() != drawn(step=2) != drawn(seed=1) != drawn(problem=SUM)
    assert set(drawn()) == {0.0, 1.0}
    for probability in (0.5, 0.1):
        assert sum(drawn(probability=probability)) / MANY == pytest.approx(probability, abs=0.05)
    # Whatever it says: neither the text nor the verdict has a part in it.
    right = [attempt("42", sample=sample) for sample in range(MANY)]
    assert part_rewards(RandomReward, right, context()) == drawn()


@pytest.mark.parametrize(("before", "after", "n"), [(-6.0, -3.0, 3), (-3.0, -6.0, 3), (-2.0, -2.0, 5)])
def test_improvement_is_that_of_the_perplexity_per_token(before: float, after: float, n: int) -> None:
    without, behind = math.exp(-before / n), math.exp(-after / n)
    assert perplexity_improvement(before, after, n) == pytest.approx((without - behind) / without)


def test_an_impossible_text_is_as_bad_as_the_limit() -> None:
    assert perplexity_improvement(0.0, -1e9, 2) == pytest.approx(1 - math.exp(LOG_GROWTH_LIMIT))


def test_vr_cli_with_the_levels_of_the_paper() -> None:
    gains = [-3.0, 0.0, 0.0004, 0.0005, 0.009, 0.01, 0.02, 0.7, math.nan]
    group = [attempt(perplexity_improvement=gain) for gain in gains]
    paper = VrCli(levels=((0.0005, 0.5), (0.01, 0.9), (0.02, 1.0)))
    assert paper.rewards(group, context())[:-1] == [0, 0, 0, 0.5, 0.5, 0.9, 1, 1]
    assert math.isnan(paper.rewards(group, context())[-1])
    assert VrCli().rewards(group, context())[:-1] == gains[:-1]


def likely(logps: list[float]) -> list[Attempt]:
    return [attempt(answer_logp=logp) for logp in logps]


def naive_multi(logps: list[float]) -> list[float]:
    """n times what each completion adds to the log of the mean likelihood, in probabilities."""
    p, n = [math.exp(logp) for logp in logps], len(logps)
    return [n * (math.log(sum(p) / n) - math.log((sum(p) - p[i]) / (n - 1))) for i in range(n)]


@settings(max_examples=30)
@given(st.lists(st.floats(-5, 0), min_size=2, max_size=8))
def test_jepo_rewards_are_those_of_the_formula(logps: list[float]) -> None:
    assert Jepo().rewards(likely(logps), context()) == logps
    found = Jepo(bound="multi_sample").rewards(likely(logps), context())
    assert found == pytest.approx(naive_multi(logps), abs=1e-6)


@settings(max_examples=30)
@given(LOGPS)
def test_more_samples_make_a_tighter_bound(logps: list[float]) -> None:
    columns = gold_columns([likely(logps)])
    one, many = sum(columns["gold/answer_logp"]) / len(logps), columns["gold/multi_sample_bound"][0]
    assert one <= many + 1e-9
    assert many <= max(logps) + 1e-9
    # In expectation every sample tightens it: the mean over all that leave one out is no better.
    fewer = [log_mean_exp(logps[:i] + logps[i + 1 :]) for i in range(len(logps))]
    assert sum(fewer) / len(fewer) <= many + 1e-9


@settings(max_examples=30)
@given(LOGPS)
def test_the_answers_weights_are_the_bounds_derivative(logps: list[float]) -> None:
    n = len(logps)
    given_logps = torch.tensor(logps, dtype=torch.float64, requires_grad=True)
    bound = given_logps.logsumexp(0) - math.log(n)
    (derivative,) = torch.autograd.grad(bound, given_logps)
    half = Jepo(bound="multi_sample", supervised=0.5)
    assert half.answer_weights(logps) == pytest.approx((0.5 * n * derivative).tolist(), abs=1e-9)
    assert Jepo().answer_weights(logps) == [1.0] * n


@pytest.mark.parametrize("bound", ["one_sample", "multi_sample"])
@pytest.mark.parametrize("n", [2, 3])
def test_the_expected_gradient_is_that_of_the_bound(bound: Any, n: int) -> None:
    """Three chains, each with its own probability of the gold answer: all groups of n are gone through."""
    chains = torch.tensor([0.3, -0.7, 1.1], dtype=torch.float64, requires_grad=True)
    answers = torch.tensor([-0.4, 0.9, -2.0], dtype=torch.float64, requires_grad=True)
    part = Jepo(bound=bound)

    def logps() -> tuple[Tensor, Tensor]:
        return chains.log_softmax(0), torch.nn.functional.logsigmoid(answers)

    chain, answer = logps()
    groups = [list(group) for group in itertools.product(range(3), repeat=n)]
    exact = torch.zeros((), dtype=torch.float64)
    estimate = torch.zeros((), dtype=torch.float64)
    for group in groups:
        likelihoods = answer[group]
        value = likelihoods.mean() if bound == "one_sample" else likelihoods.logsumexp(0) - math.log(n)
        exact = exact + chain[group].sum().exp() * value
        rewards = torch.tensor(part.rewards(likely(likelihoods.tolist()), context()), dtype=torch.float64)
        if bound == "one_sample":  # objective.baseline=leave_one_out
            rewards = (rewards - rewards.mean()) * n / (n - 1)
        weights = torch.tensor(part.answer_weights(likelihoods.tolist()), dtype=torch.float64)
        surrogate = (rewards * chain[group] + weights * likelihoods).sum() / n
        estimate = estimate + chain[group].sum().exp().detach() * surrogate
    for found, expected in zip(
        torch.autograd.grad(estimate, (chains, answers), retain_graph=True),
        torch.autograd.grad(exact, (chains, answers)),
        strict=True,
    ):
        assert torch.allclose(found, expected, atol=1e-12), (found, expected)
