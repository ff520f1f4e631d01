"""What every engine asks of its input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.rollouts.engine import PromptTooLongError
from harness.rollouts.torch_engine import require_room

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
