// Joins the feed to the views. A report has its figures in the page and no feed.
import { clock, duration, span } from "./format.js";
import { at } from "./dom.js";
import { figures, load, take } from "./figures.js";
import { drawTiles } from "./tiles.js";
import { drawMemory } from "./memory.js";
import { drawCurves } from "./curves.js";
import { drawLatency } from "./latency.js";
import { drawFiles, drawObjects, readyFiles } from "./objects.js";
import { drawSets, readySets } from "./sets.js";
import { drawEvents, readyEvents } from "./events.js";

// The server's news come at every interval; two without any are a fault.
const SILENT_INTERVALS = 2;
const TOPICS = ["state", "interval", "curves", "plan", "objects", "events"];

const VIEWS = { now: drawTiles, memory: drawMemory, sizes: drawCurves, latency: drawLatency, objects: drawObjects,
  events: drawEvents };

const stale = new Set();
let frame = 0;

// Draws views at the next frame, once, however many news come.
function redraw(...views) {
  views.forEach((view) => stale.add(view));
  if (frame || document.hidden) return;
  frame = requestAnimationFrame(() => {
    frame = 0;
    for (const view of stale) VIEWS[view]();
    stale.clear();
  });
}

function heard(topic, data) {
  figures.heardMs = Date.now();
  take(topic, data);
  if (topic === "state") tellState();
  else if (topic === "interval") redraw("now", "memory", "sizes", "latency");
  else if (topic === "objects") redraw("objects");
  else if (topic === "events") redraw("events", "memory");
  else redraw("sizes");
  if (topic === "state" && at("sets-partition").options.length === 0) drawSets();
}

function tell(kind, text, why) {
  if (at("state").dataset.kind !== kind) at("state").dataset.kind = kind;
  if (at("state-text").textContent !== text) at("state-text").textContent = text;
  if (at("trouble").textContent !== (why ?? "")) at("trouble").textContent = why ?? "";
  at("trouble").hidden = !why;
}

function tellState() {
  const { state } = figures;
  if (!state) return;
  if (figures.isReport) {
    const [first, last] = [figures.recent[0], figures.recent.at(-1)];
    tell("report", `report of ${new Date(last.time_ms).toLocaleDateString()}, ${clock(first.time_ms)} to ${clock(last.time_ms)}`);
  } else if (!state.up) {
    tell("down", `no answer for ${span(state.time_ms - state.since_ms)}`,
      `The server does not answer: ${state.why}. The figures are the last ones; the page goes on when it is back.`);
  } else {
    const { pid, version, uptime_s: uptime } = state.server;
    tell("up", `up ${span(1000 * uptime)} · version ${version} · process ${pid}`);
  }
  const { restarts } = state;
  at("about").textContent = `One interval is ${duration(1e6 * state.interval_ms)}. `
    + (restarts > 0 ? `The server has been restarted ${restarts === 1 ? "once" : `${restarts} times`}. ` : "");
}

// Says so if octavo web itself is silent.
function watch() {
  const interval = figures.state?.interval_ms ?? 1000;
  const silent = Date.now() - figures.heardMs;
  if (silent > SILENT_INTERVALS * interval + 1000) {
    tell("down", `no news for ${span(silent)}`, "octavo web does not answer. The figures are the last ones.");
  }
}

// Loads the history, then follows the feed. The browser connects again by itself; then intervals
// are missing, and the history has them.
function follow() {
  const feed = new EventSource("/api/feed");
  feed.addEventListener("open", async () => {
    try {
      const response = await fetch("/api/history");
      if (response.ok) load(await response.json());
      redraw(...Object.keys(VIEWS));
    } catch {
      // The feed tells, and connects again.
    }
  });
  for (const topic of TOPICS) feed.addEventListener(topic, (event) => heard(topic, JSON.parse(event.data)));
  feed.addEventListener("error", () => {
    // After a refusal, such as that of too many clients, a browser does not try again.
    if (feed.readyState === EventSource.CLOSED) setTimeout(follow, 5000);
  });
}

function ready() {
  const theme = (value) => {
    if (value === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = value;
    redraw(...Object.keys(VIEWS));
  };
  at("theme").addEventListener("change", (event) => {
    theme(event.target.value);
    try { localStorage.setItem("theme", event.target.value); } catch { /* A report in a sandbox. */ }
  });
  try {
    const kept = localStorage.getItem("theme");
    const input = kept && at("theme").querySelector(`input[value="${CSS.escape(kept)}"]`);
    if (input) {
      input.checked = true;
      theme(kept);
    }
  } catch { /* A report in a sandbox. */ }
  at("window").addEventListener("change", (event) => {
    figures.shown = event.target.value;
    redraw("memory", "latency");
  });
  at("latency-partition").addEventListener("change", drawLatency);
  addEventListener("resize", () => {
    redraw("memory", "latency");
    drawSets();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraw("latency"));
  document.addEventListener("visibilitychange", () => redraw(...stale));
  readyFiles();
  readySets();
  readyEvents();
}

// The figures of a report.
function readRecorded(recorded) {
  const { reading } = JSON.parse(recorded.textContent);
  figures.isReport = true;
  figures.events = reading.events;
  for (const [topic, data] of Object.entries(reading.latest)) figures[topic] = data;
  load(reading.history);
  // A recording of less than two steps has no hour.
  if (figures.hour.length < 2) figures.hour = figures.recent;
}

const recorded = at("recorded");
if (recorded) readRecorded(recorded);
ready();
if (recorded) {
  tellState();
  drawSets();
  drawFiles();
  redraw(...Object.keys(VIEWS));
} else {
  follow();
  setInterval(watch, 1000);
}
