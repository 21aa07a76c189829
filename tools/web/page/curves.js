// Miss-ratio curves with a slider for each partition: what other sizes would do to everybody's
// misses under the common bound, what the server's plan proposes, and a button that applies sizes.
import { amount, bytes, perSecond, percent } from "./format.js";
import { at, el, fillTable, hue, numberedBar, svg, swatch } from "./dom.js";
import { figures, latest, names, numberOf, rowOf } from "./figures.js";

const WIDTH = 340;
const HEIGHT = 150;
// Half of a slider's thumb: the curve begins and ends where the thumb can be.
const EDGE = 10;
const FLOOR = HEIGHT - 18;
const STEPS = 400;
const MIB = 1 << 20;

// Misses are predicted for the requests of this time.
const DEMAND_MS = 15_000;
// A ratio of fewer lookups says little.
const LOOKUPS_MIN = 1000;

// The sizes that were chosen, by partition; a partition without one keeps its size.
const chosen = new Map();
const cards = new Map();
let token = null;

function curveOf(name) {
  return figures.curves?.partitions.find((curve) => curve.partition === name);
}

function planOf(name) {
  return figures.plan?.partitions?.find((plan) => plan.name === name);
}

// The miss ratio at a size, between the points of the curve; nothing hits without memory.
function ratioAt(points, size) {
  let [left, ratio] = [0, 1];
  for (const point of points) {
    if (size <= point.bytes) {
      return ratio + ((point.miss_ratio - ratio) * (size - left)) / Math.max(1, point.bytes - left);
    }
    [left, ratio] = [point.bytes, point.miss_ratio];
  }
  return ratio;
}

// The curve, corrected so that it says what is measured at the present size. It comes from sampled
// accesses and an LRU of the same size; the policy usually does better. A smaller cache has fewer
// hits by the curve's proportion, a larger one fewer misses, so no ratio leaves 0 to 1.
function corrected(points, present, measured) {
  const then = ratioAt(points, present);
  if (measured === null || points.length === 0 || present <= 0) return points;
  const hits = then < 1 ? (1 - measured) / (1 - then) : 0;
  const misses = then > 0 ? measured / then : 0;
  const ratio = (point) => (point.bytes < present ? 1 - (1 - point.miss_ratio) * hits
    : then > 0 ? point.miss_ratio * misses : measured);
  const here = { bytes: present, miss_ratio: measured };
  return [...points.filter((point) => point.bytes !== present), here].sort((one, other) => one.bytes - other.bytes)
    .map((point) => ({ bytes: point.bytes, miss_ratio: point === here ? measured : ratio(point) }));
}

// Pages looked up per second, and the share of them that missed; null if too few were looked up.
function demandOf(name) {
  let [lookups, misses, ms] = [0, 0, 0];
  for (const interval of latest(DEMAND_MS)) {
    const counts = rowOf(interval, name)?.counts;
    lookups += counts ? counts.hits + counts.misses : 0;
    misses += counts?.misses ?? 0;
    ms += interval.length_ms;
  }
  return [ms > 0 ? (1000 * lookups) / ms : 0, lookups >= LOOKUPS_MIN ? misses / lookups : null];
}

// Everything about one partition that the section shows.
function modelOf(name) {
  const curve = curveOf(name);
  const plan = planOf(name);
  const row = figures.recent.at(-1) && rowOf(figures.recent.at(-1), name);
  // Limits count metadata, as the plan does, and the curve counts pages alone.
  const present = plan?.current_bytes ?? curve?.current_bytes ?? row?.amounts.allowed_bytes ?? 0;
  const [demand, measured] = demandOf(name);
  const points = corrected(curve?.points ?? [], present, measured);
  const size = chosen.get(name) ?? present;
  const missesAt = (bytesOf) => (points.length > 0 ? ratioAt(points, bytesOf) * demand : null);
  return {
    name, points, present, size, demand, plan, why: curve?.why,
    least: Math.max(row?.amounts.min ?? 0, row?.amounts.low ?? 0),
    now: missesAt(present), then: missesAt(size), missesAt,
  };
}

