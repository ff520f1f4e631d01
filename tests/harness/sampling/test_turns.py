"""Completions of several turns: what is drawn, what the model reads, and what ends a conversation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evals.sampler import Draw, Drawn, SamplingParams
from evals.tasks.base import Environment, Problem
from evals.tasks.environment import Interjection, Reply
from harness.config.rollout import RolloutSpec
from harness.engines.base import Completions, OnFinished, make_engine
from harness.models.language_model import LanguageModel, load_model
from harness.sampling.sampler import EngineSampler
from harness.sampling.turns import Conversation, Dialogue, Woven
from harness.training.sequences import Sequences
from tests.harness.training.rollouts import completion_logps
from tests.harness.training.rollouts import model as wide_model

PROBLEM = Problem(id="p", problem="1,9=", answer="5")
LIMIT = SamplingParams(max_completion_tokens=30)


def echo(problem: Problem, said: Sequence[str]) -> Reply:
    """How many turns there were, behind a mark; the conversation ends after a turn with a 7."""
    return Reply(f"w{len(said)}", done="7" in said[-1])


ECHO = Environment(echo, max_turns=3)


@pytest.fixture(scope="module")
def tiny() -> LanguageModel:
    """Random weights with distributions that are far from uniform, and a long context."""
    return replace(load_model("builtin:tiny"), model=wide_model())


def talk(
    model: LanguageModel, count: int, params: SamplingParams = LIMIT, environment: Environment = ECHO
) -> list[Conversation]:
    engine = make_engine(RolloutSpec(max_completion_tokens=params.max_completion_tokens), model)
    rows = [Conversation([4 + row % 3, 14], PROBLEM) for row in range(count)]
    Dialogue(engine, model, environment, params, in_chat=False).converse(rows, lambda row, turn: 100 * row + turn)
    return rows


def by_row(keys: Sequence[Sequence[int]], row: int, turn: int) -> int:
    return keys[row][turn]


class Scripted:
    """An engine that writes given turns: by the number of calls so far, one text for each row."""

    def __init__(self, model: LanguageModel, turns: Sequence[Sequence[str]]) -> None:
        self._model, self._turns = model, turns
        self.calls: list[tuple[list[list[int]], int]] = []

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        keys: torch.Tensor,
        params: SamplingParams,
        on_finished: OnFinished | None = None,
    ) -> Completions:
        texts = self._turns[len(self.calls)]
        self.calls.append(([list(prompt) for prompt in prompts], params.max_completion_tokens))
        tokens = [self._model.encode_completion(text) for text in texts]
        made = Sequences.of([[0]] * len(tokens), [row[: params.max_completion_tokens] for row in tokens])
        cut = torch.tensor([len(row) > params.max_completion_tokens for row in tokens])
        return Completions(made.completions, torch.zeros(made.completions.shape), made.lengths, cut)


def scripted(
    model: LanguageModel, turns: Sequence[Sequence[str]], limit: int = 30, environment: Environment = ECHO
) -> tuple[list[Conversation], Scripted]:
    engine = Scripted(model, turns)
    rows = [Conversation([4 + row, 14], PROBLEM) for row in range(len(turns[0]))]
    params = SamplingParams(max_completion_tokens=limit)
    Dialogue(engine, model, environment, params, in_chat=False).converse(rows, lambda row, turn: 10 * row + turn)
    return rows, engine


def test_the_model_reads_the_replies_and_the_record_keeps_them_apart(tiny: LanguageModel) -> None:
    [row], engine = scripted(tiny, [["12"], ["3"], ["47"]])
    eos = tiny.tokenizer.eos_token_id
    first, second = [*tiny.encode_text("12"), eos], [*tiny.encode_text("3"), eos]
    assert [prompts for prompts, _ in engine.calls] == [
        [[4, 14]],
        [[4, 14, *first, *tiny.encode_text("w1")]],
        [[4, 14, *first, *tiny.encode_text("w1"), *second, *tiny.encode_text("w2")]],
    ]
    assert tiny.decode(row.tokens) == "12347"
    assert row.interjections == [Interjection(3, tiny.encode_text("w1")), Interjection(5, tiny.encode_text("w2"))]
    assert [(turn.end_chars, turn.end_tokens, turn.reply) for turn in row.turns] == [
        (2, 3, "w1"),
        (3, 5, "w2"),
        (5, 8, "w3"),
    ]
    assert (row.said, row.truncated) == (["12", "3", "47"], False)


def test_a_conversation_that_is_done_leaves_the_batch(tiny: LanguageModel) -> None:
    rows, engine = scripted(tiny, [["7", "1"], ["27"]])
    assert [len(prompts) for prompts, _ in engine.calls] == [2, 1]
    assert [one.said for one in rows] == [["7"], ["1", "27"]]
    assert all(one.ended and not one.truncated for one in rows)


def test_all_turns_share_one_limit(tiny: LanguageModel) -> None:
    """Both have 6 tokens. The first has 2 left for its second turn, the second 4; one call draws both."""
    rows, engine = scripted(tiny, [["123", "1"], ["456", "456"]], limit=6)
    assert [most for _, most in engine.calls] == [6, 4]
    assert [tiny.decode(one.tokens) for one in rows] == ["12345", "1456"]
    assert [one.truncated for one in rows] == [True, True], "the second has nothing left for the turn to come"
    assert rows[1].turns[-1].reply == "w2"


def test_a_turn_that_is_cut_gets_no_answer(tiny: LanguageModel) -> None:
    [row], _ = scripted(tiny, [["12345"]], limit=4)
    assert (row.truncated, row.turns[0].reply, row.turns[0].end_tokens, row.interjections) == (True, "", 4, [])


def test_the_models_context_ends_a_conversation(tiny: LanguageModel) -> None:
    """A reply that fills it leaves nothing to say."""
    long = Environment(lambda problem, said: Reply("1" * 122), max_turns=3)
    [row], _ = scripted(tiny, [["2"], ["3"]], environment=long)
    assert (row.truncated, len(row.turns), row.interjections) == (True, 2, row.interjections[:1])
    assert len(row.context) == 128, "two of the prompt, two of each turn, 122 of the reply"


@pytest.mark.slow
@pytest.mark.parametrize("limit", [9, 30])
def test_a_row_depends_neither_on_what_is_drawn_beside_it_nor_on_the_limit_of_the_call(
    tiny: LanguageModel, limit: int
) -> None:
    params = SamplingParams(max_completion_tokens=limit)
    together = talk(tiny, 6, params)
    engine = make_engine(RolloutSpec(max_completion_tokens=limit), tiny)
    assert {len(one.turns) for one in together} != {1}
    for row, one in enumerate(together):
        alone = [Conversation(one.prompt, PROBLEM)]
        keys = [[100 * row + turn for turn in range(ECHO.max_turns)]]
        Dialogue(engine, tiny, ECHO, params, in_chat=False).converse(alone, partial(by_row, keys))
        assert (alone[0].tokens, alone[0].interjections, alone[0].turns) == (one.tokens, one.interjections, one.turns)
        assert len(one.tokens) <= limit


def test_log_probs_are_those_of_the_whole_context(tiny: LanguageModel) -> None:
    """The sampler's, turn by turn, against one pass over all that was read."""
    rows = [one for one in talk(tiny, 8) if one.interjections]
    assert rows
    for one in rows:
        made = Sequences([one.prompt], torch.tensor([one.tokens]), torch.tensor([len(one.tokens)]), [one.interjections])
        read = Sequences([one.prompt], made.woven.tokens, made.woven.lengths)
        places = made.woven.places
        assert places is not None
        expected = completion_logps(tiny.model, read, 0)[places[0]]
        torch.testing.assert_close(torch.tensor(one.logps), expected, rtol=1e-4, atol=1e-5)


