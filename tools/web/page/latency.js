// Heat maps of latency over time, one for each kind of requests, and a table of quantiles.
import { amount, clock, duration, percent } from "./format.js";
import { at, el, fillSelect, fillTable } from "./dom.js";
import { bucketsOf, figures, names, quantile, shown } from "./figures.js";

const KINDS = ["hit", "miss", "bypass", "store", "write", "flush", "discard"];
// Rows double from 1 µs; requests beyond either end are in the last row there.
const ROWS = 24;
const LABELS = [[1e3, "1 µs"], [1e4, "10 µs"], [1e5, "100 µs"], [1e6, "1 ms"], [1e7, "10 ms"], [1e8, "100 ms"],
  [1e9, "1 s"]];
const MAP_WIDTH = 360;
const MAP_HEIGHT = 150;

const maps = new Map();

function rowAt(ns) {
  return Math.min(ROWS - 1, Math.max(0, Math.ceil(Math.log2(ns / 1000))));
}

export function drawLatency() {
  fillSelect(at("latency-partition"), names(), [["", "all"]]);
  const name = at("latency-partition").value;
  const intervals = shown();
  const all = new Map(KINDS.map((kind) => [kind, bucketsOf(intervals, kind, name)]));
  const used = [...all.values()].flatMap((buckets) => [...buckets.keys()]).map(rowAt);
  // One scale for all maps, so that they can be compared.
  const [low, high] = used.length > 0 ? [Math.min(...used), Math.max(...used)] : [0, ROWS - 1];
  for (const kind of KINDS) {
    const isUsed = all.get(kind).size > 0;
    if (!maps.has(kind) && isUsed) maps.set(kind, makeMap(kind));
    if (!maps.has(kind)) continue;
    maps.get(kind).root.hidden = !isUsed;
    if (isUsed) drawMap(maps.get(kind), kind, name, intervals, Math.max(0, low - 1), high);
  }
  // In the order of kinds, whichever was seen first.
  const roots = KINDS.filter((kind) => maps.has(kind)).map((kind) => maps.get(kind).root);
  if (at("heat").children.length !== roots.length) at("heat").replaceChildren(...roots);
  drawTimes(name);
}

function makeMap(kind) {
  const canvas = el("canvas", { width: MAP_WIDTH, height: MAP_HEIGHT, role: "img" });
  const scale = el("div", { class: "scale", "aria-hidden": "true" });
  const title = el("h3", {}, kind);
  const foot = el("p", { class: "note ends" });
  return { canvas, scale, foot, root: el("div", { class: "card" }, title, el("div", { class: "heat" }, scale, canvas), foot) };
}

function drawMap(map, kind, name, intervals, low, high) {
  const rows = high - low + 1;
  const context = map.canvas.getContext("2d");
  const colour = getComputedStyle(map.canvas).color;
  context.clearRect(0, 0, MAP_WIDTH, MAP_HEIGHT);
  context.fillStyle = colour;
  const [first, last] = [intervals[0].time_ms - intervals[0].length_ms, intervals.at(-1).time_ms];
  const x = (time) => (MAP_WIDTH * (time - first)) / Math.max(1, last - first);
  const height = MAP_HEIGHT / rows;
  for (const interval of intervals) {
    const counts = new Map();
    let total = 0;
    for (const [end, count] of bucketsOf([interval], kind, name)) {
      const row = rowAt(end) - low;
      counts.set(row, (counts.get(row) ?? 0) + count);
      total += count;
    }
    const [left, right] = [x(interval.time_ms - interval.length_ms), x(interval.time_ms)];
    for (const [row, count] of counts) {
      // The root lets rare requests be seen: they are what the tail consists of.
      context.globalAlpha = 0.12 + 0.88 * Math.sqrt(count / total);
      context.fillRect(left, MAP_HEIGHT - (row + 1) * height, Math.max(0.7, right - left), height + 0.3);
    }
  }
  const labels = LABELS.filter(([ns]) => ns >= 1000 * 2 ** (low - 1) && ns <= 1000 * 2 ** high);
  map.scale.replaceChildren(...labels.map(([ns, text]) => {
    const place = (Math.log2(ns / 1000) - low + 1) / rows;
    return el("span", { vars: { bottom: `${(100 * place).toFixed(1)}%` } }, text);
  }));
  map.foot.replaceChildren(el("span", {}, clock(first)), el("span", {}, clock(last)));
  const buckets = bucketsOf(intervals, kind, name);
  map.canvas.setAttribute("aria-label",
    `Latency of ${kind} over time: half within ${duration(quantile(buckets, 0.5))}, 99 % within ${duration(quantile(buckets, 0.99))}`);
}

function drawTimes(name) {
  const last = figures.recent.slice(-1);
  const rows = KINDS.map((kind) => [kind, bucketsOf(last, kind, name)]).filter(([, buckets]) => buckets.size > 0);
  const total = (buckets) => [...buckets.values()].reduce((sum, count) => sum + count, 0);
  const whole = rows.reduce((sum, [, buckets]) => sum + total(buckets), 0);
  fillTable(at("times"), "Latency of the last interval",
    [["last interval", true], ["requests"], ["share"], ["p50"], ["p90"], ["p99"], ["p99.9"]],
    rows.map(([kind, buckets]) => [kind, amount(total(buckets)), percent(total(buckets), whole),
      ...[0.5, 0.9, 0.99, 0.999].map((share) => duration(quantile(buckets, share)))]),
    "No request in the last interval.");
}
