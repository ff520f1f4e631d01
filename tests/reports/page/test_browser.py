"""The page as a browser lays it out; skips without Chromium (`make chromium`)."""

from __future__ import annotations

import pytest

from reports.page import write_report
from tests.reports.page.browser import find_axe, find_chromium, measure
from tests.reports.synthetic import Changes, write_sweep

pytestmark = pytest.mark.slow

LONG = "an_arm_with_a_name_of_forty_characters_"


@pytest.fixture(scope="module")
def chromium() -> str:
    found = find_chromium()
    if found is None:
        pytest.skip("no Chromium on this machine: `make chromium` installs it")
    return found


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    arms = {"base": 0.0, "up": 3.0, **{f"{LONG}{i}": 0.0 for i in range(5)}}
    changes: Changes = {("up", 0): {"flags": ["nan"]}, ("up", 1): {"state": "failed", "reason": 60 * "long_reason_"}}
    texts = ["word " * 400 + "#### 3", 900 * "x", "<img src=https://example.org/x.png>"]
    sweep = write_sweep(folder / "records", arms, seeds=3, changes=changes, texts=texts, other_tasks=["gsm8k"])
    write_report(sweep, folder / "report")
    return folder / "report" / "index.html"


@pytest.mark.parametrize("width", [360, 800, 1400])
def test_nothing_is_loaded_and_nothing_sticks_out(chromium, page, tmp_path, width):
    layout = measure(chromium, page, width, tmp_path)
    assert (layout.width, layout.blocked, layout.loaded) == (width, [], [])
    assert layout.sticking_out == []
    assert layout.scroll_width == width
    # Cards on a telephone, and room for all columns on a desk; between them a table may scroll, and takes focus.
    assert layout.scrolling == [] or width == 800
    assert all("(tabindex 0)" in box for box in layout.scrolling)
    assert layout.elements > 1000


@pytest.mark.parametrize("width", [360, 1400])
def test_axe_finds_no_barrier(chromium, page, tmp_path, width):
    axe = find_axe()
    if axe is None:
        pytest.skip("no axe-core-python: it comes with bench-rl[test]")
    assert measure(chromium, page, width, tmp_path, axe).violations == []


def test_axe_sees_a_barrier(chromium, tmp_path):
    axe = find_axe()
    if axe is None:
        pytest.skip("no axe-core-python: it comes with bench-rl[test]")
    bad = tmp_path / "bad.html"
    body = '<p style="color: #bbb; background: #fff">pale</p>'
    bad.write_text(f'<!doctype html><html lang="en"><head><title>bad</title></head><body>{body}</body></html>')
    (violation,) = measure(chromium, bad, 1400, tmp_path, axe).violations or []
    assert violation.startswith("color-contrast: <p")


def test_the_measurement_sees_what_sticks_out_and_what_is_loaded(chromium, tmp_path):
    bad = tmp_path / "bad.html"
    body = '<p style="width: 500px">wide</p><img src="https://example.org/x.png"><div class="scroll">fine</div>'
    bad.write_text(f"<!doctype html><html><head></head><body>{body}</body></html>")
    layout = measure(chromium, bad, 360, tmp_path)
    assert layout.sticking_out == ["P wide"]
    assert layout.scroll_width > 360
    assert layout.blocked == ["https://example.org/x.png"]
