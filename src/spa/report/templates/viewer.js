"use strict";
// All text of a run reaches the page through textContent; nothing here parses HTML.
const $ = (selector) => document.querySelector(selector);
const PAGE = 50;
const FLAGS = [["success", "Success"], ["wrong", "Wrong prediction"], ["malformed", "Malformed"]];
const CHOICES = [["arm", "Method"], ["seed", "Seed"], ["stage", "Stage"], ["split", "Split"], ["step", "Step"], ["tag", "Environment"], ["stop", "Ended by"]];
const ORDERS = [["", "as played"], ["-score", "best score first"], ["score", "worst score first"], ["-turns", "longest first"], ["turns", "shortest first"]];

function make(tag, options = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(options)) {
    if (key === "text") node.textContent = value;
    else if (key === "class") node.className = value;
    else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value !== null && value !== false) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

// Where the data comes from: the server, or the page itself (a static export).
async function get(path) {
  const answer = await fetch(path);
  if (!answer.ok) throw new Error((await answer.text()) || answer.statusText);
  return answer.json();
}
const server = {
  info: () => get("/api/info"),
  page: (filters, order, offset) => get("/api/episodes?" + new URLSearchParams({ ...filters, order, offset, limit: PAGE })),
  episode: (id) => get("/api/episode/" + id),
  live: true,
};
function embedded(data) {
  const matches = (row, filters) => Object.entries(filters).every(([key, value]) =>
    value === "" || (key === "q" ? row.episode.toLowerCase().includes(value.toLowerCase()) : String(row[key]) === value));
  return {
    info: async () => data.info,
    page: async (filters, order, offset) => {
      const rows = data.episodes.filter((row) => matches(row, filters));
      const key = order.replace("-", "");
      if (key) rows.sort((a, b) => (order[0] === "-" ? b[key] - a[key] : a[key] - b[key]));
      return { total: rows.length, episodes: rows.slice(offset, offset + PAGE) };
    },
    episode: async (id) => data.replays[id],
    live: false,
  };
}
const data = $("#data");
const source = data ? embedded(JSON.parse(data.textContent)) : server;

const state = { filters: {}, order: "", offset: 0, total: 0, rows: [], picked: null, episode: null, turn: 0, shade: "logprob" };

function readAddress() {
  const saved = new URLSearchParams(location.hash.slice(1));
  for (const [key, value] of saved) {
    if (key === "order") state.order = value;
    else if (key === "offset") state.offset = Number(value) || 0;
    else if (key === "episode") state.picked = Number(value);
    else if (key === "turn") state.turn = Math.max(Number(value) - 1, 0) || 0;
    else state.filters[key] = value;
  }
}
function writeAddress() {
  const saved = new URLSearchParams(Object.entries(state.filters).filter(([, value]) => value !== ""));
  if (state.order) saved.set("order", state.order);
  if (state.offset) saved.set("offset", state.offset);
  if (state.picked !== null) { saved.set("episode", state.picked); saved.set("turn", state.turn + 1); }
  history.replaceState(null, "", "#" + saved);
}

function option(value, text, chosen) {
  return make("option", { value, text, selected: String(value) === String(chosen ?? "") });
}
let builtFor = "";
function buildFilters(info) {
  const form = $("#filters");
  if (JSON.stringify(info.choices) === builtFor || form.contains(document.activeElement)) return;
  builtFor = JSON.stringify(info.choices);
  const changed = (key) => (event) => { state.filters[key] = event.target.value; state.offset = 0; loadPage(); };
  const fields = [];
  for (const [key, label] of CHOICES) {
    const values = (info.choices[key] || []).filter((value) => value !== null && value !== "");
    if (values.length < 2 && !state.filters[key]) continue;
    const select = make("select", { name: key, onchange: changed(key) }, option("", "any", state.filters[key]),
      ...values.map((value) => option(value, String(value), state.filters[key])));
    fields.push(make("label", { text: label }, select));
  }
  for (const [key, label] of FLAGS) {
    const select = make("select", { name: key, onchange: changed(key) },
      option("", "any", state.filters[key]), option("1", "yes", state.filters[key]), option("0", "no", state.filters[key]));
    fields.push(make("label", { text: label }, select));
  }
  const order = make("select", { name: "order", onchange: (event) => { state.order = event.target.value; state.offset = 0; loadPage(); } },
    ...ORDERS.map(([value, text]) => option(value, text, state.order)));
  fields.push(make("label", { text: "Order" }, order));
  const search = make("input", { type: "search", name: "q", placeholder: "part of the episode's id", value: state.filters.q || "", oninput: changed("q") });
  fields.push(make("label", { text: "Search", class: "wide" }, search));
  form.replaceChildren(...fields);
}

