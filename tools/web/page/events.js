// The server's events, the latest first, by kind and by words.
import { clock } from "./format.js";
import { at, el, fillSelect, fillTable } from "./dom.js";
import { figures } from "./figures.js";

export function drawEvents() {
  const kinds = [...new Set(figures.events.map((event) => event.kind))].sort();
  fillSelect(at("events-kind"), kinds, [["", "all"]]);
  const kind = at("events-kind").value;
  const text = at("events-text").value.trim().toLowerCase();
  const isShown = (event) => (!kind || event.kind === kind)
    && (!text || JSON.stringify(event).toLowerCase().includes(text));
  const events = figures.events.filter(isShown).reverse();
  const rows = events.map((event) => [clock(event.time_ms), event.kind, el("span", { class: `level ${event.level}` }, event.level),
    event.partition ?? event.object ?? "", event.text]);
  const isMissing = figures.state?.missing.includes("events");
  fillTable(at("events-list"), "Events", [["time", true], ["kind", true], ["level", true], ["of", true], ["event", true]], rows,
    isMissing ? "This server does not offer events." : figures.events.length > 0 ? "No event matches." : "No event yet.");
  at("events-count").textContent = figures.events.length > 0 ? `${events.length} of ${figures.events.length}` : "";
}

export function readyEvents() {
  at("events-kind").addEventListener("change", drawEvents);
  at("events-text").addEventListener("input", drawEvents);
}
