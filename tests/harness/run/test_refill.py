from __future__ import annotations

from typing import Any

import pytest
import torch

from harness.engines.torch.engine import TorchEngine
from harness.models.language_model import LanguageModel, load_model
from harness.run.learning.rollouts import Rollouts
from harness.run.prompts import prompt_order, training_prompts
from harness.training.batch import Batch, filter_rows
from harness.training.optimizer import DivergedError
from tests.harness.run.small import small_spec

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def start() -> LanguageModel:
    return load_model("builtin:tiny")


def gathered(start: LanguageModel, settings: dict[str, Any] | None = None, step: int = 1) -> Batch:
    spec = small_spec(settings)
    engine = TorchEngine(start.model, start.pad_token_id, start.eos_token_ids, start.decode)
    order = prompt_order(spec.task, training_prompts(spec, {}), spec.seed)
    return Rollouts(spec, start, engine).gather(step, 0.0, order, spec.rollout.max_completion_tokens)


def filtered(batch: Batch, settings: dict[str, Any]) -> Batch:
    return filter_rows(small_spec(settings).policy_gradient, batch)


def ids(batch: Batch) -> list[str]:
    return [group[0].id for group in batch.by_group(batch.problems)]


REFILL = {"objective.zero_std": "refill", "rollout.samples_per_prompt": 2, "rollout.prompts_per_step": 8}


@pytest.fixture(scope="module")
def refilled(start: LanguageModel) -> Batch:
    return gathered(start, REFILL)


def test_refill_fills_the_batch_with_groups_that_say_something(refilled: Batch) -> None:
    kept = filtered(refilled, REFILL)
    assert refilled.refill_rounds > 0
    assert len(torch.unique(kept.groups)) == 8
    for group in torch.unique(kept.groups).tolist():
        assert len(torch.unique(kept.rewards[kept.groups == group])) == 2
    assert len(set(ids(refilled))) == len(ids(refilled)) > 8


def test_all_that_was_drawn_is_counted(start: LanguageModel, refilled: Batch) -> None:
    assert len(refilled) == len(refilled.attempts) == 2 * len(ids(refilled))
    assert refilled.generated_tokens == sum(attempt.n_tokens for attempt in refilled.attempts)
    for row, attempt in enumerate(refilled.attempts):
        assert attempt.problem.id == ids(refilled)[row // 2]
        assert attempt.text == start.decode(refilled.sequences.completions[row, : attempt.n_tokens].tolist())


def test_the_first_round_is_that_of_an_arm_without_refill(start: LanguageModel, refilled: Batch) -> None:
    without = gathered(start, {**REFILL, "objective.zero_std": "drop"})
    assert ids(refilled)[:8] == ids(without)
    texts = [attempt.text for attempt in without.attempts]
    assert [attempt.text for attempt in refilled.attempts[: len(texts)]] == texts
    assert without.refill_rounds == 0


def test_refill_is_bounded(start: LanguageModel) -> None:
    settings = {**REFILL, "objective.refill_max_rounds": 1}
    batch = gathered(start, settings)
    assert batch.refill_rounds == 1
    assert 0 < len(torch.unique(filtered(batch, settings).groups)) <= 8


def test_refill_ends_with_the_pool(start: LanguageModel) -> None:
    assert len(ids(gathered(start, {**REFILL, "task.pool": 9}))) == 9


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
    Rollouts(spec, start, engine).gather(1, 0.0, order, 32)
    assert len(keys) > 1
    drawn = torch.cat([some.flatten() for some in keys])
    assert len(torch.unique(drawn)) == len(drawn)


def test_the_limit_is_that_of_the_stage(start: LanguageModel) -> None:
    spec = small_spec({"objective.aggregation": "constant_length"})
    engine = TorchEngine(start.model, start.pad_token_id, start.eos_token_ids, start.decode)
    order = prompt_order(spec.task, training_prompts(spec, {}), spec.seed)
    batch = Rollouts(spec, start, engine).gather(1, 0.0, order, 7)
    assert batch.max_completion_tokens == 7
    assert int(batch.sequences.lengths.max()) <= 7
    assert bool(batch.truncated.any())


def test_a_policy_without_probabilities_is_told(start: LanguageModel) -> None:
    broken = load_model("builtin:tiny")
    with torch.no_grad():
        broken.model.get_input_embeddings().weight.fill_(float("nan"))
    with pytest.raises(DivergedError):
        gathered(broken)


def test_a_group_whose_answers_differ_only_where_they_were_cut_is_no_use(start: LanguageModel) -> None:
    """With overlong=drop the rows that were cut have no say in whether a batch is full."""
    settings = {
        **REFILL,
        "rollout.samples_per_prompt": 6,
        "rollout.max_completion_tokens": 12,
        "objective.overlong.type": "drop",
    }
    for step in (1, 2):
        batch = gathered(start, settings, step)
        kept = filtered(batch, settings)
        groups = torch.unique(kept.groups).tolist()
        assert len(groups) == 8
        assert len(batch) - len(kept) > 6 * (len(ids(batch)) - 8), "some rows of groups that stay were cut"
        for group in groups:
            assert len(torch.unique(kept.rewards[kept.groups == group])) == 2


def test_rewards_of_steps_reach_the_update(start: LanguageModel) -> None:
    settings = {"objective.credit": "steps", "reward.parts.process": 1.0}
    batch = gathered(start, settings)
    token_rewards = batch.token_rewards
    assert token_rewards is not None
    assert token_rewards.shape == batch.sequences.completions.shape
    assert 0 < int((~token_rewards.isnan()).sum()) < token_rewards.numel()
