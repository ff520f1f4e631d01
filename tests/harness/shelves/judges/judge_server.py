"""An OpenAI-compatible server in this process that does what a test tells it to."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

JUDGE = {
    "model": "scripted",
    "text": "Problem: {problem}\nReference: {answer}\nCompletion: {completion}\nIs it right?",
    "parse": r"Verdict: (\w+)",
    "right": ["yes"],
    "wrong": ["no"],
    "timeout_s": 5,
}

PAIR_JUDGE = {
    "text": "Problem: {problem}\nA: {first}\nB: {second}\nScores?",
    "parse": r"Scores: ([0-9.]+), ([0-9.]+)",
    "right": None,
    "wrong": None,
}
"""What differs from `JUDGE` in a judge of two completions."""

Fault = tuple[int, bytes, dict[str, str]]
"""Status, body and headers of a response that is no reply; status 0: the connection is dropped, -1: nothing is said."""


@dataclass
class ScriptedServer:
    """reply: question -> the model's text. faults: what the next requests get instead, in turn."""

    reply: Callable[[str], str]
    faults: list[Fault] = field(default_factory=list)
    address: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    most_at_once: int = 0
    is_away: bool = False
    _at_once: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    let_go: threading.Event = field(default_factory=threading.Event)

    @property
    def questions(self) -> list[str]:
        return [request["messages"][-1]["content"] for request in self.requests]

    def response(self, request: dict[str, Any], headers: dict[str, str]) -> Fault:
        with self._lock:
            self.requests.append(request)
            self.headers.append(headers)
            if self.is_away:
                return 503, b"", {}
            if self.faults:
                return self.faults.pop(0)
        message = {"role": "assistant", "content": self.reply(request["messages"][-1]["content"])}
        usage = {"prompt_tokens": 10, "completion_tokens": 3}
        return 200, json.dumps({"choices": [{"message": message}], "usage": usage}).encode(), {}

    @contextmanager
    def counted(self) -> Iterator[None]:
        with self._lock:
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        yield
        with self._lock:
            self._at_once -= 1


def _handler(server: ScriptedServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            with server.counted():
                status, body, headers = server.response(json.loads(content), dict(self.headers))
            if status <= 0:
                if status < 0:
                    server.let_go.wait(10)
                self.close_connection = True
                return
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


@contextmanager
def serving(reply: Callable[[str], str], faults: list[Fault] | None = None) -> Iterator[ScriptedServer]:
    server = ScriptedServer(reply, faults or [])
    http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(server))
    http.daemon_threads = True
    server.address = f"http://127.0.0.1:{http.server_address[1]}/v1"
    threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield server
    finally:
        server.let_go.set()
        http.shutdown()
        http.server_close()


def write_judge(folder: Path, name: str = "judge.yaml", /, **settings: Any) -> str:
    """A judge's file; returns its path. A setting that is None is left out."""
    path = folder / name
    kept = {key: value for key, value in {**JUDGE, **settings}.items() if value is not None}
    path.write_text(yaml.safe_dump(kept))
    return str(path)
