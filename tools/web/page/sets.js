// How many pages the sets of a partition hold, on demand.
import { amount, percent } from "./format.js";
import { at, el, fillSelect, svg } from "./dom.js";
import { figures, names } from "./figures.js";
import { ask } from "./ask.js";

const SETS_HEIGHT = 170;

function drawSetBars(sets) {
  const { occupancy, dirty } = sets;
  const width = Math.max(260, at("sets-chart").clientWidth);
  const most = Math.max(1, ...occupancy, ...(dirty ?? []));
  const step = (width - 10) / occupancy.length;
  const height = (count) => ((SETS_HEIGHT - 40) * count) / most;
  const bars = occupancy.flatMap((count, pages) => {
    const x = 5 + pages * step;
    const upright = (value, kind, left, wide) => svg("rect", {
      class: kind, x: x + left * step, width: wide * step, y: SETS_HEIGHT - 20 - height(value), height: height(value),
    });
    return [upright(count, "occupied", 0.1, 0.5), dirty ? upright(dirty[pages] ?? 0, "dirty", 0.62, 0.28) : null,
      svg("text", { x: x + step / 2, y: SETS_HEIGHT - 5, class: "middle" }, String(pages))];
  });
  const total = occupancy.reduce((sum, count) => sum + count, 0);
  const label = `Sets by the pages they hold: ${percent(occupancy.at(-1), total)} are full.`;
  const legend = [el("span", { class: "entry" }, el("span", { class: "swatch occupied" }), "sets with so many pages"),
    el("span", { class: "entry" }, el("span", { class: "swatch dirty" }), "sets with so many dirty pages")];
  at("sets-chart").replaceChildren(
    svg("svg", { class: "chart", viewBox: `0 0 ${width} ${SETS_HEIGHT}`, height: SETS_HEIGHT, role: "img", "aria-label": label },
      ...bars.filter(Boolean)),
    el("figcaption", { class: "legend" }, ...legend));
  at("sets-note").textContent = `${amount(sets.sets)} sets of ${sets.ways} ways, ${amount(sets.sampled)} looked at. ${label}`;
}

export function drawSets() {
  fillSelect(at("sets-partition"), names());
  const sets = figures.sets[at("sets-partition").value];
  if (sets) drawSetBars(sets);
  else at("sets-chart").replaceChildren();
}

export function readySets() {
  at("sets-partition").addEventListener("change", drawSets);
  at("sets-load").hidden = Boolean(figures.isReport);
  at("sets-load").addEventListener("click", async () => {
    const name = at("sets-partition").value;
    const { answer, why } = await ask(`/api/sets?partition=${encodeURIComponent(name)}`);
    if (answer) figures.sets[name] = answer;
    drawSets();
    if (why) at("sets-note").textContent = why;
  });
}
