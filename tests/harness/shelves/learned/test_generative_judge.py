"""A judge that is a language model: what it is asked, and what is read in its answers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from evals.prompts import get_template
from evals.sampler import SamplingParams
from harness.engines.base import Completions
from harness.models.language_model import LanguageModel
from harness.shelves.learned.generative_judge import GenerativeJudge, read_scores, written_scores
from harness.shelves.learned.judging import NO_SCORES, AnswerPair, Scores
from tests.harness.run.small import small_spec

JUDGED = {"reward.parts": {"correct": 0.0, "pairwise": 1.0}}


@pytest.mark.parametrize(
    ("text", "scores"),
    [
        ("8,2", (8, 2)),
        ("  7.5 , 10.\n", (7.5, 10)),
        ("The first errs in step 2.\nScores: 3,9", (3, 9)),
        ("10,10", (10, 10)),
        ("12,16#16=8,2", (8, 2)),
        ("8;2", None),
        ("8,2 and so on", None),
        ("8", None),
        ("", None),
    ],
)
def test_scores_are_the_two_numbers_at_the_end(text: str, scores: Scores | None) -> None:
    assert read_scores(text) == pytest.approx(scores or NO_SCORES, nan_ok=True)
    assert read_scores(written_scores(8, 2)) == (8, 2)


class Answering:
    """An engine that answers each prompt by a rule, and keeps what it was asked."""

    def __init__(self, model: LanguageModel, answer: Any) -> None:
        self.model, self.answer = model, answer
        self.params: SamplingParams | None = None
        self.asked: list[str] = []

    def generate(
        self, prompts: Sequence[Sequence[int]], keys: torch.Tensor, params: SamplingParams, on_finished: object = None
    ) -> Completions:
        self.params = params
        self.asked += map(self.model.decode, prompts)
        rows = [
            torch.tensor(self.model.encode_completion(self.answer(self.model.decode(prompt)))) for prompt in prompts
        ]
        lengths = torch.tensor([min(len(row), params.max_completion_tokens) for row in rows])
        tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)[:, : int(lengths.max())]
        cut = torch.tensor([len(row) > params.max_completion_tokens for row in rows])
        return Completions(tokens, torch.zeros(tokens.shape), lengths, cut)


def judge(model: LanguageModel, answer: Any) -> GenerativeJudge:
    made = GenerativeJudge.of(small_spec(JUDGED), model)
    return replace(made, engine=Answering(model, answer))


def test_a_question_shows_the_problem_and_both_completions(tiny: LanguageModel) -> None:
    made = judge(tiny, lambda prompt: "8,2")
    assert made.scores([AnswerPair("3+5=", "#8", "#9"), AnswerPair("1+1=", "#3", "#2")]) == [(8, 2)] * 2
    assert isinstance(made.engine, Answering)
    assert made.engine.asked == ["3+5=#8=#9=", "1+1=#3=#2="]
    assert made.engine.params == SamplingParams(8, temperature=0.0)


def test_what_is_cut_at_the_limit_or_finds_no_room_has_no_scores(tiny: LanguageModel) -> None:
    """The number behind the comma may go on; and 128 tokens of context hold no longer question."""
    made = judge(tiny, lambda prompt: "1,2345678" if "#1" in prompt else "8,2")
    long = AnswerPair("3+5=", "1," * 40, "2," * 40)
    scores = made.scores([AnswerPair("3+5=", "#1", "#9"), long, AnswerPair("3+5=", "#8", "#9")])
    assert all(map(math.isnan, [*scores[0], *scores[1]]))
    assert scores[2] == pytest.approx((8, 2))
    assert made.scores([long])[0] == pytest.approx(NO_SCORES, nan_ok=True)


def test_the_shipped_question_in_words_fills_its_holes_once() -> None:
    """Text that looks like a hole is left alone."""
    rendered = get_template("judge").render("{first}?", first="{second}", second="{problem}")
    assert isinstance(rendered, list)
    content = rendered[0]["content"].splitlines()
    assert [line for line in content if "{" in line] == ["{first}?", "{second}", "{problem}"]