async function loadInfo() {
  const info = await source.info();
  $("#run").textContent = info.run;
  document.title = `spa view · ${info.run}`;
  const [done, todo] = info.progress;
  const busy = todo > done ? `, reading files: ${done} of ${todo}` : "";
  $("#status").textContent = `${info.total.toLocaleString("en")} episodes${busy}${info.note ? ". " + info.note : ""}`;
  buildFilters(info);
  return info;
}

let newest = 0;
async function loadPage() {
  const mine = ++newest;
  const page = await source.page(state.filters, state.order, state.offset);
  if (mine !== newest) return;
  state.total = page.total;
  state.rows = page.episodes;
  showList();
  writeAddress();
}
function showList() {
  const cells = (row) => [
    make("td", { class: row.success ? "won" : "lost", title: row.success ? "success" : row.stop, text: row.success ? "✓" : "✗" }),
    make("td", {}, make("button", { type: "button", text: row.episode, title: row.episode })),
    make("td", { text: [row.arm, row.seed === null ? "" : `seed ${row.seed}`, row.stage, row.split].filter(Boolean).join(" ") }),
    make("td", { text: row.step }),
    make("td", { text: row.turns }),
    make("td", { text: Number(row.score.toFixed(3)) }),
    make("td", {}, row.wrong ? make("span", { class: "mark", text: "wrong" }) : null, row.malformed ? make("span", { class: "mark", text: "malformed" }) : null),
  ];
  $("#list tbody").replaceChildren(...state.rows.map((row) =>
    make("tr", { class: row.id === state.picked ? "picked" : "", onclick: () => pick(row.id) }, ...cells(row))));
  $("#none").hidden = state.rows.length > 0;
  const last = Math.min(state.offset + PAGE, state.total);
  $("#where").textContent = state.total ? `${state.offset + 1}–${last} of ${state.total.toLocaleString("en")}` : "";
  $("#first").disabled = $("#back").disabled = state.offset === 0;
  $("#next").disabled = $("#last").disabled = last >= state.total;
}
async function turnPage(offset) {
  state.offset = Math.max(0, offset);
  await loadPage();
}

async function pick(id, turn = 0) {
  state.picked = id;
  state.turn = turn;
  showList();
  try {
    state.episode = await source.episode(id);
  } catch (error) {
    state.episode = null;
    $("#replay").replaceChildren(make("p", { class: "hint", role: "alert", text: error.message }));
  }
  if (state.episode) showEpisode();
  if (matchMedia("(max-width: 60rem)").matches) $("#replay").scrollIntoView(); // the list stands above it there
  writeAddress();
}
async function move(by) {
  let at = state.rows.findIndex((row) => row.id === state.picked) + by;
  if (state.picked === null) at = 0;
  if (at >= state.rows.length && state.offset + PAGE < state.total) { await turnPage(state.offset + PAGE); at = 0; }
  if (at < 0 && state.offset > 0) { await turnPage(state.offset - PAGE); at = state.rows.length - 1; }
  if (state.rows[at]) await pick(state.rows[at].id);
}

function cellClass(text, differs) {
  const kind = text === "#" ? " wall" : text[0] === "P" ? " player" : text === "·" || text === "_" || text === " " ? " empty" : "";
  return "cell" + kind + (text.length > 2 ? " long" : "") + (differs ? " differs" : "");
}
function board(view, caption, kind) {
  const figure = make("figure", { class: view.rows.length ? kind : kind + " wide" }, make("figcaption", { text: caption }));
  if (view.rows.length) {
    const grid = make("div", { class: "board", role: "img", "aria-label": view.rows.map((row) => row.map(([text]) => text).join(" ")).join("\n") });
    for (const row of view.rows) {
      grid.append(make("div", { class: "board-row" }, ...row.map(([text, differs]) => make("span", { class: cellClass(text, differs), text }))));
    }
    figure.append(grid);
  }
  if (view.words.length) {
    const words = view.words.flatMap(([text, differs]) => [make("span", { class: differs ? "differs" : "", text }), " "]);
    figure.append(make("p", { class: "words" }, ...words));
  }
  if (!view.rows.length && !view.words.length) figure.append(make("p", { class: "words", text: "(empty)" }));
  return figure;
}
function pair(title, truth, truthName, claim, claimName, wrong) {
  const box = make("div", {}, board(truth, truthName, "true"));
  if (claim) {
    const verdict = make("span", { class: wrong ? "mark" : "mark fine", text: wrong ? "differs" : "exact" });
    const figure = board(claim, claimName + " ", "claimed");
    figure.querySelector("figcaption").append(verdict);
    box.append(figure);
  }
  return make("section", { class: "pair" }, make("h3", { text: title }), box);
}
function actions(turn) {
  if (!turn.actions.length) return make("p", { class: "hint", text: "The reply names no action." });
  return make("ul", { class: "actions" }, ...turn.actions.map((action) =>
    make("li", { class: action.fate === "executed" ? "" : "bad" }, `${action.text} `, make("span", { class: "soft", text: action.fate }))));
}