function boundOf() {
  return figures.plan?.total_bytes ?? figures.recent.at(-1)?.memory_max_bytes ?? 0;
}

export function drawCurves() {
  const models = names().map(modelOf);
  const bound = boundOf();
  drawBound(models, bound);
  const gone = [...cards.keys()].filter((name) => !models.some((model) => model.name === name));
  for (const name of gone) {
    cards.get(name).root.remove();
    cards.delete(name);
    chosen.delete(name);
  }
  for (const model of models) {
    if (!cards.has(model.name)) {
      cards.set(model.name, makeCard(model.name));
      at("curves").append(cards.get(model.name).root);
    }
    drawCard(cards.get(model.name), model, bound);
  }
  drawApply(models, bound);
}

function totals(models) {
  const sum = (of) => models.reduce((total, model) => total + (of(model) ?? 0), 0);
  return { size: sum((model) => model.size), now: sum((model) => model.now), then: sum((model) => model.then) };
}

function change(now, then) {
  if (!(now > 0)) return "";
  const share = (100 * (then - now)) / now;
  if (Math.abs(share) < 0.05) return "unchanged";
  return `${share > 0 ? "+" : "−"}${Math.abs(share).toFixed(1)} %`;
}

function changed(now, then) {
  const text = change(now, then);
  return el("b", { class: text === "unchanged" ? "note" : then > now ? "bad" : "good" }, text);
}

// The sum of all sizes against the bound, and the misses of everybody.
function drawBound(models, bound) {
  const { size, now, then } = totals(models);
  const isOver = size > bound;
  const rest = isOver ? `over the bound by ${bytes(size - bound)}` : `${bytes(bound - size)} left`;
  const parts = models.map((model) => [model.size, numberOf(model.name), `${model.name} ${bytes(model.size)}`]);
  at("bound").className = isOver ? "over" : "";
  at("bound").replaceChildren(
    el("p", { class: "sum", role: "status" },
      el("span", {}, "Sizes ", el("b", {}, bytes(size)), ` of ${bytes(bound)}, `,
        el("b", { class: isOver ? "bad" : null }, rest)),
      el("span", {}, "Predicted misses ", el("b", {}, perSecond(then)), " ", changed(now, then),
        el("span", { class: "note" }, ` at present ${perSecond(now)}`))),
    numberedBar(parts, Math.max(bound, size), bound));
}

function makeCard(name) {
  const input = el("input", { type: "range", min: 0, step: 1, "aria-label": `Size of ${name}` });
  input.addEventListener("input", () => {
    // The slider begins at 0, below its curve's origin, and stops at the partition's min.
    chosen.set(name, Math.max(card.least, Number(input.value)));
    input.value = chosen.get(name);
    drawCurves();
  });
  const card = {
    input,
    least: 0,
    title: el("h3", {}, swatch(numberOf(name)), name),
    told: el("p", { class: "told" }),
    plot: svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "curve", role: "img" }),
    foot: el("p", { class: "note" }),
  };
  card.root = el("div", { class: "card" }, card.title, card.told, card.plot, input, card.foot);
  return card;
}

