"use strict";
// All text of a run is inserted through textContent, so that the browser never parses it as HTML.
const $ = (selector) => document.querySelector(selector);
const PAGE = 50;
const TABS = [["curves", "Curves"], ["episodes", "Episodes"], ["data", "Data"], ["config", "Config"]];
const FLAGS = [["success", "Success"], ["wrong", "Prediction wrong"], ["malformed", "Bad format"]];
const CHOICES = [["arm", "Method"], ["seed", "Seed"], ["stage", "Stage"], ["split", "Split"], ["step", "Step"], ["tag", "Environment"], ["stop", "Ended by"]];
const ORDERS = [["", "as sampled"], ["-score", "best score first"], ["score", "worst score first"], ["-turns", "longest first"], ["turns", "shortest first"]];
const ICONS = new Map(Object.entries({ player: "♟", players: "♟", goal: "⚑", goals: "⚑", hole: "●", holes: "●", box: "▣", boxes: "▣", target: "◎", targets: "◎", "box on target": "☑", "boxes on targets": "☑" }));
const number = Charts.number;

function make(tag, options = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(options)) {
    if (key === "text") node.textContent = value;
    else if (key === "class") node.className = value;
    else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value !== null && value !== false) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}
const option = (value, text, chosen) => make("option", { value, text, selected: String(value) === String(chosen ?? "") });
const th = (text, kind = "") => make("th", { scope: "col", class: kind }, make("bdi", { text }));
const td = (text, kind = "") => make("td", { class: kind }, make("bdi", { text }));
function table(head, rows, id = null) {
  const top = head ? make("thead", {}, make("tr", {}, ...head)) : null;
  return make("div", { class: "scroll" }, make("table", { id }, top, make("tbody", {}, ...rows)));
}

// The data comes from the server, or from the page itself (a static export).
async function get(path) {
  const answer = await fetch(path);
  if (!answer.ok) throw new Error((await answer.text()) || answer.statusText);
  return answer.json();
}
const asked = (values) => "?" + new URLSearchParams([...state.runs.map((name) => ["run", name]), ...Object.entries(values)]);
const server = {
  runs: () => get("/api/runs"),
  info: () => get("/api/info" + asked({})),
  page: (filters, order, offset) => get("/api/episodes" + asked({ ...filters, order, offset, limit: PAGE })),
  episode: (id) => get("/api/episode/" + id + asked({})),
  report: () => get("/api/report" + asked({})),
  live: () => get("/api/live" + asked({})),
  examples: (file, offset) => get("/api/examples" + asked({ file, offset })),
  polled: true,
};
function embedded(data) {
  const sentence = (board) => board.words.map(([word]) => word).join(" ");
  const words = ({ id, episode }) => {
    const { error, turns } = data.replays[id];
    return [episode, error, ...turns.flatMap((turn) => [sentence(turn.state), turn.response, sentence(turn.next_state)])].join("\n").toLowerCase();
  };
  const matches = (row, filters) => Object.entries(filters).every(([key, value]) =>
    value === "" || (key === "q" ? words(row).includes(value.toLowerCase()) : String(row[key]) === value));
  return {
    runs: async () => data.runs,
    info: async () => data.info,
    page: async (filters, order, offset) => {
      const rows = data.episodes.filter((row) => matches(row, filters));
      const key = order.replace("-", "");
      if (key) rows.sort((a, b) => (order[0] === "-" ? b[key] - a[key] : a[key] - b[key]));
      return { total: rows.length, episodes: rows.slice(offset, offset + PAGE) };
    },
    episode: async (id) => { if (!data.replays[id]) throw new Error("This file does not hold that episode."); return data.replays[id]; },
    report: async () => { if (!data.report) throw new Error("The curves of this run are unreadable."); return data.report; },
    examples: async () => { if (!data.examples) throw new Error("The examples of this run are unreadable."); return data.examples; },
    live: async () => [],
    polled: false,
  };
}
const data = $("#data");
const source = data ? embedded(JSON.parse(data.textContent)) : server;

const state = { runs: [], tab: "", filters: {}, order: "", offset: 0, total: 0, rows: [], picked: null, episode: null, turn: 0, shade: "logprob", file: 0, from: 0 };
let library = { runs: [], single: false, folder: "" };

