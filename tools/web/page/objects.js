// Exports with their traffic, and files of mounts with the parts that are resident.
import { amount, bytes, perSecond, percent } from "./format.js";
import { at, bar, el, fillTable } from "./dom.js";
import { figures } from "./figures.js";
import { ask } from "./ask.js";

const FILES_SHOWN = 200;

export function drawObjects() {
  const { objects, formerObjects } = figures;
  const rows = (objects?.objects ?? []).map((object) => {
    const before = formerObjects?.objects.find((other) =>
      other.name === object.name && other.partition === object.partition);
    const seconds = before ? (objects.time_ms - formerObjects.time_ms) / 1000 : 0;
    const rate = (key) => (seconds > 0 && object[key] >= before[key] ? (object[key] - before[key]) / seconds : null);
    const [requests, read, written] = ["requests", "read_bytes", "written_bytes"].map(rate);
    const resident = object.resident_bytes === null ? "–"
      : el("span", { class: "metered" }, bar(object.resident_bytes, object.len_bytes,
        `${percent(object.resident_bytes, object.len_bytes)} resident`), bytes(object.resident_bytes));
    return [
      el("span", { title: object.path }, object.name), object.partition, resident, bytes(object.len_bytes),
      bytes(object.dirty_bytes), requests === null ? "–" : perSecond(requests),
      read === null ? "–" : `${bytes(Math.round(read))}/s`, written === null ? "–" : `${bytes(Math.round(written))}/s`,
      amount(object.in_flight), amount(object.connections),
      object.trouble ? el("span", { class: "bad" }, object.trouble) : object.errors > 0 ? `${amount(object.errors)} errors` : "ok",
    ];
  });
  const columns = [["export", true], ["partition", true], ["resident"], ["of"], ["dirty"], ["requests"], ["read"],
    ["written"], ["in flight"], ["clients"], ["state", true]];
  fillTable(at("exports"), "Exports", columns, rows, "No export is open.");
  const isShared = objects?.objects.some((object) => object.resident_bytes === null);
  at("exports-note").textContent = [
    objects?.left_out > 0 ? `${objects.left_out} more exports are not listed.` : "",
    isShared ? "Resident pages are counted by partition: an export that shares its partition shows none." : "",
  ].join(" ").trim();
}

// A letter for each part of a file: O if all of it is resident, o if some is.
function partsBar(file) {
  const heights = { O: "all", o: "some" };
  return el("span", { class: "parts", role: "img", "aria-label": `${percent(file.resident_bytes, file.len_bytes)} resident` },
    ...[...file.parts].map((letter) => el("span", { class: heights[letter] ?? "none" })));
}

export function drawFiles() {
  const { files } = figures;
  if (!files) return;
  const rows = files.files.slice(0, FILES_SHOWN).map((file) => [
    file.path, file.partition, partsBar(file), bytes(file.resident_bytes), bytes(file.len_bytes),
    percent(file.resident_bytes, file.len_bytes), bytes(file.dirty_bytes),
  ]);
  fillTable(at("files"), "Files of mounts", [["file", true], ["partition", true], ["resident parts", true], ["resident"],
    ["of"], ["share"], ["dirty"]], rows, "No file of a mount has pages in the cache.");
  at("files-note").textContent = files.count > rows.length ? `${files.count - rows.length} more files are not listed.` : "";
}

export function readyFiles() {
  if (figures.isReport) {
    at("files-load").hidden = true;
    return;
  }
  at("files-load").addEventListener("click", async () => {
    const { answer, why } = await ask("/api/files");
    if (answer) figures.files = answer;
    drawFiles();
    if (why) at("files-note").textContent = why;
  });
}
