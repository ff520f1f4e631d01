"""What every rollout engine promises. Shapes: P prompts, n samples a prompt, N = P * n rows, T longest completion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class SamplingParams:
    """How completions are drawn. `stop` strings end a completion besides the model's end-of-sequence token."""

    max_completion_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class Completions:
    """N rows, the n samples of a prompt next to each other; right-padded.

    tokens [N, T] int64, end-of-sequence included; logps [N, T] float32 under the sampling distribution, 0 in padding;
    lengths [N] int64; truncated [N] bool: ended by max_completion_tokens.
    """

    tokens: Tensor
    logps: Tensor
    lengths: Tensor
    truncated: Tensor


class Engine(Protocol):
    """Draws completions from the policy's current weights."""

    def generate(self, prompts: Sequence[Sequence[int]], keys: Tensor, params: SamplingParams) -> Completions:
        """Sample keys.shape[1] completions for each prompt (token ids).

        keys [P, n] int64: the noise of a sample depends on its key alone, whatever else is in the batch; tokens can
        differ with the batch only where floating-point rounding decides.
        Raises PromptTooLongError if a prompt and max_completion_tokens exceed the model's context.
        """
