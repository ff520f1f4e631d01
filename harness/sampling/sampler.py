"""An engine as the sampler that evaluations are handed (`evals.sampler.Sampler`).

Evaluation under a thinking budget: whoever has not finished thinking by then is told to answer (Qwen3, 2505.09388,
section 4.3, whose words these are).

How long completions may be where a preset allows more than the model's context holds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from evals.prompts import Template
from evals.sampler import Draw, Drawn, SamplingParams
from evals.tasks.base import Problem
from harness.engines.base import Engine, require_room
from harness.errors import RefusedError
from harness.models.language_model import LanguageModel
from harness.random_keys import random_key

OnDrawn = Callable[[int, Drawn], None]
"""Is told of each completion as it finishes: its index among the draws, and what it is."""


@dataclass(frozen=True)
class EngineSampler:
    """Draws with an engine over this language model. The noise of a draw is that of seed, example and sample."""

    language_model: LanguageModel
    engine: Engine
    seed: int

    def draw(
        self, draws: Sequence[Draw], params: SamplingParams, on_drawn: OnDrawn = lambda index, drawn: None
    ) -> list[Drawn]:
        """One completion for each draw, in their order.

        Raises what `Engine.generate` raises, and RefusedError for a prompt that cannot be written as tokens.
        """
        prompts = encode_prompts(self.language_model, draws)
        keys = [random_key(self.seed, "eval", example=draw.example, sample=draw.sample) for draw in draws]
        drawn: dict[int, Drawn] = {}

        def take(index: int, tokens: list[int], truncated: bool) -> None:
            drawn[index] = Drawn(self.language_model.decode(tokens), len(tokens), truncated)
            on_drawn(index, drawn[index])

        draw_tokens(self.engine, prompts, keys, params, take)
        return [drawn[index] for index in range(len(draws))]


def encode_prompts(language_model: LanguageModel, draws: Sequence[Draw]) -> list[list[int]]:
    """Token ids of each draw's prompt; that of several samples is encoded once."""
    distinct = {repr(draw.prompt): draw.prompt for draw in draws}
    encoded = {text: language_model.encode(prompt) for text, prompt in distinct.items()}
    return [encoded[repr(draw.prompt)] for draw in draws]


def draw_tokens(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    keys: Sequence[int],
    params: SamplingParams,
    take: Callable[[int, list[int], bool], None],
) -> None:
    """A completion for each prompt (token ids) and its key. `take` is given index, tokens and whether they are
    truncated, as they finish. Draws with equal prompts share their prefill."""
    of_prompt: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for index, prompt in enumerate(prompts):
        of_prompt[tuple(prompt)].append(index)
    # An engine draws equally many samples of each prompt of a call.
    by_count: dict[int, list[list[int]]] = defaultdict(list)
    for indexes in of_prompt.values():
        by_count[len(indexes)].append(indexes)
    for groups in by_count.values():
        rows = [index for indexes in groups for index in indexes]
        engine.generate(
            [prompts[indexes[0]] for indexes in groups],
            torch.tensor([[keys[index] for index in indexes] for indexes in groups]),
            params,
            partial(_take_row, take, rows),
        )


def _take_row(
    take: Callable[[int, list[int], bool], None], indexes: Sequence[int], row: int, tokens: list[int], truncated: bool
) -> None:
    take(indexes[row], tokens, truncated)


END_OF_THINKING = "</think>"
FORCED = (
    "Considering the limited time by the user, I have to give the solution based on the thinking directly now.\n"
    f"{END_OF_THINKING}.\n\n"
)


def forced_tokens(model: LanguageModel) -> list[int]:
    """FORCED as the model's tokens."""
    tokens: list[int] = model.tokenizer(FORCED, add_special_tokens=False)["input_ids"]
    return tokens


@dataclass(frozen=True)
class BudgetedSampler:
    """Draws thoughts of up to `budget_tokens`, then up to `params.max_completion_tokens` more for the answer.

    A thought that has not ended by then gets FORCED appended; a completion that was answering already just goes on. The
    text holds all of it, n_tokens counts all but the forced words. The thoughts of two budgets begin alike, since the
    noise is the same.
    """

    sampler: EngineSampler
    budget_tokens: int

    def draw(
        self, draws: Sequence[Draw], params: SamplingParams, on_drawn: OnDrawn = lambda index, drawn: None
    ) -> list[Drawn]:
        """As `EngineSampler.draw`."""
        engine, model = self.sampler.engine, self.sampler.language_model
        prompts = encode_prompts(model, draws)
        forced_words = forced_tokens(model)
        # Before any thought is drawn: an answer that finds no room would cost them all.
        between = self.budget_tokens + len(forced_words)
        require_room(model.model, max(map(len, prompts)), between + params.max_completion_tokens)
        drawn: dict[int, Drawn] = {}
        thoughts: dict[int, list[int]] = {}

        def take_thought(index: int, tokens: list[int], truncated: bool) -> None:
            if truncated:
                thoughts[index] = tokens
            else:
                finish(index, tokens, [], [], truncated)

        def finish(index: int, thought: list[int], forced: list[int], answer: list[int], truncated: bool) -> None:
            text = model.decode([*thought, *forced, *answer])
            drawn[index] = Drawn(text, len(thought) + len(answer), truncated)
            on_drawn(index, drawn[index])

        draw_tokens(
            engine,
            prompts,
            self._keys(draws, step=0),
            replace(params, max_completion_tokens=self.budget_tokens),
            take_thought,
        )
        unfinished = sorted(thoughts)
        forced = [[] if END_OF_THINKING in model.decode(thoughts[index]) else forced_words for index in unfinished]

        def take_answer(position: int, tokens: list[int], truncated: bool) -> None:
            index = unfinished[position]
            finish(index, thoughts[index], forced[position], tokens, truncated)

        if unfinished:
            draw_tokens(
                engine,
                [[*prompts[index], *thoughts[index], *words] for index, words in zip(unfinished, forced, strict=True)],
                # Another step: the answer's noise must not repeat that of the thought's first tokens.
                self._keys([draws[index] for index in unfinished], step=1),
                params,
                take_answer,
            )
        return [drawn[index] for index in range(len(draws))]

    def _keys(self, draws: Sequence[Draw], step: int) -> list[int]:
        return [random_key(self.sampler.seed, "eval", step, draw.example, draw.sample) for draw in draws]


def fitted(
    params: SamplingParams, model: LanguageModel, template: Template, problems: Sequence[Problem], other_tokens: int = 0
) -> SamplingParams:
    """The parameters with its length lowered to what the context has room for behind the longest prompt.

    problems: of the whole task, so that the length does not depend on how many of them are asked for, or are missing.
    other_tokens: that stand between prompt and answer. Raises RefusedError if there is no room at all.
    """
    context = getattr(model.model.config, "max_position_embeddings", None)
    if context is None:
        return params
    prompts = encode_prompts(model, [Draw(template.render(problem.problem), problem.id, 0) for problem in problems])
    longest = max(len(prompt) for prompt in prompts)
    room = context - longest - other_tokens
    if room < 1:
        between = f" and {other_tokens} of a thinking budget" if other_tokens else ""
        raise RefusedError(
            f"the model's context of {context} tokens has no room for an answer behind a prompt of {longest}{between}. "
            "Take a model with a longer context, another --template, or a smaller --thinking-budget."
        )
    return replace(params, max_completion_tokens=min(params.max_completion_tokens, room))