// The URL stores the selection, so that it can be shared and so that the Back button works.
function readAddress() {
  Object.assign(state, { runs: [], tab: "", filters: {}, order: "", offset: 0, picked: null, episode: null, turn: 0, file: 0, from: 0 });
  for (const [key, value] of new URLSearchParams(location.hash.slice(1))) {
    if (key === "run") state.runs.push(value);
    else if (key === "tab") state.tab = value;
    else if (key === "order") state.order = value;
    else if (["offset", "file", "from"].includes(key)) state[key] = Math.max(0, Number(value) || 0);
    else if (key === "episode") state.picked = Number(value);
    else if (key === "turn") state.turn = Math.max(Number(value) - 1, 0) || 0;
    else state.filters[key] = value;
  }
  if (!state.runs.length && library.single && library.runs[0]) state.runs = [library.runs[0].key];
  const aboutEpisodes = Object.keys(state.filters).length || state.picked !== null;
  if (!state.runs.length) state.tab = "";
  else if (!TABS.some(([name]) => name === state.tab)) state.tab = aboutEpisodes ? "episodes" : "curves";
  if (state.runs.length > 1 && !["curves", "config"].includes(state.tab)) state.tab = "curves";
}
function address(changes = {}) {
  const now = { ...state, ...changes };
  const saved = new URLSearchParams(now.runs.map((name) => ["run", name]));
  if (now.tab) saved.set("tab", now.tab);
  if (now.tab === "episodes") {
    for (const [key, value] of Object.entries(now.filters)) if (value !== "") saved.set(key, value);
    if (now.order) saved.set("order", now.order);
    if (now.offset) saved.set("offset", now.offset);
    if (now.picked !== null) { saved.set("episode", now.picked); saved.set("turn", now.turn + 1); }
  }
  if (now.tab === "data") { saved.set("file", now.file); saved.set("from", now.from); }
  return "#" + saved;
}
const fresh = (changes) => address({ filters: {}, order: "", offset: 0, picked: null, turn: 0, file: 0, from: 0, ...changes });
const writeAddress = () => history.replaceState(null, "", address());

async function route() {
  readAddress();
  stopPlaying();
  document.body.classList.toggle("reading", state.picked !== null);
  const pages = { "": "#runs", curves: "#curves", episodes: "#episodes", data: "#data-page", config: "#config" };
  for (const [tab, selector] of Object.entries(pages)) $(selector).hidden = tab !== state.tab;
  if (state.tab !== "curves") $("#now").replaceChildren();
  $("#run").textContent = state.runs.join(" and ") || library.folder;
  document.title = ["spa view", ...state.runs].join(" · ");
  const links = TABS.filter(([name]) => state.runs.length === 1 || ["curves", "config"].includes(name)).map(([name, text]) =>
    make("a", { href: fresh({ tab: name }), "aria-current": name === state.tab ? "page" : null, text }));
  $("#tabs").replaceChildren(...(state.runs.length ? links : []));
  $("#status").textContent = state.tab === "" ? `${library.runs.length} ${library.runs.length === 1 ? "run" : "runs"}` : "";
  const parts = { "": showRuns, curves: showReport, config: showReport, episodes: showEpisodes, data: showData };
  try {
    await parts[state.tab]();
  } catch (error) {
    shownReport = "";
    $(pages[state.tab]).hidden = false;
    (state.tab === "episodes" ? $("#replay") : $(pages[state.tab])).replaceChildren(make("p", { class: "hint", role: "alert", text: error.message }));
  }
  document.body.dataset.ready = "yes";
}

// The list of runs.
const between = (interval) => interval ? ` [${number(interval.low, true)}, ${number(interval.high, true)}]` : "";
function chance(interval) {
  return interval ? [make("b", { text: number(interval.mean, true) }), make("span", { class: "soft", text: between(interval) })] : ["–"];
}
let shownRuns = "";
async function showRuns() {
  library = await source.runs();
  const text = JSON.stringify(library);
  if (text === shownRuns && $("#runs").childElementCount) return; // nothing new: redrawing would replace the element under the pointer
  shownRuns = text;
  $("#status").textContent = `${library.runs.length} ${library.runs.length === 1 ? "run" : "runs"}`;
  const kept = new Set([...document.querySelectorAll("#runs input:checked")].map((box) => box.value));
  const rows = library.runs.flatMap((run) => {
    const methods = run.methods.length ? run.methods : [null];
    return methods.map((method, index) => make("tr", { class: index ? "more" : "run-row" },
      ...(index ? [] : [
        make("td", { rowspan: methods.length }, make("input", { type: "checkbox", value: run.key, "aria-label": `Compare ${run.name}`, checked: kept.has(run.key), onchange: offerComparison })),
        make("th", { scope: "row", rowspan: methods.length }, make("a", { href: fresh({ runs: [run.key], tab: "curves" }) }, make("bdi", { text: run.name }))),
        make("td", { rowspan: methods.length }, make("span", { class: "state " + run.state.split(":")[0], text: run.state.split(":")[0] }), make("span", { class: "soft", text: run.state.includes(":") ? run.state.split(":").slice(1).join(":") : "" }), run.left ? make("div", { class: "soft", text: run.left }) : null),
      ]),
      ...(method ? [td(method.label), td(method.state, "soft wide-only"), make("td", { class: "number wide-only" }, ...chance(method.before_interval)), make("td", { class: "number" }, ...chance(method.interval))]
        : [make("td", { colspan: 4, class: "soft" }, make("bdi", { text: run.result }))]),
      ...(index ? [] : [make("td", { rowspan: methods.length, class: "number wide-only", text: run.duration }), make("td", { rowspan: methods.length, class: "wide-only" }, make("code", { text: run.commit.slice(0, 10) || "–" }))])));
  });
  const head = [th(""), th("Run"), th("State"), th("Method"), th("Progress", "wide-only"), th("Success before, 95 % CI", "number wide-only"), th("Success after, 95 % CI", "number"), th("Time", "number wide-only"), th("Commit", "wide-only")];
  const bar = make("p", { id: "comparison" });
  $("#runs").replaceChildren(bar, rows.length ? table(head, rows, "run-table") : make("p", { class: "hint", text: "This folder has no runs. A run appears here when it starts." }));
  offerComparison();
}
function offerComparison() {
  const names = [...document.querySelectorAll("#runs input:checked")].map((box) => box.value);
  const link = make("a", { class: "button", href: fresh({ runs: names, tab: "curves" }), text: `Compare ${names.length} runs` });
  $("#comparison").replaceChildren(names.length > 1 ? link : make("span", { class: "hint", text: "Tick runs to compare them on the same axes." }));
}

