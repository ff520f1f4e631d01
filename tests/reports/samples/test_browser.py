"""The page of samples in a browser, opened from disk; skips without Chromium (`make chromium`)."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.records.files import ProblemsFile
from reports.page.templating import TEMPLATES, readable
from reports.samples import write_sweep_samples
from tests.reports.page.browser import measure, run_chromium
from tests.reports.samples.synthetic import ATTACK, TEXTS, AskedProblem
from tests.reports.synthetic import TASK, write_sweep
from tests.reports.synthetic_rollouts import recorded, write_rows

pytestmark = pytest.mark.slow
LONG = "an_arm_with_a_name_of_forty_characters_x"
QUESTION, END = "[user] What is 1?", "the end of the long one"
ARMS = {"base": 0.0, "up": 3.0, LONG: 0.0}

# Runs in a page with `matches` of the page's script: random texts, and the longest common subsequence by a table.
CHECK_MATCHES = """
let state = 1, bad = 0;
const random = n => { state = (state * 1103515245 + 12345) % 2147483648; return Math.floor(state / 65536) % n; };
const letters = (length, n) => Array.from({length}, () => "abcdefghijklmnopq"[random(n)]);
const longest = (a, b) => {
  const table = Array.from({length: a.length + 1}, () => new Array(b.length + 1).fill(0));
  a.forEach((x, i) => b.forEach((y, j) => {
    table[i + 1][j + 1] = x === y ? table[i][j] + 1 : Math.max(table[i][j + 1], table[i + 1][j]);
  }));
  return table[a.length][b.length];
};
const check = (a, b, best) => {
  let [x, y, common] = [0, 0, 0];
  for (const [i, j, length] of matches(a, b)) {
    if (i < x || j < y || a.slice(i, i + length).join() !== b.slice(j, j + length).join()) bad += 1;
    [x, y, common] = [i + length, j + length, common + length];
  }
  if (x !== a.length || y !== b.length || (best && common !== longest(a, b))) bad += 1;
};
for (let i = 0; i < 1000; i += 1) check(letters(random(30), 3), letters(random(30), 3), true);
check(letters(4000, 17), letters(3000, 17), false);  // more edits than are looked for
document.title = `${bad} bad`;
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    sweep = write_sweep(folder / "records", ARMS, seeds=2, texts=TEXTS)
    for cell in sweep.cells:
        question = "Compute" if cell.arm == LONG else "What is"  # a template under test
        asked = [AskedProblem(f"p{i}", f"{question} {i}? {ATTACK}", f"${i}$") for i in range(len(TEXTS))]
        ProblemsFile(cell.path / "problems.jsonl").add(
            TASK, "test", asked, lambda one: [{"role": "user", "content": one.problem}]
        )
    (folder / "report").mkdir()
    write_sweep_samples(sweep, folder / "report")
    return folder / "report" / "samples.html"


def shown(chromium: str, page: Path, scratch: Path, fragment: str = "") -> str:
    """The page as it stands once its scripts have run."""
    return run_chromium(chromium, scratch, "--virtual-time-budget=20000", "--dump-dom", f"{page.as_uri()}#{fragment}")


def count(dom: str) -> str:
    found = re.search(r'<p id="count"[^>]*>(.*?)</p>', dom)
    assert found is not None
    return html.unescape(found[1])


def articles(dom: str) -> list[str]:
    return re.findall(r'<article class="sample">(.*?)</article>', dom, flags=re.DOTALL)


def test_what_a_model_wrote_runs_nothing_and_is_read_as_text(chromium, page, tmp_path):
    for fragment in ("step=final&problem=p0", "step=final&problem=p0&with=", "step=training-1&view=entropy"):
        dom = shown(chromium, page, tmp_path, fragment)
        assert not re.search(r"<img|<b>so|<a [^>]*javascript:|<[^>]*onerror", dom.replace("&lt;", ""))
        found = "".join(re.sub(r"<[^>]+>", "", one) for one in articles(dom))
        assert ATTACK.replace("\u202e", "\N{REPLACEMENT CHARACTER}") in html.unescape(found)


def test_flipped_samples_come_first_beside_the_baselines_with_what_differs_marked(chromium, page, tmp_path):
    dom = shown(chromium, page, tmp_path)
    first = articles(dom)[0]
    verdicts = re.findall(r'<b>(up|base)</b>: <span class="(right|wrong)">', first)
    assert verdicts == [("up", "right"), ("base", "wrong")]
    assert re.findall(r"<mark>(.*?)</mark>", first) == [" &lt;b&gt;so"]
    assert QUESTION in first
    assert "<math" in first  # the reference


def test_arms_that_were_asked_otherwise_stand_under_their_own_prompts(chromium, page, tmp_path):
    (article,) = articles(shown(chromium, page, tmp_path, f"arm={LONG}&seed=0&step=final&problem=p1&sample=0"))
    ours, theirs = article.split("<b>base</b>")
    assert "Compute 1?" in ours and QUESTION in ours.split(f"<b>{LONG}</b>")[1]
    assert article.count('class="prompt"') == 2 and QUESTION not in theirs


def test_what_differs_is_the_least_that_can_differ(chromium, tmp_path):
    script = (TEMPLATES / "samples.js").read_text(encoding="utf-8")
    function = script[script.index("const MOST_EDITS") : script.index("const withDifferences")]
    (tmp_path / "page.html").write_text(f"<!doctype html><title></title><script>{function}{CHECK_MATCHES}</script>")
    assert "<title>0 " in run_chromium(chromium, tmp_path, "--dump-dom", (tmp_path / "page.html").as_uri())


