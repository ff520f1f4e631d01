"""What a rollout batch says of itself. The batches are made up; the language model is the tiny tokenizer alone."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any, cast

import pytest
import torch

from evals.grading import Verdict
from evals.tasks.base import Problem
from harness.engines.base import Completions, SamplingParams
from harness.models.language_model import LanguageModel
from harness.models.tiny import tiny_tokenizer
from harness.run.rollout import Rewards, RolloutBatch, grade_and_reward, roll_out, rollout_metrics, rollout_rows
from harness.training.reward_model import RewardModel
from harness.training.sequences import Sequences
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
LENGTHS = [8, 8, 4, 4, 8, 4, 4, 32]


def batch(problems: list[Problem] = PROBLEMS) -> RolloutBatch:
    """Every token has log-prob -1 in even rows and -2 in odd ones."""
    rows = [TOKENIZER(text)["input_ids"] for text in TEXTS]
    rows = [row if len(row) == 32 else [*row, TOKENIZER.eos_token_id] for row in rows]
    lengths = torch.tensor([len(row) for row in rows])
    assert lengths.tolist() == LENGTHS
    tokens = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    logps = -torch.tensor([1.0, 2.0] * 4)[:, None] * (torch.arange(32) < lengths[:, None])
    return RolloutBatch(problems, [[3]] * 4, Completions(tokens, logps, lengths, lengths == 32), 2, LIMIT_TOKENS)


def rewarded(settings: dict[str, Any], step: int = 1) -> Rewards:
    return grade_and_reward(batch(), small_spec(settings), LANGUAGE_MODEL, step)[1]


def metrics(total: list[float], parts: dict[str, list[float]] | None = None, **changes: Any) -> dict[str, float | None]:
    made = batch(**changes)
    tried, _ = grade_and_reward(made, small_spec(), LANGUAGE_MODEL, 1)
    return rollout_metrics(made, tried, Rewards(total, parts or {}))


NAN = math.nan
TOTAL = [1.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0, 0.0]


def test_attempts_say_what_was_drawn() -> None:
    tried, rewards = grade_and_reward(batch(), small_spec(), LANGUAGE_MODEL, 1)
    assert [attempt.text for attempt in tried] == TEXTS
    assert [attempt.n_tokens for attempt in tried] == LENGTHS
    assert [attempt.sample for attempt in tried] == [0, 1] * 4
    assert [attempt.mean_logp for attempt in tried] == [-1, -2] * 4
    assert [attempt.truncated for attempt in tried] == [False] * 7 + [True]
    assert [attempt.problem for attempt in tried] == [problem for problem in PROBLEMS for _ in range(2)]
    assert rewards.total == TOTAL
    assert rewards.token_rewards is None


def test_groups_are_the_samples_of_a_prompt() -> None:
    rewards = rewarded({"reward.parts": {"correct": 0.0, "kimi_length": 1.0}})
    # The limit, 32 tokens, is not what a group is measured by: 8 and 8, 4 and 4, 8 and 4, 4 and 32.
    assert rewards.total == [0, 0, 0, 0, -0.5, 0, 0.5, -0.5]


def test_the_step_reaches_the_parts() -> None:
    settings = {"reward.parts": {"correct": 0.0, "kimi_length": 1.0}, "reward.kimi_length.from_step": 3}
    assert rewarded(settings, step=2).total == [0] * 8
    assert any(rewarded(settings, step=3).total)


def test_the_limit_that_was_drawn_under_reaches_the_parts() -> None:
    spec = small_spec({"objective.overlong.type": "soft", "objective.overlong.cache_frac": 0.875})
    _, rewards = grade_and_reward(batch(), spec, LANGUAGE_MODEL, 1)
    assert rewards.parts["overlong"] == pytest.approx([-4 / 28, -4 / 28, 0, 0, -4 / 28, 0, 0, -1])
    _, rewards = grade_and_reward(replace(batch(), max_completion_tokens=64), spec, LANGUAGE_MODEL, 1)
    assert rewards.parts["overlong"] == pytest.approx([0, 0, 0, 0, 0, 0, 0, -24 / 56])


def test_steps_are_rewarded_at_their_tokens_where_they_have_the_credit() -> None:
    parts = {"reward.parts": {"correct": 1.0, "process": 0.5}}
    whole = rewarded(parts)
    assert whole.token_rewards is None
    assert whole.total[:4] == [1.5, 0.25, 1, 1]
    apart = rewarded(parts | {"objective.credit": "steps"})
    assert apart.total == TOTAL
    assert apart.parts == whole.parts
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


@pytest.mark.parametrize(
    "problems",
    [[Problem("a", "3+5+9=", "17", difficulty=3)] * 4, [Problem("a", "3+5+9=", "17")] * 4],
    ids=["all equal", "unknown"],
)
def test_no_slope_without_difficulties(problems: list[Problem]) -> None:
    assert metrics(TOTAL, problems=problems)["len/difficulty_slope"] is None


def test_problems_of_unknown_difficulty_do_not_count_for_the_slope() -> None:
    problems = [replace(PROBLEMS[0], difficulty=None), *PROBLEMS[1:]]
    # The mean lengths are 4 at 3 and 12 at 5.
    assert metrics(TOTAL, problems=problems)["len/difficulty_slope"] == pytest.approx(4)


def test_answers_that_could_not_be_judged_do_not_count_as_wrong() -> None:
    made = batch()
    tried, _ = grade_and_reward(made, small_spec(), LANGUAGE_MODEL, 1)
    tried[1] = replace(tried[1], verdict=Verdict(False, "18", "timeout"))
    assert rollout_metrics(made, tried, Rewards(TOTAL, {}))["reward/correct"] == pytest.approx(5 / 7)


def test_rows_are_json_without_nan() -> None:
    made = batch()
    tried, _ = grade_and_reward(made, small_spec(), LANGUAGE_MODEL, 1)
    rewards = Rewards([NAN, *TOTAL[1:]], {"own_logp": [-1.0, NAN, *[-1.0] * 6]})
    rows = rollout_rows(made, 3, tried, rewards)
    json.dumps(rows, allow_nan=False)
    assert [row["reward"] for row in rows] == [None, *TOTAL[1:]]
    assert [row["reward/own_logp"] for row in rows[:3]] == [-1.0, None, -1.0]
    assert [row["tokens"] for row in rows] == [
        made.completions.tokens[i, :length].tolist() for i, length in enumerate(LENGTHS)
    ]
    assert {row["step"] for row in rows} == {3}


def test_joined_batches_are_one_batch() -> None:
    """As if the groups had been drawn together, but for the padding."""
    whole = batch()
    halves = [part(whole, 0, 4), part(whole, 4, 8)]
    assert halves[0].completions.tokens.shape[1] == 8
    joined = RolloutBatch.joined(halves)
    assert (joined.problems, joined.prompts, joined.samples) == (whole.problems, whole.prompts, whole.samples)
    assert joined.max_completion_tokens == whole.max_completion_tokens
    assert joined.generated_tokens == whole.generated_tokens == 72
    for name in ("tokens", "logps", "lengths", "truncated"):
        assert torch.equal(getattr(joined.completions, name), getattr(whole.completions, name)), name


def part(whole: RolloutBatch, first: int, end: int) -> RolloutBatch:
    """Rows first to end, as wide as the longest of them."""
    drawn, groups = whole.completions, slice(first // 2, end // 2)
    rows, width = slice(first, end), int(drawn.lengths[first:end].max())
    completions = Completions(
        drawn.tokens[rows, :width], drawn.logps[rows, :width], drawn.lengths[rows], drawn.truncated[rows]
    )
    return RolloutBatch(whole.problems[groups], whole.prompts[groups], completions, 2, LIMIT_TOKENS)


class KeptKeys:
    """An engine that draws nothing and keeps what it was asked for."""

    keys: torch.Tensor
    params: SamplingParams

    def generate(
        self, prompts: object, keys: torch.Tensor, params: SamplingParams, on_finished: object = None
    ) -> Completions:
        self.keys, self.params = keys, params
        return batch().completions


def test_prompts_that_are_drawn_later_in_a_step_have_their_own_noise() -> None:
    def keys(problems: list[Problem], first_example: int = 0) -> torch.Tensor:
        engine = KeptKeys()
        made = roll_out(problems, small_spec(), 3, LANGUAGE_MODEL, engine, 48, first_example)
        assert engine.params.max_completion_tokens == made.max_completion_tokens == 48
        return engine.keys

    at_once = keys(PROBLEMS)
    assert torch.equal(torch.cat([keys(PROBLEMS[:3]), keys(PROBLEMS[3:], first_example=3)]), at_once)
    assert len(set(at_once.flatten().tolist())) == at_once.numel()


class Judge:
    """A reward model with a score of its own for each row."""

    SCORES = (0.5, -3.5, 2.5, 1.5, -1.5, 3.5, -2.5, -0.5)

    def scores(self, sequences: Sequences) -> torch.Tensor:
        assert sequences.prompts == [[3]] * 8
        assert sequences.lengths.tolist() == LENGTHS
        return torch.tensor(self.SCORES)


def test_the_reward_model_pays_and_the_truth_is_logged() -> None:
    spec = small_spec({"reward.parts": {"correct": 0.0, "reward_model": 2.0}})
    tried, rewards = grade_and_reward(batch(), spec, LANGUAGE_MODEL, 1, cast(RewardModel, Judge()))
    scores = list(Judge.SCORES)
    assert rewards.total == [2 * score for score in scores]
    assert rewards.parts == {"correct": TOTAL, "reward_model": scores}
    found = rollout_metrics(batch(), tried, rewards)
    assert found["reward/correct"] == 0.625
    assert found["reward/reward_model"] == found["reward/mean"] == 0
    row = rollout_rows(batch(), 1, tried, rewards)[7]
    assert (row["reward"], row["reward/correct"], row["reward/reward_model"]) == (-1, 0, -0.5)


@pytest.mark.parametrize(
    ("parts", "judge"), [({"correct": 0.0, "reward_model": 1.0}, None), ({"correct": 1.0}, Judge())]
)
def test_the_reward_model_and_its_part_come_together(parts: dict[str, float], judge: Judge | None) -> None:
    with pytest.raises(ValueError, match="a reward model comes with a part that needs it"):
        grade_and_reward(batch(), small_spec({"reward.parts": parts}), LANGUAGE_MODEL, 1, cast(Any, judge))