// Curves and configuration: the content of the report.
let shownReport = "";
async function showReport() {
  const asked = location.hash;
  const [report, runs] = await Promise.all([source.report(), source.live()]);
  if (asked !== location.hash) return; // the answer is about another page
  const text = JSON.stringify([report, state.runs, state.tab]);
  const page = state.tab === "curves" ? $("#curves") : $("#config");
  $("#status").textContent = report.setting;
  $("#now").replaceChildren(...(state.tab === "curves" ? runs.map(showNow) : []));
  if (text === shownReport && page.childElementCount) return; // the live run has logged nothing new
  shownReport = text;
  if (state.tab === "curves") showCurves(report);
  else showConfig(report);
}
// The current work: the running stages, the stages after them, and the time left.
function showNow(run) {
  const several = run.stages.length > 1 || run.stages[0]?.arm;
  const memory = run.stages.some((stage) => stage.memory);
  const rows = run.stages.map((stage) => make("tr", {}, ...(several ? [make("th", { scope: "row" }, make("bdi", { text: stage.arm }))] : []),
    make("td", {}, make("bdi", { text: stage.stage }), stage.later ? make("div", { class: "soft", text: `then ${stage.later}` }) : null), td(stage.steps, "number"), td(stage.left, "number"), ...(memory ? [td(stage.memory, "number")] : [])));
  const head = [...(several ? [th("Method")] : []), th("Now"), th("Step", "number"), th("Time left", "number"), ...(memory ? [th("Memory", "number")] : [])];
  return make("section", {}, make("p", {}, make("b", { text: run.left || "The time left is unknown" }), make("span", { class: "soft", text: run.load ? " · " + run.load : "" })), table(head, rows));
}
function showCurves(report) {
  for (const box of document.querySelectorAll("#curves .plot")) Charts.remove(box);
  const several = report.rows.length > 1;
  const head = [th("Method"), th("Pass@1 before PPO", "number"), th(`Pass@1 ${report.when}`, "number"), ...(several ? [th(`${report.rows[0].label} minus it`, "number")] : [])];
  const points = (value) => (value >= 0 ? "+" : "") + (100 * value).toFixed(1);
  const rows = report.rows.map((row, index) => make("tr", {}, make("th", { scope: "row" }, make("span", { class: `dot k${row.color % 8}` }), make("bdi", { text: row.label })),
    make("td", { class: "number" }, number(row.before, true), make("span", { class: "soft", text: between(row.before_interval) })),
    make("td", { class: "number" }, make("b", { text: number(row.after, true) }), make("span", { class: "soft", text: between(row.interval) })),
    ...(several ? [row.lead ? td(`${points(row.lead.mean)} points [${points(row.lead.low)}, ${points(row.lead.high)}]`, "number") : td(index ? "other puzzles" : "", "number soft")] : [])));
  const notes = make("details", {}, make("summary", { text: "How sure is this?" }), make("ul", {}, ...report.certainty.map((text) => make("li", { text }))));
  const nodes = [make("p", { class: "verdict", text: report.verdict }), ...(rows.length ? [table(head, rows)] : []), ...(report.certainty.length ? [notes] : [])];
  const open = document.querySelector("#curves .controls") || Charts.controls();
  const boxes = [];
  report.sections.forEach((section, index) => {
    nodes.push(make("h2", { text: section.title }), ...(index ? [] : [open]));
    nodes.push(make("div", { class: "charts" }, ...section.charts.map((chart) => {
      const box = make("div", { class: "plot" });
      boxes.push([box, chart]);
      return make("figure", { class: "chart-box" }, make("h3", { text: chart.title }), make("p", { class: "help", text: chart.help }), box);
    })));
  });
  if (report.failures.length) nodes.push(make("h2", { text: "Failures" }), ...report.failures.map((text) => make("p", { text })));
  $("#curves").replaceChildren(...nodes);
  for (const [box, chart] of boxes) Charts.draw(box, chart);
}
function showConfig(report) {
  const rows = (pairs) => pairs.map(([key, values]) => make("tr", {}, make("th", { scope: "row" }, make("bdi", { text: key })), ...[values].flat().map((value) => td(value))));
  const nodes = [];
  if (report.columns.length) {
    nodes.push(make("h2", { text: "Differences" }), report.differences.length ? table([th("Key"), ...report.columns.map((name) => th(name))], rows(report.differences), "differences") : make("p", { text: "None." }));
  }
  nodes.push(make("h2", { text: "Environment, hardware and versions" }), table(null, rows(report.provenance)));
  nodes.push(make("h2", { text: "Resolved configurations" }), ...report.configs.map(([name, text]) =>
    make("details", {}, make("summary", {}, make("bdi", { text: name })), make("pre", { class: "text", text }))));
  $("#config").replaceChildren(...nodes);
}

