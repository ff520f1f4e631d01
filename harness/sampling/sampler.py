"""Sampling from an engine, with separate noise for each completion. Evaluations and stages sample through this module.

Under a thinking budget, a model that has not finished thinking in time is told to answer, in the words of the prompt
template (Qwen3, 2505.09388).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from evals.choices import Continuation, Likelihood
from evals.prompts import Thinking
from evals.sampler import Draw, Drawn, SamplingParams
from evals.tasks.base import Environment
from harness.config.run_spec import RunSpec
from harness.engines.base import Engine, make_engine
from harness.models.language_model import LanguageModel, require_room
from harness.random_keys import Stream, random_key
from harness.sampling.scoring import likelihoods
from harness.sampling.turns import Conversation, Dialogue, generate_rows

OnDrawn = Callable[[int, Drawn], None]
"""on_drawn(index among the draws, completion) is called when each completion finishes."""
Policy = Callable[[], "EngineSampler"]
"""Returns the sampler of a model that is evaluated. It may be called several times, but loads the model only once."""


@dataclass(frozen=True)
class EngineSampler:
    """Samples from a language model with an engine.

    The noise of a draw is keyed by seed, stream, example and sample number. If several problems have the same prompt,
    the prompt is computed once.
    """

    language_model: LanguageModel
    engine: Engine
    seed: int
    stream: Stream = "eval"

    @classmethod
    def of(cls, spec: RunSpec, language_model: LanguageModel) -> EngineSampler:
        """Return a sampler with the spec's engine and seed."""
        return cls(language_model, make_engine(spec.rollout, language_model), spec.seed)

    def draw(
        self, draws: Sequence[Draw], params: SamplingParams, on_drawn: OnDrawn = lambda index, drawn: None
    ) -> list[Drawn]:
        """Sample one completion for each draw, in order, with its tokens.

        Raises the errors of `Engine.generate`, and RefusedError if a prompt cannot be encoded.
        """
        drawn: dict[int, Drawn] = {}

        def take(index: int, tokens: list[int], truncated: bool) -> None:
            drawn[index] = Drawn(self.language_model.decode(tokens), len(tokens), truncated, tokens)
            on_drawn(index, drawn[index])

        self.draw_tokens(self.encode(draws), draws, params, take)
        return [drawn[index] for index in range(len(draws))]

    def score(self, continuations: Sequence[Continuation]) -> list[Likelihood]:
        """Implement `evals.choices.Scorer.score` with the language model itself, without the engine.

        Raises the errors of `likelihoods`.
        """
        return likelihoods(self.language_model, continuations)

    def draw_within(
        self,
        draws: Sequence[Draw],
        params: SamplingParams,
        budget_tokens: int,
        thinking: Thinking,
        on_drawn: OnDrawn = lambda index, drawn: None,
    ) -> list[Drawn]:
        """Sample completions with up to `budget_tokens` to think, then up to `params.max_completion_tokens` to answer.

        If a completion is still thinking when the budget ends, `thinking.stop` is appended. If it is already answering,
        it continues unchanged. The text contains thought, forced words and answer. n_tokens does not count the forced
        words. Thoughts under different budgets begin alike, because their noise is the same.
        """
        model, prompts = self.language_model, self.encode(draws)
        forced_words = model.encode_text(thinking.stop)
        # Check the room for answers first, because otherwise all thoughts would be sampled in vain.
        between = budget_tokens + len(forced_words)
        require_room(model.model, max(map(len, prompts)), between + params.max_completion_tokens)
        drawn: dict[int, Drawn] = {}
        thoughts: dict[int, list[int]] = {}

        def take_thought(index: int, tokens: list[int], truncated: bool) -> None:
            if truncated:
                thoughts[index] = tokens
            else:
                finish(index, tokens, [], [], truncated)

        def finish(index: int, thought: list[int], forced: list[int], answer: list[int], truncated: bool) -> None:
            tokens = [*thought, *forced, *answer]
            drawn[index] = Drawn(model.decode(tokens), len(thought) + len(answer), truncated, tokens)
            on_drawn(index, drawn[index])

        self.draw_tokens(prompts, draws, replace(params, max_completion_tokens=budget_tokens), take_thought)
        # Completions within the budget are already finished. `thoughts` has only those that the first pass truncated.
        unfinished = sorted(thoughts)
        # If the end-of-thinking marker is there, the answer was truncated, not the thought. So no words are forced.
        forced = [[] if thinking.end in model.decode(thoughts[index]) else forced_words for index in unfinished]

        def take_answer(position: int, tokens: list[int], truncated: bool) -> None:
            index = unfinished[position]
            finish(index, thoughts[index], forced[position], tokens, truncated)

        self.draw_tokens(
            [[*prompts[index], *thoughts[index], *words] for index, words in zip(unfinished, forced, strict=True)],
            [draws[index] for index in unfinished],
            params,
            take_answer,
            # Another step, because the answer's noise must not repeat the noise of the thought's first tokens.
            step=1,
        )
        return [drawn[index] for index in range(len(draws))]

    def draw_in_turns(
        self,
        draws: Sequence[Draw],
        params: SamplingParams,
        environment: Environment,
        on_drawn: OnDrawn = lambda index, drawn: None,
    ) -> list[Drawn]:
        """Sample completions of several turns, with the environment's answer after each turn.

        Text and tokens of a completion are only the model's own. The noise of turn t is keyed by step t.
        """
        model = self.language_model
        in_chat = any(not isinstance(draw.prompt, str) for draw in draws)
        asked = zip(self.encode(draws), draws, strict=True)
        conversations = [Conversation(prompt, draw.require_problem()) for prompt, draw in asked]

        def drawn(index: int) -> Drawn:
            one = conversations[index]
            return Drawn(model.decode(one.tokens), len(one.tokens), one.truncated, one.tokens, one.turns)

        Dialogue(self.engine, model, environment, params, in_chat).converse(
            conversations,
            lambda index, turn: self.key(draws[index], turn),
            lambda index: on_drawn(index, drawn(index)),
        )
        return [drawn(index) for index in range(len(draws))]

    def encode(self, draws: Sequence[Draw]) -> list[list[int]]:
        """Return the token ids of each draw's prompt. Equal prompts are encoded once."""
        distinct = {repr(draw.prompt): draw.prompt for draw in draws}
        encoded = {text: self.language_model.encode(prompt) for text, prompt in distinct.items()}
        return [encoded[repr(draw.prompt)] for draw in draws]

    def draw_tokens(
        self,
        prompts: Sequence[Sequence[int]],
        draws: Sequence[Draw],
        params: SamplingParams,
        take: Callable[[int, list[int], bool], None],
        step: int = 0,
    ) -> None:
        """Sample one completion for each draw, from prompts given as token ids.

        take: called as take(index, tokens, truncated) when a completion finishes.
        step: the step in the noise's key.
        """
        keys = [self.key(draw, step) for draw in draws]
        if draws:
            generate_rows(self.engine, prompts, keys, params, take)

    def key(self, draw: Draw, step: int) -> int:
        """Return the key of a draw's noise."""
        return random_key(self.seed, self.stream, step, draw.example, draw.sample)
