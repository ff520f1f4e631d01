"""A thinking budget, with an engine that writes what it is told to."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from evals.prompts import AS_QWEN3, Thinking
from evals.sampler import Draw, SamplingParams
from harness.engines.base import Completions
from harness.models.language_model import PromptTooLongError
from harness.sampling.sampler import EngineSampler
from tests.refusals import refuses

END = 0
FORCED = AS_QWEN3.stop


class Characters:
    """A language model whose tokens are characters."""

    model = SimpleNamespace(config=SimpleNamespace(max_position_embeddings=None))

    def encode(self, prompt: str) -> list[int]:
        return [ord(character) for character in prompt]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(chr(token) for token in tokens if token != END)

    encode_text = encode


class Script:
    """Continues a prompt with what `answers` holds for it, up to the limit. It keeps prompts, keys and limits."""

    def __init__(self, answers: dict[str, str]) -> None:
        self._answers = answers
        self.asked: list[tuple[str, int, int]] = []

    def generate(self, prompts: Any, keys: torch.Tensor, params: SamplingParams, on_finished: Any) -> Completions:
        rows = []
        for row, (prompt, key) in enumerate(zip(prompts, keys[:, 0].tolist(), strict=True)):
            text = Characters().decode(prompt)
            self.asked.append((text, key, params.max_completion_tokens))
            whole = [*Characters().encode(self._answers[text]), END]
            limit = params.max_completion_tokens
            on_finished(row, whole[:limit], len(whole) > limit)
            tokens = torch.tensor([whole[:limit]])
            cut = torch.tensor([len(whole) > limit])
            rows.append(Completions(tokens, torch.zeros(tokens.shape), torch.tensor([tokens.shape[1]]), cut))
        return Completions.joined(rows)


def draw(script: Script, budget: int, answer_tokens: int = 8, thinking: Thinking = AS_QWEN3) -> Any:
    sampler = EngineSampler(Characters(), script, seed=0)  # type: ignore[arg-type]
    draws = [Draw("q", "problem", 0)]
    told: list[Any] = []
    (drawn,) = sampler.draw_within(
        draws, SamplingParams(answer_tokens), budget, thinking, lambda index, one: told.append((index, one))
    )
    assert told == [(0, drawn)]
    return drawn


def test_who_ends_in_time_is_left_alone() -> None:
    drawn = draw(Script({"q": "hm</think>4"}), budget=20)
    assert (drawn.text, drawn.n_tokens, drawn.truncated) == ("hm</think>4", 12, False)


def test_a_thought_that_goes_on_is_ended_by_force() -> None:
    script = Script({"q": "hm hm hm hm", f"qhm hm{FORCED}": "4"})
    drawn = draw(script, budget=5)
    assert drawn.text == f"hm hm{FORCED}4"
    assert (drawn.n_tokens, drawn.truncated) == (5 + 2, False)
    (_, first_key, _), (_, second_key, limit) = script.asked
    assert first_key != second_key and limit == 8


def test_a_template_may_end_thinking_in_other_words() -> None:
    digits = Thinking(end="#", stop="wait#")
    cut, begun = Script({"q": "8,17,21", "q8,1wait#": "21"}), Script({"q": "8#17", "q8#1": "7"})
    assert (draw(cut, 3, thinking=digits).text, draw(begun, 3, thinking=digits).text) == ("8,1wait#21", "8#17")


def test_an_answer_that_was_begun_just_goes_on() -> None:
    drawn = draw(Script({"q": "</think>1234", "q</think>12": "34"}), budget=10)
    assert (drawn.text, drawn.n_tokens) == ("</think>1234", 10 + 3)


@pytest.mark.parametrize("answer_tokens", [2, 3])
def test_the_answer_has_a_limit_of_its_own(answer_tokens: int) -> None:
    drawn = draw(Script({"q": "hmhm", f"qhm{FORCED}": "44"}), budget=2, answer_tokens=answer_tokens)
    assert drawn.truncated == (answer_tokens == 2)


def test_the_words_are_qwens() -> None:
    """They are read by models that were trained on them."""
    assert FORCED == (
        "Considering the limited time by the user, I have to give the solution based on the thinking directly now.\n"
        "</think>.\n\n"
    )


def test_thoughts_of_two_budgets_begin_alike(sampler: EngineSampler) -> None:
    draws = [Draw("3+5+9=", "a", 0), Draw("3+5+9=", "a", 1), Draw("9+9+9+9+9=", "b", 0)]
    free = sampler.draw(draws, SamplingParams(40))
    model = sampler.language_model
    spaced = SimpleNamespace(
        model=model.model,
        encode_text=lambda text: [],
        decode=model.decode,
        encode=model.encode,
    )
    characters = EngineSampler(spaced, sampler.engine, 0)  # type: ignore[arg-type]
    short = characters.draw_within(draws, SamplingParams(4), 4, AS_QWEN3)
    assert all(one.text[:4] == other.text[:4] for one, other in zip(free, short, strict=True))


def test_an_answer_without_room_is_refused_before_any_thought_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script({"q": "thinking..."})
    room = len("q") + 4 + len(FORCED) + 8
    monkeypatch.setattr(Characters.model.config, "max_position_embeddings", room - 1)
    with refuses(PromptTooLongError, "models.context_exceeded", max_completion_tokens=room - 1):
        draw(script, budget=4)
    assert script.asked == []