// Examples of stage 1.
async function showData() {
  const asked = location.hash;
  const found = await source.examples(state.file, state.from);
  if (asked !== location.hash) return; // the answer is about another page
  if (!found.files.length) return $("#data-page").replaceChildren(make("p", { class: "hint", text: "No examples of stage 1 yet. Methods that are not fine-tuned on self-play have none." }));
  const move = (changes) => { Object.assign(state, changes); writeAddress(); showData(); scrollTo(0, 0); };
  const files = make("select", { name: "file", onchange: (event) => move({ file: Number(event.target.value), from: 0 }) }, ...found.files.map((name, index) => option(index, name, state.file)));
  const end = Math.min(state.from + found.examples.length, found.total);
  const bar = make("p", { class: "bar" }, make("label", {}, "Data ", files),
    make("button", { type: "button", text: "Back", disabled: state.from === 0, onclick: () => move({ from: Math.max(0, state.from - 10) }) }),
    make("span", { text: `${state.from + 1}–${end} of ${found.total.toLocaleString("en")} examples` }),
    make("button", { type: "button", text: "Next", disabled: end >= found.total, onclick: () => move({ from: state.from + 10 }) }));
  const known = { response: "the whole response", act_obs: "the whole response and the states in the prompts between responses", states_only: "the states in the response", no_states: "the response without its states" };
  const loss = known[found.loss_on] || found.loss_on;
  const legend = known[found.loss_on] ? [make("span", { class: "trained", text: "Marked text" }), ` carries loss: ${loss}.`] : [`The loss mask is ${loss}; its text is not marked.`];
  $("#status").textContent = `loss on ${loss}`;
  const examples = found.examples.map((example) => make("article", { class: "example" },
    make("h3", {}, make("span", { class: example.success ? "won" : "lost", text: example.success ? "✓ " : "✗ " }), make("bdi", { text: example.name })),
    make("details", {}, make("summary", { text: `Prompt, ${example.messages.length} messages${found.loss_on === "act_obs" ? "" : " (no loss)"}` }), ...example.messages.flatMap(([role, text]) => [make("p", { class: "role", text: role }), make("pre", { class: "text", text })])),
    make("pre", { class: "text" }, ...example.response.map(([text, trained]) => make("span", { class: trained ? "trained" : "given", text })))));
  $("#data-page").replaceChildren(bar, make("p", { class: "hint" }, ...legend), ...examples);
}

