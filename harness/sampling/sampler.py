"""Sampling from an engine, each completion with noise of its own; evaluations and stages all sample through this.

Evaluation under a thinking budget: a model that has not finished thinking by then is told to answer, in the words of
the prompt template (Qwen3, 2505.09388).
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
"""(index among the draws, completion), called for each completion as it finishes."""
Policy = Callable[[], "EngineSampler"]
"""A model that is evaluated. It is called when the first sample is needed, perhaps again, and loads the model once."""


@dataclass(frozen=True)
class EngineSampler:
    """Samples with an engine over this language model.

    The noise of a draw is that of seed, stream, example and sample. A prompt that several problems share is computed
    once.
    """

    language_model: LanguageModel
    engine: Engine
    seed: int
    stream: Stream = "eval"

    @classmethod
    def of(cls, spec: RunSpec, language_model: LanguageModel) -> EngineSampler:
        """Return a sampler with the engine and the seed of a spec."""
        return cls(language_model, make_engine(spec.rollout, language_model), spec.seed)

    def draw(
        self, draws: Sequence[Draw], params: SamplingParams, on_drawn: OnDrawn = lambda index, drawn: None
    ) -> list[Drawn]:
        """Sample one completion for each draw, in their order, with its tokens.

        Raises what `Engine.generate` raises, and RefusedError for a prompt that cannot be written as tokens.
        """
        drawn: dict[int, Drawn] = {}

        def take(index: int, tokens: list[int], truncated: bool) -> None:
            drawn[index] = Drawn(self.language_model.decode(tokens), len(tokens), truncated, tokens)
            on_drawn(index, drawn[index])

        self.draw_tokens(self.encode(draws), draws, params, take)
        return [drawn[index] for index in range(len(draws))]

    def score(self, continuations: Sequence[Continuation]) -> list[Likelihood]:
        """Implement `evals.choices.Scorer.score`, by the language model itself, whatever the engine.

        Raises as `likelihoods`.
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
        """Sample thoughts of up to `budget_tokens`, then up to `params.max_completion_tokens` more for the answer.

        A thought that has not ended by then gets `thinking.stop` appended. A completion that was answering already just
        goes on. The text holds all of it; n_tokens counts all but the forced words. The thoughts of two budgets begin
        alike, since the noise is the same.
        """
        model, prompts = self.language_model, self.encode(draws)
        forced_words = model.encode_text(thinking.stop)
        # Check before any thought is sampled: an answer that finds no room would cost them all.
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
        # A completion within the budget is finished already: `thoughts` holds only what the first pass truncated.
        unfinished = sorted(thoughts)
        # With an end-of-thinking mark, the answer was truncated and not the thought, so no words are forced.
        forced = [[] if thinking.end in model.decode(thoughts[index]) else forced_words for index in unfinished]

        def take_answer(position: int, tokens: list[int], truncated: bool) -> None:
            index = unfinished[position]
            finish(index, thoughts[index], forced[position], tokens, truncated)

        self.draw_tokens(
            [[*prompts[index], *thoughts[index], *words] for index, words in zip(unfinished, forced, strict=True)],
            [draws[index] for index in unfinished],
            params,
            take_answer,
            # Another step: the answer's noise must not repeat that of the thought's first tokens.
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
        """Sample completions of several turns, each of which the environment answers.

        The text and the tokens are the model's own. The noise of turn t is that of step t.
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
        """Return the token ids of each draw's prompt; a prompt of several samples is encoded once."""
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
        """Continue a prompt (token ids) for each draw.

        take: called with index, tokens and whether they are truncated, as completions finish. step: of the noise.
        """
        keys = [self.key(draw, step) for draw in draws]
        if draws:
            generate_rows(self.engine, prompts, keys, params, take)

    def key(self, draw: Draw, step: int) -> int:
        """Return the key of a draw's noise."""
        return random_key(self.seed, self.stream, step, draw.example, draw.sample)
