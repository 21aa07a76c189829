// A chart over time: stacked areas or lines, with a cursor for the mouse and for arrow keys. The
// legend shows the values at the cursor, so that nothing is told by colour alone.
import { clock, ticks } from "./format.js";
import { el, hue, svg, swatch } from "./dom.js";

const CHART_HEIGHT = 220;
const LEFT = 68;
const BOTTOM = 22;
const TOP = 14;

// A pause of more than this many intervals is a gap.
const GAP = 3;

export class TimeChart {
  // `label` names the chart; `format` writes a value; ticks are round in base `base`.
  constructor(figure, { label, format, base }) {
    this.label = label;
    this.format = format;
    this.base = base;
    this.cursor = null;
    this.svg = svg("svg", { role: "img", tabindex: "0", class: "chart" });
    this.legend = el("figcaption", { class: "legend" });
    figure.replaceChildren(this.svg, this.legend);
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => this.move(null));
    this.svg.addEventListener("blur", () => this.move(null));
    this.svg.addEventListener("keydown", (event) => this.key(event));
  }

  // `series`: {name, number, values}, stacked from below; `bound`: a line at {value, text};
  // `marks`: times with a tick above the chart.
  draw(times, series, bound, marks) {
    Object.assign(this, { times, series, bound, marks });
    const width = Math.max(260, this.svg.parentElement.clientWidth);
    this.right = width - 8;
    const totals = times.map((_, at) => series.reduce((sum, { values }) => sum + values[at], 0));
    this.most = Math.max(bound?.value ?? 0, ...totals, 1) * 1.04;
    const parts = [this.axes(), ...this.areas(), this.bounds(), this.ticksOfMarks()];
    this.line = svg("line", { class: "cursor", y1: TOP, y2: CHART_HEIGHT - BOTTOM, visibility: "hidden" });
    this.svg.setAttribute("viewBox", `0 0 ${width} ${CHART_HEIGHT}`);
    this.svg.setAttribute("height", CHART_HEIGHT);
    this.svg.replaceChildren(...parts, this.line);
    this.tell();
  }

  x(time) {
    const [first, last] = [this.times[0], this.times.at(-1)];
    return last > first ? LEFT + ((time - first) / (last - first)) * (this.right - LEFT) : this.right;
  }

  y(value) {
    return CHART_HEIGHT - BOTTOM - (value / this.most) * (CHART_HEIGHT - BOTTOM - TOP);
  }

  axes() {
    const group = svg("g", { class: "axes" });
    for (const value of ticks(this.most, 5, this.base)) {
      const y = this.y(value);
      group.append(svg("line", { class: "grid", x1: LEFT, x2: this.right, y1: y, y2: y }),
        svg("text", { x: LEFT - 8, y: y + 4, class: "right" }, this.format(value)));
    }
    if (this.times.length > 1) {
      const [first, last] = [this.times[0], this.times.at(-1)];
      const count = this.right < 500 ? 2 : 5;
      for (let tick = 0; tick <= count; tick += 1) {
        const time = first + ((last - first) * tick) / count;
        const place = tick === 0 ? "left" : tick === count ? "right" : "middle";
        group.append(svg("text", { x: this.x(time), y: CHART_HEIGHT - 5, class: place }, clock(time)));
      }
    }
    return group;
  }

  areas() {
    const below = this.times.map(() => 0);
    return this.series.map(({ values, number }) => {
      const lower = [...below];
      values.forEach((value, at) => { below[at] += value; });
      const points = this.runs().map(([from, to]) => {
        const range = [...Array(to - from).keys()].map((step) => from + step);
        const place = (at, value) => `${this.x(this.times[at]).toFixed(1)},${this.y(value).toFixed(1)}`;
        const over = range.map((at) => place(at, below[at]));
        const under = range.reverse().map((at) => place(at, lower[at]));
        return `M${over.join("L")}L${under.join("L")}Z`;
      });
      return svg("path", { class: "area", d: points.join(""), vars: { "--c": hue(number) } });
    });
  }

  // The ranges of intervals between gaps.
  runs() {
    const steps = this.times.slice(1).map((time, at) => time - this.times[at]).sort((a, b) => a - b);
    const usual = steps[Math.floor(steps.length / 2)] ?? 0;
    const runs = [];
    let from = 0;
    for (let at = 1; at <= this.times.length; at += 1) {
      if (at === this.times.length || this.times[at] - this.times[at - 1] > GAP * usual) {
        runs.push([from, at]);
        from = at;
      }
    }
    return runs;
  }

  bounds() {
    const group = svg("g", {});
    if (!this.bound) return group;
    const y = this.y(this.bound.value);
    group.append(svg("line", { class: "bound", x1: LEFT, x2: this.right, y1: y, y2: y }));
    return group;
  }

  ticksOfMarks() {
    const marks = this.marks.map((time) => svg("path", { d: `M${this.x(time).toFixed(1)} 2l4 7h-8z` }));
    return svg("g", { class: "marks" }, ...marks);
  }

  point(event) {
    const box = this.svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * this.svg.viewBox.baseVal.width;
    let best = null;
    this.times.forEach((time, at) => {
      if (best === null || Math.abs(this.x(time) - x) < Math.abs(this.x(this.times[best]) - x)) best = at;
    });
    this.move(best);
  }

  key(event) {
    const last = this.times.length - 1;
    const from = this.cursor ?? last;
    const steps = { ArrowLeft: from - 1, ArrowRight: from + 1, Home: 0, End: last };
    if (!(event.key in steps)) return;
    event.preventDefault();
    this.move(Math.min(last, Math.max(0, steps[event.key])));
  }

  move(cursor) {
    this.cursor = cursor;
    this.tell();
  }

  tell() {
    const at = Math.min(this.cursor ?? Infinity, this.times.length - 1);
    if (at < 0) {
      this.legend.replaceChildren("No interval yet.");
      return;
    }
    const isPointed = this.cursor !== null;
    this.line.setAttribute("visibility", isPointed ? "visible" : "hidden");
    const x = this.x(this.times[at]);
    this.line.setAttribute("x1", x);
    this.line.setAttribute("x2", x);
    const entries = this.series.map(({ name, number, values }) =>
      el("span", { class: "entry" }, swatch(number), `${name} `, el("b", {}, this.format(values[at]))));
    if (this.bound) entries.push(el("span", { class: "entry" }, `${this.bound.text} `, el("b", {}, this.format(this.bound.value))));
    this.legend.replaceChildren(el("span", { class: "when" }, isPointed ? clock(this.times[at]) : "latest"), ...entries);
    const told = this.series.map(({ name, values }) => `${name} ${this.format(values[at])}`).join(", ");
    this.svg.setAttribute("aria-label", `${this.label}. ${clock(this.times[at])}: ${told}. Arrow keys move in time.`);
  }
}
