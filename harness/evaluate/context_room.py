"""How long completions may be where a preset allows more than the model's context holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from evals.prompts import Template
from evals.sampler import Decoding, Draw
from evals.tasks.base import Problem
from harness.errors import RefusedError
from harness.models.language_model import LanguageModel
from harness.rollouts.sampler import encode_prompts


def fitted(
    decoding: Decoding, model: LanguageModel, template: Template, problems: Sequence[Problem], other_tokens: int = 0
) -> Decoding:
    """The decoding with its length lowered to what the context has room for behind the longest prompt.

    problems: of the whole task, so that the length does not depend on how many of them are asked for, or are missing.
    other_tokens: that stand between prompt and answer. Raises RefusedError if there is no room at all.
    """
    context = getattr(model.model.config, "max_position_embeddings", None)
    if context is None:
        return decoding
    prompts = encode_prompts(model, [Draw(template.render(problem.problem), problem.id, 0) for problem in problems])
    longest = max(len(prompt) for prompt in prompts)
    room = context - longest - other_tokens
    if room < 1:
        between = f" and {other_tokens} of a thinking budget" if other_tokens else ""
        raise RefusedError(
            f"the model's context of {context} tokens has no room for an answer behind a prompt of {longest}{between}. "
            "Take a model with a longer context, another --template, or a smaller --thinking-budget."
        )
    return replace(decoding, max_completion_tokens=min(decoding.max_completion_tokens, room))
