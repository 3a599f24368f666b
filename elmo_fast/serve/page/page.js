"use strict";
const EXAMPLES = [["I ate an apple", "Apple sold a phone"],
  ["The children play in the garden.", "A new play opened last night."],
  ["She sat on the bank of the river.", "He took his money to the bank."]];
const byId = id => document.getElementById(id);
const state = { raw: [], token: "", data: null, about: { most_tokens: 60, index: null }, asked: {} };

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}
function button(label, act, attributes = {}) {
  const made = element("button", { type: "button", ...attributes }, label);
  made.addEventListener("click", act);
  return made;
}
const shown = (value, digits = 2) =>
  Number.isFinite(value) ? value.toFixed(digits).replace(/^-(?=[0.]*$)/, "").replace("-", "−") : "–";

const end = value => `var(--${value < 0 ? "minus" : "plus"})`;
const size = value => Math.min(1, Math.abs(value) || 0);

async function ask(route, body) {
  let answer, content;
  try {
    answer = await fetch(route, body && { method: "POST", body: JSON.stringify(body),
      headers: { "Content-Type": "application/json" } });
  } catch { throw new Error("The server cannot be reached."); }
  try { content = await answer.json(); } catch { throw new Error(`The server answered ${answer.status}.`); }
  if (answer.ok) return content;
  const detail = content.error?.message ?? content.detail;
  throw new Error(typeof detail === "string" ? detail : `The server answered ${answer.status}.`);
}
function fail(error) { byId("error").textContent = error.message; }

// Sends a request and shows its answer or its error, unless a newer request has been sent to the route by then. The
// element `busy` is dimmed while the newest request runs.
async function askNewest(route, body, busy, show, refuse) {
  const number = state.asked[route] = (state.asked[route] ?? 0) + 1, isNewest = () => number === state.asked[route];
  busy.classList.add("busy");
  try {
    const answer = await ask(route, body);
    if (isNewest()) show(answer);
  } catch (error) {
    if (isNewest()) refuse(error);
  } finally {
    if (isNewest()) busy.classList.remove("busy");
  }
}

// Cosines. cross[k][l][s][t] are dot products of layer k of token s with layer l of token t.
function softmax(raw) {
  const top = Math.max(...raw), powers = raw.map(value => Math.exp(value - top));
  const sum = powers.reduce((a, b) => a + b, 0);
  return powers.map(value => value / sum);
}
function quadratic(weights, matrix, at) {
  let sum = 0;
  weights.forEach((a, k) => weights.forEach((b, l) => { if (a && b) sum += a * b * at(matrix[k][l]); }));
  return sum;
}
function cosines(weights) {
  const { cross, first, second, first_tokens, second_tokens } = state.data;
  const norms = (own, tokens) => tokens.map((_, t) => Math.sqrt(quadratic(weights, own, row => row[t])));
  const a = norms(first, first_tokens), b = norms(second, second_tokens);
  return a.map((x, s) => b.map((y, t) => quadratic(weights, cross, map => map[s][t]) / (x * y)));
}
const sentenceCosine = weights => {
  const [cross, a, b] = state.data.means.map(products => quadratic(weights, products, value => value));
  return cross / Math.sqrt(a * b);
};
const single = layer => state.raw.map((_, k) => +(k === layer));

// Heat maps: tables with a single cell in the tab order; arrow keys move the focus to other cells.
function drawMap(place, name, withButtons) {
  const { first_tokens: rows, second_tokens: columns } = state.data;
  const head = (side, token, at) => withButtons ? tokenButton(side, token, at) :
    element("span", isWord(token) ? {} : { class: "punctuation" }, token);
  const table = element("table", { role: "grid", "aria-label": name });
  const titles = columns.map((token, t) =>
    element("th", { scope: "col", role: "columnheader", title: token }, head("b", token, t)));
  table.append(element("thead", {}, element("tr", { role: "row" }, element("td", { class: "corner" }), ...titles)));
  const body = element("tbody");
  rows.forEach((token, s) => body.append(element("tr", { role: "row" },
    element("th", { scope: "row", role: "rowheader", title: token }, head("a", token, s)),
    ...columns.map((_, t) => element("td", { role: "gridcell", "data-row": s, "data-column": t,
      tabindex: s + t ? -1 : 0 })))));
  table.append(body);
  place.replaceChildren(table);
  for (const kind of ["mouseover", "focusin"]) body.addEventListener(kind, event => {
    if (event.target.dataset.row) showPair(+event.target.dataset.row, +event.target.dataset.column);
  });
  body.addEventListener("keydown", moveFocus);
  fit(place);
}
function fillMap(place, map) {
  for (const cell of place.querySelectorAll("td[data-row]")) {
    const value = map[cell.dataset.row][cell.dataset.column];
    cell.textContent = shown(value);
    cell.dataset.cosine = value;
    cell.className = size(value) > .73 ? "mid strong" : size(value) > .5 ? "mid" : "";
    cell.style.setProperty("--v", size(value).toFixed(3));
    cell.style.setProperty("--end", end(value));
  }
}
function moveFocus(event) {
  const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
  const { row, column } = event.target.dataset;
  if (!step || !row) return;
  const next = event.currentTarget.querySelector(`[data-row="${+row + step[0]}"][data-column="${+column + step[1]}"]`);
  if (!next) return;
  event.preventDefault();
  event.target.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}
