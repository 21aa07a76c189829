// The figures of the last interval, and what they were in the minutes before.
import { amount, bytes, duration, perSecond, percent, span } from "./format.js";
import { at, el, svg } from "./dom.js";
import { bucketsOf, figures, latest, quantile, rate, sum } from "./figures.js";

// The cache gives memory back when processes wait for it so much of the time.
const STALLED_RATIO = 0.1;

// Whether the system's need has made the cache smaller.
function stalls(last) {
  if (last.memory_stalled_ratio === null) return "the kernel has no PSI";
  const missing = last.memory_max_bytes - last.memory_allowed_bytes;
  return last.memory_allowed_bytes > 0 && missing > 0 ? `${bytes(missing)} given back` : "in ten seconds";
}

function p99(intervals, kind) {
  return duration(quantile(bucketsOf(intervals, kind), 0.99));
}

function amounts(interval, key) {
  return interval.partitions.reduce((total, row) => total + (row.amounts[key] ?? 0), 0);
}

// Each tile: its title, its value, a note, what the small line shows, and whether it is bad.
function tiles(last) {
  const lookups = sum(last, "hits") + sum(last, "misses");
  const oldest = Math.max(-1, ...last.partitions.map((row) => row.amounts.dirty_oldest_ms ?? -1));
  const errors = sum(last, "errors");
  const ratio = (one) => sum(one, "hits") / Math.max(1, sum(one, "hits") + sum(one, "misses"));
  const age = oldest >= 0 ? `oldest ${span(oldest)}` : "not yet in the stores";
  const recentErrors = figures.recent.reduce((total, one) => total + sum(one, "errors"), 0);
  return [
    ["Hit ratio", percent(sum(last, "hits"), lookups), `${perSecond(rate(last, "hits"))} hits`, ratio],
    ["Misses", perSecond(rate(last, "misses")), `${perSecond(rate(last, "bypasses"))} bypasses`,
      (one) => rate(one, "misses")],
    ["p99 of hits", p99([last], "hit"), `p50 ${duration(quantile(bucketsOf([last], "hit"), 0.5))}`,
      (one) => quantile(bucketsOf([one], "hit"), 0.99) ?? 0],
    ["p99 of misses", p99([last], "miss"), `p50 ${duration(quantile(bucketsOf([last], "miss"), 0.5))}`,
      (one) => quantile(bucketsOf([one], "miss"), 0.99) ?? 0],
    ["Dirty", bytes(amounts(last, "dirty_bytes")), age, (one) => amounts(one, "dirty_bytes")],
    ["Memory used", bytes(last.memory_charged_bytes), `of ${bytes(last.memory_max_bytes)} allowed`,
      (one) => one.memory_charged_bytes],
    ["Process", bytes(last.resident_bytes), `resident; ${amount(last.connections)} clients`,
      (one) => one.resident_bytes ?? 0],
    ["Memory stalls", percent(last.memory_stalled_ratio, 1), stalls(last), (one) => one.memory_stalled_ratio ?? 0,
      last.memory_stalled_ratio >= STALLED_RATIO],
    ["Errors", amount(errors), `${amount(recentErrors)} in the time shown`, (one) => sum(one, "errors"),
      errors > 0],
  ];
}

// A line without axes: only its shape matters.
function spark(intervals, value) {
  const values = intervals.map(value);
  const most = Math.max(...values, 1e-9);
  const least = Math.min(...values);
  const height = most - least || 1;
  const points = values.map((one, at) =>
    `${((100 * at) / Math.max(1, values.length - 1)).toFixed(1)},${(23 - (20 * (one - least)) / height).toFixed(1)}`);
  return svg("svg", { viewBox: "0 0 100 25", class: "spark", preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("polyline", { points: points.join(" ") }));
}

export function drawTiles() {
  const last = figures.recent.at(-1);
  if (!last) {
    at("tiles").replaceChildren(el("div", { class: "tile" }, el("dt", {}, "No interval yet"), el("dd", {}, "–")));
    return;
  }
  const minutes = latest(120_000);
  at("tiles").replaceChildren(...tiles(last).map(([title, value, note, line, isBad]) =>
    el("div", { class: isBad ? "tile bad" : "tile" },
      el("dt", {}, title), el("dd", { class: "value" }, value), el("dd", { class: "note" }, note),
      el("dd", { class: "line" }, spark(minutes, line)))));
}