function drawCard(card, model, bound) {
  const { name, points, present, size, now, then } = model;
  const step = Math.max(MIB, Math.round(bound / STEPS / MIB) * MIB);
  const most = Math.max(bound, size);
  card.least = model.least;
  Object.assign(card.input, { max: most, step });
  // The server's sizes need not be whole steps.
  if (Math.abs(Number(card.input.value) - size) > step / 2) card.input.value = size;
  const told = then === null ? "" : `, ${amount(then)} misses per second predicted`;
  card.input.setAttribute("aria-valuetext", `${bytes(size)}${told}`);
  card.told.replaceChildren(
    el("b", {}, bytes(size)), size === present ? " as now" : ` from ${bytes(present)}`,
    el("span", { class: "right" }, then === null ? "" : perSecond(then), " ",
      size === present ? "" : changed(now, then)));
  card.foot.textContent = [
    model.plan ? `plan ${bytes(model.plan.proposed_bytes)}` : "", model.least > 0 ? `min ${bytes(model.least)}` : "",
    `${perSecond(model.demand)} looked up`,
  ].filter(Boolean).join(" · ");
  drawPlot(card.plot, model, most);
  card.plot.setAttribute("aria-label", points.length === 0 ? `${name}: no curve yet`
    : `Miss ratio of ${name} by size: ${percent(ratioAt(points, present), 1)} at ${bytes(present)}, `
      + `${percent(ratioAt(points, size), 1)} at ${bytes(size)}`);
}

function drawPlot(plot, model, most) {
  const { points, present, size, plan, name } = model;
  const x = (value) => EDGE + (Math.min(value, most) / most) * (WIDTH - 2 * EDGE);
  const y = (ratio) => FLOOR - ratio * (FLOOR - 8);
  const grid = [0, 0.5, 1].map((ratio) => svg("line", { class: "grid", x1: EDGE, x2: WIDTH - EDGE, y1: y(ratio), y2: y(ratio) }));
  const texts = [svg("text", { x: WIDTH - EDGE, y: y(1) + 12, class: "right" }, "100 % miss"),
    svg("text", { x: EDGE, y: HEIGHT - 4, class: "left" }, "0"),
    svg("text", { x: WIDTH - EDGE, y: HEIGHT - 4, class: "right" }, bytes(most))];
  if (points.length === 0 || most === 0) {
    const why = model.why ?? "no access has been sampled yet";
    plot.replaceChildren(...grid, svg("text", { x: WIDTH / 2, y: y(0.55), class: "middle" }, why.slice(0, 60)));
    return;
  }
  const line = [[0, 1], ...points.map((point) => [point.bytes, point.miss_ratio]), [most, points.at(-1).miss_ratio]]
    .filter(([value]) => value <= most);
  const path = line.map(([value, ratio]) => `${x(value).toFixed(1)},${y(ratio).toFixed(1)}`).join("L");
  const upright = (value, kind) => svg("line", { class: kind, x1: x(value), x2: x(value), y1: 4, y2: FLOOR });
  const dot = (value, kind) => svg("circle", { class: kind, cx: x(value), cy: y(ratioAt(points, value)), r: 4.5 });
  const marks = [upright(present, "present"), dot(present, "present")];
  if (plan) {
    const [px, py] = [x(plan.proposed_bytes), y(ratioAt(points, plan.proposed_bytes))];
    marks.push(svg("path", { class: "planned", d: `M${px} ${py - 7}l7 7l-7 7l-7 -7z` }));
  }
  marks.push(upright(size, "chosen"), dot(size, "chosen"));
  plot.replaceChildren(...grid,
    svg("path", { class: "under", d: `M${x(0)},${y(0)}L${path}L${x(most)},${y(0)}Z`, vars: { "--c": hue(numberOf(name)) } }),
    svg("path", { class: "ratio", d: `M${path}`, vars: { "--c": hue(numberOf(name)) } }), ...texts, ...marks);
}

// Buttons are made once, so that a button keeps the focus while figures come.
let buttons = null;

