"""A client for chat models at an OpenAI-compatible address: many questions at once, retried until all are answered.

A server may be busy, restart or drop a connection. Each question is then retried with exponential back-off. Jitter
keeps the clients from all returning at once. `ServerAwayError` is raised only if no question at all was answered for as
long as the caller's patience lasts.
"""

from __future__ import annotations

import json
import os
import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING

from evals.prompts import Message
from harness.errors import RefusedError, shown
from harness.sampling.services import OnWaiting, ServerAwayError
from harness.secrets import redact, register_variable

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
_TOLD_EVERY_S = 5.0
_LOOK_EVERY_S = 0.2
_MOST_BYTES = 16 * 2**20
"""Limit for one response; a longer one cannot be a judge's reply."""
_WORTH_ANOTHER_TRY = frozenset({408, 409, 425, 429})
"""HTTP statuses to retry, besides all from 500 on."""


@dataclass(frozen=True)
class ChatReply:
    text: str
    prompt_tokens: int
    completion_tokens: int


OnReply = Callable[[int, ChatReply], None]
"""(index of the question, its reply), called in the thread that called `ask`."""


@dataclass
class ChatClient:
    """A client of one model at one address."""

    address: str
    """URL up to /v1."""
    model: str
    key_variable: str | None = None
    """The environment variable that holds the key; None: no key is sent."""
    concurrency: int = 8
    timeout_s: float = 120.0
    """Limit for one request."""
    patience_s: float = 600.0
    """The longest time without any reply before `ServerAwayError`."""
    requests: int = 0
    """Requests sent so far, retries included."""
    _lock: Lock = field(default_factory=Lock, repr=False)

    def ask(
        self,
        questions: Sequence[list[Message]],
        temperature: float,
        max_completion_tokens: int,
        on_reply: OnReply,
        on_waiting: OnWaiting = lambda sentence, is_away: None,
    ) -> None:
        """Ask all questions, `concurrency` at a time, and hand each reply to on_reply as it comes.

        Raises ServerAwayError. Raises RefusedError for what a retry cannot fix: a missing or wrong key, an unknown
        model or address, a question that is too long. After an exception the threads stop soon, and replies still under
        way are lost.
        """
        body = {"model": self.model, "temperature": temperature, "max_tokens": max_completion_tokens, "n": 1}
        asking = _Asking(self, self._headers())
        for index, messages in enumerate(questions):
            asking.questions.put((index, body | {"messages": messages}))
        # Daemons, so that the program can exit without waiting for replies under way.
        for _ in range(min(self.concurrency, len(questions))):
            Thread(target=asking.work, name="chat", daemon=True).start()
        missing = len(questions)
        try:
            while missing:
                try:
                    # The timeout is short because `require_life` runs in between: it reports the wait and gives up on a
                    # dead server.
                    index, answer = asking.answers.get(timeout=_LOOK_EVERY_S)
                except Empty:
                    asking.require_life(on_waiting)
                    continue
                if isinstance(answer, BaseException):
                    raise answer
                on_reply(index, answer)
                missing -= 1
        finally:
            # Also wakes the threads that sleep before a retry.
            asking.ended.set()

    def _headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self.key_variable is None:
            return headers
        return headers | {"Authorization": f"Bearer {read_key(self.key_variable, self.address)}"}

    def count_request(self) -> None:
        """Add one request; the threads of a call share the counter."""
        with self._lock:
            self.requests += 1


def read_key(variable: str, address: str) -> str:
    """Return the key in an environment variable, without white space around it, such as the line break of a file.

    Raises RefusedError, without the value, if it is missing or cannot be a key.
    """
    key = os.environ.get(variable, "").strip()
    holds = f"the environment variable {variable}, which holds the key for {address},"
    if not key:
        raise RefusedError("shelves.judges.key_not_set", variable=holds)
    if not re.fullmatch("[!-~]+", key):
        raise RefusedError("shelves.judges.key_malformed", variable=holds)
    # From here on every stream, record and message is redacted of the key's value.
    register_variable(variable)
    return key


class _NotNowError(Exception):
    """A failure worth a retry. after_s: the pause that the server asked for."""

    def __init__(self, reason: str, after_s: float | None = None) -> None:
        super().__init__(reason)
        self.after_s = after_s


