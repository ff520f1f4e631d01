"""`bench ui`: the pages of a home in a browser, live.

Whoever can reach the port can read what it serves. So the server listens to this machine only, answers to names of this
machine only (a page from elsewhere could use another name for it), and serves only the files that pages consist of.

A run may have been copied from elsewhere, so its files are untrusted too. In a page only bench's own scripts run, and
no page can send anything away. Untrusted code of a run is not executed without --trust-code.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import os
import re
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated
from urllib.parse import parse_qs, unquote, urlsplit

import typer

from harness.cli.console import print_json
from harness.cli.options import HomeOption, JsonOption, TrustOption
from harness.cli.verb import Verb
from harness.errors import BenchError, RefusedError, note
from harness.plugins.user_code import TRUST_OPTION
from harness.runs import home_folder
from harness.words import said

ADDRESS = "127.0.0.1"
PORT = 8642
EVERY_S = 15.0
"""The least seconds between two renewals of a page."""
AT_LEAST_IDLE = 4
"""After a page took one second to write, no page is written for this many: the machine is there to train."""

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".md": "text/plain; charset=utf-8",
    ".csv": "text/csv; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".parquet": "application/octet-stream",
}
"""The files that pages consist of, by ending. No other file is served: no weights, no code, no database."""

LIVE_SCRIPT = "/live.js"
_OUR_NAMES = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d+)?", re.IGNORECASE)
_SCRIPT = re.compile(r"<script\b[^>]*>(.*?)</script>", re.DOTALL)
_LEADS_AWAY = re.compile(r"(?<=http)-(?=equiv)|<(?=link|i?frame)", re.IGNORECASE)
"""The tags that no policy stops: `<meta http-equiv="refresh">`, and early connections of a `<link>` or a frame.

No page of ours has any of them.
"""
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-DNS-Prefetch-Control": "off",
    "Cache-Control": "no-cache",
}
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; connect-src 'none'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; "
)
_OF_PAGE = "script-src 'self'{scripts}; sandbox allow-scripts allow-same-origin allow-downloads"
"""Scripts from here (`self`) are ours or data, see `_send_file`. Their origin tells them apart from those of other
sites, and a sandbox would take it away.
"""
_OF_FILE = "script-src 'none'; sandbox"


def ui(
    port: Annotated[
        int, typer.Option("--port", metavar="N", min=0, max=65535, help=said("shelves.ui.help_ui_port"))
    ] = PORT,
    trust_code: TrustOption = False,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Show all runs and their pages in a browser, live.

    The first page lists every sweep, search and evaluation with its verdicts. An open page updates while a sweep or a
    search runs. Only this machine can reach the pages, and nothing can be changed through them. Ctrl-C stops the
    server.

    Example: bench ui --port 8642
    """
    folder = home_folder(home)
    if not folder.is_dir():
        raise RefusedError("shelves.ui.no_runs_in_folder", folder=folder)
    try:
        server = Server(folder, port, trust_code)
    except OSError as error:
        # These two are mistakes in --port; others are faults.
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        raise RefusedError("shelves.ui.port_not_usable", port=port, reason=os.strerror(error.errno)) from None
    with server:
        if json:
            print_json({"home": str(folder), "address": server.address})
        else:
            print(f"runs in {folder}: {server.address}")
        # A program that reads the address through a pipe would otherwise wait for it: the server runs until Ctrl-C.
        sys.stdout.flush()
        note("Ctrl-C stops it")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            note("stopped")