function makeButtons() {
  const message = el("p", { role: "status", class: "message" });
  const plan = el("button", { type: "button", onclick: () => {
    for (const { name, proposed_bytes: size } of figures.plan?.partitions ?? []) chosen.set(name, size);
    drawCurves();
  } }, "Take the plan’s sizes");
  const reset = el("button", { type: "button", onclick: () => {
    chosen.clear();
    drawCurves();
  } }, "Back to present sizes");
  const apply = el("button", { type: "button", class: "primary", onclick: confirmSizes }, "Apply…");
  const word = el("input", { type: "password", autocomplete: "off", "aria-label": "Token" });
  const unlock = el("form", { class: "row" }, el("label", {}, "Token ", word), el("button", {}, "Unlock"));
  unlock.addEventListener("submit", (event) => {
    event.preventDefault();
    tryToken(word);
  });
  const hint = el("p", { class: "note" });
  const saving = el("p", { class: "saving" });
  at("apply").replaceChildren(saving, el("div", { class: "row" }, plan, reset, apply, unlock), hint, message);
  return { plan, reset, apply, unlock, hint, saving, message };
}

function drawApply(models, bound) {
  buttons ??= makeButtons();
  const { plan, reset, apply, unlock, hint, saving } = buttons;
  const proposals = figures.plan?.partitions ?? [];
  const of = (key) => proposals.reduce((total, proposal) => total + proposal[key], 0);
  plan.hidden = proposals.length === 0;
  saving.replaceChildren(...(proposals.length === 0 ? [] : [
    "The plan’s misses: ", el("b", {}, amount(of("misses_proposed"))), ` in place of ${amount(of("misses_now"))}, `,
    el("b", {}, change(of("misses_now"), of("misses_proposed")) || "unchanged")]));
  const isChanged = models.some((model) => model.size !== model.present);
  const isOver = totals(models).size > bound;
  reset.disabled = chosen.size === 0;
  apply.disabled = !isChanged || isOver || token === null;
  apply.hidden = Boolean(figures.isReport);
  unlock.hidden = !figures.state?.may_change || token !== null || Boolean(figures.isReport);
  hint.textContent = figures.isReport ? "This is a report: sizes can be tried here, and applied in octavo web."
    : !figures.state?.may_change ? "This page only reads; octavo web --token-file FILE allows changes."
      : isOver ? "Sizes over the bound cannot be applied."
        : token === null ? "Applying needs the token." : "";
}

function say(text, isBad = false) {
  buttons.message.textContent = text;
  buttons.message.classList.toggle("bad", isBad);
}

async function tryToken(word) {
  try {
    const answer = await fetch("/api/token", { method: "POST", headers: { authorization: `Bearer ${word.value.trim()}` } });
    if (answer.ok) token = word.value.trim();
    word.value = "";
    say(answer.ok ? "Changes are allowed until this page is closed." : await answer.text(), !answer.ok);
  } catch {
    say("octavo web does not answer.", true);
  }
  drawCurves();
}

function confirmSizes() {
  const models = names().map(modelOf);
  const { now, then } = totals(models);
  const table = el("table");
  fillTable(table, "Sizes to apply", [["partition", true], ["now"], ["then"], ["misses"]], models.map((model) =>
    [model.name, bytes(model.present), bytes(model.size), model.then === null ? "–" : perSecond(model.then)]));
  at("confirm-text").replaceChildren(
    el("p", {}, `Each size becomes its partition’s max. Predicted misses: ${perSecond(then)} in place of ${perSecond(now)}.`),
    el("div", { class: "wide" }, table));
  const dialog = at("confirm");
  dialog.returnValue = "no";
  dialog.onclose = () => {
    if (dialog.returnValue === "yes") applySizes(models.map((model) => [model.name, Math.round(model.size)]));
  };
  dialog.showModal();
}

async function applySizes(sizes) {
  say("Applying…");
  try {
    const answer = await fetch("/api/resize", {
      method: "POST", body: JSON.stringify({ sizes }),
      headers: { authorization: `Bearer ${token}`, "content-type": "application/json" },
    });
    if (answer.ok) chosen.clear();
    say(answer.ok ? "Applied." : `Nothing was changed: ${await answer.text()}`, !answer.ok);
  } catch {
    say("octavo web does not answer; the sizes may have been applied.", true);
  }
  drawCurves();
}