function fit(place) {
  const header = place.querySelector("tbody th");
  if (!header) return;
  const side = place.nextElementSibling, isBeside = side && side.offsetLeft > place.offsetLeft;
  const width = side ? place.parentElement.clientWidth - (isBeside ? side.offsetWidth + 40 : 0) : place.clientWidth;
  const room = (width - header.offsetWidth - 8) / state.data.second_tokens.length - 2;
  const cell = Math.max(16, Math.min(place.id === "mixture" ? 60 : 44, room));
  place.style.setProperty("--cell", `${Math.floor(cell)}px`);
  place.classList.toggle("tight", cell < 42);
  place.classList.toggle("dense", cell < 35);
}
new ResizeObserver(() => {
  if (state.data) document.querySelectorAll("#mixture, #layers .scroll").forEach(fit);
}).observe(byId("mixture").parentElement);

const isWord = token => /[\p{L}\p{N}]/u.test(token);
function drawTokens({ first_tokens, second_tokens }) {
  const line = tokens => element("span", { class: "tokens" }, ...tokens.flatMap(
    token => [element("span", isWord(token) ? {} : { class: "punctuation" }, token), " "]));
  byId("tokens").replaceChildren("Tokens: ", line(first_tokens), " / ", line(second_tokens));
}
function showPair(s, t) {
  state.pair = [s, t];
  const { first_tokens, second_tokens } = state.data;
  const values = [["mixture", state.mixed], ...state.maps.map((map, k) => [`layer ${k}`, map])]
    .map(([name, map]) => [name, map[s][t]]);
  const bars = element("div", { class: "bars" });
  for (const [name, value] of values)
    bars.append(element("span", {}, name), bar(value), element("span", {}, shown(value, 3)));
  byId("pair").replaceChildren(element("strong", {}, first_tokens[s], " · ", second_tokens[t]), bars);
}
function bar(value) {
  return element("span", { class: "bar", style: `--w:${size(value) * 100}%;--end:${end(value)}` });
}

// Weights of the layers
function drawWeights() {
  byId("weights").replaceChildren(...state.raw.map((value, k) => {
    const slider = element("input", { type: "range", id: `w${k}`, min: -5, max: 5, step: .1 });
    slider.value = value;
    slider.addEventListener("input", () => { state.raw[k] = +slider.value; mix(); });
    return element("div", { class: "weight" }, element("label", { for: `w${k}` }, `Layer ${k}`), slider,
      element("output", { for: `w${k}` }));
  }));
}
function mix() {
  const weights = softmax(state.raw);
  document.querySelectorAll("#weights output").forEach((output, k) => {
    output.textContent = `${(weights[k] * 100).toFixed(weights[k] < .0995 ? 1 : 0)} %`;
    byId(`w${k}`).setAttribute("aria-valuetext", output.textContent);
  });
  state.mixed = cosines(weights);
  fillMap(byId("mixture"), state.mixed);
  const cosine = sentenceCosine(weights);
  byId("sentences").replaceChildren(element("strong", {}, "Sentences"), element("div", { class: "bars" },
    element("span", {}, "cosine"), bar(cosine), element("span", { id: "cosine" }, shown(cosine, 3))),
    element("p", { class: "soft" }, "of the means over the tokens"));
  showPair(...state.pair);
  keep();
}

function compare() {
  byId("error").textContent = "";
  return askNewest("v1/compare", { first: byId("first").value, second: byId("second").value }, byId("result"), draw,
    error => { byId("result").hidden = true; fail(error); });
}
function draw(data) {
  state.data = data;
  const layers = data.cross.length;
  if (state.raw.length !== layers) state.raw = Array(layers).fill(0);
  byId("result").hidden = false;
  state.maps = state.raw.map((_, k) => cosines(single(k)));
  const [s, t] = state.pair ?? [0, 0];
  const inside = s < data.first_tokens.length && t < data.second_tokens.length;
  state.pair = inside ? [s, t] : [0, 0];
  drawTokens(data);
  drawWeights();
  drawMap(byId("mixture"), "cosines of the mixture", state.about.index !== null);
  byId("layers").replaceChildren();
  state.maps.forEach((map, k) => {
    const place = element("div", { class: "scroll" });
    byId("layers").append(element("figure", {}, element("h3", {}, `Layer ${k}`), place));
    drawMap(place, `cosines of layer ${k}`, false);
    fillMap(place, map);
  });
  for (const [side, tokens] of [["a", data.first_tokens], ["b", data.second_tokens]])
    byId(`chips-${side}`).replaceChildren(...tokens.map((token, at) => tokenButton(side, token, at)));
  clearFound();
  mix();
  const chosen = state.token && byId(`chips-${state.token[0]}`)?.children[+state.token.slice(1)];
  if (chosen && state.about.index) nearest(state.token);
  else choose("");
}