@pytest.mark.parametrize(
    ("fragment", "n"),
    [
        ("step=final", 3 * 2 * 2 * len(TEXTS)),
        ("step=final&arm=up&verdict=wrong", 2 * (len(TEXTS) - 1)),
        ("step=final&flipped=1", 2 * (len(TEXTS) - 1)),
        ("step=final&disagree=1&arm=base", 2 * len(TEXTS)),
        ("arm=up&seed=1&step=final&task=arithmetic&problem=p2&sample=1", 1),
        ("find=EMOJI", 3 * 2 * 2),
        (f"find={END}", 3 * 2 * 2),
        ("find=what is 2", 2 * 2 * 2),
        ("problem=nowhere", 0),
    ],
)
def test_filters_search_and_links_find_what_they_name(chromium, page, tmp_path, fragment, n):
    assert count(shown(chromium, page, tmp_path, fragment.replace(" ", "+"))).startswith(f"{n} of ")


def test_formulas_are_rendered_and_tokens_coloured(chromium, page, tmp_path):
    dom = shown(chromium, page, tmp_path, "step=final&problem=p1&view=formulas&with=")
    assert dom.count("<mfrac>") == 3 * 2 * 2
    assert r"$\foo$" in dom
    dom = shown(chromium, page, tmp_path, "step=training-1&view=advantage&with=")
    coloured = re.findall(r'<span class="token (?:above|below)" title="advantage [-\d.]+"', dom)
    assert len(coloured) > 40


def test_an_environments_replies_stand_behind_their_turns(chromium, tmp_path):
    """In the text, in colours by token, and beside another arm."""
    sweep = write_sweep(tmp_path / "records", {"base": 0.0, "up": 3.0}, seeds=1, texts=TEXTS)
    turns = json.dumps([
        {"end_chars": 1, "end_tokens": 1, "reply": ATTACK, "reward": 0.25},
        {"end_chars": 4, "end_tokens": 2, "reply": "", "reward": 0.0},
    ])  # fmt: skip
    for cell in sweep.cells:
        write_rows(cell.path, [recorded(1, "\N{MATHEMATICAL SCRIPT CAPITAL X} bc", True, {"turns": turns})])
    write_sweep_samples(sweep, tmp_path / "page")
    for view, (first, last) in {
        "": ("\N{MATHEMATICAL SCRIPT CAPITAL X}", " bc"),
        "advantage": ("</span>", "<span"),
    }.items():
        dom = shown(chromium, tmp_path / "page" / "samples.html", tmp_path, f"step=training-1&view={view}")
        said = re.findall(r'(.{1,7})<span class="reply" title="reward 0.25">([^<]*)</span>(.{1,5})', dom)
        assert len(said) == 3  # the baseline alone, and the other arm beside it
        for before, reply, after in said:
            assert before.endswith(first) and after.startswith(last)
            assert html.unescape(reply).endswith(readable(ATTACK))


def test_a_long_sample_is_opened_from_its_own_file(chromium, page, tmp_path):
    (long,) = (page.parent / "samples").glob("long-*.js")
    assert END not in (page.parent / "samples" / "text-0001.js").read_text()
    press = "setTimeout(() => document.querySelector('pre + p button').click(), 500)"
    opening = f"<script>addEventListener('load', () => {press})</script>"
    copy = page.with_name("opening.html")
    copy.write_text(page.read_text().replace("</body>", f"{opening}</body>"))
    dom = shown(chromium, copy, tmp_path, "step=final&problem=p2")
    copy.unlink()
    assert END in dom
    assert long.stat().st_size < 1_000_000


def test_the_first_samples_are_shown_apart_from_every_other_file(chromium, page, tmp_path):
    alone = tmp_path / "first_samples.html"
    alone.write_bytes(page.with_name(alone.name).read_bytes())
    dom = shown(chromium, alone, tmp_path, "step=final&arm=up&problem=p1")
    assert count(dom).startswith("2 of "), "flipped in two seeds"
    assert all("<b>base</b>" in one and "<mark>" in one for one in articles(dom))
    long = shown(chromium, alone, tmp_path, "step=final&problem=p2")
    assert END not in long and not re.search("<button[^>]*>all 15", long)
    assert count(shown(chromium, alone, tmp_path, "find=what+is+1")).startswith("4 of ")


def test_it_fits_loads_nothing_but_scripts_beside_it_and_axe_finds_no_barrier(chromium, axe, page, tmp_path):
    widths = [360, 800, 1400]
    for width, layout in zip(widths, measure(chromium, page, widths, tmp_path, axe), strict=True):
        assert (layout.width, layout.scroll_width, layout.sticking_out, layout.blocked) == (width, width, [], [])
        assert layout.elements > 400  # those of two arms side by side: its scripts were not blocked
        assert layout.violations == []
    (dark,) = measure(chromium, page, [1400], tmp_path, axe, is_dark=True)
    assert dark.violations == []


def test_without_scripts_the_first_samples_are_there(page):
    text = page.read_text()
    static = text[: text.index("<script>")]
    assert static.count('<article class="sample">') == 20
    assert QUESTION in static and "&lt;img src" in static and "<img" not in static
    assert (
        json.loads((page.parent / "samples" / "index.js").read_text()[len('benchSamples("index",') : -3])["baseline"]
        == "base"
    )


def test_a_page_of_sixty_thousand_samples_is_drawn(chromium):
    """How long it takes is for the benchmark to say; here it is bounded loosely, since other programs run beside it."""
    script = Path(__file__).parents[3] / "benchmarks" / "samples.py"
    command = [sys.executable, str(script), "--json", "--repetitions", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    outcome = json.loads(done.stdout)
    assert outcome["samples"] == 60_000
    assert outcome["load_s"] < 20
    assert outcome["page_kb"] < 200 and outcome["index_mb"] < 3
