"use strict";

// Everything that comes from the store becomes text, never markup: nodes are made, and no HTML is written.

const SVG = "http://www.w3.org/2000/svg";
const STATES = [
  ["done", "done"], ["leased", "running"], ["expired", "lease expired"],
  ["waiting", "waiting"], ["dead", "dead"], ["free", "free"],
];
const $ = (id) => document.getElementById(id);

let windowShown = 3600;
let windowChosen = false;
let offset = 0;
let failuresShown = "";
let timer = 0;
let state = null;

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") element.className = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

function drawn(tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

const whole = new Intl.NumberFormat("en");
const number = (value) => whole.format(Math.round(value));

function rateText(value) {
  if (value >= 100) return number(value) + "/s";
  if (value >= 1) return value.toFixed(1) + "/s";
  return value > 0 ? (value * 60).toFixed(1) + "/min" : "0/s";
}

function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 60) return Math.max(0, Math.round(seconds)) + " s";
  if (seconds < 3600) return Math.round(seconds / 60) + " min";
  if (seconds < 172800) return Math.floor(seconds / 3600) + " h " + Math.round((seconds % 3600) / 60) + " min";
  return Math.round(seconds / 86400) + " d";
}

function clock(seconds, long) {
  const options = long ? { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" }
    : { hour: "2-digit", minute: "2-digit" };
  return new Date(seconds * 1000).toLocaleString([], options);
}

async function ask(path, options = {}) {
  const answer = await fetch(path, { credentials: "same-origin", ...options });
  if (answer.status === 401) {
    location.assign("login");
    throw new Error("a token is needed");
  }
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error || "the dashboard answered " + answer.status);
  return body;
}

function complain(text) {
  $("banner").textContent = text;
  $("banner").hidden = !text;
}

function showProgress(told) {
  const counts = told.counts;
  const ended = counts.done + counts.dead;
  const part = counts.groups ? (100 * ended) / counts.groups : 0;
  const shown = ended < counts.groups ? Math.min(part, 99.9) : 100;
  $("percent").textContent = counts.groups ? shown.toFixed(1) + " %" : "";
  document.title = (counts.groups ? shown.toFixed(0) + " % · " : "") + "s3queue";
  $("bar").replaceChildren(...STATES.filter(([name]) => counts[name] > 0).map(([name, label]) => {
    const piece = make("i", { class: name, title: label + ": " + number(counts[name]) });
    piece.style.flexGrow = counts[name];
    return piece;
  }));
  $("states").replaceChildren(...STATES.map(([name, label]) => make("div", {},
    make("dt", {}, make("i", { class: name }), label),
    make("dd", { id: "count-" + name }, (name === "dead" && counts.unread ? "≥ " : "") + number(counts[name])))));
  const fact = (label, value) => make("div", {}, make("dt", {}, label), make("dd", {}, value));
  const eta = counts.groups && ended === counts.groups ? "complete" : span(told.eta);
  $("facts").replaceChildren(
    fact("groups", number(counts.groups)),
    fact("paths", told.paths === undefined ? "–" : number(told.paths)),
    fact(eta === "complete" ? "state" : "time left", eta));
}