// Nearest contexts of a token: "a3" is token 3 of the first sentence
function tokenButton(side, token, at) {
  return button(token, () => nearest(side + at), { "data-token": side + at, "aria-pressed": "false",
    ...isWord(token) ? {} : { class: "punctuation" } });
}
function choose(token) {
  state.token = token;
  document.querySelectorAll("[data-token]").forEach(
    each => each.setAttribute("aria-pressed", String(each.dataset.token === token)));
  keep();
}
function nearest(token) {
  const tokens = token[0] === "a" ? state.data.first_tokens : state.data.second_tokens;
  const position = +token.slice(1), body = { tokens, position, any_word: byId("any").checked };
  choose(token);
  askNewest("v1/nearest", body, byId("found"), answer => showFound(answer, tokens[position], token[0]),
    error => clearFound(error.message));
}
function clearFound(why = "") {
  byId("found").replaceChildren();
  byId("searched").textContent = why;
}
function showFound({ occurrences, neighbours }, word, side) {
  const count = occurrences.toLocaleString("en");
  byId("searched").textContent = `“${word}” occurs ${count} ${occurrences === 1 ? "time" : "times"} in the corpus.`;
  byId("found").replaceChildren(...neighbours.map(near => {
    const words = element("p", {}, near.before, " ", element("b", {}, near.word), " ", near.after);
    const place = element("span", { class: "soft" }, `line ${near.line.toLocaleString("en")}`);
    if (near.tokens.length <= state.about.most_tokens) place.append(compareButton(near.tokens, side));
    return element("li", { "data-similarity": near.similarity ?? NaN },
      element("span", { class: "score" }, bar(near.similarity), shown(near.similarity, 3)), words, place);
  }));
}
function compareButton(tokens, side) {
  const text = tokens.join(" ");
  return button("compare", () => {
    byId(side === "a" ? "second" : "first").value = text;
    compare();
    byId("mixture-title").scrollIntoView({ block: "start" });
  }, { "aria-label": `compare with: ${text}` });
}

// The URL's fragment stores the sentences, the weights and the selected word
function keep() {
  const kept = new URLSearchParams({ a: byId("first").value, b: byId("second").value });
  if (state.raw.some(Boolean)) kept.set("w", state.raw.join(","));
  if (state.token) kept.set("t", state.token);
  if (byId("any").checked) kept.set("any", "1");
  history.replaceState(null, "", `#${kept}`);
}
function restore() {
  const kept = new URLSearchParams(location.hash.slice(1));
  byId("first").value = kept.get("a") ?? EXAMPLES[0][0];
  byId("second").value = kept.get("b") ?? EXAMPLES[0][1];
  const raw = (kept.get("w") ?? "").split(",").map(Number);
  state.raw = raw.length > 1 && raw.every(Number.isFinite) ? raw.map(value => Math.max(-5, Math.min(5, value))) : [];
  state.token = /^[ab]\d{1,3}$/.test(kept.get("t") ?? "") ? kept.get("t") : "";
  byId("any").checked = kept.get("any") === "1";
}

byId("form").addEventListener("submit", event => { event.preventDefault(); choose(""); compare(); });
byId("any").addEventListener("change", () => { state.token ? nearest(state.token) : keep(); });
byId("equal").addEventListener("click", () => { state.raw.fill(0); drawWeights(); mix(); });
byId("tries").append(...EXAMPLES.map(pair => button(pair.join(" / "), () => {
  [byId("first").value, byId("second").value] = pair;
  choose("");
  compare();
})));
addEventListener("hashchange", () => { restore(); compare(); });

restore();
ask("v1/page").then(about => {
  state.about = about;
  const { index } = about;
  byId("search").hidden = !index;
  byId("corpus").textContent = index
    ? `Choose a word to find the places in a corpus of ${index.tokens.toLocaleString("en")} tokens where its vector ` +
      `(${index.layers}) is most alike.`
    : "This server has no corpus. Start it with --index to find the contexts of a word that are most alike.";
  return compare();
}).catch(fail);
