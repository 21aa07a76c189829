// Numbers with their units, in a few characters. Every unit has one form on the page.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

// Three digits are enough to compare: 1.23, 12.3, 123.
function three(value) {
  const size = Math.abs(value);
  return value.toFixed(size >= 100 || Number.isInteger(value) ? 0 : size >= 10 ? 1 : 2);
}

export function bytes(count) {
  if (count === null || count === undefined) return "–";
  let unit = 0;
  let value = count;
  while (Math.abs(value) >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${three(value)} ${UNITS[unit]}`;
}

export function amount(count) {
  const size = Math.abs(count);
  if (size >= 1e9) return `${three(count / 1e9)} G`;
  if (size >= 1e6) return `${three(count / 1e6)} M`;
  if (size >= 1e4) return `${three(count / 1e3)} k`;
  return size >= 100 || Number.isInteger(count) ? count.toFixed(0) : count.toFixed(1);
}

export function perSecond(count) {
  return `${amount(count)} /s`;
}

export function duration(ns) {
  if (ns === null || ns === undefined) return "–";
  if (ns >= 1e9) return `${three(ns / 1e9)} s`;
  if (ns >= 1e6) return `${three(ns / 1e6)} ms`;
  if (ns >= 1e3) return `${three(ns / 1e3)} µs`;
  return `${three(ns)} ns`;
}

export function span(ms) {
  const seconds = Math.max(0, ms / 1000);
  if (seconds < 90) return `${seconds.toFixed(0)} s`;
  if (seconds < 5400) return `${(seconds / 60).toFixed(0)} min`;
  if (seconds < 172800) return `${(seconds / 3600).toFixed(0)} h`;
  return `${(seconds / 86400).toFixed(0)} days`;
}

export function percent(part, whole) {
  return whole > 0 ? `${((100 * part) / whole).toFixed(1)} %` : "–";
}

export function clock(ms) {
  return new Date(ms).toLocaleTimeString([], { hour12: false });
}

// Round values for the ticks of an axis from 0 to `most`: at most `count` of them.
export function ticks(most, count, base = 10) {
  if (!(most > 0)) return [0];
  const steps = base === 2 ? [1, 2, 4, 8] : [1, 2, 5, 10];
  const rough = most / count;
  const scale = base === 2 ? 2 ** Math.floor(Math.log2(rough)) : 10 ** Math.floor(Math.log10(rough));
  const step = scale * steps.find((factor) => factor * scale >= rough);
  const all = [];
  for (let value = 0; value <= most * 1.0001 && all.length <= count + 1; value += step) all.push(value);
  return all;
}
