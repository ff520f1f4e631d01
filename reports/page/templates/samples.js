// The samples of a page: filters, search, two arms side by side. Model text is untrusted and only ever becomes text.
"use strict";
(() => {
const PAGE = 20;
const KEPT_CHUNKS = 40;
const FLAGS = {right: 1, wrong: 2, cut: 4, disagree: 8, flipped: 16};
const LINK = ["arm", "seed", "step", "task", "problem", "sample"];
const find = (selector, root = document) => root.querySelector(selector);
const make = (name, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
};
const form = find(".filters"), count = find("#count"), list = find("#samples"), pages = find(".pages");

// Files: scripts, because a page that was opened from disk may load nothing else.

const awaited = new Map(), kept = new Map();
let index = null;
window.benchSamples = (name, data) => {
  if (name === "index") { index = data; begin(); return; }
  if (awaited.has(name)) awaited.get(name).resolve(data);
  else kept.set(name, data);  // a page in one file brings its data along
};
const load = name => {
  if (awaited.has(name)) return awaited.get(name).promise;
  const one = {};
  one.promise = new Promise((resolve, reject) => { Object.assign(one, {resolve, reject}); });
  awaited.set(name, one);
  const script = make("script", {src: `samples/${name}.js`});
  const end = () => { awaited.delete(name); script.remove(); };
  script.onload = end;
  script.onerror = () => { end(); one.reject(new Error(`samples/${name}.js is missing: keep the folder beside this page.`)); };
  document.head.append(script);
  return one.promise;
};
const chunk = async name => {
  const known = kept.get(name);
  kept.delete(name);
  const data = known || await load(name);
  kept.set(name, data);
  if (kept.size > KEPT_CHUNKS) kept.delete(kept.keys().next().value);
  return data;
};
const inChunk = async (kind, number) => {
  const size = index.chunk[kind];
  const name = `${kind}-${String(Math.floor(number / size) + 1).padStart(4, "0")}`;
  return (await chunk(name))[number % size];
};
const promptOf = row => index.prompt[row] < 0 ? null : inChunk("prompts", index.prompt[row]);
const whole = async body => body.long ? (await chunk(body.long[0]))[body.long[1]] : body;

// Rows by what filters ask. The state is the address, so that every view and every sample has a link.

const keyOf = row => [index.seed[row], index.when[row], index.problem[row], index.sample[row]].join();
let byNoise = null;
const partner = (row, arm) => {
  if (!byNoise) {
    byNoise = new Map();
    index.arm.forEach((of, i) => { byNoise.set(`${of},${keyOf(i)}`, i); });
  }
  const found = byNoise.get(`${arm},${keyOf(row)}`);
  return found === row ? undefined : found;
};
const nameOf = {
  arm: row => index.arms[index.arm[row]],
  seed: row => String(index.seed[row]),
  step: row => index.whens[index.when[row]].replace(" ", "-"),
  task: row => index.tasks[index.problems[index.problem[row]][0]],
  problem: row => index.problems[index.problem[row]][1],
  sample: row => String(index.sample[row]),
};
const WHENS = {final: "final evaluation", training: "training, step", evaluation: "evaluation at step"};
const inWords = when => when.replace(/^\w+/, kind => WHENS[kind]);
const stateOf = () => new URLSearchParams(location.hash.slice(1));
const linkTo = row => `#${new URLSearchParams(LINK.map(name => [name, nameOf[name](row)]))}`;
const rowsFor = state => {
  const tests = LINK.filter(name => state.get(name)).map(name => {
    const wanted = state.get(name);
    if (name === "problem" && !index.problems.some(one => one[1] === wanted)) return row => nameOf.problem(row).includes(wanted);
    return row => nameOf[name](row) === wanted;
  });
  const bits = [state.get("verdict"), ...["cut", "disagree", "flipped"].filter(name => state.get(name))]
    .reduce((sum, name) => sum | (FLAGS[name] || 0), 0);
  return [...index.arm.keys()].filter(row => (index.flags[row] & bits) === bits && tests.every(test => test(row)));
};

// Text with differences, formulas or colours. Places count characters, not the halves of rare ones.

const MATHML = "http://www.w3.org/1998/Math/MathML";
const formula = ([tag, attributes, text, children]) => {
  const element = document.createElementNS(MATHML, tag);
  Object.entries(attributes).forEach(([name, value]) => element.setAttribute(name, value));
  element.append(text, ...children.map(formula));
  return element;
};
const withFormulas = ({text, formulas}) => {
  if (!formulas) return [text];
  const characters = [...text], parts = [];
  let at = 0;
  for (const [start, end, tree] of formulas) {
    const source = characters.slice(start, end).join("");
    parts.push(characters.slice(at, start).join(""), make("span", {title: source}, formula(tree)));
    at = end;
  }
  return [...parts, characters.slice(at).join("")];
};

// Runs of characters that both texts have in the same order, as [place in a, place in b, length]; with few edits the
// longest possible. Myers, An O(ND) difference algorithm (1986): ends[k] is how far d edits reach on diagonal k.
const MOST_EDITS = 800;
const matches = (a, b) => {
  let start = 0, end = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start += 1;
  while (end < a.length - start && end < b.length - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end += 1;
  const n = a.length - start - end, m = b.length - start - end, most = Math.min(n + m, MOST_EDITS);
  const middle = most + 1, ends = new Int32Array(2 * middle + 1).fill(-1), trace = [], runs = [];
  const isDown = (of, at, d, k) => k === -d || (k !== d && of[at + k - 1] < of[at + k + 1]);
  let met = false;
  ends[middle + 1] = 0;
  for (let d = 0; d <= most && !met; d += 1) {
    trace.push(ends.slice(middle - d - 1, middle + d + 2));
    for (let k = -d; k <= d; k += 2) {
      let x = isDown(ends, middle, d, k) ? ends[middle + k + 1] : ends[middle + k - 1] + 1;
      while (x < n && x - k < m && a[start + x] === b[start + x - k]) x += 1;
      ends[middle + k] = x;
      if (k === n - m && x >= n) met = true;
    }
  }
  for (let d = trace.length - 1, x = n, y = m; met && d >= 0; d -= 1) {
    const k = x - y, before = trace[d];
    const down = isDown(before, d + 1, d, k);
    const from = down ? before[d + 1 + k + 1] : before[d + 1 + k - 1] + 1;
    if (x > from) runs.unshift([start + from, start + from - k, x - from]);
    x = down ? from : from - 1;
    y = down ? from - k - 1 : from - k;
  }
  // In long texts a few characters in common by chance would hide what differs.
  const least = Math.max(n, m) > 200 ? 4 : 1;
  return [[0, 0, start], ...runs.filter(run => run[2] >= least), [a.length - end, b.length - end, end]];
};
const withDifferences = (text, other) => {
  const characters = [...text], parts = [];
  let at = 0;
  for (const [start, , length] of matches(characters, [...other])) {
    if (start > at) parts.push(make("mark", {textContent: characters.slice(at, start).join("")}));
    parts.push(characters.slice(start, start + length).join(""));
    at = start + length;
  }
  return parts;
};

// Full colour at: entropy in nats, advantage either way, log of the ratio either way.
const FULL = {entropy: 1, advantage: 2, log_ratio: 0.3};
const SCALES = {
  entropy: "Entropy over the vocabulary before the update: full colour from 1 nat.",
  advantage: "Advantage of the first epoch: blue above 0, orange below, full colour from 2 either way.",
  log_ratio: "Ratio to the policy that drew the token, when the completion was scored last: blue above 1, orange below, full colour from 1.35 and 0.74.",
};
const withColours = ({text, tokens}, what) => {
  const characters = [...text], values = tokens[what];
  let at = 0;
  return tokens.chars.map((length, i) => {
    const value = Array.isArray(values) ? values[i] : values;
    const span = make("span", {className: "token", textContent: characters.slice(at, at += length).join("")});
    if (value === null || value === undefined) return span;
    const shown = value / 1000;
    span.title = what === "log_ratio" ? `ratio ${Math.exp(shown).toFixed(3)}` : `${what} ${shown.toFixed(3)}`;
    span.classList.add(shown < 0 ? "below" : "above");
    span.style.setProperty("--heat", `${Math.round(60 * Math.min(1, Math.abs(shown) / FULL[what]))}%`);
    return span;
  });
};

// Articles.

const verdictOf = row => {
  const flags = index.flags[row], [sign, verdict] = flags & 1 ? ["✓ ", "right"] : flags & 2 ? ["✗ ", "wrong"] : ["", "not graded"];
  const said = [""];
  if (flags & FLAGS.flipped) said.push("flipped");
  if (flags & FLAGS.cut) said.push("cut");
  if (flags & FLAGS.disagree) said.push("graders disagree");
  if (index.tokens[row] !== null) said.push(`${index.tokens[row]} tokens`);
  return [make("span", {className: verdict, textContent: sign + verdict}), said.join(", ")];
};
// What each grader said: a reason; of lm-eval also a number, and what its filter extracted. The first decides.
const saidBy = graders => {
  const groups = new Map();
  graders.forEach(([name, what, extracted], i) => {
    const judged = what === "match" ? "✓" : typeof what === "number" ? what : `✗ ${index.reasons[what] || what}`;
    const said = `${judged}${extracted === undefined ? "" : `, extracted: ${extracted}`}`;
    const decides = i === 0 && graders.length > 1 ? " (decides)" : "";
    groups.set(said, [...(groups.get(said) || []), name + decides]);
  });
  return [...groups].map(([said, names]) => `${names.join(", ")}\u00a0${said}`);
};
const facts = body => {
  const line = make("p", {className: "detail"}), parts = saidBy(body.graders || []);
  if (body.extracted !== undefined) line.append("extracted: ", make("code", {textContent: body.extracted}), parts.length ? " · " : "");
  if (body.reward !== undefined) parts.push(`reward ${body.reward}${body.rewards ? ` = ${body.rewards.map(([name, value]) => `${name} ${value}`).join(", ")} (before weights)` : ""}`);
  line.append(parts.join(" · "));
  return line;
};
const formulasIn = view => !view || view === "formulas";
// What an environment replied stands behind the turn that it answered, apart from what the model wrote.
const inTurns = (parts, ends, turns) => {
  let at = 0;
  const own = end => parts.slice(at, at = end);
  const said = (reply, reward) => make("span", {className: "reply", textContent: `environment: ${reply}`, title: `reward ${reward}`});
  return [...turns.flatMap(([, , reply, reward], i) => [...own(ends[i]), ...(reply ? [said(reply, reward)] : [])]), ...own()];
};
const written = (body, other, view) => {
  if (body.turns) {
    const coloured = SCALES[view] && body.tokens && body.tokens[view] !== undefined;
    const parts = coloured ? withColours(body, view) : [...body.text];
    return inTurns(parts, body.turns.map(turn => turn[coloured ? 1 : 0]), body.turns);
  }
  if (SCALES[view] && body.tokens && body.tokens[view] !== undefined) return withColours(body, view);
  if (!view && other) return withDifferences(body.text, other.text);
  return formulasIn(view) ? withFormulas(body) : [body.text];
};
const asked = (prompt, view) => {
  const shown = part => formulasIn(view) ? withFormulas(part) : [part.text];
  return prompt === null ? [] : [make("pre", {className: "prompt"}, ...shown(prompt.prompt)),
    make("p", {className: "detail"}, "reference: ", make("code", {}, ...shown(prompt.answer)))];
};
const column = (row, body, other, view, open) => {
  const text = make("pre", {}, ...written(body, other, view));
  const children = [make("p", {className: "detail"}, make("b", {textContent: nameOf.arm(row)}), ": ", ...verdictOf(row)), text];
  if (body.length && !body.long) children.push(make("p", {className: "detail", textContent: `The beginning of ${body.length.toLocaleString("en")} characters.`}));
  if (body.long) {
    const more = make("button", {type: "button", textContent: `all ${body.length.toLocaleString("en")} characters`, onclick: open});
    children.push(make("p", {className: "detail"}, more));
  }
  return make("div", {}, ...children, facts(body));
};
const fill = async (article, row, other, view, open = false) => {
  let bodies = await Promise.all([row, other].filter(one => one !== undefined).map(one => inChunk("text", one)));
  if (open) bodies = await Promise.all(bodies.map(whole));
  const prompt = await promptOf(row);
  const apart = other !== undefined && index.prompt[other] !== index.prompt[row];  // arms may differ in their prompts
  const again = () => fill(article, row, other, view, true);
  const heading = make("h2", {textContent: `seed ${nameOf.seed(row)}, ${inWords(index.whens[index.when[row]])}, ${nameOf.task(row)} problem ${nameOf.problem(row)}, sample ${nameOf.sample(row)} `},
    make("a", {href: linkTo(row), textContent: "link", title: "Link to this sample"}));
  const columns = [column(row, bodies[0], bodies[1], view, again)];
  if (bodies[1]) columns.push(column(other, bodies[1], bodies[0], view, again));
  if (apart) columns[1].prepend(...asked(await promptOf(other), view));
  if (apart) columns[0].prepend(...asked(prompt, view));
  article.replaceChildren(heading, ...(apart ? [] : asked(prompt, view)), make("div", {className: "pair"}, ...columns));
};

// The list.

let turn = 0, page = 0, found = [];
const say = text => { count.textContent = text; };
const draw = async () => {
  const mine = turn, state = stateOf(), view = state.get("view") || "";
  const asked = state.get("with") ?? index.baseline ?? "";
  const beside = index.arms.indexOf(asked);
  const articles = found.slice(page * PAGE, (page + 1) * PAGE).map(row => {
    const article = make("article", {className: "sample"});
    return [article, fill(article, row, beside < 0 ? undefined : partner(row, beside), view)];
  });
  await Promise.all(articles.map(one => one[1]));
  if (mine !== turn) return;
  list.replaceChildren(...articles.map(one => one[0]));
  pages.hidden = found.length <= PAGE;
  find("span", pages).textContent = `${page + 1} of ${Math.ceil(found.length / PAGE)}`;
  find("[name=back]", pages).disabled = page === 0;
  find("[name=next]", pages).disabled = (page + 1) * PAGE >= found.length;
};
const holds = async (row, wanted) => {
  const body = await whole(await inChunk("text", row)), prompt = await promptOf(row);
  const texts = [body.text, ...(prompt ? [prompt.prompt.text, prompt.answer.text] : [])];
  return texts.some(text => text.toLowerCase().includes(wanted));
};
const search = async (rows, wanted) => {
  const mine = turn;
  let drawn = 0;
  found = [];
  for (const [i, row] of rows.entries()) {
    if (await holds(row, wanted)) found.push(row);
    if (mine !== turn) return;
    if (found.length === PAGE && !drawn) { drawn = 1; await draw(); }
    if (i % 500 === 0) {
      say(`${found.length.toLocaleString("en")} found; ${i.toLocaleString("en")} of ${rows.length.toLocaleString("en")} searched …`);
      await new Promise(resolve => setTimeout(resolve));
    }
  }
};
const run = async () => {
  const mine = turn += 1, state = stateOf(), total = index.arm.length;
  page = 0;
  for (const field of form.elements) {
    if (field.type === "checkbox") field.checked = state.get(field.name) !== null;
    else if (field.name) field.value = state.get(field.name) ?? (field.name === "with" ? index.baseline ?? "" : "");
  }
  const scale = find(".scale");
  scale.hidden = !SCALES[state.get("view")];
  scale.textContent = scale.hidden ? "" : `${SCALES[state.get("view")]} Completions of training have these numbers where the records keep them.`;
  try {
    const rows = rowsFor(state), wanted = (state.get("find") || "").toLowerCase();
    found = rows;
    if (wanted) await search(rows, wanted);
    if (mine !== turn) return;
    say(`${found.length.toLocaleString("en")} of the ${total.toLocaleString("en")} samples on this page.`);
    await draw();
  } catch (error) {
    say(`⚠ ${error.message}`);
  }
};
const options = (name, values, any) => {
  const select = form.elements[name];
  select.replaceChildren(make("option", {value: "", textContent: any}),
    ...values.map(([value, text]) => make("option", {value, textContent: text})));
  select.parentNode.hidden = values.length < 2;
};
const begin = () => {
  const same = values => values.map(value => [value, value]);
  options("arm", same(index.arms), "all");
  options("with", same(index.arms), "nothing");
  options("seed", same([...new Set(index.seed)].sort((a, b) => a - b).map(String)), "all");
  options("step", index.whens.map(when => [when.replace(" ", "-"), inWords(when)]), "all");
  options("task", same(index.tasks), "all");
  form.hidden = false;
  form.onsubmit = event => event.preventDefault();
  form.onreset = () => { location.hash = ""; };
  form.onchange = () => {
    const state = new URLSearchParams();
    for (const {type, name, value, checked} of form.elements) {
      if (type === "checkbox" ? checked : value || name === "with") state.set(name, type === "checkbox" ? "1" : value);
    }
    state.delete("");
    if (state.get("with") === (index.baseline ?? "")) state.delete("with");
    location.hash = state;
  };
  const turnTo = step => { page += step; draw().catch(error => say(`⚠ ${error.message}`)); count.scrollIntoView(); };
  find("[name=back]", pages).onclick = () => turnTo(-1);
  find("[name=next]", pages).onclick = () => turnTo(1);
  addEventListener("hashchange", run);
  run();
};
})();