function showCharts(told) {
  const series = told.series;
  const counts = series.counts;
  const top = Math.max(1, ...counts);
  const width = 600;
  const rate = $("rate");
  rate.setAttribute("viewBox", "0 0 600 130");
  rate.setAttribute("preserveAspectRatio", "none");
  const step = width / counts.length;
  rate.replaceChildren(drawn("line", { class: "axis", x1: 0, x2: width, y1: 130, y2: 130 }));
  counts.forEach((count, i) => {
    if (!count) return;
    const height = Math.max(2, (126 * count) / top);
    const column = drawn("rect", { class: "column", x: i * step + step * 0.08, width: step * 0.84, y: 130 - height, height });
    const title = drawn("title", {});
    title.textContent = clock(series.start + i * series.step, true) + ": " + number(count) + " groups";
    column.append(title);
    rate.append(column);
  });
  const long = series.step * counts.length > 86400;
  const from = clock(series.start, long);
  $("rate-caption").replaceChildren(make("span", {}, from),
    make("span", {}, "now " + rateText(told.rate) + " · peak " + rateText(top / series.step)),
    make("span", {}, clock(told.date, long)));

  let sum = series.before;
  const most = Math.max(1, told.counts.groups);
  const points = counts.map((count, i) => {
    sum += count;
    return ((i + 1) * step).toFixed(1) + "," + (70 - (66 * sum) / most).toFixed(1);
  });
  const begin = "0," + (70 - (66 * series.before) / most).toFixed(1);
  const total = $("total");
  total.setAttribute("viewBox", "0 0 600 70");
  total.setAttribute("preserveAspectRatio", "none");
  total.replaceChildren(
    drawn("line", { class: "axis", x1: 0, x2: width, y1: 4, y2: 4, "stroke-dasharray": "4 4" }),
    drawn("line", { class: "axis", x1: 0, x2: width, y1: 70, y2: 70 }),
    drawn("polygon", { class: "area", points: "0,70 " + begin + " " + points.join(" ") + " 600,70" }),
    drawn("polyline", { class: "curve", points: begin + " " + points.join(" ") }));
  $("total-caption").replaceChildren(make("span", {}, "done over time"),
    make("span", {}, number(told.counts.done) + " of " + number(told.counts.groups)));
}

function showOwners(told) {
  const owners = told.owners;
  const rows = owners.shown.map((one) => {
    const parts = one.owner.split(":");
    const named = parts.length >= 3;
    const host = named ? parts.slice(0, -2).join(":") : one.owner;
    return make("tr", { title: one.owner + (one.since ? "\nsince " + one.since : "") },
      make("td", {}, host), make("td", { class: "wide mono" }, named ? parts.slice(-2).join(":") : ""),
      make("td", { class: "number" }, number(one.leases)), make("td", { class: "number" }, span(one.silent) + " ago"));
  });
  $("owners").replaceChildren(...rows);
  const more = owners.count - owners.shown.length;
  const notes = [number(owners.count) + (owners.count === 1 ? " process" : " processes")];
  if (more > 0) notes.push(number(more) + " not shown");
  if (owners.unread) notes.push(number(owners.unread) + " leases not read yet");
  $("owners-count").textContent = owners.count || owners.unread ? notes.join(" · ") : "";
  $("owners-none").hidden = Boolean(owners.count || owners.unread);
  $("owners").parentElement.hidden = !owners.count;
}

function attemptOf(one) {
  const took = one.seconds === null ? "" : " after " + one.seconds.toFixed(1) + " s";
  const parts = [make("p", { class: "attempt" }, "epoch " + one.epoch + " · " + one.at + " · " + one.owner + took),
    make("p", { class: "error mono" }, one.kind + ": " + one.error)];
  if (one.detail) parts.push(make("pre", {}, one.detail));
  return parts;
}

function historyOf(group) {
  const body = make("div", {}, "…");
  const details = make("details", {}, make("summary", {}, "all attempts, with tracebacks"), body);
  details.addEventListener("toggle", async () => {
    if (!details.open) return;
    try {
      const told = await ask("api/groups/" + group.hash);
      const attempts = told.attempts.reverse().flatMap(attemptOf);
      body.replaceChildren(...(attempts.length ? attempts : ["Nothing is on record."]));
    } catch (error) {
      body.textContent = error.message;
    }
  });
  return details;
}

function retryButton(group) {
  const button = make("button", { class: "retry", "aria-label": "retry group " + group.hash }, "Retry");
  button.addEventListener("click", async () => {
    button.disabled = true;
    button.textContent = "…";
    try {
      const told = await ask("api/groups/" + group.hash + "/retry", { method: "POST", headers: { "X-S3Queue": "1" } });
      button.textContent = told.retried ? "Claimable" : "Not needed";
      schedule(600);
    } catch (error) {
      button.textContent = "Retry";
      button.disabled = false;
      complain(error.message);
    }
  });
  return button;
}

