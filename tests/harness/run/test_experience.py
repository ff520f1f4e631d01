from __future__ import annotations

from typing import Any

import pytest
import torch

from harness.engines.torch.engine import TorchEngine
from harness.models.language_model import LanguageModel, load_model
from harness.run.prompts import prompt_order, training_prompts
from harness.run.rollout import Experience, gather
from harness.training.optimizer import DivergedError
from tests.harness.run.small import small_spec


@pytest.fixture(scope="module")
def start() -> LanguageModel:
    return load_model("builtin:tiny")


def gathered(start: LanguageModel, settings: dict[str, Any] | None = None, step: int = 1) -> Experience:
    spec = small_spec(settings)
    engine = TorchEngine(start.model, start.pad_token_id, start.eos_token_ids, start.decode)
    order = prompt_order(spec.task, training_prompts(spec, {}), spec.seed)
    return gather(step, 0.0, spec, order, spec.rollout.max_completion_tokens, start, engine)


def ids(experience: Experience) -> list[str]:
    return [problem.id for problem in experience.batch.problems]


REFILL = {"objective.zero_std": "refill", "rollout.samples_per_prompt": 2, "rollout.prompts_per_step": 8}


def test_refill_fills_the_batch_with_groups_that_say_something(start: LanguageModel) -> None:
    experience = gathered(start, REFILL)
    filtered = experience.filtered(small_spec(REFILL).policy_gradient)
    rollout = filtered.rollout
    assert experience.refill_rounds > 0
    assert len(torch.unique(rollout.groups)) == 8
    for group in torch.unique(rollout.groups).tolist():
        assert len(torch.unique(rollout.rewards[rollout.groups == group])) == 2
    assert len(set(ids(experience))) == len(ids(experience)) > 8
    assert filtered.groups_dropped == len(ids(experience)) - 8


def test_all_that_was_drawn_is_counted(start: LanguageModel) -> None:
    experience = gathered(start, REFILL)
    batch = experience.batch
    assert len(batch.completions.lengths) == len(experience.tried) == 2 * len(ids(experience))
    assert batch.generated_tokens == sum(attempt.n_tokens for attempt in experience.tried)
    for row, attempt in enumerate(experience.tried):
        assert attempt.problem.id == ids(experience)[row // 2]
        text = start.decode(batch.completions.tokens[row, : attempt.n_tokens].tolist())
        assert attempt.text == text


def test_the_first_round_is_that_of_an_arm_without_refill(start: LanguageModel) -> None:
    with_refill, without = gathered(start, REFILL), gathered(start, {**REFILL, "objective.zero_std": "drop"})
    count = len(without.tried)
    assert ids(with_refill)[:8] == ids(without)
    assert [attempt.text for attempt in with_refill.tried[:count]] == [attempt.text for attempt in without.tried]
    assert without.refill_rounds == 0


def test_refill_is_bounded(start: LanguageModel) -> None:
    settings = {**REFILL, "objective.refill_max_rounds": 1}
    experience = gathered(start, settings)
    filtered = experience.filtered(small_spec(settings).policy_gradient)
    assert experience.refill_rounds == 1
    assert 0 < len(torch.unique(filtered.rollout.groups)) <= 8


def test_refill_ends_with_the_pool(start: LanguageModel) -> None:
    experience = gathered(start, {**REFILL, "task.pool": 9})
    assert len(ids(experience)) == 9


def test_noise_of_refills_is_their_own(start: LanguageModel) -> None:
    """Rounds do not repeat the noise of the rounds before: the keys go on counting prompts."""
    spec = small_spec(REFILL)
    keys: list[torch.Tensor] = []

    class Recording(TorchEngine):
        def generate(self, prompts: Any, keys_of: Any, params: Any, on_finished: Any = None) -> Any:
            keys.append(keys_of)
            return super().generate(prompts, keys_of, params)

    engine = Recording(start.model, start.pad_token_id, start.eos_token_ids, start.decode)
    order = prompt_order(spec.task, training_prompts(spec, {}), spec.seed)
    gather(1, 0.0, spec, order, 32, start, engine)
    assert len(keys) > 1
    drawn = torch.cat([some.flatten() for some in keys])
    assert len(torch.unique(drawn)) == len(drawn)


def test_the_limit_is_that_of_the_stage(start: LanguageModel) -> None:
    spec = small_spec({"objective.aggregation": "constant_length"})
    engine = TorchEngine(start.model, start.pad_token_id, start.eos_token_ids, start.decode)
    order = prompt_order(spec.task, training_prompts(spec, {}), spec.seed)
    experience = gather(1, 0.0, spec, order, 7, start, engine)
    rollout = experience.filtered(spec.policy_gradient).rollout
    assert experience.batch.max_completion_tokens == rollout.max_completion_tokens == 7
    assert int(experience.batch.completions.lengths.max()) <= 7
    assert bool(experience.batch.completions.truncated.any())


def test_a_policy_without_probabilities_is_told(start: LanguageModel) -> None:
    broken = load_model("builtin:tiny")
    with torch.no_grad():
        broken.model.get_input_embeddings().weight.fill_(float("nan"))
    with pytest.raises(DivergedError, match="log-probs"):
        gathered(broken)


def test_a_group_whose_answers_differ_only_where_they_were_cut_is_no_use(start: LanguageModel) -> None:
    """With overlong=drop the rows that were cut have no say in whether a batch is full."""
    settings = {
        **REFILL,
        "rollout.samples_per_prompt": 6,
        "rollout.max_completion_tokens": 12,
        "objective.overlong.type": "drop",
    }
    for step in (1, 2, 3, 4):
        filtered = gathered(start, settings, step).filtered(small_spec(settings).policy_gradient)
        rollout = filtered.rollout
        assert filtered.rows_dropped > 6 * filtered.groups_dropped
        assert len(torch.unique(rollout.groups)) == 8
        for group in torch.unique(rollout.groups).tolist():
            assert len(torch.unique(rollout.rewards[rollout.groups == group])) == 2


def test_rewards_of_steps_reach_the_update(start: LanguageModel) -> None:
    settings = {"objective.credit": "steps", "reward.parts.process": 1.0}
    rollout = gathered(start, settings).filtered(small_spec(settings).policy_gradient).rollout
    token_rewards = rollout.token_rewards
    assert token_rewards is not None
    assert token_rewards.shape == rollout.sequences.completions.shape
    assert 0 < int((~token_rewards.isnan()).sum()) < token_rewards.numel()
