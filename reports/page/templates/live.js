// Sent along by `bench ui` only: asks for the page again and puts what is new in place. It asks by a script, since pages
// may not fetch: they could be copied from elsewhere.
"use strict";
(() => {
const EVERY_MS = 3000;
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
let version = document.currentScript.dataset.version;

const word = document.createElement("span");
const said = document.createElement("div");
said.className = "live";
if (location.pathname !== "/") said.append(Object.assign(document.createElement("a"), {href: "/", textContent: "all runs"}), " · ");
said.append(word);
document.body.append(said);
const say = text => { if (word.textContent !== text) word.textContent = text; };

// An element is found again by the section that it is in, by its words without their numbers, and by its place among
// those that are alike.
const keyed = (selector, label) => {
  const seen = new Map(), found = new Map();
  for (const element of all(selector)) {
    const near = element.parentElement.closest("[id], [aria-labelledby]");
    const place = near ? near.id || near.getAttribute("aria-labelledby") : "";
    const words = `${place}/${element.tagName}/${label(element).slice(0, 80).replace(/[-+\d.,]+/g, "#")}`;
    const count = (seen.get(words) || 0) + 1;
    seen.set(words, count);
    found.set(`${words}/${count}`, element);
  }
  return found;
};
const words = element => element.textContent.trim();
const KEPT = {
  folds: () => keyed("details", one => words(one.querySelector("summary") || one)),
  headings: () => keyed("thead th", words),
  boxes: () => keyed(".scroll", () => ""),
  handles: () => keyed("summary, button, a, [tabindex]", words),
  marks: () => keyed(":is(h1, h2, h3, h4, figure, summary, p, li, tr, dt):not(.contents *)", one => one.id || words(one)),
};
const inView = element => {
  const box = element.getClientRects()[0];
  return box !== undefined && box.bottom > 0 && box.top < innerHeight;
};

// What the reader has opened, sorted, scrolled and focused.
const remember = () => {
  const focused = document.activeElement;
  return {
    open: new Map([...KEPT.folds()].map(([key, fold]) => [key, fold.open])),
    sorted: [...KEPT.headings()].filter(([, heading]) => heading.hasAttribute("aria-sort"))
      .map(([key, heading]) => [key, heading.getAttribute("aria-sort")]),
    across: [...KEPT.boxes()].filter(([, box]) => box.scrollLeft).map(([key, box]) => [key, box.scrollLeft]),
    focus: [...KEPT.handles()].filter(([, handle]) => handle === focused).map(([key]) => key)[0],
    marks: [...KEPT.marks()].filter(([, mark]) => inView(mark)).map(([key, mark]) => [key, mark.getBoundingClientRect().top]),
  };
};
const restore = kept => {
  for (const [key, fold] of KEPT.folds()) if (kept.open.has(key)) fold.open = kept.open.get(key);
  const headings = KEPT.headings(), boxes = KEPT.boxes(), handles = KEPT.handles();
  for (const [key, direction] of kept.sorted) {
    const button = headings.get(key)?.querySelector("button");
    for (let turn = direction === "ascending" ? 2 : 1; button && turn > 0; turn--) button.click();
  }
  for (const [key, left] of kept.across) if (boxes.has(key)) boxes.get(key).scrollLeft = left;
  if (kept.focus && handles.has(kept.focus)) handles.get(kept.focus).focus({preventScroll: true});
  const marks = KEPT.marks(), mark = kept.marks.find(([key]) => marks.has(key));
  if (mark) scrollBy({top: marks.get(mark[0]).getBoundingClientRect().top - mark[1], behavior: "instant"});
};

const parts = page => [...page.body.children].filter(one => !one.matches("script, .tip, .live"));
const put = html => {
  const page = new DOMParser().parseFromString(html, "text/html");
  const old = parts(document), fresh = parts(page);
  if (old.length !== fresh.length || old.some((one, i) => one.tagName !== fresh[i].tagName)) return location.reload();
  const kept = remember();
  document.title = page.title;
  old.forEach((one, i) => one.replaceWith(document.adoptNode(fresh[i])));
  window.benchPage?.begin();
  restore(kept);
};

const ask = () => new Promise((resolve, reject) => {
  const script = document.createElement("script");
  window.benchLive = resolve;
  script.src = `/live.js?${new URLSearchParams({page: location.pathname, version})}`;
  script.onload = script.onerror = () => { script.remove(); reject(); };  // it was resolved before, if it was answered
  document.head.append(script);
});
const poll = async () => {
  // Neither a page that nobody sees nor one in which something is being selected is asked for again.
  if (!document.hidden && getSelection().isCollapsed) {
    try {
      const now = await ask();
      if (now.version !== version) {
        version = now.version;
        put(now.html);
        say(`live, changed at ${new Date().toLocaleTimeString()}`);
      } else if (!word.textContent.startsWith("live")) say("live");  // it had stopped
    } catch {
      say("bench ui has stopped");
    }
  }
  setTimeout(poll, EVERY_MS);
};
say("live");
addEventListener("load", poll);  // a script that is asked for earlier would keep the page from being loaded
})();
