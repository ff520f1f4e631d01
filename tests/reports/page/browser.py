"""A page in headless Chromium at given widths: what it loads, what sticks out of it or has to be scrolled, and what
axe finds against WCAG 2.1 AA in it."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from html import unescape
from pathlib import Path

BINARIES = ("chromium", "chromium-browser", "google-chrome", "chrome")
TIMEOUT_S = 120

# Runs in a copy of the page. A policy that allows nothing but the page and scripts beside it reports whatever else it
# tries to load.
_PROBE = """
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline' file:">
<script>
const blocked = [];
document.addEventListener("securitypolicyviolation", event => blocked.push(event.blockedURI));
const scrolls = element => element.closest(".scroll, svg") !== null && !element.matches(".scroll");
const accessible = async () => {
  if (!window.axe) return null;
  const context = {include: [document], exclude: [["svg > *"]]};  // what an image is made of has no roles of its own
  const {violations} = await axe.run(context, {runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]});
  return violations.flatMap(({id, nodes}) => nodes.map(node => `${id}: ${node.html.slice(0, 120)}`));
};
addEventListener("load", async () => {
  document.querySelectorAll("details").forEach(details => details.open = true);
  const width = document.documentElement.clientWidth;
  const out = [...document.body.querySelectorAll("*")].filter(element => !scrolls(element)
    && element.getClientRects().length && element.getBoundingClientRect().right > width + 0.5);
  parent.postMessage({
    view: +location.search.slice(1), width, scroll_width: document.documentElement.scrollWidth, blocked,
    loaded: performance.getEntriesByType("resource").map(entry => entry.name),
    sticking_out: out.map(element => `${element.tagName} ${element.textContent.slice(0, 40)}`),
    scrolling: [...document.querySelectorAll(".scroll")].filter(box => box.scrollWidth > box.clientWidth + 1)
      .map(box => `${box.getAttribute("aria-label")} (tabindex ${box.tabIndex})`),
    elements: document.body.querySelectorAll("*").length,
    violations: await accessible(),
  }, "*");
});
</script>
"""
_AXE = "<script>{}</script>"
_FRAMES = """<!doctype html><body style="margin: 0">{frames}<pre id="measured"></pre><script>
const views = [];
addEventListener("message", ({{data: {{view, ...layout}}}}) => {{
  views[view] = layout;
  document.querySelector("#measured").textContent = JSON.stringify(views);
}});
</script>"""
_FRAME = '<iframe src="{page}?{view}" style="border: 0" width="{width}" height="900"></iframe>'
_IF_DARK = "@media (prefers-color-scheme: dark)"


@dataclass(frozen=True)
class Layout:
    """The layout of a page in a window `width` CSS pixels wide, with all of its details open.

    blocked, loaded: addresses that it tried to load, beside itself. sticking_out: elements beyond the right edge that
    are in no box which scrolls. scrolling: boxes that hold more than they show. violations: what axe finds; None
    without axe.
    """

    width: int
    scroll_width: int
    blocked: list[str]
    loaded: list[str]
    sticking_out: list[str]
    scrolling: list[str]
    elements: int
    violations: list[str] | None


def find_chromium() -> str | None:
    return next((path for name in BINARIES if (path := shutil.which(name)) is not None), None)


def find_axe() -> Path | None:
    """The script that the package axe-core-python brings, without importing it."""
    found = importlib.util.find_spec("axe_core_python")
    return None if found is None or found.origin is None else Path(found.origin).with_name("axe.min.js")


def measure(
    chromium: str, page: Path, widths: Sequence[int], scratch: Path, axe: Path | None = None, *, is_dark: bool = False
) -> list[Layout]:
    """Open copies of the page in frames so many pixels wide, since a window itself cannot be as narrow as a telephone.
    Axe looks at each of them."""
    html = page.read_text(encoding="utf-8")
    if is_dark:
        if _IF_DARK not in html:
            raise ValueError(f"{page} has no colours for the dark")
        html = html.replace(_IF_DARK, "@media all").replace("color-scheme: light dark", "color-scheme: dark")
    rules = "" if axe is None else _AXE.format(axe.read_text(encoding="utf-8"))
    if (page.parent / "samples").is_dir():  # its scripts
        shutil.copytree(page.parent / "samples", scratch / "samples", dirs_exist_ok=True)
    (scratch / "probed.html").write_text(html.replace("<head>", f"<head>{_PROBE}{rules}", 1), encoding="utf-8")
    frames = "".join(_FRAME.format(page="probed.html", view=i, width=width) for i, width in enumerate(widths))
    (scratch / "frames.html").write_text(_FRAMES.format(frames=frames), encoding="utf-8")
    dom = run_chromium(
        chromium, scratch, "--virtual-time-budget=20000", "--dump-dom", (scratch / "frames.html").as_uri()
    )
    measured = re.search(r'<pre id="measured">(.+?)</pre>', dom, flags=re.DOTALL)
    if measured is None:
        raise ValueError(f"the page said nothing of its layout: {dom[-500:]}")
    views = [one and Layout(**one) for one in json.loads(unescape(measured[1]))]
    if len(views) < len(widths) or None in views:
        raise ValueError(f"the page said nothing of its layout in some of {widths}")
    return views


def run_chromium(chromium: str, scratch: Path, *arguments: str) -> str:
    """Standard output. No address but those of files can be reached."""
    common = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"]
    common += [f"--user-data-dir={scratch / 'profile'}", "--host-resolver-rules=MAP * ~NOTFOUND"]
    done = subprocess.run(
        [chromium, *common, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=True
    )
    return done.stdout
