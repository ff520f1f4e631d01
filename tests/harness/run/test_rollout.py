"""What is made of drawn completions. They are made up; the language model is the tiny tokenizer alone."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
import torch

from evals.grading import Verdict
from evals.tasks.base import Problem
from harness.engines.base import Completions, SamplingParams
from harness.models.language_model import LanguageModel
from harness.models.tiny import tiny_tokenizer
from harness.run.learning.base import CompletionScorer, Examples
from harness.run.learning.rollouts import Rollouts, rollout_rows
from harness.shelves.learned.generative_judge import JudgeScorer
from harness.shelves.learned.judging import AnswerPair, Scores
from harness.training.batch import Batch, peers_of
from harness.training.update_report import rollout_metrics
from tests.harness.run.small import small_spec

TOKENIZER = tiny_tokenizer()
LANGUAGE_MODEL = LanguageModel(cast(Any, None), TOKENIZER)
TEXTS = ["8,17#17", "8,18#18", "#17", "#17", "5,12#12", "5#9", "#12", "12345678901234567890123456789012"]
"""Two samples each of 3+5+9, 3+5+9, 1+4+7 and 1+4+7; the last one is cut at the limit of 32 tokens."""
PROBLEMS = [
    Problem("3+5+9", "3+5+9=", "17", difficulty=3),
    Problem("3+5+9", "3+5+9=", "17", difficulty=3),
    Problem("1+4+7", "1+4+7=", "12", difficulty=5),
    Problem("1+4+7", "1+4+7=", "12", difficulty=5),
]
LIMIT_TOKENS = 32
TWO_SAMPLES = {"rollout.samples_per_prompt": 2}
LENGTHS = [8, 8, 4, 4, 8, 4, 4, 32]


def completions() -> Completions:
    """Every token has log-prob -1 in even rows and -2 in odd ones."""
    rows = [TOKENIZER(text)["input_ids"] for text in TEXTS]
    rows = [row if len(row) == 32 else [*row, TOKENIZER.eos_token_id] for row in rows]
    lengths = torch.tensor([len(row) for row in rows])
    assert lengths.tolist() == LENGTHS
    tokens = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    logps = -torch.tensor([1.0, 2.0] * 4)[:, None] * (torch.arange(32) < lengths[:, None])
    return Completions(tokens, logps, lengths, lengths == 32)


class KeptKeys:
    """An engine that gives the same completions whatever is asked, and keeps what it was asked for."""

    keys: torch.Tensor
    params: SamplingParams

    def generate(
        self, prompts: object, keys: torch.Tensor, params: SamplingParams, on_finished: object = None
    ) -> Completions:
        self.keys, self.params = keys, params
        return completions()


def drawn(problems: list[Problem] = PROBLEMS) -> Batch:
    return Rollouts(small_spec(TWO_SAMPLES), LANGUAGE_MODEL, KeptKeys()).writer.draw(problems, 1, LIMIT_TOKENS)


def rewarded(
    settings: dict[str, Any] | None = None,
    batch: Batch | None = None,
    step: int = 1,
    judge: CompletionScorer | None = None,
) -> Batch:
    examples = Examples(scorers={"reward_model": judge} if judge else {})
    return Rollouts(small_spec(settings), LANGUAGE_MODEL, KeptKeys(), examples).reward(batch or drawn(), step)


def parts(batch: Batch) -> dict[str, list[float]]:
    return {
        name.removeprefix("reward/"): list(values) for name, values in batch.reward_columns.items() if name != "reward"
    }


def metrics(
    total: list[float], parts: dict[str, list[float]] | None = None, problems: list[Problem] = PROBLEMS
) -> dict[str, float | None]:
    columns = {"reward": total, **{f"reward/{name}": values for name, values in (parts or {}).items()}}
    return rollout_metrics(replace(rewarded(batch=drawn(problems)), reward_columns=columns))


NAN = math.nan
TOTAL = [1.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0, 0.0]


def test_attempts_say_what_was_drawn() -> None:
    batch = rewarded()
    tried = batch.attempts
    assert [attempt.text for attempt in tried] == TEXTS
    assert [attempt.n_tokens for attempt in tried] == LENGTHS
    assert [attempt.sample for attempt in tried] == [0, 1] * 4
    assert [attempt.mean_logp for attempt in tried] == [-1, -2] * 4
    assert [attempt.truncated for attempt in tried] == [False] * 7 + [True]
    assert [attempt.problem for attempt in tried] == [problem for problem in PROBLEMS for _ in range(2)]
    assert batch.rewards.tolist() == batch.reward_columns["reward"] == TOTAL
    assert batch.correct.tolist() == [reward == 1 for reward in TOTAL]
    assert batch.token_rewards is None


def test_the_group_the_step_and_the_limit_reach_the_parts() -> None:
    by_length = {"reward.parts": {"correct": 0.0, "kimi_length": 1.0}, "reward.kimi_length.from_step": 3}
    assert not rewarded(by_length, step=2).rewards.any()
    # The limit, 32 tokens, is not what a group is measured by: 8 and 8, 4 and 4, 8 and 4, 4 and 32.
    assert rewarded(by_length, step=3).rewards.tolist() == [0, 0, 0, 0, -0.5, 0, 0.5, -0.5]
    settings = {"objective.overlong.type": "soft", "objective.overlong.cache_frac": 0.875}
    assert parts(rewarded(settings))["overlong"] == pytest.approx([-4 / 28, -4 / 28, 0, 0, -4 / 28, 0, 0, -1])
    longer = replace(drawn(), max_completion_tokens=64)
    assert parts(rewarded(settings, longer))["overlong"] == pytest.approx([0, 0, 0, 0, 0, 0, 0, -24 / 56])


def test_steps_are_rewarded_at_their_tokens_where_they_have_the_credit() -> None:
    settings = {"reward.parts": {"correct": 1.0, "process": 0.5}}
    whole = rewarded(settings)
    assert whole.token_rewards is None
    assert whole.rewards[:4].tolist() == [1.5, 0.25, 1, 1]
    apart = rewarded(settings | {"objective.credit": "steps"})
    assert apart.rewards.tolist() == TOTAL
    assert parts(apart) == parts(whole)
    assert apart.token_rewards is not None
    assert apart.token_rewards.shape == (8, 32)
    places = [tuple(place) for place in (~apart.token_rewards.isnan()).nonzero().tolist()]
    assert places == [(0, 0), (0, 3), (1, 0), (1, 3), (4, 0), (4, 3), (5, 0), (7, 31)]
    assert [float(apart.token_rewards[place]) for place in places] == [0.5, 0.5, 0.5, 0, 0.5, 0.5, 0.5, 0]


def test_metrics_of_rewards() -> None:
    found = metrics(TOTAL, {"correct": TOTAL, "majority": [0.5] * 6 + [1.0, NAN]})
    assert found["reward/mean"] == found["reward/correct"] == 0.625
    assert found["reward/std"] == pytest.approx(float(torch.tensor(TOTAL).std()))
    assert found["reward/majority"] == pytest.approx(4 / 7)
    assert found["reward/unscored"] == 0
    assert found["reward/frac_zero_std"] == 0.25
    assert found["reward/frac_all_0"] == 0
    assert found["reward/frac_all_1"] == 0.25


def test_what_has_no_reward_is_counted_and_left_out() -> None:
    found = metrics([1.0, NAN, NAN, NAN, 1.0, 0.0, 0.5, 0.5])
    assert found["reward/unscored"] == 3
    assert found["reward/mean"] == 3 / 5
    assert found["reward/std"] == pytest.approx(float(torch.tensor([1, 1, 0, 0.5, 0.5]).std()))
    assert found["reward/frac_zero_std"] == 2 / 3  # the first and the last of those that have any
    assert found["reward/correct"] == 0.625


def test_metrics_of_no_rewards_at_all() -> None:
    found = metrics([NAN] * 8, {"own_logp": [NAN] * 8})
    assert found["reward/unscored"] == 8
    for key in ("reward/mean", "reward/std", "reward/own_logp", "reward/frac_zero_std"):
        assert found[key] is None


def test_metrics_of_lengths() -> None:
    found = metrics(TOTAL)
    assert found["len/mean"] == 9
    assert found["len/correct"] == pytest.approx((8 + 4 + 4 + 8 + 4) / 5)
    assert found["len/incorrect"] == pytest.approx((8 + 4 + 32) / 3)
    assert found["len/truncated_frac"] == 0.125
    # A line through the mean lengths at the two difficulties, 6 at 3 and 12 at 5.
    assert found["len/difficulty_slope"] == pytest.approx(3)


def test_the_slope_is_over_problems_of_known_and_different_difficulties() -> None:
    for problem in (Problem("a", "3+5+9=", "17", difficulty=3), Problem("a", "3+5+9=", "17")):
        assert metrics(TOTAL, problems=[problem] * 4)["len/difficulty_slope"] is None
    problems = [replace(PROBLEMS[0], difficulty=None), *PROBLEMS[1:]]
    # The mean lengths are 4 at 3 and 12 at 5.
    assert metrics(TOTAL, problems=problems)["len/difficulty_slope"] == pytest.approx(4)


def test_answers_that_could_not_be_judged_do_not_count_as_wrong() -> None:
    batch = rewarded()
    tried = list(batch.attempts)
    tried[1] = replace(tried[1], verdict=Verdict(False, "18", "timeout"))
    judged = replace(batch, attempts=tried, reward_columns={"reward": TOTAL})
    assert rollout_metrics(judged)["reward/correct"] == pytest.approx(5 / 7)


def test_rows_are_json_without_nan() -> None:
    columns = {"reward": [NAN, *TOTAL[1:]], "reward/own_logp": [-1.0, NAN, *[-1.0] * 6]}
    batch = replace(rewarded(), reward_columns=columns)
    rows = rollout_rows(batch, 3)
    json.dumps(rows, allow_nan=False)
    assert [row["reward"] for row in rows] == [None, *TOTAL[1:]]
    assert [row["reward/own_logp"] for row in rows[:3]] == [-1.0, None, -1.0]
    assert [row["tokens"] for row in rows] == [
        batch.sequences.completions[i, :length].tolist() for i, length in enumerate(LENGTHS)
    ]
    assert {row["step"] for row in rows} == {3}


def test_rounds_are_joined_to_one_batch() -> None:
    """As if the groups had been drawn together, but for the padding."""
    whole = rewarded({"reward.parts": {"correct": 1.0, "process": 0.5}, "objective.credit": "steps"})
    halves = [narrowed(whole.rows(torch.arange(first, first + 4))) for first in (0, 4)]
    assert halves[0].sequences.completions.shape[1] == 8
    joined = Batch.joined(halves)
    assert (joined.problems, joined.attempts, joined.reward_columns) == (
        whole.problems,
        whole.attempts,
        whole.reward_columns,
    )
    assert joined.generated_tokens == whole.generated_tokens == 72
    assert joined.refill_rounds == 1
    for name in ("sampler_logps", "truncated", "groups", "rewards", "correct"):
        assert torch.equal(getattr(joined, name), getattr(whole, name)), name
    assert torch.equal(joined.sequences.completions, whole.sequences.completions)
    assert joined.token_rewards is not None and whole.token_rewards is not None
    assert torch.equal(joined.token_rewards.nan_to_num(-9), whole.token_rewards.nan_to_num(-9))


def narrowed(batch: Batch) -> Batch:
    """As wide as its longest completion."""
    sequences, width = batch.sequences, int(batch.sequences.lengths.max())
    assert batch.token_rewards is not None
    return replace(
        batch,
        sequences=replace(sequences, completions=sequences.completions[:, :width]),
        sampler_logps=batch.sampler_logps[:, :width],
        token_rewards=batch.token_rewards[:, :width],
    )


def test_prompts_that_are_drawn_later_in_a_step_have_their_own_noise() -> None:
    def keys(problems: list[Problem], first_example: int = 0) -> torch.Tensor:
        engine = KeptKeys()
        batch = Rollouts(small_spec(), LANGUAGE_MODEL, engine).writer.draw(problems, 3, 48, first_example)
        assert engine.params.max_completion_tokens == batch.max_completion_tokens == 48
        return engine.keys

    at_once = keys(PROBLEMS)
    assert torch.equal(torch.cat([keys(PROBLEMS[:3]), keys(PROBLEMS[3:], first_example=3)]), at_once)
    assert len(set(at_once.flatten().tolist())) == at_once.numel()


class Judge(CompletionScorer):
    """A reward model with a score of its own for each row."""

    SCORES = (0.5, -3.5, 2.5, 1.5, -1.5, 3.5, -2.5, -0.5)

    def scores(self, batch: Batch, seed: int, step: int) -> Sequence[float]:
        assert len(batch.sequences.prompts) == 8
        assert batch.sequences.lengths.tolist() == LENGTHS
        return self.SCORES


def test_the_reward_model_pays_and_the_truth_is_logged() -> None:
    batch = rewarded({"reward.parts": {"correct": 0.0, "reward_model": 2.0}}, judge=Judge())
    scores = list(Judge.SCORES)
    assert batch.rewards.tolist() == [2 * score for score in scores]
    assert parts(batch) == {"correct": TOTAL, "reward_model": scores}
    found = rollout_metrics(batch)
    assert found["reward/correct"] == 0.625
    assert found["reward/reward_model"] == found["reward/mean"] == 0
    row = rollout_rows(batch, 1)[7]
    assert (row["reward"], row["reward/correct"], row["reward/reward_model"]) == (-1, 0, -0.5)


class PrefersShort:
    """A judge that finds the shorter text better."""

    def scores(self, pairs: Sequence[AnswerPair]) -> list[Scores]:
        return [(-len(pair.first), -len(pair.second)) for pair in pairs]


@pytest.mark.parametrize("algorithm", ["brpo", "grpo"])
def test_a_judge_compares_with_the_peer_that_brpo_would_draw_and_the_truth_is_logged(algorithm: str) -> None:
    settings = {"algorithm": algorithm, "reward.parts": {"correct": 0.0, "pairwise": 2.0}}
    for step in (1, 2, 3):
        examples = Examples(scorers={"pairwise": JudgeScorer(PrefersShort())})
        rollouts = Rollouts(small_spec(settings), LANGUAGE_MODEL, KeptKeys(), examples)
        batch = rollouts.reward(drawn(), step)
        peers = peers_of(batch.groups, seed=0, step=step).tolist()
        shorter = [
            (len(TEXTS[peer]) > len(text)) - (len(TEXTS[peer]) < len(text))
            for text, peer in zip(TEXTS, peers, strict=True)
        ]
        assert parts(batch) == {"correct": TOTAL, "pairwise": shorter}
        assert batch.rewards.tolist() == [2 * verdict for verdict in shorter]
        found = rollouts.metrics(batch)
        assert found["reward/correct"] == 0.625
        assert (found["judge/flip_frac"], found["judge/first_frac"], found["judge/no_scores_frac"]) == (0, 0.5, 0)
