// What answers to the hand. The page says the same without it: nothing here makes or changes a number.
"use strict";
(() => {
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const make = (name, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
};

// Hover: the nearest mark, with its arm, seed, x, y, and the interval of its arm at that x.

const REACH = 28;  // pixels
const tip = make("div", {className: "tip", hidden: true, role: "status"});

// The points of a path as [x, y, number of the part], in the units of its SVG: starts are absolute, steps relative.
const pointsOf = path => {
  const points = [];
  let part = -1, x = 0, y = 0;
  for (const [, letter, numbers] of path.getAttribute("d").matchAll(/([Mlqc])([-\d ]+)/g)) {
    const values = numbers.match(/-?\d+/g).map(Number);
    if (letter === "M") { part += 1; x = y = 0; }
    const size = {q: 4, c: 6}[letter] || 2;  // a curve is taken by its end
    for (let i = size - 2; i < values.length; i += size) points.push([x += values[i], y += values[i + 1], part]);
  }
  return points;
};

const panelsOf = svg => all("[data-axes]", svg).map(background => {
  const corners = pointsOf(background.querySelector("path"));
  const xs = corners.map(p => p[0]), ys = corners.map(p => p[1]);
  const ends = JSON.parse(background.dataset.axes);
  const panel = {left: Math.min(...xs), right: Math.max(...xs), top: Math.min(...ys), bottom: Math.max(...ys), ends};
  panel.marks = all("[data-kind]", background.parentNode).filter(one => one.dataset.kind !== "name").map(group => {
    const {arm, kind, seeds} = group.dataset;
    const line = group.querySelector("path:not([id])");
    const dots = all("use", group).map((dot, i) => [+dot.getAttribute("x"), +dot.getAttribute("y"), i]);
    const points = line && !(kind === "seed" && dots.length) ? pointsOf(line) : dots;
    return {group, arm, kind, seeds: seeds ? seeds.split(" ") : [], points};
  });
  return panel;
});

const scales = {log: [Math.log, Math.exp], function: [Math.sqrt, v => v * v]};
const valueAt = (share, {low, high, scale}) => {
  const [to, from] = scales[scale] || [v => v, v => v];
  const value = from(to(low) + share * (to(high) - to(low)));
  return !scale && Math.abs(value) < 1e-4 * (high - low) ? 0 : value;  // finer than figures are drawn
};
const text = value => {
  const size = Math.abs(value);
  return size >= 1e4 ? Math.round(value).toLocaleString("en") : size >= 100 ? value.toFixed(1) : +value.toPrecision(3) + "";
};

// Where the edge of a band, or the ends of a bar, lie at this x or y.
const crossings = (points, at, across) => {
  const found = [];
  points.forEach((point, i) => {
    const next = points[(i + 1) % points.length];
    const [a, b] = [point[across], next[across]];
    if (a !== b && Math.min(a, b) <= at && at <= Math.max(a, b))
      found.push(point[1 - across] + (next[1 - across] - point[1 - across]) * (at - a) / (b - a));
  });
  return found;
};

const describe = (panel, mark, [x, y, part]) => {
  const {ends} = panel;
  const xValue = place => valueAt((place - panel.left) / (panel.right - panel.left), ends.x);
  const yValue = place => valueAt((panel.bottom - place) / (panel.bottom - panel.top), ends.y);
  const seed = mark.kind === "seed" ? mark.seeds[part] : undefined;
  const lines = [mark.arm + (seed === undefined ? ", mean" : `, seed ${seed}`)];
  lines.push(`${ends.x.label || "x"}: ${text(xValue(x))}`);
  if (ends.y.label) lines.push(`${ends.y.label}: ${text(yValue(y))}`);
  const interval = panel.marks.find(one => one.arm === mark.arm && one.kind === "interval");
  if (seed === undefined && interval && interval.points.length) {
    const isBar = interval.points.length === 2;
    const flat = isBar && interval.points[0][1] === interval.points[1][1];
    const edges = isBar ? interval.points.map(p => p[flat ? 0 : 1]) : crossings(interval.points, x, 0);
    if (edges.length > 1) {
      const values = edges.map(flat ? xValue : yValue);
      lines.push(`interval [${text(Math.min(...values))}, ${text(Math.max(...values))}]`);
    }
  }
  return lines.join("\n");
};

const watch = svg => {
  let panels;
  svg.addEventListener("pointermove", event => {
    panels ||= panelsOf(svg);
    const matrix = svg.getScreenCTM().inverse();
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(matrix);
    const reach = REACH * matrix.a;
    let best, nearest = reach * reach;
    for (const panel of panels) {
      if (at.x < panel.left - reach || at.x > panel.right + reach || at.y < panel.top - reach || at.y > panel.bottom + reach)
        continue;
      for (const mark of panel.marks) {
        if (mark.kind === "interval" || mark.group.classList.contains("faded")) continue;
        for (const point of mark.points) {
          const distance = (point[0] - at.x) ** 2 + (point[1] - at.y) ** 2;
          if (distance < nearest || (distance === nearest && mark.kind === "mean")) {
            nearest = distance;
            best = [panel, mark, point];
          }
        }
      }
    }
    tip.hidden = !best;
    if (!best) return;
    tip.textContent = describe(...best);
    const right = event.clientX + 16 + tip.offsetWidth > innerWidth;
    tip.style.left = `${event.clientX + (right ? -12 - tip.offsetWidth : 16)}px`;
    tip.style.top = `${event.clientY + 12}px`;
  });
  svg.addEventListener("pointerleave", () => { tip.hidden = true; });
};

// Isolate an arm in all figures: its buttons above the figures, or its name in any figure.

let alone = null;
const showAlone = () => {
  all("svg [data-arm]").forEach(mark => mark.classList.toggle("faded", alone !== null && mark.dataset.arm !== alone));
  all(".arms button").forEach(button => button.setAttribute("aria-pressed", String(button.value === alone)));
};
const isolate = arm => {
  alone = alone === arm ? null : arm;
  showAlone();
};

const armButtons = () => {
  const arms = [...new Set(all("svg [data-arm]").map(mark => mark.dataset.arm))];
  const place = document.querySelector("[data-arms]");
  if (!place || arms.length < 2) return;
  const buttons = arms.map(arm => {
    const button = make("button", {type: "button", value: arm, textContent: arm, onclick: () => isolate(arm)});
    button.setAttribute("aria-pressed", "false");
    return button;
  });
  const group = make("div", {className: "arms"}, make("span", {textContent: "Show alone:"}), ...buttons);
  group.setAttribute("role", "group");
  group.setAttribute("aria-label", "Show one arm alone in all figures");
  place.replaceChildren(group);
};

// x as tokens, steps or seconds, in all figures that have them.

let chosenOver = null;
const runOver = over => {
  chosenOver = over;
  all("figure").forEach(figure => {
    const views = all(".wide[data-over]", figure);
    if (views.some(view => view.dataset.over === over)) views.forEach(view => { view.hidden = view.dataset.over !== over; });
  });
  all(".over button").forEach(button => button.setAttribute("aria-pressed", String(button.value === over)));
};

const overButtons = figure => {
  const overs = all(".wide[data-over]", figure).map(view => view.dataset.over);
  if (overs.length < 2) return;
  const group = make("div", {className: "over"}, make("span", {textContent: "x:"}));
  group.setAttribute("role", "group");
  group.setAttribute("aria-label", "What the x axis counts");
  overs.forEach((over, i) => {
    const button = make("button", {type: "button", value: over, textContent: over, onclick: () => runOver(over)});
    button.setAttribute("aria-pressed", String(i === 0));
    group.append(button);
  });
  figure.querySelector(".view").before(group);
};

// Tables: sort by a column, copy whole.

const cellsOf = table => all("tr", table).map(row => all("th, td", row).map(cell => cell.innerText.trim()));
const number = cell => {
  const found = cell.replace("−", "-").match(/^[<=≥≤\s]*([-+]?\d[\d,]*\.?\d*(?:e[-+]?\d+)?)\s*([kMB]?)/);
  return found ? +found[1].replaceAll(",", "") * ({k: 1e3, M: 1e6, B: 1e9}[found[2]] || 1) : NaN;
};
const sortable = table => all("thead th", table).forEach((heading, column) => {
  const button = make("button", {type: "button", className: "sort"}, ...heading.childNodes);
  heading.append(button);
  button.onclick = () => {
    const down = heading.getAttribute("aria-sort") === "descending";
    const rows = all("tbody tr", table);
    const keyed = rows.map(row => ({row, cell: row.cells[column] ? row.cells[column].innerText : ""}));
    const numeric = keyed.every(({cell}) => !cell.trim() || cell.trim() === "–" || !isNaN(number(cell)) || cell === "baseline");
    const known = one => numeric ? !isNaN(number(one.cell)) : one.cell.trim() !== "";
    keyed.sort((a, b) => known(b) - known(a) || (known(a) ? (down ? 1 : -1) *
      (numeric ? number(a.cell) - number(b.cell) : a.cell.localeCompare(b.cell)) : 0));
    table.tBodies[0].append(...keyed.map(one => one.row));
    all("thead th", table).forEach(other => other.removeAttribute("aria-sort"));
    heading.setAttribute("aria-sort", down ? "ascending" : "descending");
  };
});

const quoted = cell => /[",\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell;
const LATEX = {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "±": "$\\pm$", "ρ": "$\\rho$", "×": "$\\times$"};
const latex = cell => cell.replace(/[\\~^±ρ×&%$#_{}]/g, mark => LATEX[mark] || `\\${mark}`);
const FORMATS = {
  CSV: rows => rows.map(row => row.map(quoted).join(",")).join("\n"),
  Markdown: rows => rows.flatMap((row, i) => [`| ${row.map(cell => cell.replaceAll("|", "\\|")).join(" | ")} |`,
    ...(i ? [] : [`|${" --- |".repeat(row.length)}`])]).join("\n"),
  LaTeX: rows => [`\\begin{tabular}{${"l".repeat(rows[0].length)}}`, "\\toprule",
    ...rows.flatMap((row, i) => [`${row.map(latex).join(" & ")} \\\\`, ...(i ? [] : ["\\midrule"])]),
    "\\bottomrule", "\\end{tabular}"].join("\n"),
};
const copyText = async copied => {
  try {
    await navigator.clipboard.writeText(copied);
  } catch {  // a page opened from disk may not use the clipboard itself
    const field = make("textarea", {value: copied});
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
};
const copyButtons = table => {
  const group = make("div", {className: "copy"}, make("span", {textContent: "Copy as"}));
  for (const [name, write] of Object.entries(FORMATS)) {
    const button = make("button", {type: "button", textContent: name});
    button.onclick = async () => {
      await copyText(write(cellsOf(table)) + "\n");
      button.textContent = "copied";
      setTimeout(() => { button.textContent = name; }, 1200);
    };
    group.append(button);
  }
  (table.closest(".scroll") || table).after(group);
};

// What a link points to is shown, though it lies in something folded.

const unfold = () => {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  for (let part = target.parentElement; part; part = part.parentElement) if (part.matches("details")) part.open = true;
  target.scrollIntoView();
};
addEventListener("hashchange", unfold);

const copyable = place => {
  const button = make("button", {type: "button", textContent: "copy"});
  const copied = place.innerText.trim() || place.textContent.trim();
  button.onclick = async () => {
    await copyText(copied + "\n");
    button.textContent = "copied";
    setTimeout(() => { button.textContent = "copy"; }, 1200);
  };
  place.append(" ", button);
};

const begin = () => {
  document.body.append(tip);
  all("figure svg").forEach(watch);
  all("figure").forEach(overButtons);
  armButtons();
  all("table").forEach(table => { sortable(table); copyButtons(table); });
  all("[data-copied]").forEach(copyable);
  if (alone !== null) showAlone();
  if (chosenOver !== null) runOver(chosenOver);
};
document.addEventListener("click", event => {
  const mark = event.target.closest && event.target.closest("svg [data-kind=name]");
  if (mark) isolate(mark.dataset.arm);
});
document.addEventListener("keydown", event => {
  if (event.key === "Escape") { tip.hidden = true; if (alone !== null) isolate(alone); }
});
// A live page calls it again after it has put new figures in place: the arm alone and the x axis stay chosen.
window.benchPage = {begin, isolated: () => alone};
begin();
unfold();
})();
