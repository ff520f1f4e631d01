"""A custom engine: samples with plain forward passes, without a cache. Slow, but simple enough to check other engines.

With this file next to the sweep file, named plain_engine.py:

    plugins: [plain_engine]
    base: {algorithm: grpo, rollout.engine: plain}
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.config.engine import EngineBackend
from harness.config.rollout import RolloutSpec
from harness.engines.base import (
    Completions,
    GenerationCost,
    OnFinished,
    SamplingParams,
    ends_with_stop,
)

# `bench plan` and `bench ls engines` read this file too, so torch is imported where completions are drawn.
if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from harness.models.language_model import LanguageModel


class PlainEngine:
    """What it promises is said in `harness.engines.base.Engine`."""

    def __init__(self, language_model: LanguageModel, model: PreTrainedModel) -> None:
        self._language_model, self._model = language_model, model

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        keys: Tensor,
        params: SamplingParams,
        on_finished: OnFinished | None = None,
    ) -> Completions:
        """A completion for each prompt and each of its keys [P, n], with log-probs under the sampling distribution."""
        import torch
        from torch.nn.utils.rnn import pad_sequence

        from harness.models.language_model import require_answerable

        started_s = time.perf_counter()
        require_answerable(self._model, prompts, params.max_completion_tokens)
        tokens: list[list[int]] = []
        logps: list[list[float]] = []
        truncated: list[bool] = []
        for prompt, prompt_keys in zip(prompts, keys, strict=True):
            with torch.inference_mode():
                samples = self._draw(list(prompt), prompt_keys, params)
            for some_tokens, some_logps, cut in samples:
                if on_finished is not None:
                    on_finished(len(tokens), some_tokens, cut)
                tokens.append(some_tokens)
                logps.append(some_logps)
                truncated.append(cut)
        return Completions(
            pad_sequence([torch.tensor(row) for row in tokens], True, self._language_model.pad_token_id),
            pad_sequence([torch.tensor(row) for row in logps], True, 0.0),
            torch.tensor([len(row) for row in tokens]),
            torch.tensor(truncated),
            GenerationCost(decode_s=time.perf_counter() - started_s),
        )

    def _draw(
        self, prompt: list[int], keys: Tensor, params: SamplingParams
    ) -> list[tuple[list[int], list[float], bool]]:
        """The samples of one prompt: tokens, log-probs, and whether the limit cut them."""
        import torch

        # The noise of a token is that of its sample's key and its position, and of nothing else in the batch.
        from harness.engines.torch.decoding import sample

        tokens: list[list[int]] = [[] for _ in keys]
        logps: list[list[float]] = [[] for _ in keys]
        running = list(range(len(keys)))
        for position in range(params.max_completion_tokens):
            ids = torch.tensor([prompt + tokens[row] for row in running], device=self._model.device)
            logits = self._model(input_ids=ids, use_cache=False).logits[:, -1]
            drawn = sample(
                logits, keys[running].to(ids.device), position, params.temperature, params.top_p, params.top_k
            )
            for row, token, logp in zip(running, *(values.tolist() for values in drawn), strict=True):
                tokens[row].append(token)
                logps[row].append(logp)
            running = [row for row in running if not self._has_ended(tokens[row], params.stop)]
            if not running:
                break
        return [(tokens[row], logps[row], row in running) for row in range(len(keys))]

    def _has_ended(self, tokens: list[int], stop: Sequence[str]) -> bool:
        ends = self._language_model.eos_token_ids
        return tokens[-1] in ends or ends_with_stop(tokens, stop, self._language_model.decode)


def make(language_model: LanguageModel, model: PreTrainedModel, rollout: RolloutSpec) -> PlainEngine:
    """Return the engine for a model: the policy itself, a frozen copy, or one with merged adapters."""
    return PlainEngine(language_model, model)


# Facts about the engine before it is made; `rollout.engine` refers to its name.
PLAIN = EngineBackend(
    name="plain",
    title="the plain engine",
    description="plain forward passes, without a cache",
    make=make,
    devices=("cpu", "cuda"),
    holds_copy=False,  # it computes with the trainer's own modules
)
