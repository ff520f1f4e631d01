"""The torch engine: samples from the trainer's own modules, so there is no second copy of the weights to keep in step.

A prompt is prefilled once for all its samples, and rows leave the batch when they finish.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from harness.rollouts.engine import Completions, PromptTooLongError, SamplingParams
from harness.rollouts.sampling import draw, sampling_logps

# Rows decoded together. More rows cost memory and gain little once the matrix products are large enough.
MAX_ROWS = 1024
# Finished rows leave when they are this share of the batch: leaving copies the cache, so not at every token.
LEAVE_AT_FRAC = 0.25


class TorchEngine:
    """Engine (see `harness.rollouts.engine`) over a Hugging Face causal LM.

    decode: token ids -> text; only called where `stop` strings are given.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        pad_token_id: int,
        eos_token_ids: Sequence[int],
        decode: Callable[[list[int]], str],
    ) -> None:
        self._model = model
        self._pad = pad_token_id
        self._eos = torch.tensor(list(eos_token_ids), device=model.device)
        self._decode = decode

    @torch.inference_mode()
    def generate(self, prompts: Sequence[Sequence[int]], keys: Tensor, params: SamplingParams) -> Completions:
        if not prompts:
            raise ValueError("generate was given no prompts; it needs at least one")
        if not all(prompts):
            raise PromptTooLongError("A prompt has no tokens; a template must give at least one.")
        require_room(self._model, max(len(prompt) for prompt in prompts), params.max_completion_tokens)
        samples = keys.shape[1]
        prompts_a_chunk = max(1, MAX_ROWS // samples)
        chunks = [
            self._generate_chunk(
                prompts[start : start + prompts_a_chunk], keys[start : start + prompts_a_chunk], params
            )
            for start in range(0, len(prompts), prompts_a_chunk)
        ]
        tokens, logps, truncated = zip(*chunks, strict=True)
        longest = max(chunk.shape[1] for chunk in tokens)
        tokens_NT = torch.cat([_widen(chunk, longest, -1) for chunk in tokens]).cpu()
        logps_NT = torch.cat([_widen(chunk, longest, 0.0) for chunk in logps]).cpu()
        lengths = (tokens_NT >= 0).sum(1)
        return Completions(
            tokens_NT.masked_fill(tokens_NT < 0, self._pad), logps_NT, lengths, torch.cat(truncated).cpu()
        )

    def _generate_chunk(
        self, prompts: Sequence[Sequence[int]], keys: Tensor, params: SamplingParams
    ) -> tuple[Tensor, Tensor, Tensor]:
        """tokens [N, T] with -1 in padding, logps [N, T], truncated [N] bool, all on the model's device."""
        device, samples = self._model.device, keys.shape[1]
        keys = keys.reshape(-1).to(device)
        width = max(len(prompt) for prompt in prompts)
        ids = torch.full((len(prompts), width), self._pad)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        ids, mask = ids.to(device), mask.to(device)

        cache = DynamicCache()
        positions = (mask.cumsum(1) - 1).clamp_min(0)
        output = self._model(
            input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, logits_to_keep=1
        )
        cache.batch_repeat_interleave(samples)
        logits = output.logits[:, -1].repeat_interleave(samples, dim=0)
        mask = mask.repeat_interleave(samples, dim=0)
        position = positions[:, -1:].repeat_interleave(samples, dim=0)

        count, limit = len(keys), params.max_completion_tokens
        tokens = torch.full((count, limit), -1, device=device)
        logps = torch.zeros((count, limit), device=device)
        truncated = torch.ones(count, dtype=torch.bool, device=device)
        rows = torch.arange(count, device=device)
        running = torch.ones(count, dtype=torch.bool, device=device)
        for step in range(limit):
            step_logps = sampling_logps(logits, params.temperature, params.top_p, params.top_k)
            token = draw(step_logps, keys[rows], step)
            live = rows[running]
            tokens[live, step] = token[running]
            logps[live, step] = step_logps.gather(1, token[:, None])[:, 0][running]
            ended = torch.isin(token, self._eos)
            if params.stop:
                ended |= self._ends_with_stop(tokens[rows, : step + 1], params.stop)
            truncated[rows[running & ended]] = False
            running &= ~ended
            if step + 1 == limit or not running.any():
                break
            if running.sum() <= (1 - LEAVE_AT_FRAC) * len(rows):
                keep = running.nonzero()[:, 0]
                cache.batch_select_indices(keep)
                rows, token, mask, position, running = (
                    rows[keep],
                    token[keep],
                    mask[keep],
                    position[keep],
                    running[keep],
                )
            mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
            position = position + 1
            logits = self._model(
                input_ids=token[:, None], attention_mask=mask, position_ids=position, past_key_values=cache
            ).logits[:, -1]
        return tokens[:, : step + 1], logps[:, : step + 1], truncated

    def _ends_with_stop(self, tokens: Tensor, stop: tuple[str, ...]) -> Tensor:
        """Whether each row's text holds a stop string; only the tail that can hold a new one is decoded."""
        tail_tokens = max(len(text) for text in stop) + 8
        texts = [self._decode([t for t in row if t >= 0]) for row in tokens[:, -tail_tokens:].tolist()]
        return torch.tensor([any(text in tail for text in stop) for tail in texts], device=tokens.device)


def require_room(model: PreTrainedModel, longest_prompt_tokens: int, max_completion_tokens: int) -> None:
    """Raise PromptTooLongError if such a prompt and completion exceed the model's context."""
    context = getattr(model.config, "max_position_embeddings", None)
    if context is not None and longest_prompt_tokens + max_completion_tokens > context:
        raise PromptTooLongError(
            f"A prompt of {longest_prompt_tokens} tokens and max_completion_tokens={max_completion_tokens} exceed the "
            f"model's context of {context} tokens. Lower max_completion_tokens or filter long prompts."
        )


def _widen(rows: Tensor, width: int, fill: float) -> Tensor:
    return torch.nn.functional.pad(rows, (0, width - rows.shape[1]), value=fill)
