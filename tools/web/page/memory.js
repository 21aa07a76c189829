// Memory by partition over time, the limits of partitions, and what the reaper moved.
import { bytes, clock } from "./format.js";
import { at, el, fillTable, swatch } from "./dom.js";
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
    el("span", {}, swatch(numberOf(name)), name), bytes(amounts.charged_bytes), bytes(amounts.allowed_bytes),
    bytes(amounts.min), bytes(amounts.low), limit(amounts.high), limit(amounts.max),
  ]);
  const columns = [["partition", true], ["charged"], ["allowed"], ["min"], ["low"], ["high"], ["max"]];
  fillTable(at("limits"), "Limits of partitions", columns, rows, "No interval yet.");
}

function drawMoves() {
  const moves = figures.events.filter((event) => MOVES.includes(event.kind)).slice(-MOVES_SHOWN).reverse();
  if (moves.length === 0) {
    at("moves").replaceChildren();
    return;
  }
  const rows = moves.map((event) => el("li", {}, el("time", {}, clock(event.time_ms)), ` ${event.text}`,
    event.reason ? el("span", { class: "note" }, ` (${event.reason})`) : null));
  at("moves").replaceChildren(el("h3", {}, "Latest moves"), el("ul", { class: "plain" }, ...rows));
}