function shadeClass(tokens, index, shade, scale) {
  if (!tokens.sampled[index]) return "given";
  if (shade === "mask") return "yes";
  const value = (tokens.numbers[shade] || [])[index];
  if (typeof value !== "number") return "";
  const level = Math.min(4, Math.ceil((Math.abs(value) / scale) * 4));
  if (!level) return "";
  return (shade === "logprob" || value >= 0 ? "p" : "n") + level;
}
function tokenBox(tokens) {
  const names = Object.keys(tokens.numbers);
  if (!names.includes(state.shade) && state.shade !== "mask") state.shade = names[0] || "mask";
  const shade = state.shade;
  const values = (tokens.numbers[shade] || []).filter((value) => typeof value === "number").map(Math.abs);
  const scale = shade === "logprob" ? 4 : Math.max(1e-9, ...values);
  const info = make("p", { id: "token", role: "status", text: "Point at a token, or focus the text and use the arrow keys." });
  let at = -1;
  const spans = tokens.text.map((text, index) => make("span", { class: shadeClass(tokens, index, shade, scale), text, "data-index": index }));
  const show = (index) => {
    if (index < 0 || index >= spans.length) return;
    spans[at]?.classList.remove("at");
    at = index;
    spans[at].classList.add("at");
    const numbers = names.map((name) => { const value = tokens.numbers[name][at]; return value === null ? null : `${name} ${value}`; });
    const asWritten = JSON.stringify(tokens.text[at]);
    info.textContent = [`token ${asWritten}`, `id ${tokens.id[at]}`, tokens.sampled[at] ? "sampled (trained on)" : "given (not trained on)", ...numbers.filter(Boolean)].join(" · ");
  };
  const box = make("pre", { class: "tokens", tabindex: "0", "aria-label": "Tokens of this turn",
    onmouseover: (event) => { if (event.target.dataset.index) show(Number(event.target.dataset.index)); },
    onkeydown: (event) => {
      if (event.key !== "ArrowRight" && event.key !== "ArrowLeft") return;
      event.preventDefault(); event.stopPropagation();
      show(at + (event.key === "ArrowRight" ? 1 : -1));
    } }, ...spans);
  const select = make("select", { "aria-label": "Colour the tokens by", onchange: (event) => { state.shade = event.target.value; showTurn(); } },
    ...[...names, "mask"].map((name) => option(name, name === "mask" ? "trained on" : name, shade)));
  const head = make("div", { class: "token-head" }, make("h3", { text: "What the model saw and wrote in this turn" }), make("label", { text: "Colour by " }, select));
  return make("section", {}, head, info, box);
}

