"""The contract of an engine, for each that there is, and engines that break it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import pytest
import torch

from harness.config.rollout import RolloutSpec
from harness.engines.base import Completions, Engine, SamplingParams, make_engine
from harness.models.language_model import LanguageModel, PromptTooLongError
from harness.shelves.engine_contract import (
    PARAMS,
    PROBLEMS,
    PROMISES,
    BrokenPromiseError,
    ContractTrial,
    keys,
    rows_of,
    trainer_logps,
)
from tests.refusals import refuses

CONTEXT = 128


@pytest.fixture(scope="module")
def prompts(language_model: LanguageModel) -> list[list[int]]:
    return [language_model.encode(problem) for problem in PROBLEMS]


@pytest.mark.parametrize("promised", PROMISES)
def test_it_keeps_its_promises(engine: Engine, language_model: LanguageModel, promised: str) -> None:
    PROMISES[promised](ContractTrial(engine, language_model, rounds_by_company=type(engine).__name__ == "VllmEngine"))


class Broken:
    """The torch engine, with something wrong in what it is asked or in what it draws."""

    def __init__(
        self,
        language_model: LanguageModel,
        drawn: Callable[[Completions], Completions] = lambda drawn: drawn,
        asked: Callable[[torch.Tensor], torch.Tensor] = lambda keys: keys,
    ) -> None:
        self._engine = make_engine(RolloutSpec(engine="torch", max_completion_tokens=40), language_model)
        self._drawn, self._asked = drawn, asked

    def generate(self, prompts: object, keys: torch.Tensor, params: SamplingParams, *told: object) -> Completions:
        return self._drawn(self._engine.generate(prompts, self._asked(keys), params, *told))  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_broken_engine_is_found(language_model: LanguageModel) -> None:
    def by_position(keys: torch.Tensor) -> torch.Tensor:
        return keys + torch.arange(len(keys))[:, None]

    def few_keys(keys: torch.Tensor) -> torch.Tensor:
        return keys.flatten()[torch.arange(keys.numel()) // 100 * 100].view_as(keys)

    def logps_off(drawn: Completions) -> Completions:
        return replace(drawn, logps=torch.where(drawn.logps < 0, drawn.logps - 1e-3, drawn.logps))

    broken = {
        "shapes and padding": {"drawn": lambda drawn: replace(drawn, tokens=drawn.tokens + 1)},
        "log probs are those of the trainer": {"drawn": logps_off},
        "log probs are of the truncated distribution": {"drawn": logps_off},
        "a key gives the same tokens whatever else is in the batch": {"asked": by_position},
        "frequencies are those of the model": {"asked": few_keys},
        "completions end with end of sequence or are truncated": {
            "drawn": lambda drawn: replace(drawn, truncated=~drawn.truncated)
        },
    }
    for promised, fault in broken.items():
        with pytest.raises(BrokenPromiseError):
            PROMISES[promised](ContractTrial(Broken(language_model, **fault), language_model))


def test_prompts_that_do_not_fit(engine: Engine, prompts: list[list[int]]) -> None:
    with refuses(PromptTooLongError, "models.prompt_without_tokens"):
        engine.generate([prompts[0], []], keys(2), PARAMS)
    with refuses(
        PromptTooLongError, "models.context_exceeded", prompt_tokens=89, max_completion_tokens=40, context=128
    ):
        engine.generate([prompts[0], prompts[0][:1] * (CONTEXT - 39)], keys(2), PARAMS)
    fits = engine.generate([prompts[0][:1] * (CONTEXT - 40)], keys(1, 1), PARAMS)
    assert fits.lengths.item() >= 1


@torch.no_grad()
def with_padded_vocabulary(language_model: LanguageModel, size: int) -> LanguageModel:
    """The same model with embeddings that no token of the tokenizer has: copies of those that it has."""
    model = copy.deepcopy(language_model.model)
    model.resize_token_embeddings(size, mean_resizing=False)
    own = len(language_model.tokenizer)
    weight = model.get_input_embeddings().weight
    weight[own:] = weight[(torch.arange(own, size) - own) % own]
    assert model.get_output_embeddings().weight is weight
    return replace(language_model, model=model)


def test_a_vocabulary_larger_than_the_tokenizer(
    engine: Engine, language_model: LanguageModel, prompts: list[list[int]]
) -> None:
    """Tokens beyond the tokenizer are drawn like any other, have no text and take no part in stop strings."""
    padded = with_padded_vocabulary(language_model, 64)
    own = len(language_model.tokenizer)
    name: Literal["torch", "vllm"] = "vllm" if type(engine).__name__ == "VllmEngine" else "torch"
    wide = make_engine(RolloutSpec(engine=name, max_completion_tokens=40), padded)
    drawn = wide.generate(prompts, keys(), PARAMS)
    beyond = [[token for token in row if token >= own] for row in rows_of(drawn)]
    assert sum(map(len, beyond)) > 20
    # Relative too, by what torch allows float32: with three times as many tokens each has less of the probability.
    torch.testing.assert_close(drawn.logps, trainer_logps(padded, prompts, drawn), atol=1e-5, rtol=1.3e-6)
    stopped = wide.generate(prompts, keys(), SamplingParams(40, stop=("1",)))
    cut = 0
    for row, short in zip(rows_of(drawn), rows_of(stopped), strict=True):
        known = [token for token in row if token < own]
        assert padded.decode(row) == padded.decode(known)
        ends = [end for end in range(1, len(row) + 1) if "1" in padded.decode(row[:end])]
        assert short == row[: ends[0] if ends else len(row)]
        cut += any(token >= own for token in short) and bool(ends)
    assert cut > 0


def test_cost(engine: Engine, prompts: list[list[int]]) -> None:
    cost = engine.generate(prompts, keys(), PARAMS).cost
    assert cost.prefill_s >= 0 and cost.decode_s > 0 and cost.sync_s >= 0
    assert 0 <= cost.occupied <= cost.slots