def test_an_evaluation_draws_the_same_turns(tiny: LanguageModel) -> None:
    """Whatever is drawn beside a sample, and told as it ends."""
    sampler = EngineSampler(tiny, make_engine(RolloutSpec(max_completion_tokens=40), tiny), seed=5)
    params = SamplingParams(max_completion_tokens=40, temperature=2.0)
    draws = [Draw("1,9=", "p", sample, PROBLEM) for sample in range(8)]
    told: dict[int, Drawn] = {}
    drawn = sampler.draw_in_turns(draws, params, ECHO, told.__setitem__)
    assert [told[index] for index in range(8)] == drawn
    assert sampler.draw_in_turns(draws[2:3], params, ECHO) == drawn[2:3]
    assert {len(one.turns) for one in drawn} & {2, 3}
    first = sampler.draw(draws, params)
    assert all(one.text.startswith(alone.text) for one, alone in zip(drawn, first, strict=True)), "noise of one turn"


OWN = st.lists(st.integers(3, 20), min_size=1, max_size=8)


@pytest.mark.slow
@given(st.lists(st.tuples(OWN, OWN, OWN), min_size=1, max_size=4), st.data())
def test_what_is_read_is_the_completion_with_its_interjections(
    rows: list[tuple[list[int], list[int], list[int]]], data: st.DataObject
) -> None:
    own = [[*first, *second] for first, _, second in rows]
    said = [[Interjection(len(first), reply)] if data.draw(st.booleans()) else [] for first, reply, _ in rows]
    made = Sequences.of([[1]] * len(rows), own)
    woven = Woven.of(made.completions, made.lengths, said)
    for row, (first, reply, second) in enumerate(rows):
        expected = [*first, *(reply if said[row] else []), *second]
        assert woven.tokens[row, : woven.lengths[row]].tolist() == expected
        places = range(len(own[row])) if woven.places is None else woven.places[row, : len(own[row])].tolist()
        assert [expected[place] for place in places] == own[row]
