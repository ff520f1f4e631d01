"""What engines ask of a model and of their input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.errors import RefusedError
from harness.rollouts.engine import PromptTooLongError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def require_answerable(model: PreTrainedModel, prompts: Sequence[Sequence[int]], max_completion_tokens: int) -> None:
    """Raise PromptTooLongError if a prompt has no tokens or no room; ValueError if nothing is asked for."""
    if not prompts:
        raise ValueError("generate was given no prompts; it needs at least one")
    if max_completion_tokens < 1:
        raise ValueError(f"max_completion_tokens is {max_completion_tokens}, but must be at least 1")
    if not all(prompts):
        raise PromptTooLongError("A prompt has no tokens; a template must give at least one.")
    require_room(model, max(len(prompt) for prompt in prompts), max_completion_tokens)


def require_room(model: PreTrainedModel, longest_prompt_tokens: int, max_completion_tokens: int) -> None:
    """Raise PromptTooLongError if such a prompt and completion exceed the model's context."""
    context = getattr(model.config, "max_position_embeddings", None)
    if context is not None and longest_prompt_tokens + max_completion_tokens > context:
        room = context - longest_prompt_tokens
        remedy = f"Lower max_completion_tokens to {room} or less" if room > 0 else "Leave that prompt out"
        raise PromptTooLongError(
            f"A prompt of {longest_prompt_tokens} tokens and max_completion_tokens={max_completion_tokens} exceed the "
            f"model's context of {context} tokens. {remedy}, or filter long prompts."
        )


def require_steady_positions(model: PreTrainedModel) -> None:
    """Raise RefusedError for rotary embeddings of the type `dynamic`: their frequencies follow the longest sequence
    that the model has seen, so that a sample would depend on what else was in its batch, and before it."""
    rope = getattr(model.config.get_text_config(), "rope_parameters", None) or {}
    of_kinds = [rope, *(value for value in rope.values() if isinstance(value, dict))]
    if any(one.get("rope_type") == "dynamic" for one in of_kinds):
        raise RefusedError(
            f"{type(model).__name__} has rotary embeddings of the type dynamic, whose frequencies change with the "
            "longest sequence in the batch. Set rope_type in its config.json to another type, e.g. yarn or default."
        )