// The list of episodes.
let builtFor = "";
function buildFilters(info) {
  const form = $("#filters");
  const wanted = JSON.stringify([info.choices, state.runs, state.filters, state.order]);
  if (wanted === builtFor || form.contains(document.activeElement)) return;
  builtFor = wanted;
  const changed = (key) => (event) => { state.filters[key] = event.target.value; filtered(); };
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
  const order = make("select", { name: "order", onchange: (event) => { state.order = event.target.value; filtered(); } },
    ...ORDERS.map(([value, text]) => option(value, text, state.order)));
  fields.push(make("label", { text: "Order" }, order));
  const search = make("input", { type: "search", name: "q", placeholder: "words of a state or response, or an id", value: state.filters.q || "", oninput: changed("q") });
  fields.push(make("label", { text: "Search", class: "wide" }, search));
  fields.push(make("button", { type: "button", class: "reset", text: "Reset", onclick: resetFilters }));
  form.replaceChildren(...fields);
}
async function resetFilters() {
  Object.assign(state, { filters: {}, order: "", offset: 0, picked: null });
  builtFor = "";
  document.activeElement.blur(); // `buildFilters` does not rebuild a form that has the focus
  const info = await source.info();
  showInfo(info);
  await loadPage();
  await pickFirst();
}
function showInfo(info) {
  const [done, todo] = info.progress;
  const busy = todo > done ? `, reading files: ${done} of ${todo}` : "";
  $("#status").textContent = `${info.total.toLocaleString("en")} episodes${busy}${info.note ? ". " + info.note : ""}`;
  buildFilters(info);
}
async function showEpisodes() {
  let info = await source.info();
  for (let tries = 0; tries < 10 && source.polled && !info.first.arm && (info.progress[0] < info.progress[1] || !info.total); tries += 1) {
    await new Promise((done) => setTimeout(done, 150)); // the server may still be reading the files
    info = await source.info();
  }
  if (source.polled && !Object.keys(state.filters).length && state.picked === null) state.filters = { ...info.first }; // the last validation
  showInfo(info);
  await loadPage();
  if (state.picked !== null) await pick(state.picked, state.turn);
  else await pickFirst();
}
async function pickFirst() {
  if (!state.rows.length) closeEpisode("No episode matches these filters.");
  else if (!matchMedia("(max-width: 60rem)").matches) await pick(state.rows[0].id);
}
// Reload the list after a change of the filters, and close an episode that no longer matches them.
async function filtered() {
  state.offset = 0;
  const mine = newest + 1;
  await loadPage();
  if (mine !== newest || state.rows.some((row) => row.id === state.picked)) return;
  closeEpisode("Choose an episode.");
  await pickFirst();
}
function closeEpisode(text) {
  stopPlaying();
  Object.assign(state, { picked: null, episode: null, turn: 0 });
  document.body.classList.remove("reading");
  $("#replay").replaceChildren(make("p", { class: "hint", text }));
  showList();
  writeAddress();
}
let newest = 0;
async function loadPage() {
  const mine = ++newest;
  const page = await source.page(state.filters, state.order, state.offset);
  if (mine !== newest || state.tab !== "episodes") return;
  state.total = page.total;
  state.rows = page.episodes;
  showList();
  writeAddress();
}
function badges(wrong, malformed) {
  return [wrong ? make("span", { class: "mark", text: "prediction wrong" }) : null, malformed ? make("span", { class: "mark", text: "format" }) : null];
}
function showList() {
  const cells = (row) => [
    make("td", { class: row.success ? "won" : "lost", title: row.success ? "success" : row.stop, text: row.success ? "✓" : "✗" }),
    make("td", {}, make("button", { type: "button", text: row.episode, title: row.episode })),
    make("td", { text: [row.arm, row.seed === null ? "" : `seed ${row.seed}`, row.stage, row.split].filter(Boolean).join(" ") }),
    make("td", { class: "number", text: row.step }),
    make("td", { class: "number", text: row.turns }),
    make("td", { class: "number", text: Number(row.score.toFixed(3)) }),
    make("td", {}, ...badges(row.wrong, row.malformed)),
  ];
  $("#list tbody").replaceChildren(...state.rows.map((row) =>
    make("tr", { class: row.id === state.picked ? "picked" : "", onclick: () => open(row.id) }, ...cells(row))));
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
// On a phone, an episode fills the page, and the Back button returns to the list.
async function open(id) {
  if (matchMedia("(max-width: 60rem)").matches && state.picked === null) history.pushState(null, "", address({ picked: id }));
  await pick(id);
}
async function pick(id, turn = 0) {
  stopPlaying();
  state.picked = id;
  state.turn = turn;
  document.body.classList.add("reading");
  showList();
  let found = null, problem = "";
  try { found = await source.episode(id); } catch (error) { problem = error.message; }
  if (state.picked !== id) return;
  state.episode = found;
  if (found) showEpisode();
  else $("#replay").replaceChildren(backLink(), make("p", { class: "hint", role: "alert", text: problem }));
  if (matchMedia("(max-width: 60rem)").matches) scrollTo(0, 0);
  writeAddress();
}
async function move(by) {
  let at = state.rows.findIndex((row) => row.id === state.picked) + by;
  if (state.picked === null) at = 0;
  if (at >= state.rows.length && state.offset + PAGE < state.total) { await turnPage(state.offset + PAGE); at = 0; }
  if (at < 0 && state.offset > 0) { await turnPage(state.offset - PAGE); at = state.rows.length - 1; }
  if (state.rows[at]) await pick(state.rows[at].id);
}

// An episode.
function cellOf(text, differs) {
  const names = [...text].map((sign) => state.episode.symbols[sign]).filter(Boolean);
  const icons = [...text].map((sign) => ICONS.get(state.episode.symbols[sign]) ?? sign).join("");
  const wall = text === "#";
  const kind = wall ? " wall" : names.some((name) => name.startsWith("player")) || text[0] === "P" ? " player" : text === "·" || text === "_" || text === " " ? " empty" : names[0] ? ` is-${ICONS.has(names[0]) ? names[0].replace(/s\b/g, "").replace("boxe", "box").replaceAll(" ", "-") : "other"}` : "";
  return make("span", { class: "cell" + kind + ([...icons].length > 2 ? " long" : "") + (differs ? " differs" : ""), title: names.join(" and ") || null, text: wall ? "" : text === "_" ? "" : icons });
}
function board(view, caption, kind) {
  const figure = make("figure", { class: view.rows.length ? kind : kind + " wide" }, make("figcaption", { text: caption }));
  if (view.rows.length) {
    const grid = make("div", { class: "board", role: "img", "aria-label": view.rows.map((row) => row.map(([text]) => text).join(" ")).join("\n") });
    for (const row of view.rows) grid.append(make("div", { class: "board-row" }, ...row.map(([text, differs]) => cellOf(text, differs))));
    figure.append(grid);
  }
  if (view.words.length) {
    const words = view.words.flatMap(([text, differs]) => [make("span", { class: differs ? "differs" : "", text }), " "]);
    figure.append(make("p", { class: "words" }, ...words));
  }
  if (!view.rows.length && !view.words.length) figure.append(make("p", { class: "words", text: "(empty)" }));
  return figure;
}
function claimed(view, name, wrong) {
  const figure = board(view, name + " ", "claimed");
  // A prediction is judged only if an action was executed after it.
  if (wrong !== null) figure.querySelector("figcaption").append(make("span", { class: wrong ? "mark" : "mark fine", text: wrong ? "wrong" : "exact" }));
  return figure;
}

// Playback: each action is a frame, from the state before the action to the state after it, next to the prediction.
let playing = null;
let frame = null;
function frames() {
  return state.episode.turns.flatMap((turn, index) => {
    const done = turn.actions.filter((action) => action.fate !== "not executed");
    return [{ turn: index, action: null, view: turn.state, count: done.length },
      ...done.map((action, place) => ({ turn: index, action, place, count: done.length,
        view: place + 1 === done.length ? turn.next_state : null }))];
  });
}
function stopPlaying() {
  clearInterval(playing);
  playing = null;
  $("#play")?.replaceChildren("▶ Play");
}
function showFrame(at) {
  const all = frames();
  frame = Math.max(0, Math.min(at, all.length - 1));
  const now = all[frame];
  if (!now) return;
  if (now.turn !== state.turn) { state.turn = now.turn; showTurn(); writeAddress(); }
  const turn = state.episode.turns[now.turn];
  const last = now.place + 1 === now.count;
  const shown = now.view || all.slice(0, frame).reverse().find((other) => other.view)?.view;
  const said = now.action ? `Action ${now.place + 1} of ${now.count}: ${now.action.text}${now.action.fate === "executed" ? "" : ` (${now.action.fate})`}` : `Turn ${now.turn + 1}: before the actions`;
  const nodes = [board(shown, now.view ? "true state" : "true state before the turn", "true big")];
  if (turn.predicted) nodes.push(last || !now.count ? claimed(turn.predicted, "predicted", turn.prediction_wrong) : board(turn.predicted, "predicted", "claimed"));
  nodes[1]?.classList.add("big");
  $("#frame").replaceChildren(...nodes);
  $("#caption").textContent = `${said}${now.view ? "" : " (its state was not recorded)"} · frame ${frame + 1} of ${all.length}`;
  document.querySelectorAll("#actions li").forEach((item, index) => item.classList.toggle("now", now.action !== null && turn.actions.indexOf(now.action) === index));
}
function play() {
  if (playing) return stopPlaying();
  if (frame === null || frame >= frames().length - 1) showFrame(0);
  $("#play").replaceChildren("❚❚ Pause");
  playing = setInterval(() => {
    if (frame >= frames().length - 1) stopPlaying();
    else showFrame(frame + 1);
  }, 800);
}
function player() {
  const button = (id, text, label, onclick) => make("button", { type: "button", id, text, "aria-label": label, onclick });
  const step = (by) => () => { stopPlaying(); showFrame((frame ?? 0) + by); };
  return make("section", { class: "playback" }, make("p", { class: "bar" }, button("play", "▶ Play", "Play the actions", play),
    button("frame-back", "◀", "One action back", step(-1)), button("frame-next", "▶▏", "One action on", step(1)), make("span", { id: "caption", class: "soft" })), make("div", { id: "frame", class: "boards" }));
}

// The group: the episodes of the same puzzle that were sampled together.
function groupStrip(team) {
  if (team.length < 2) return null;
  const strongest = Math.max(...team.map((row) => Math.abs(row.advantage ?? 0)), 1e-9);
  const members = team.map((row) => make("button", { type: "button", class: "member " + (row.success ? "won-back" : "lost-back"), "aria-current": row.id === state.picked ? "true" : null, title: row.episode, onclick: () => pick(row.id) },
    make("span", { class: row.success ? "won" : "lost", text: row.success ? "✓" : "✗" }), make("span", { text: `reward ${Number(row.score.toFixed(2))}` }),
    row.advantage === null || row.advantage === undefined ? null : make("span", { class: row.advantage < 0 ? "minus" : "plus", text: `adv. ${row.advantage > 0 ? "+" : ""}${Number(row.advantage.toFixed(2))}` }),
    row.advantage ? make("meter", { min: 0, max: strongest, value: Math.abs(row.advantage) }) : null));
  const won = team.filter((row) => row.success).length;
  return make("section", {}, make("h3", { text: `Group: ${won} of ${team.length} succeeded` }), make("div", { class: "team" }, ...members));
}

// Trees: the candidate plans of a planner, and the searches that a response writes out.
function plannerTree(nodes) {
  const item = (node, below) => {
    const right = node.right === null ? "" : node.right ? " · state right" : " · state wrong";
    const head = make("span", { class: "node" + (node.chosen ? " chosen" : ""), title: node.state }, make("b", { text: node.actions || "(no action)" }),
      make("span", { class: node.right === false ? "lost-text" : "soft", text: ` value ${node.value ?? "?"}${right}${node.chosen ? " · played" : ""}` }));
    return make("li", {}, head, below.length ? make("ul", {}, ...below) : null);
  };
  const roots = nodes.filter((node) => node.depth === 1);
  const deeper = (root) => nodes.filter((node) => node.root === root && node.depth > 1).map((node) => item({ ...node, actions: (node.depth > 2 ? `depth ${node.depth}: ` : "") + node.actions }, []));
  return make("section", {}, make("h3", { text: `Planner: ${nodes.length} responses and the states that they lead to` }),
    make("ul", { class: "tree" }, make("li", {}, make("span", { class: "node", text: "true state" }), make("ul", {}, ...roots.map((node) => item(node, deeper(node.root)))))));
}
function writtenTree(lines) {
  const known = new Map();
  lines.forEach((line) => { if (!known.has(line.key)) known.set(line.key, line); });
  // A state hangs below the first move that leads to it.
  const first = new Map([[lines[0].key, null]]);
  lines.forEach((line) => line.moves.forEach((move) => { if (!first.has(move[1])) first.set(move[1], move); }));
  const below = (line) => line.moves.map((move) => {
    const [action, key, status] = move;
    const next = first.get(key) === move ? known.get(key) : null;
    const dull = status && status !== "new" && !next;
    return make("li", {}, make("span", { class: "node " + (status === "goal" ? "chosen" : dull ? "dull" : "") }, make("span", { class: "soft", text: action + " " }), make("b", { text: key }), status ? make("span", { class: "soft", text: " " + status }) : null),
      next ? make("ul", {}, ...below(next)) : null);
  });
  const start = lines[0];
  return make("section", {}, make("h3", { text: `Written search: ${lines.length} lines` }),
    make("ul", { class: "tree" }, make("li", {}, make("span", { class: "node" }, make("b", { text: start.key })), make("ul", {}, ...below(start)))));
}

function actions(turn) {
  if (!turn.actions.length) return make("p", { class: "hint", text: "The response names no action." });
  return make("ul", { class: "actions", id: "actions" }, ...turn.actions.map((action) =>
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
    info.textContent = [`token ${asWritten}`, `id ${tokens.id[at]}`, tokens.sampled[at] ? "sampled" : "given", ...numbers.filter(Boolean)].join(" · ");
  };
  const box = make("pre", { class: "tokens", tabindex: "0", "aria-label": "Tokens of this turn",
    onmouseover: (event) => { if (event.target.dataset.index) show(Number(event.target.dataset.index)); },
    onkeydown: (event) => {
      if (event.key !== "ArrowRight" && event.key !== "ArrowLeft") return;
      event.preventDefault(); event.stopPropagation();
      show(at + (event.key === "ArrowRight" ? 1 : -1));
    } }, ...spans);
  const select = make("select", { "aria-label": "Colour the tokens by", onchange: (event) => { state.shade = event.target.value; showTurn(); } },
    ...[...names, "mask"].map((name) => option(name, name === "mask" ? "sampled" : name === "logprob" ? "log-prob" : name, shade)));
  const head = make("div", { class: "token-head" }, make("h3", { text: "Tokens: what the model read and wrote" }), make("label", { text: "Colour by " }, select));
  return make("section", {}, head, info, box);
}

const backLink = () => make("a", { class: "way-back", href: address({ picked: null, turn: 0 }), text: "← List of episodes" });
const fact = (name, value) => make("span", { text: `${name} ` }, make("b", { text: value }));
function showEpisode() {
  const episode = state.episode;
  frame = null;
  state.turn = Math.min(state.turn, Math.max(episode.turns.length - 1, 0));
  const row = (episode.team || []).find((item) => item.id === state.picked) || state.rows.find((item) => item.id === state.picked);
  const facts = make("p", { class: "facts" }, make("span", { class: episode.success ? "won" : "lost", text: episode.success ? "✓ success" : `✗ ${episode.stop}` }),
    ...badges(episode.turns.some((turn) => turn.prediction_wrong), episode.turns.some((turn) => !turn.well_formed)),
    fact("score", episode.score), ...(row ? [fact("step", row.step)] : []), ...(episode.facts.tag ? [fact("environment", episode.facts.tag)] : []));
  const about = make("details", { class: "about" }, make("summary", { text: "Seeds and settings" }), make("p", { class: "facts" }, ...Object.entries(episode.facts).map(([key, value]) => fact(key.replaceAll("_", " "), value))));
  const tabs = make("div", { id: "turns", role: "tablist", "aria-label": "Turns" });
  const nodes = [backLink(), make("h2", { text: episode.id }), facts, about];
  if (episode.error) nodes.push(make("pre", { class: "text", text: episode.error }));
  if (episode.turns.length) nodes.push(player());
  nodes.push(groupStrip(episode.team || []), tabs, make("div", { id: "turn", role: "tabpanel" }));
  nodes.push(make("details", {}, make("summary", { text: "The whole conversation, as sent" }),
    ...episode.messages.flatMap((message) => [make("p", { class: "role", text: message.role }), make("pre", { class: "text", text: message.content })])));
  if (episode.prompt_tokens) {
    nodes.push(make("details", {}, make("summary", { text: "The first prompt, token by token" }),
      make("pre", { class: "tokens" }, ...episode.prompt_tokens.text.map((text, index) =>
        make("span", { class: index % 2 ? "given odd" : "given", title: `id ${episode.prompt_tokens.id[index]}`, text })))));
  }
  if (source.polled) nodes.push(make("p", { class: "hint" }, make("a", { href: `/api/raw/${state.picked}` + asked({}), text: "The episode as JSON" })));
  $("#replay").replaceChildren(...nodes.filter(Boolean));
  $("#replay").scrollTop = 0;
  showTurn();
  if (episode.turns.length) showFrame(Math.max(0, frames().findIndex((item) => item.turn === state.turn)));
}
function showTurn() {
  const { episode } = state;
  $("#turns").replaceChildren(...episode.turns.map((turn, index) => {
    const bad = [turn.well_formed ? "" : "format", turn.prediction_wrong ? "prediction wrong" : "", turn.observation_wrong ? "observation wrong" : ""].filter(Boolean);
    return make("button", { type: "button", role: "tab", "aria-selected": String(index === state.turn), onclick: () => toTurn(index) },
      `Turn ${index + 1}`, bad.length ? make("span", { class: "lost", title: bad.join(", "), text: " ≠" }) : null);
  }));
  const turn = episode.turns[state.turn];
  if (!turn) { $("#turn").replaceChildren(make("p", { class: "hint", text: "This episode has no turns." })); return; }
  const amounts = [fact("reward", turn.reward), fact("penalty", turn.penalty), fact("actions left before", turn.actions_left ?? "?"),
    ...badges(turn.prediction_wrong, !turn.well_formed), turn.observation_wrong ? make("span", { class: "mark", text: "observation wrong" }) : null,
    turn.cut_off ? make("span", { class: "mark", text: "cut off at the length limit" }) : null];
  const pair = (title, ...figures) => make("section", { class: "pair" }, make("h3", { text: title }), make("div", {}, ...figures));
  const boards = make("div", { class: "boards" },
    pair("Before the actions", board(turn.state, "true", "true"), turn.observed ? claimed(turn.observed, "observed", turn.observation_wrong) : null),
    pair("After the actions", board(turn.next_state, "true", "true"), turn.predicted ? claimed(turn.predicted, "predicted", turn.prediction_wrong) : null),
    ...(turn.options || []).map((each) => pair(`Considered: ${each.plan}`, board(each.state, "predicted", "true"))));
  const trees = [turn.imagined && turn.imagined.length ? plannerTree(turn.imagined) : null, turn.search && turn.search.length > 1 ? writtenTree(turn.search) : null];
  const reply = turn.tokens ? tokenBox(turn.tokens) : make("section", {}, make("h3", { text: "Response" }), make("pre", { class: "text", text: turn.response }));
  $("#turn").replaceChildren(make("p", { class: "facts" }, ...amounts.filter(Boolean)), make("h3", { text: "Actions" }), actions(turn), boards, ...trees.filter(Boolean), reply);
}
function toTurn(index) {
  stopPlaying();
  state.turn = index;
  showTurn();
  showFrame(Math.max(0, frames().findIndex((item) => item.turn === index)));
  writeAddress();
}

document.addEventListener("keydown", (event) => {
  if (state.tab !== "episodes" || event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea")) return;
  const goTurn = (by) => { if (state.episode) toTurn(Math.min(Math.max(state.turn + by, 0), state.episode.turns.length - 1)); };
  const steps = { j: () => move(1), k: () => move(-1), ArrowRight: () => goTurn(1), ArrowLeft: () => goTurn(-1), "/": () => $("input[name=q]").focus() };
  if (!event.target.matches("button, a, summary")) steps[" "] = () => { if ($("#play")) play(); };
  if (steps[event.key]) { event.preventDefault(); steps[event.key](); }
});
$("#first").addEventListener("click", () => turnPage(0));
$("#back").addEventListener("click", () => turnPage(state.offset - PAGE));
$("#next").addEventListener("click", () => turnPage(state.offset + PAGE));
$("#last").addEventListener("click", () => turnPage(Math.floor((state.total - 1) / PAGE) * PAGE));
$("#reset").addEventListener("click", resetFilters);
$("#filters").addEventListener("submit", (event) => event.preventDefault());
addEventListener("popstate", route);

// A live run adds steps and episodes. Polling slows down while nothing changes.
async function watch(seen) {
  let total = seen, busy = false;
  try {
    if (state.tab === "") { if (!$("#runs").contains(document.activeElement) || document.activeElement.type !== "checkbox") await showRuns(); }
    else if (state.tab === "curves") await showReport();
    else if (state.tab === "episodes") {
      const info = await source.info();
      if (state.tab === "episodes") showInfo(info);
      total = info.total;
      busy = info.progress[0] < info.progress[1];
      if (total !== seen) {
        await loadPage();
        if (seen === 0 && state.picked === null) await showEpisodes();
      }
    }
  } catch (error) {
    const gone = error instanceof TypeError; // the server did not answer
    $("#status").textContent = gone ? "The server has stopped. This page is not updated." : error.message;
  }
  setTimeout(() => watch(total), busy ? 500 : 5000);
}
async function begin() {
  try {
    library = await source.runs();
  } catch (error) {
    $("#status").textContent = error.message;
  }
  $("#home").hidden = false;
  await route();
  if (source.polled) watch(state.total);
}
begin();