@dataclass
class Renewal:
    """Writes the page of a run anew if somebody looks at it and its records have changed, one page at a time.

    Each page is written by a process of its own: runs may need different plug-ins, and requests are answered meanwhile.
    The page of a run at rest stays as it is, whatever times its files got when they were copied.
    """

    home: Path
    trusts_code: bool = False
    began_ns: int = field(default_factory=time.time_ns)
    _writing: threading.Lock = field(default_factory=threading.Lock)
    _written: dict[str, int] = field(default_factory=dict)
    _not_before_s: float = 0.0

    def look(self, name: str) -> None:
        """Start writing the page of a run that somebody looks at, if it is out of date. Returns at once."""
        # The thread that writes releases the lock; without such a thread, this function does.
        if time.monotonic() < self._not_before_s or not self._writing.acquire(blocking=False):
            return
        newest = None
        try:
            newest = self._due(self.home / name)
        finally:
            if newest is None:
                self._writing.release()
        if newest is not None:
            self._written[name] = newest
            threading.Thread(target=self._write, args=(name,), daemon=True).start()

    def _due(self, folder: Path) -> int | None:
        """Return the time of a run's newest record in nanoseconds, or None if its page is up to date.

        Also None if the page cannot be written yet.
        """
        from harness.records import read_sweep
        from harness.records.study import STUDY

        try:
            sweep = read_sweep(folder)
            if not sweep.is_search and not any(cell.is_done for cell in sweep.cells):
                return None
        except (BenchError, OSError):  # the page of all runs shows the error
            return None
        paths = []
        if sweep.is_search:
            paths.append(folder / STUDY)
        else:
            for cell in sweep.cells:
                folders = dict.fromkeys([cell.path, cell.evaluation_folder])
                paths += [cell.path / "steps.jsonl", cell.scores, *(one / "status.json" for one in folders)]
        newest = max((_changed_ns(path) for path in paths), default=0)
        shown = self._written.get(folder.name)
        # Compared with the records before the last writing, not with the page's time: what was recorded while the
        # page was written is older than the page, and not on it.
        if shown is not None:
            return None if newest == shown else newest
        # For a page of an earlier server, only records written since this one began count: copied files have any times.
        page_ns = _changed_ns(folder / "report" / "report.json")
        return newest if not page_ns or newest > max(page_ns, self.began_ns) else None

    def _write(self, name: str) -> None:
        """Write the page of a run in a process of its own, then release the lock."""
        started_s = time.monotonic()
        try:
            trust = [TRUST_OPTION] if self.trusts_code else []
            command = "from harness.cli import main; main()"
            process = subprocess.run(
                # -P keeps the working folder off the import path, where a module could have the name of one of ours.
                [sys.executable, "-P", "-c", command, "report", name, "--home", str(self.home), *trust],
                check=False,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            if process.returncode:
                why = process.stderr.strip().splitlines() or [f"exit code {process.returncode}"]
                note(f"{name}: its page was not written: {why[-1]}")
        finally:
            now_s = time.monotonic()
            self._not_before_s = now_s + max(EVERY_S, AT_LEAST_IDLE * (now_s - started_s))
            self._writing.release()


def _changed_ns(path: Path) -> int:
    """Return the time of a file's last change in nanoseconds; 0 without the file."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, home: Path, port: int, trusts_code: bool = False) -> None:
        self.home = home.resolve()
        self.renewal = Renewal(self.home, trusts_code)
        super().__init__((ADDRESS, port), _Answer)

    @property
    def address(self) -> str:
        return f"http://{ADDRESS}:{self.server_port}/"

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):  # a browser that went away
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    def file_at(self, path: str) -> Path | None:
        """Return the file of the home at the path of a URL, or None if there is none or it must not be served."""
        parts = [part for part in path.split("/") if part]
        if "\0" in path or _is_hidden(parts):
            return None
        try:
            found = self.home.joinpath(*parts).resolve(strict=True)
        except OSError:  # missing, or a name that is too long
            return None
        # A link may lead elsewhere, or to what is hidden.
        if not found.is_relative_to(self.home) or _is_hidden(found.relative_to(self.home).parts):
            return None
        return found if found.suffix in TYPES and found.is_file() else None

    def run_at(self, path: str) -> str | None:
        """Return the name of the run whose page has this path, whether it is written or not."""
        from reports.home import PAGE, SWEEP

        name, _, rest = path.removeprefix("/").partition("/")
        if rest != PAGE or _is_hidden([name]) or not (self.home / name).resolve().is_relative_to(self.home):
            return None
        return name if (self.home / name / SWEEP).is_file() else None


def _is_hidden(parts: list[str] | tuple[str, ...]) -> bool:
    """Return whether a path has a part that begins with a dot."""
    return any(part.startswith(".") for part in parts)


class _Answer(BaseHTTPRequestHandler):
    """One request. The base class refuses methods without a function here."""

    server: Server
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "bench", ""
    timeout = 60

    def do_GET(self) -> None:
        # DNS rebinding: a page from elsewhere can point its own name to this machine, but then sends that name as Host.
        if _OUR_NAMES.fullmatch(self.headers.get("Host", "")) is None:
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST, "This is not a name of this machine; use localhost")
            return
        asked = urlsplit(self.path)
        path = unquote(asked.path)
        if path == LIVE_SCRIPT and asked.query:
            self._send_news({name: values[0] for name, values in parse_qs(asked.query).items()})
        elif path == LIVE_SCRIPT:
            self._send(_live_script(), ".js")
        elif (page := self._live_page(path)) is not None:
            self._send(_with_live_script(_defused(page)), ".html")
        else:
            self._send_file(path)

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None:
        pass

    def end_headers(self) -> None:
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def _home_page(self) -> bytes:
        from reports.home import home_page, read_home

        return home_page(read_home(self.server.home), "Runs", is_live=True).encode()

    def _live_page(self, path: str) -> bytes | None:
        """Return the page of all runs, or of one, as it is now; None for another path."""
        if path in ("/", "/index.html"):
            return self._home_page()
        name = self.server.run_at(path)
        if name is None:
            return None
        self.server.renewal.look(name)
        file = self.server.file_at(path)
        return self._waiting_page(name) if file is None else file.read_bytes()

    def _waiting_page(self, name: str) -> bytes:
        """Return a page for a run that has none yet."""
        from reports.home import home_page, read_run

        return home_page(
            read_run(self.server.home / name), f"{name}: its page comes with the first result", is_live=True
        ).encode()

    def _send_news(self, asked: dict[str, str]) -> None:
        """Send an open page its present version, and the page itself if the version differs."""
        from reports.samples.reading import script_json

        page = self._live_page(unquote(asked.get("page", "")))
        if page is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        content = _defused(page)
        news = {"version": _tag(content)}
        if news["version"] != asked.get("version"):
            news["html"] = content.decode(errors="replace")
        # A script, because the policy of pages lets them open no connection (connect-src 'none').
        self._send(f"benchLive({script_json(news)});\n".encode(), ".js")

    def _send_file(self, path: str) -> None:
        """Send a file with its own type; a script is sent only if it just holds data, since any page may run it."""
        from reports.samples.files import hands_on_data

        file = self.server.file_at(path)
        content = None if file is None else file.read_bytes()
        if file is None or content is None or (file.suffix == ".js" and not hands_on_data(_text(content) or "no data")):
            self.send_error(HTTPStatus.NOT_FOUND)
        else:
            self._send(_defused(content) if file.suffix == ".html" else content, file.suffix)

    def _send(self, content: bytes, suffix: str) -> None:
        """Send the content, or 304 if the browser has it already."""
        version = _tag(content)
        if self.headers.get("If-None-Match") == f'"{version}"':
            self.send_response(HTTPStatus.NOT_MODIFIED)
            self.send_header("ETag", f'"{version}"')
            self.end_headers()
            return
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", TYPES[suffix])
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{version}"')
        self.send_header(
            "Content-Security-Policy", _POLICY + (_policy_of_page(content) if suffix == ".html" else _OF_FILE)
        )
        # An SVG is a document of its own, and XML has more ways to write a frame than `_defused` can find.
        if suffix == ".svg":
            self.send_header("Content-Disposition", "attachment")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)


def _policy_of_page(page: bytes) -> str:
    """Return the policy that lets a page run bench's own scripts and those that only hold data.

    No script runs if the bytes are not UTF-8, because a browser may read them as another text than we do.
    """
    from reports.page.templating import shipped_scripts
    from reports.samples.files import hands_on_data

    text = _text(page)
    if text is None:
        return _OF_FILE
    scripts = [*shipped_scripts(), *filter(hands_on_data, _SCRIPT.findall(text))]
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts if script]
    return _OF_PAGE.format(scripts="".join(f" 'sha256-{one}'" for one in dict.fromkeys(digests)))


def _defused(page: bytes) -> bytes:
    """Return the page with tags disarmed that could lead away from it by themselves. It reads the same."""
    text = _text(page)
    return page if text is None else _LEADS_AWAY.sub(lambda found: f"&#{ord(found[0])};", text).encode()


def _with_live_script(page: bytes) -> bytes:
    """Return a page of ours with the script that keeps it up to date."""
    script = f'<script src="{LIVE_SCRIPT}" data-version="{_tag(page)}"></script>'.encode()
    head, end, rest = page.rpartition(b"</body>")
    return head + script + end + rest if end else page


def _text(content: bytes) -> str | None:
    """Return the content as text, or None if it is not UTF-8."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None


def _tag(content: bytes) -> str:
    """Return a digest that names this version of a content."""
    return hashlib.blake2b(content, digest_size=12).hexdigest()


@cache
def _live_script() -> bytes:
    from reports.page.templating import TEMPLATES

    return (TEMPLATES / "live.js").read_bytes()


VERB = Verb("Look", ui)
