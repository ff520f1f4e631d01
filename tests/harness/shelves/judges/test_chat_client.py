"""The client keeps asking through every fault that passes, and says clearly what does not."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from evals.prompts import Message
from harness.errors import RefusedError
from harness.sampling.services import ServerAwayError
from harness.shelves.judges import chat_client
from harness.shelves.judges.chat_client import ChatClient, ChatReply
from tests.harness.shelves.judges.judge_server import Fault, ScriptedServer, serving
from tests.refusals import refuses


def _ask(server: ScriptedServer, questions: list[str], **settings: Any) -> dict[int, ChatReply]:
    replies: dict[int, ChatReply] = {}
    client = ChatClient(server.address, "scripted", **{"timeout_s": 0.3, "patience_s": 5.0, **settings})
    messages: list[list[Message]] = [[{"role": "user", "content": question}] for question in questions]
    client.ask(messages, 0.0, 16, replies.__setitem__)
    assert client.requests == len(server.requests)
    return replies


@pytest.mark.parametrize(
    "fault",
    [
        (429, b"slow down", {"Retry-After": "0"}),
        (500, b"", {}),
        (0, b"", {}),
        (-1, b"", {}),
        (200, b"<html>a proxy's page</html>", {}),
        (200, b'{"choices": []}', {}),
        (200, b'{"choices": [{"message": {"content": "half', {}),
    ],
    ids=["busy", "error", "dropped", "timeout", "page", "empty", "torn"],
)
def test_a_fault_that_passes_costs_a_repetition(fault: Fault) -> None:
    with serving(lambda question: f"echo {question}", [fault]) as server:
        replies = _ask(server, ["a", "b"])
    assert {index: reply.text for index, reply in replies.items()} == {0: "echo a", 1: "echo b"}
    assert len(server.requests) == 3
    assert replies[0].prompt_tokens == 10
    assert server.requests[0] | {"messages": []} == {
        **{"model": "scripted", "temperature": 0.0, "max_tokens": 16, "n": 1},
        "messages": [],
    }


def test_no_more_questions_are_under_way_than_allowed() -> None:
    def slow(question: str) -> str:
        time.sleep(0.03)
        return question

    with serving(slow) as server:
        assert len(_ask(server, [str(number) for number in range(12)], concurrency=3, timeout_s=5.0)) == 12
    assert 1 < server.most_at_once <= 3


def test_pauses_double_up_to_a_bound_and_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_client, "FIRST_PAUSE_S", 0.02)
    drawn: list[float] = []

    def highest(low: float, high: float) -> float:
        drawn.append(low)
        return high

    monkeypatch.setattr(random, "uniform", highest)
    with serving(lambda question: "yes", [(503, b"", {})] * 3) as server:
        started_s = time.monotonic()
        _ask(server, ["a"])
    assert 0.02 + 0.04 + 0.05 <= time.monotonic() - started_s < 3
    assert drawn == [0.5] * 3


def test_a_server_that_stays_away_is_waited_for_and_named() -> None:
    told: list[tuple[str, bool]] = []
    replies: dict[int, ChatReply] = {}
    with serving(lambda question: "yes") as server:
        server.faults = []
        client = ChatClient(server.address, "scripted", concurrency=1, timeout_s=1.0, patience_s=0.3)

        def reply(index: int, reply: ChatReply) -> None:
            replies[index] = reply
            server.is_away = True

        questions: list[list[Message]] = [[{"role": "user", "content": text}] for text in "abc"]
        with refuses(ServerAwayError, "shelves.judges.judge_away", trouble="HTTP 503"):
            client.ask(questions, 0.0, 16, reply, lambda sentence, is_away: told.append((sentence, is_away)))
        asked = len(server.requests)
        time.sleep(0.15)
        assert len(server.requests) <= asked + 1, "threads go on asking"
    assert replies, "what was answered before is kept"
    # On a busy machine it also says that the judge is thinking.
    assert any(is_away for _, is_away in told)


def test_what_no_repetition_would_mend_is_refused_without_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "sk-very-secret")
    said = b'{"error": {"message": "Incorrect API key provided: sk-very-secret"}}'
    with serving(lambda question: "yes", [(401, said, {})]) as server:
        with refuses(RefusedError, "shelves.judges.question_refused", status=401) as refused:
            _ask(server, ["a"], key_variable="JUDGE_KEY")
        assert server.headers[0]["Authorization"] == "Bearer sk-very-secret"
        assert "secret" not in str(refused.value) and "<JUDGE_KEY>" in str(refused.value)
        monkeypatch.delenv("JUDGE_KEY")
        with refuses(RefusedError, "shelves.judges.key_not_set"):
            _ask(server, ["a"], key_variable="JUDGE_KEY")
    assert len(server.requests) == 1
