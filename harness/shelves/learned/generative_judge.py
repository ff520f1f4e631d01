"""A generative judge: a language model that reads a problem and two completions and writes two scores.

It decodes greedily, so the same question has the same answer in every step and after every resume.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from evals.grading import JudgeReply
from evals.prompts import Template, get_template
from evals.sampler import SamplingParams
from harness.config.run_spec import RunSpec
from harness.engines.base import Completions, Engine, make_engine
from harness.models.language_model import LanguageModel, PromptTooLongError, load_model, require_room
from harness.rewards import Attempt
from harness.run.learning.base import CompletionScorer
from harness.sampling.turns import generate_rows
from harness.shelves.learned.judging import (
    NO_SCORES,
    AnswerPair,
    Judge,
    ReferenceComparison,
    Scores,
    compared,
    comparison_of,
    judge_metrics,
)
from harness.shelves.learned.parts import PairwiseJudge
from harness.training.batch import Batch, peers_of

_NUMBER = r"(\d+(?:\.\d+)?)"
# `\W*` forgives a closing bracket, a full stop or markdown behind the numbers.
_SCORES = re.compile(rf"{_NUMBER}\s*,\s*{_NUMBER}\W*$")


def read_scores(text: str) -> Scores:
    """Return the two comma-separated numbers at the end of a judgement; `NO_SCORES` if it does not end with these."""
    found = _SCORES.search(text)
    return (float(found[1]), float(found[2])) if found else NO_SCORES


def written_scores(first: int, second: int) -> str:
    """Return the text that `read_scores` reads as these scores."""
    return f"{first},{second}"


@dataclass(frozen=True)
class GenerativeJudge:
    """A `harness.shelves.learned.judging.Judge` backed by a language model."""

    language_model: LanguageModel
    engine: Engine
    """Samples from the language model."""
    template: Template
    max_completion_tokens: int

    @classmethod
    def of(cls, spec: RunSpec, language_model: LanguageModel) -> GenerativeJudge:
        """Return the judge that a spec asks for, with these weights.

        It always uses the torch engine, so that no second vLLM needs a share of the GPU.
        """
        rollout = spec.rollout.model_copy(update={"engine": "torch", "dtype": "trainer"})
        options = spec.reward.of(PairwiseJudge)
        template = get_template(options.template_of(spec))
        return cls(language_model, make_engine(rollout, language_model), template, options.max_completion_tokens)

    @classmethod
    def load(cls, folder: Path, spec: RunSpec, start: LanguageModel) -> GenerativeJudge:
        """Load the judge in this folder, frozen, on the device and in the dtype of the starting model."""
        loaded = load_model(
            f"path:{folder.resolve()}",
            start.model.device.type,
            start.model.dtype,
            start.wanted_chat_template,
            spec.model.trust_remote_code,
        )
        loaded.model.requires_grad_(False)
        return cls.of(spec, loaded)

    def prompt(self, pair: AnswerPair) -> list[int]:
        """Return the token ids of the question about a pair."""
        return self.language_model.encode(self.template.render(pair.problem, first=pair.first, second=pair.second))

    def draw(self, prompts: Sequence[Sequence[int]], keys: Sequence[int], temperature: float) -> Completions:
        """Sample a judgement for each prompt, with the noise of its key."""
        params = SamplingParams(self.max_completion_tokens, temperature, stop=self.template.stop)
        return generate_rows(self.engine, prompts, keys, params)

    def scores(self, pairs: Sequence[AnswerPair]) -> list[Scores]:
        """Implement `Judge.scores`; NO_SCORES for a question whose answer does not fit into the model's context."""
        found = [NO_SCORES] * len(pairs)
        prompts = {place: prompt for place, pair in enumerate(pairs) if self._fits(prompt := self.prompt(pair))}
        if prompts:
            # Greedy decoding uses no noise, so any keys do.
            drawn = self.draw(list(prompts.values()), [0] * len(prompts), temperature=0.0)
            for place, read in zip(prompts, self.read(drawn.tokens, drawn.lengths, drawn.truncated), strict=True):
                found[place] = read
        return found

    def read(self, tokens: torch.Tensor, lengths: torch.Tensor, truncated: torch.Tensor) -> list[Scores]:
        """Return the scores in judgements, token ids [N, T] of these lengths [N].

        NO_SCORES if a judgement is truncated.
        """
        return [
            # Two numbers before the cut may belong to a critique: the scores are what a judgement ends with.
            NO_SCORES if is_cut else read_scores(self.language_model.decode(row[:length]))
            for row, length, is_cut in zip(tokens.tolist(), lengths.tolist(), truncated.tolist(), strict=True)
        ]

    def _fits(self, prompt: Sequence[int]) -> bool:
        try:
            require_room(self.language_model.model, len(prompt), self.max_completion_tokens)
        except PromptTooLongError:
            return False
        return True


@dataclass(frozen=True)
class JudgeScorer(CompletionScorer):
    """Compares each completion with the reference of its group, for the reward part `pairwise`."""

    judge: Judge
    account: Mapping[str, object] = field(default_factory=dict)

    def scores(self, batch: Batch, seed: int, step: int) -> list[ReferenceComparison | None]:
        """Return each row's comparison with the peer that the baseline random_peer takes; None for the peer itself."""
        return compared(self.judge, batch.attempts, peers_of(batch.groups, seed, step).tolist())

    def replies(self, attempts: Sequence[Attempt]) -> list[JudgeReply]:
        found = filter(None, map(comparison_of, attempts))
        return [reply for comparison in found for reply in comparison.preference.replies]

    def metrics(self, attempts: Sequence[Attempt]) -> dict[str, float | None]:
        return judge_metrics(attempts)
