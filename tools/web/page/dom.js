// Makes elements. Texts are never parsed as HTML: names come from configurations and clients.

const SVG = "http://www.w3.org/2000/svg";

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "vars") {
      // The policy of this page forbids style attributes, but not properties that a script sets.
      for (const [property, text] of Object.entries(value)) element.style.setProperty(property, text);
    } else if (name.startsWith("on")) {
      element.addEventListener(name.slice(2), value);
    } else {
      element.setAttribute(name, value === true ? "" : value);
    }
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export function el(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

export function at(id) {
  return document.getElementById(id);
}

// A table of texts or elements. `columns`: pairs of a title and whether it holds words.
export function fillTable(table, caption, columns, rows, empty) {
  const head = columns.map(([title, isWord]) =>
    el("th", { scope: "col", class: isWord ? "word" : null }, title));
  const body = rows.map((cells) =>
    el("tr", {}, ...cells.map((cell, column) => column === 0
      ? el("th", { scope: "row", class: columns[0][1] ? "word" : null }, cell)
      : el("td", { class: columns[column][1] ? "word" : null }, cell))));
  if (rows.length === 0 && empty) {
    body.push(el("tr", {}, el("td", { class: "word none", colspan: columns.length }, empty)));
  }
  table.replaceChildren(
    el("caption", { class: "hidden" }, caption), el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...body));
}

// Keeps the choices of a select equal to `names`, and its choice while it exists.
export function fillSelect(select, names, first = []) {
  const wanted = [...first, ...names.map((name) => [name, name])];
  const present = [...select.options].map((option) => option.value).join("\n");
  if (present === wanted.map(([value]) => value).join("\n")) return;
  const chosen = select.value;
  select.replaceChildren(...wanted.map(([value, text]) => el("option", { value }, text)));
  if (wanted.some(([value]) => value === chosen)) select.value = chosen;
}

// The colour of a partition: its place in the server's list decides.
export function hue(number) {
  return `var(--s${number % 8})`;
}

export function swatch(number) {
  return el("span", { class: "swatch", vars: { "--c": hue(number) }, "aria-hidden": "true" });
}

export function bar(part, whole, label) {
  const share = whole > 0 ? Math.min(1, part / whole) : 0;
  return el("span", { class: "meter", role: "img", "aria-label": label },
    el("span", { vars: { width: `${(100 * share).toFixed(2)}%` } }));
}

// A bar of parts, each {value, number, label}, and a line at the bound.
export function numberedBar(parts, whole, bound) {
  const share = (value) => `${(whole > 0 ? (100 * value) / whole : 0).toFixed(2)}%`;
  const pieces = parts.map(([value, number, title]) =>
    el("span", { class: "piece", title, vars: { width: share(value), "--c": hue(number) } }));
  return el("div", { class: "stack", role: "img", "aria-label": parts.map(([, , title]) => title).join(", ") },
    ...pieces, el("span", { class: "edge", vars: { left: share(bound) } }));
}
