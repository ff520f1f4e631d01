"""Rewards without a verifier: from the policy itself, from the likelihood of a gold text, or random."""

from __future__ import annotations

import bisect
import math
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, field_validator

from evals.grading.numeric import parse_number
from harness.random_keys import random_key, uniform
from harness.rewards import Attempt, RewardContext, RewardPart
from harness.settings.marks import REFERS

LOG_GROWTH_LIMIT = 20.0
"""Limit on growth of the log perplexity, in nats per token. A reward far below -e^20 would swamp others in float32."""

# YAML has no tuples, and strict mode would refuse its lists in their place.
_Level = Annotated[tuple[float, float], Field(strict=False)]


class OwnLogp(RewardPart):
    """Mean log-prob of the completion's tokens under the sampler, in nats."""

    name = "own_logp"

    def rewards(self, group: Sequence[Attempt], context: RewardContext) -> list[float]:
        return [attempt.mean_logp for attempt in group]


class Majority(RewardPart):
    """1 for the group's most common answer, else 0 (majority voting as the label: TTRL, 2504.16084).

    Two answers are the same if they are equal as numbers or, if they are not numbers, as text. If k answers tie, each
    gets 1 / k, the expected reward if one of them were picked at random. A completion without an answer has no vote and
    gets 0.
    """

    name = "majority"

    def rewards(self, group: Sequence[Attempt], context: RewardContext) -> list[float]:
        answers = [_answer(attempt) for attempt in group]
        votes = Counter(answer for answer in answers if answer is not None)
        most = max(votes.values(), default=0)
        winners = [answer for answer, count in votes.items() if count == most]
        return [1 / len(winners) if answer in winners else 0.0 for answer in answers]


def _answer(attempt: Attempt) -> Fraction | str | None:
    """Return the extracted answer as a number if it is one, else as text, or None if there is no answer."""
    extracted = attempt.verdict.extracted
    if extracted is None:
        return None
    number = parse_number(extracted)
    return extracted if number is None else number


class RandomReward(RewardPart):
    """1 with a fixed probability, else 0, whatever the completion says (2506.10947, section 2).

    The random number is keyed by seed, step, problem and sample. So arms with the same seed share it, and a resumed
    cell repeats it.

    Traps: if every ratio is 1, as in the first optimiser step on a rollout, the expected gradient is exactly 0. The
    paper's gains come from the clip, which favours tokens that are already likely, so take several optimiser steps per
    rollout. The gains appear in Qwen2.5-Math and hardly in other model families.
    """

    name = "random"

    probability: float = Field(0.5, gt=0, lt=1, description="probability of a reward of 1; default: the paper")

    def rewards(self, group: Sequence[Attempt], context: RewardContext) -> list[float]:
        keys = (
            random_key(context.seed, "select", context.step, f"random/{attempt.problem.id}", attempt.sample)
            for attempt in group
        )
        return [float(uniform(key) < self.probability) for key in keys]


class VrCli(RewardPart):
    """How much the reasoning improves a frozen model's perplexity of the gold text (VR-CLI, 2503.22828).

    (PPL(y|x) - PPL(y|x, a)) / PPL(y|x), with x the prompt, a the completion up to its answer, y the gold text, and PPL
    the perplexity per token at temperature 1. x and a end with the marker that opens an answer. If a completion has no
    such marker, it is appended. Tokens after the marker do not affect the reward. They stay out of the loss, unless
    another part of the reward depends on them.

    Traps: the improvement is at most 1 but can fall to -5e8, so a few misleading completions can outweigh all others.
    Levels bound it. A short gold answer is either almost certain or almost impossible, while the paper's levels are for
    chapters of thousands of tokens. Reasoning that states the answer, or leads the frozen model towards the style of
    the gold text, is rewarded whether it is sound or not.

    Elsewhere: in the paper, the policy writes a plan for a frozen generator. The reward is 0.5 from an improvement of
    0.05 %, 0.9 from 1 %, 1 from 2 %, and else 0 (levels [[0.0005, 0.5], [0.01, 0.9], [0.02, 1]]). NOVER (2505.16022)
    updates the predicting model. JEPO uses the policy itself, and the log-likelihood.
    """

    name = "vr_cli"
    gold_scored_by = "generator"

    generator: Annotated[str | None, REFERS] = Field(
        None,
        description="model.source of the frozen model that predicts the gold text. Its tokenizer may differ from the "
        "policy's, if it can encode that text; none = the weights that training starts from",
    )
    gold: Literal["answer", "solution"] = Field(
        "answer", description="the gold text: the task's answers, or its worked solutions"
    )
    levels: Annotated[tuple[_Level, ...], Field(strict=False)] = Field(
        (),
        description="pairs [improvement, reward] in rising order: the reward is that of the last pair whose "
        "improvement is reached, and 0 below the first pair; [] = the improvement itself is the reward",
    )

    @field_validator("levels")
    @classmethod
    def _rising(cls, levels: tuple[_Level, ...]) -> tuple[_Level, ...]:
        if any(low >= high for (low, _), (high, _) in pairwise(levels)):
            raise ValueError(f"the improvements {[at for at, _ in levels]} do not rise: sort the pairs by them")
        return levels

    def rewards(self, group: Sequence[Attempt], context: RewardContext) -> list[float]:
        return [self._level(attempt.perplexity_improvement) for attempt in group]

    def _level(self, improvement: float) -> float:
        if not self.levels or math.isnan(improvement):
            return improvement
        # The number of levels that the improvement reaches.
        reached = bisect.bisect_right(self.levels, improvement, key=lambda level: level[0])
        return self.levels[reached - 1][1] if reached else 0.0