function showEpisode() {
  const episode = state.episode;
  state.turn = Math.min(state.turn, Math.max(episode.turns.length - 1, 0));
  const row = state.rows.find((item) => item.id === state.picked);
  const facts = make("p", { class: "facts" }, make("span", { class: episode.success ? "won" : "lost", text: episode.success ? "✓ success" : `✗ ${episode.stop}` }),
    fact("score", episode.score), ...(row ? [fact("step", row.step)] : []), ...Object.entries(episode.facts).map(([key, value]) => fact(key.replaceAll("_", " "), value)));
  const tabs = make("div", { id: "turns", role: "tablist", "aria-label": "Turns" });
  const nodes = [make("h2", { text: episode.id }), facts, tabs, make("div", { id: "turn", role: "tabpanel" })];
  if (episode.error) nodes.splice(2, 0, make("pre", { class: "text", text: episode.error }));
  const prompt = make("details", {}, make("summary", { text: "The whole conversation, as sent" }),
    ...episode.messages.flatMap((message) => [make("p", { class: "role", text: message.role }), make("pre", { class: "text", text: message.content })]));
  nodes.push(prompt);
  if (episode.prompt_tokens) {
    nodes.push(make("details", {}, make("summary", { text: "The first prompt, token by token" }),
      make("pre", { class: "tokens" }, ...episode.prompt_tokens.text.map((text, index) =>
        make("span", { class: index % 2 ? "given odd" : "given", title: `id ${episode.prompt_tokens.id[index]}`, text })))));
  }
  if (source.live) nodes.push(make("p", { class: "hint" }, make("a", { href: `/api/raw/${state.picked}`, text: "The episode as JSON" })));
  $("#replay").replaceChildren(...nodes);
  showTurn();
}
function fact(name, value) {
  return make("span", { text: `${name} ` }, make("b", { text: value }));
}
function showTurn() {
  const { episode } = state;
  const tabs = $("#turns");
  tabs.replaceChildren(...episode.turns.map((turn, index) => {
    const bad = [turn.well_formed ? "" : "malformed", turn.prediction_wrong ? "wrong prediction" : "", turn.observation_wrong ? "wrong observation" : ""].filter(Boolean);
    return make("button", { type: "button", role: "tab", "aria-selected": String(index === state.turn), onclick: () => { state.turn = index; showTurn(); writeAddress(); } },
      `Turn ${index + 1}`, bad.length ? make("span", { class: "lost", title: bad.join(", "), text: " ≠" }) : null);
  }));
  const turn = episode.turns[state.turn];
  if (!turn) { $("#turn").replaceChildren(make("p", { class: "hint", text: "This episode has no turns." })); return; }
  const amounts = [fact("reward", turn.reward), fact("penalty", turn.penalty), fact("actions left before", turn.actions_left ?? "?"),
    turn.well_formed ? null : make("span", { class: "mark", text: "malformed reply" }), turn.cut_off ? make("span", { class: "mark", text: "cut off at the length limit" }) : null];
  const boards = make("div", { class: "boards" },
    pair("Before the actions", turn.state, "true", turn.observed, "observed", turn.observation_wrong),
    pair("After the actions", turn.next_state, "true", turn.predicted, "predicted", turn.prediction_wrong),
    ...(turn.options || []).map((option) => pair(`Imagined: ${option.plan}`, option.state, "imagined", null, "", null)));
  const reply = turn.tokens ? tokenBox(turn.tokens) : make("section", {}, make("h3", { text: "Reply" }), make("pre", { class: "text", text: turn.reply }));
  $("#turn").replaceChildren(make("p", { class: "facts" }, ...amounts.filter(Boolean)), boards, make("h3", { text: "Actions" }), actions(turn), reply);
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea")) return;
  const steps = { j: () => move(1), k: () => move(-1), ArrowRight: () => goTurn(1), ArrowLeft: () => goTurn(-1), "/": () => $("input[name=q]").focus() };
  if (steps[event.key]) { event.preventDefault(); steps[event.key](); }
});
function goTurn(by) {
  if (!state.episode) return;
  state.turn = Math.min(Math.max(state.turn + by, 0), state.episode.turns.length - 1);
  showTurn();
  writeAddress();
}
$("#first").addEventListener("click", () => turnPage(0));
$("#back").addEventListener("click", () => turnPage(state.offset - PAGE));
$("#next").addEventListener("click", () => turnPage(state.offset + PAGE));
$("#last").addEventListener("click", () => turnPage(Math.floor((state.total - 1) / PAGE) * PAGE));
$("#filters").addEventListener("submit", (event) => event.preventDefault());

// While a run goes on, new episodes appear: look again, seldom if nothing changes.
async function watch(seen) {
  let info = null;
  try { info = await loadInfo(); } catch { $("#status").textContent = "The server has stopped; what is shown stays."; }
  if (info && info.total !== seen) await loadPage();
  const busy = info && info.progress[0] < info.progress[1];
  setTimeout(() => watch(info ? info.total : seen), busy ? 500 : 5000);
}
async function begin() {
  readAddress();
  const info = await loadInfo();
  await loadPage();
  if (state.picked !== null) await pick(state.picked, state.turn);
  document.body.dataset.ready = "yes";
  if (source.live) watch(info.total);
}
begin();