class _Asking:
    """The state of one call of `ChatClient.ask`, shared by its threads."""

    def __init__(self, client: ChatClient, headers: dict[str, str]) -> None:
        import urllib3

        self._client, self._headers = client, headers
        self._pool = urllib3.PoolManager(maxsize=client.concurrency, timeout=client.timeout_s, retries=False)
        self._answered_s = self._told_s = time.monotonic()
        self._trouble = ""
        self.ended = Event()
        self.questions: SimpleQueue[tuple[int, dict[str, object]]] = SimpleQueue()
        self.answers: SimpleQueue[tuple[int, ChatReply | BaseException]] = SimpleQueue()

    def work(self) -> None:
        """Ask one question after another until none is left or the call has ended; the loop of one thread."""
        while not self.ended.is_set():
            try:
                index, body = self.questions.get_nowait()
            except Empty:
                return
            try:
                self.answers.put((index, self.reply(body)))
            except BaseException as error:  # noqa: BLE001  # raised again in the thread that called `ask`
                self.answers.put((index, error))
                return

    def reply(self, body: Mapping[str, object]) -> ChatReply:
        """Return the reply to one question, with as many retries as it takes."""
        content = json.dumps(body).encode()
        pause_s = FIRST_PAUSE_S
        while not self.ended.is_set():
            try:
                found = self._once(content)
                self._answered_s, self._trouble = time.monotonic(), ""
                return found
            except _NotNowError as error:
                self._trouble = str(error)
                asked_s = error.after_s
            # No seed is needed: the time of a retry cannot change the reply.
            self.ended.wait(max(pause_s * random.uniform(0.5, 1.0), min(asked_s or 0.0, LONGEST_PAUSE_S)))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        # Reached only if another thread failed or the caller gave up; nobody reads this thread's answer any more.
        raise RuntimeError("the asking has ended")

    def require_life(self, on_waiting: OnWaiting) -> None:
        """Raise ServerAwayError if no reply came for too long; before that, report the wait now and then.

        Called in the thread that called `ask`.
        """
        now_s, client = time.monotonic(), self._client
        silent_s = now_s - self._answered_s
        # Silence without trouble is a server that thinks: only `timeout_s` of a request ends that.
        if self._trouble and silent_s > client.patience_s:
            raise ServerAwayError(
                "shelves.judges.judge_away", address=client.address, silent_s=silent_s, trouble=self._trouble
            )
        if now_s - self._told_s >= _TOLD_EVERY_S:
            self._told_s = now_s
            if self._trouble:
                left_s = client.patience_s - silent_s
                on_waiting(f"waiting for the judge at {client.address} ({self._trouble}), {left_s:.0f} s more", True)
            else:
                on_waiting(f"the judge at {client.address} is thinking", False)

    def _once(self, content: bytes) -> ChatReply:
        """Send the request once. Raises _NotNowError, and RefusedError."""
        from urllib3.exceptions import HTTPError

        self._client.count_request()
        url = f"{self._client.address}/chat/completions"
        try:
            # `preload_content=False`: the body is read below, up to a limit, so no server can fill the memory.
            response = self._pool.request("POST", url, body=content, headers=self._headers, preload_content=False)
            try:
                received = response.read(_MOST_BYTES)
            finally:
                response.release_conn()
        except (HTTPError, OSError) as error:
            raise _NotNowError(_in_words(error)) from None
        if response.status != 200:
            self._refuse_or_wait(response, received)
        return _read(received)

    def _refuse_or_wait(self, response: BaseHTTPResponse, received: bytes) -> None:
        status = response.status
        if status in _WORTH_ANOTHER_TRY or status >= 500:
            raise _NotNowError(f"HTTP {status}", _seconds(response.headers.get("Retry-After")))
        client = self._client
        said = redact(received.decode(errors="replace").strip())[:2000]  # servers quote the key that they reject
        raise RefusedError(
            "shelves.judges.question_refused",
            model=client.model,
            address=client.address,
            status=status,
            reply=shown(said, 400),
        )


def _in_words(error: Exception) -> str:
    """Return the error in words; str(error) would show addresses of Python objects."""
    from urllib3.exceptions import NewConnectionError, TimeoutError

    # NewConnectionError derives from TimeoutError in urllib3, but it means that nobody listens at the address.
    if isinstance(error, TimeoutError) and not isinstance(error, NewConnectionError):
        return "no reply in time"
    return {"NewConnectionError": "no connection", "NameResolutionError": "unknown host"}.get(
        type(error).__name__, f"the connection broke: {type(error).__name__}"
    )


def _seconds(retry_after: str | None) -> float | None:
    """Return the seconds in the header Retry-After; None if it is missing or a date."""
    return float(retry_after) if retry_after is not None and retry_after.strip().isdecimal() else None


def _read(received: bytes) -> ChatReply:
    """Parse a chat completion.

    Raises _NotNowError for anything else, such as a proxy's page or a truncated response.
    """
    try:
        document = json.loads(received)
        message = document["choices"][0]["message"]
        text = message.get("content")
        usage = document.get("usage") or {}
        tokens = [int(usage.get(name) or 0) for name in ("prompt_tokens", "completion_tokens")]
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        raise _NotNowError("the response is no chat completion") from None
    # Servers that separate thoughts return no content if the reply was truncated before the answer.
    return ChatReply(redact(text) if isinstance(text, str) else "", *tokens)