def perplexity_improvement(logp_before: float, logp_after: float, n_tokens: int) -> float:
    """Return (PPL_before - PPL_after) / PPL_before of a text of n_tokens, from its log-probs in nats.

    The growth of the log perplexity is capped at `LOG_GROWTH_LIMIT`.
    """
    # PPL = exp(-logp / n), so the improvement is 1 - exp((logp_before - logp_after) / n). expm1 is accurate for small
    # improvements.
    return 0.0 - math.expm1(min(LOG_GROWTH_LIMIT, (logp_before - logp_after) / n_tokens))


class Jepo(RewardPart):
    """Log-likelihood of the gold answer after the completion's own reasoning, under the policy, in nats (JEPO,
    2503.19618).

    The reasoning c is a latent variable. The reward maximises a lower bound on log p(y|x), with n the size of the group
    and p_i = pi(y | x, c_i):

    one_sample: mean of log p_i. The reward is log p_i; its leave-one-out baseline is objective.baseline=leave_one_out.

    multi_sample: log of the mean of p_i, a tighter bound. The reward of a completion is n times its contribution to the
    bound: n (log mean_j p_j - log mean_{j != i} p_j). This includes a baseline, so objective.baseline must be none.

    The gradient of either bound has a second, supervised term: the gradient of log p_i itself, weighted by 1 under
    one_sample and by n p_i / sum_j p_j under multi_sample, times reward.jepo.supervised. Tokens after the marker that
    opens the answer do not affect the bound. They stay out of the loss, unless another part of the reward depends on
    them. The gradient is exactly the bound's with one optimiser step per rollout, objective.scale=none and
    objective.aggregation=seq_mean_token_sum.

    Traps: a log-likelihood has no lower bound, so a completion that makes the answer impossible dominates its group.
    Under one_sample, a policy whose reasoning often contains confident errors may learn not to reason at all.
    multi_sample needs only one good completion in a group. Reasoning is rewarded for making the answer predictable,
    sound or not. Several spellings of one answer share its probability, and only the gold spelling counts. Scaling the
    rewards (group_std) changes the balance of the two terms.

    Elsewhere: the multi-sample leave-one-out estimator is VIMCO's (1602.06725). VeriFree (2505.21493) uses p_i instead
    of its logarithm, so its reward vanishes for long answers. RLPR (2506.18254) uses the mean of token probabilities.
    """

    name = "jepo"
    gold_scored_by = "policy"

    bound: Literal["one_sample", "multi_sample"] = Field(
        "one_sample", description="which lower bound on the gold answer's log-likelihood is maximised"
    )
    supervised: float = Field(
        1.0,
        ge=0,
        description="factor of the supervised term on the gold answer; 1 = the bound's gradient; 0 = no such term",
    )

    def rewards(self, group: Sequence[Attempt], context: RewardContext) -> list[float]:
        logps = [attempt.answer_logp for attempt in group]
        if self.bound == "one_sample":
            return logps
        # n times the attempt's contribution to the bound: the log mean with it minus the log mean without it.
        whole = log_mean_exp(logps)
        others = (log_mean_exp(logps[:place] + logps[place + 1 :]) for place in range(len(logps)))
        return [len(logps) * (whole - other) for other in others]

    def answer_weights(self, logps: Sequence[float]) -> list[float]:
        """Return the weight of each attempt's gold answer in the supervised term, for one group.

        logps: log-likelihood of the gold answer after each attempt. The weight is the group's size times the derivative
        of the bound, times `supervised`.
        """
        if self.bound == "one_sample":
            return [self.supervised] * len(logps)
        whole = log_mean_exp(logps)
        # n d/dlogp_i log mean_j p_j = n p_i / sum_j p_j = p_i / mean_j p_j.
        return [self.supervised * math.exp(logp - whole) for logp in logps]


def gold_columns(groups: Sequence[Sequence[Attempt]]) -> dict[str, list[float]]:
    """Return the rollout columns gold/*, with a value for each attempt, group after group.

    steps.jsonl has the means of these columns. A column without any value is left out.

    * gold/answer_logp: the log-likelihood of `Jepo`, in nats. Its mean is the one-sample bound.
    * gold/multi_sample_bound: the bound over the attempt's group, in nats. It is never below the group's mean
      log-likelihood.
    * gold/improvement: the improvement of `VrCli`, before its levels are applied.
    """
    logps = [[attempt.answer_logp for attempt in group] for group in groups]
    found = {
        "gold/answer_logp": [logp for group in logps for logp in group],
        "gold/multi_sample_bound": [bound for group in logps for bound in [log_mean_exp(group)] * len(group)],
        "gold/improvement": [attempt.perplexity_improvement for group in groups for attempt in group],
    }
    return {name: values for name, values in found.items() if not all(map(math.isnan, values))}


def log_mean_exp(logps: Sequence[float]) -> float:
    """Return the log of the mean probability, from log-probabilities."""
    most = max(logps)
    # The largest probability is factored out, so that exp cannot underflow for all of them.
    return most + math.log(math.fsum(math.exp(logp - most) for logp in logps) / len(logps))
