// Memory by partition over time, the limits of partitions, and what the reaper moved.
import { bytes, clock } from "./format.js";
import { at, el, fillTable, hue, svg, swatch } from "./dom.js";
import { figures, names, numberOf, rowOf, shown } from "./figures.js";
import { TimeChart } from "./chart.js";

const MOVES = ["moved", "held-up", "released", "pressure"];
const MOVES_SHOWN = 5;

let memoryChart = null;

export function drawMemory() {
  memoryChart ??= new TimeChart(at("memory-chart"), { label: "Memory by partition", format: bytes, base: 2 });
  const intervals = shown();
  const last = intervals.at(-1);
  const series = names().map((name) => ({
    name, number: numberOf(name),
    values: intervals.map((interval) => rowOf(interval, name)?.amounts.charged_bytes ?? 0),
  }));
  const marks = intervals.filter((interval) => interval.moved_bytes > 0).map((interval) => interval.time_ms);
  const bound = last && { value: last.memory_max_bytes, text: "allowed" };
  memoryChart.draw(intervals.map((interval) => interval.time_ms), series, bound, marks);
  drawLimits(figures.recent.at(-1) ?? last);
  drawMoves();
}

function drawLimits(last) {
  const limit = (value) => (value === null ? "no limit" : bytes(value));
  const rows = (last?.partitions ?? []).map(({ name, amounts }) => [
    el("span", {}, swatch(numberOf(name)), name), limitsBar(name, amounts, last.memory_max_bytes),
    bytes(amounts.charged_bytes), bytes(amounts.allowed_bytes),
    bytes(amounts.min), bytes(amounts.low), limit(amounts.high), limit(amounts.max),
  ]);
  const columns = [["partition", true], ["within its limits", true], ["charged"], ["allowed"], ["min"], ["low"], ["high"], ["max"]];
  fillTable(at("limits"), "Limits of partitions", columns, rows, "No interval yet.");
}

// The memory of a partition as a line from 0 to the whole: a band from min to max, darker between
// low and high, and a tick at the charged bytes.
function limitsBar(name, amounts, whole) {
  const x = (value) => ((120 * Math.min(value ?? whole, whole)) / Math.max(1, whole)).toFixed(1);
  const band = (from, to, kind) =>
    svg("rect", { class: kind, x: x(from), width: Math.max(0, x(to) - x(from)), y: 3, height: 8, rx: 2 });
  const label = `${name}: ${bytes(amounts.charged_bytes)} of ${bytes(whole)}`;
  return svg("svg", { class: "limits", viewBox: "0 0 120 14", width: 120, height: 14, role: "img", "aria-label": label },
    svg("rect", { class: "whole", x: 0, width: 120, y: 6, height: 2 }),
    band(amounts.min, amounts.max, "band"),
    band(Math.max(amounts.min, amounts.low), Math.min(amounts.high ?? whole, amounts.max ?? whole), "band"),
    svg("rect", { x: x(amounts.charged_bytes) - 1.5, width: 3, y: 0, height: 14, rx: 1, vars: { fill: hue(numberOf(name)) } }));
}

function drawMoves() {
  const moves = figures.events.filter((event) => MOVES.includes(event.kind)).slice(-MOVES_SHOWN).reverse();
  if (moves.length === 0) {
    at("moves").replaceChildren();
    return;
  }
  const rows = moves.map((event) => el("li", {}, el("time", {}, clock(event.time_ms)), ` ${event.text}`,
    event.reason && !event.text.includes(event.reason) ? el("span", { class: "note" }, ` (${event.reason})`) : null));
  at("moves").replaceChildren(el("h3", {}, "Latest moves"), el("ul", { class: "plain" }, ...rows));
}