function failureOf(group) {
  const top = make("div", { class: "top" },
    make("span", { class: "tag " + (group.dead ? "dead" : "waiting") }, group.dead ? "dead" : "waiting"),
    make("span", { class: "mono", title: group.hash }, group.hash.slice(0, 12)),
    make("span", {}, number(group.paths) + (group.paths === 1 ? " path" : " paths") + ", " + number(group.done) + " done"),
    make("span", {}, number(group.failures) + (group.failures === 1 ? " failure" : " failures")),
    make("span", {}, span(group.age) + " ago"));
  if (state.actions) top.append(retryButton(group));
  const paths = group.failed.length
    ? group.failed.map((one) => make("li", {}, make("span", { class: "mono" }, one.path),
      (group.failed.length > 1 || !group.last ? " – " + one.error : "") + (one.crashes ? " (" + one.crashes + " crashes)" : "")))
    : group.named.map((path) => make("li", {}, make("span", { class: "mono" }, path)));
  const listed = group.failed.length || group.named.length;
  if (listed < group.paths - group.done) paths.push(make("li", {}, "and more"));
  const error = group.last ? group.last.kind + ": " + group.last.error : "its failure is not on record";
  return make("article", { class: "failure", "data-hash": group.hash }, top, make("p", { class: "error" }, error),
    make("ul", { class: "paths" }, ...paths), historyOf(group));
}

async function showFailures(told) {
  $("failures-count").textContent = told.failed ? number(told.failed) + (told.failed === 1 ? " group" : " groups") : "";
  $("failures-none").hidden = told.failed > 0;
  if (offset >= told.failed) offset = 0;
  const found = told.failed ? await ask("api/failures?offset=" + offset) : { groups: [], total: 0, page: 1 };
  // Drawn anew only if it changed, so that what somebody has opened stays open.
  const shown = JSON.stringify([offset, told.actions, found.groups.map((group) => [group.hash, group.failures, group.dead])]);
  if (shown !== failuresShown) {
    $("failures").replaceChildren(...found.groups.map(failureOf));
    failuresShown = shown;
  }
  $("pages").hidden = found.total <= found.page;
  $("newer").disabled = offset === 0;
  $("older").disabled = offset + found.page >= found.total;
  $("page").textContent = number(offset + 1) + "–" + number(Math.min(found.total, offset + found.page)) + " of " + number(found.total);
}

function showFreshness(told) {
  const ready = told.phase === "ready";
  const late = ready && told.age > 4 * told.every + 10;
  $("freshness").className = ready ? (late ? "late" : "live") : "";
  if (told.phase === "loading") $("freshness").textContent = "reading the index…";
  else if (told.phase === "counting") $("freshness").textContent = "counting: " + number(told.counts.done) + " done so far";
  else $("freshness").textContent = "as of " + span(told.age) + " ago";
}

async function look() {
  const told = await ask("api/state?window=" + windowShown);
  state = told;
  $("workspace").textContent = told.workspace;
  $("workspace").title = told.workspace;
  complain(told.error);
  showFreshness(told);
  if (told.counts) showProgress(told);
  if (told.phase !== "ready") return 700;
  if (!windowChosen) {
    // A run that has just begun would be a line at the right edge of an hour.
    windowChosen = true;
    if (!told.series.before) {
      choose(0);
      return 0;
    }
  }
  showCharts(told);
  showOwners(told);
  await showFailures(told);
  // An answer tells what is known, and has it looked up if that is old: what was found is there a little later.
  const due = told.every - told.age;
  return 1000 * (told.error ? told.every : Math.max(1, due + 0.1));
}

async function turn() {
  let wait = 3000;
  try {
    wait = await look();
  } catch (error) {
    $("freshness").className = "late";
    complain(error.message);
  }
  schedule(wait);
}

function schedule(wait) {
  clearTimeout(timer);
  if (!document.hidden) timer = setTimeout(turn, wait);
}

// Nobody looks at a hidden page: it asks for nothing, and so nothing is asked of the store.
document.addEventListener("visibilitychange", () => schedule(0));
function choose(seconds) {
  windowShown = seconds;
  for (const button of document.querySelectorAll("#windows button")) {
    button.setAttribute("aria-pressed", String(Number(button.dataset.window) === seconds));
  }
}

for (const button of document.querySelectorAll("#windows button")) {
  button.addEventListener("click", () => {
    windowChosen = true;
    choose(Number(button.dataset.window));
    schedule(0);
  });
}
$("newer").addEventListener("click", () => { offset = Math.max(0, offset - 20); schedule(0); });
$("older").addEventListener("click", () => { offset += 20; schedule(0); });
schedule(0);
