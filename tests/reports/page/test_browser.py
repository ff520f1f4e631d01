"""The page as a browser lays it out; skips without Chromium (`make chromium`)."""

from __future__ import annotations

import re

import pytest

from reports.page import write_report
from tests.reports.page.browser import measure, run_chromium
from tests.reports.page.invariants import only_figures
from tests.reports.synthetic import Changes, write_sweep

pytestmark = pytest.mark.slow

LONG = "an_arm_with_a_name_of_forty_characters_"
LONG_NAMES = ("dr.grpo.no.std.no.length.normalisation.x", "tree-backup-with-process-rewards-and-kl!", 40 * "A")

SHOWN = ("forest", "learning")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    arms = {f"{LONG}0": 0.0, "up": 3.0, **dict.fromkeys((*LONG_NAMES, *(f"{LONG}{i}" for i in range(1, 6))), 0.0)}
    changes: Changes = {("up", 0): {"flags": ["nan"]}, ("up", 1): {"state": "failed", "reason": 60 * "long_reason_"}}
    texts = ["word " * 400 + "#### 3", 900 * "x", "<img src=https://example.org/x.png>"]
    sweep = write_sweep(folder / "records", arms, seeds=3, changes=changes, texts=texts, other_tasks=["gsm8k"])
    with only_figures(*SHOWN):
        write_report(sweep, folder / "report")
    return folder / "report" / "index.html"


def test_nothing_is_loaded_nothing_sticks_out_and_axe_finds_no_barrier(chromium, axe, page, tmp_path):
    widths = [360, 800, 1400]
    for width, layout in zip(widths, measure(chromium, page, widths, tmp_path, axe), strict=True):
        assert (layout.width, layout.blocked, layout.loaded) == (width, [], [])
        assert (layout.sticking_out, layout.scroll_width) == ([], width)
        # Cards on a telephone, and room enough on a desk; in between a wide table may scroll, and takes focus.
        assert layout.scrolling == [] or width == 800
        assert all("(tabindex 0)" in box for box in layout.scrolling)
        assert layout.elements > 1000
        assert layout.violations == []


def test_axe_finds_no_barrier_in_the_dark(chromium, axe, page, tmp_path):
    (layout,) = measure(chromium, page, [1400], tmp_path, axe, is_dark=True)
    assert layout.violations == []


def test_a_link_opens_the_folded_group_that_it_leads_into(chromium, page, tmp_path):
    def folds(html: str) -> dict[str, str]:
        return dict(re.findall(r'aria-labelledby="group-(\w+)">\s*<details( open)?', html))

    text = page.read_text()
    assert folds(text) == {"result": " open"} | dict.fromkeys(("learning", "policy", "cost", "records"), "")
    # Chromium opens the target of a link by itself, other browsers may not: here only the address changes.
    change = 'history.replaceState(null, "", "#learning"); dispatchEvent(new Event("hashchange"))'
    follow = f"<script>addEventListener('load', () => {{ {change} }})</script>"
    (tmp_path / "page.html").write_text(text.replace("</body>", f"{follow}</body>"))
    dom = run_chromium(chromium, tmp_path, "--dump-dom", (tmp_path / "page.html").as_uri())
    assert folds(dom) == folds(text) | {"learning": " open"}


def test_axe_sees_a_barrier(chromium, axe, tmp_path):
    bad = tmp_path / "bad.html"
    body = '<p style="color: #bbb; background: #fff">pale</p>'
    bad.write_text(f'<!doctype html><html lang="en"><head><title>bad</title></head><body>{body}</body></html>')
    ((violation,),) = [layout.violations or [] for layout in measure(chromium, bad, [1400], tmp_path, axe)]
    assert violation.startswith("color-contrast: <p")


def test_the_measurement_sees_what_sticks_out_and_what_is_loaded(chromium, tmp_path):
    bad = tmp_path / "bad.html"
    body = '<p style="width: 500px">wide</p><img src="https://example.org/x.png"><div class="scroll">fine</div>'
    bad.write_text(f"<!doctype html><html><head></head><body>{body}</body></html>")
    (layout,) = measure(chromium, bad, [360], tmp_path)
    assert layout.sticking_out == ["P wide"]
    assert layout.scroll_width > 360
    assert layout.blocked == ["https://example.org/x.png"]
