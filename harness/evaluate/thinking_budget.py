"""Evaluation under a thinking budget: whoever has not finished thinking by then is told to answer (Qwen3, 2505.09388,
section 4.3, whose words these are)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evals.sampler import Decoding, Draw, Drawn
from harness.models.language_model import LanguageModel
from harness.rollouts.keys import random_key
from harness.rollouts.requirements import require_room
from harness.rollouts.sampler import EngineSampler, OnDrawn, draw_tokens, encode_prompts, sampling_params

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
    """Draws thoughts of up to `budget_tokens`, then up to `decoding.max_completion_tokens` more for the answer.

    A thought that has not ended by then gets FORCED appended; a completion that was answering already just goes on. The
    text holds all of it, n_tokens counts all but the forced words. The thoughts of two budgets begin alike, since the
    noise is the same.
    """

    sampler: EngineSampler
    budget_tokens: int

    def draw(
        self, draws: Sequence[Draw], decoding: Decoding, on_drawn: OnDrawn = lambda index, drawn: None
    ) -> list[Drawn]:
        """As `EngineSampler.draw`."""
        engine, model = self.sampler.engine, self.sampler.language_model
        prompts = encode_prompts(model, draws)
        forced_words = forced_tokens(model)
        # Before any thought is drawn: an answer that finds no room would cost them all.
        between = self.budget_tokens + len(forced_words)
        require_room(model.model, max(map(len, prompts)), between + decoding.max_completion_tokens)
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
            engine, prompts, self._keys(draws, step=0), sampling_params(decoding, self.budget_tokens), take_thought
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
                sampling_params(decoding, decoding.max_completion_tokens),
                take_answer,
            )
        return [drawn[index] for index in range(len(draws))]

    def _keys(self, draws: Sequence[Draw], step: int) -> list[int]:
        return [random_key(self.sampler.seed, "eval", step, draw.example, draw.sample) for draw in draws]
