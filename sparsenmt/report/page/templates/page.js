"use strict";
// The controls of the page: theme, sorted tables, search and filters, words with the arrow keys, maps of attention.

const root = document.documentElement;
root.classList.add("has-script");
const all = (parent, selector) => [...parent.querySelectorAll(selector)];

// --- theme -----------------------------------------------------------------------------------------------------------

for (const button of all(document, ".theme")) {
  const isDark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const show = () => button.setAttribute("aria-pressed", String(isDark()));
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    show();
    document.dispatchEvent(new Event("themechange"));
  });
  show();
}

// --- tables that are sorted by a column ------------------------------------------------------------------------------

// A row may be followed by others of its own <tbody> (compared sentences): then whole bodies are moved.
function sortTable(table, column, head) {
  const down = head.getAttribute("aria-sort") === "ascending";
  const bodies = [...table.tBodies];
  const groups = bodies.length > 1 || table.classList.contains("compared") ? bodies : [...bodies[0].rows];
  const cellOf = (group) => (group.rows ? group.rows[0] : group).cells[column];
  const isNumber = head.classList.contains("number");
  const valueOf = (group) => {
    const cell = cellOf(group);
    if (!isNumber) return cell.textContent;
    return cell.dataset.value === undefined ? null : Number(cell.dataset.value);
  };
  const keyed = groups.map((group) => [valueOf(group), group]);
  const compare = isNumber ? (a, b) => a - b : new Intl.Collator(undefined, { numeric: true }).compare;
  keyed.sort(([a], [b]) => {
    if (a === null || b === null) return (a === null) - (b === null); // what was not measured stands last
    return down ? compare(b, a) : compare(a, b);
  });
  const parent = groups[0].parentNode;
  for (const [, group] of keyed) parent.append(group);
  for (const other of all(table, "thead th")) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
}

for (const table of all(document, "table.sortable")) {
  for (const head of all(table, "thead th")) {
    const button = head.querySelector("button");
    button.addEventListener("click", () => {
      if (table.tBodies.length) sortTable(table, head.cellIndex, head);
    });
  }
}

// --- lists that are searched and filtered ----------------------------------------------------------------------------

function filterList(list) {
  const wanted = (list.querySelector(".search")?.value || "").toLocaleLowerCase();
  const tag = list.querySelector(".tag")?.value || "";
  const onlyDropped = list.querySelector(".only-dropped")?.checked || false;
  const items = all(list, ".item");
  const tagged = (word) => word.dataset.t !== undefined && word.dataset.t.split(",")[0] === tag;
  let shown = 0, kept = 0, words = 0;
  for (const item of items) {
    const own = tag ? all(item, ".words > [data-t]") : [];
    const chosen = own.filter(tagged);
    const matches = (!wanted || item.textContent.toLocaleLowerCase().includes(wanted)) &&
      (!tag || chosen.length > 0) && (!onlyDropped || item.querySelector(".words s") !== null);
    item.hidden = !matches;
    for (const word of all(item, ".words > .chosen")) word.classList.remove("chosen");
    if (!matches) continue;
    shown += 1;
    for (const word of chosen) {
      word.classList.add("chosen");
      if (word.classList.contains("plain")) continue;
      words += 1;
      kept += word.tagName === "SPAN";
    }
  }
  const counts = words ? `; of ${words} words with the tag ${tag}, all models together, ${kept} are kept` : "";
  list.querySelector("[role=status]").textContent = `${shown} of ${items.length} ${list.dataset.what}${counts}`;
}

for (const list of all(document, ".filtered")) {
  for (const control of all(list, ".search, .tag, .only-dropped")) {
    control.addEventListener(control.tagName === "SELECT" ? "change" : "input", () => filterList(list));
  }
  const tags = list.querySelector(".show-tags");
  tags?.addEventListener("input", () => list.classList.toggle("tagged", tags.checked));
  filterList(list);
}

// --- words and cells with the arrow keys -----------------------------------------------------------------------------

for (const line of all(document, ".words")) {
  line.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const words = [...line.children];
    const at = words.indexOf(document.activeElement);
    const next = words[at < 0 ? (step > 0 ? 0 : words.length - 1) : Math.min(Math.max(at + step, 0), words.length - 1)];
    next.tabIndex = -1;
    next.focus();
  });
}

// --- maps of attention -----------------------------------------------------------------------------------------------

const SITES = { encoder_self: "encoder self-attention", decoder_self: "decoder self-attention", cross: "cross-attention" };

// Percents of a head (queries x keys); 0 is exactly 0, and a level of 1 a weight below half a percent.
const percentOf = (level) => (level === 0 ? 0 : level === 1 ? 0.25 : level - 1);

async function unpacked(map) {
  if (!map.bytes) {
    const packed = Uint8Array.from(atob(map.levels), (letter) => letter.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    map.bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  }
  return map.bytes;
}

function matrixOf(map, bytes, index) {
  const width = map.columns.length, size = map.rows.length * width;
  const own = bytes.subarray(index * size, (index + 1) * size);
  return map.rows.map((_, row) => Array.from(own.subarray(row * width, (row + 1) * width), percentOf));
}

// Tokens of a word together: its text, and the indices of its tokens.
function wordsOf(tokens, words) {
  const groups = [];
  tokens.forEach((token, i) => {
    const last = groups[groups.length - 1];
    if (last && words[i] === words[i - 1]) {
      last.text += token.replace(/^[▁ ]+/, "");
      last.places.push(i);
    } else groups.push({ text: token, places: [i] });
  });
  return groups;
}

function mergedMatrix(values, rows, columns) {
  const sum = (line, places) => places.reduce((total, i) => total + line[i], 0);
  return rows.map((row) => columns.map((column) =>
    row.places.reduce((total, i) => total + sum(values[i], column.places), 0) / row.places.length));
}

const alone = (tokens) => tokens.map((text, i) => ({ text, places: [i] }));
const percentText = (value) => (value === 0 ? "" : value < 0.5 ? "<1" : String(Math.round(value)));
const inWords = (value) => (value === 0 ? "exactly 0" : value < 0.5 ? "below half a percent" : `${Math.round(value)}%`);
const shadeOf = (value, most) => Math.min(9, Math.floor((value / most) * 10));

function element(name, text, classes) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (classes) made.className = classes;
  return made;
}

class AttentionView {
  constructor(place) {
    this.place = place;
    this.data = JSON.parse(place.querySelector("script").textContent);
    this.selects = Object.fromEntries(["line", "model", "site", "layer", "head"].map((name) => [name, place.querySelector(`select.${name}`)]));
    this.mergeBox = place.querySelector(".merged");
    for (const select of Object.values(this.selects)) select.addEventListener("change", () => this.refresh());
    this.mergeBox.addEventListener("input", () => this.draw());
    place.querySelector("details").addEventListener("toggle", () => this.draw());
    document.addEventListener("themechange", () => this.draw());
    const table = place.querySelector("table");
    table.addEventListener("keydown", (event) => this.move(event));
    for (const name of ["focusin", "mouseover"]) table.addEventListener(name, (event) => this.tell(event));
    this.refresh();
  }

  // Offer what the choices above allow, and keep a choice where it is still allowed.
  offer(name, options) {
    const select = this.selects[name], before = select.value;
    select.replaceChildren(...options.map(([value, text]) => {
      const option = element("option", text);
      option.value = value;
      return option;
    }));
    if (options.some(([value]) => String(value) === before)) select.value = before;
    return select.value;
  }

  refresh() {
    const { maps, models } = this.data;
    const unique = (values) => [...new Set(values)];
    const line = Number(this.offer("line", unique(maps.map((map) => map.number)).map((number) => [number, number])));
    let own = maps.filter((map) => map.number === line);
    const model = Number(this.offer("model", unique(own.map((map) => map.model)).map((i) => [i, models[i]])));
    own = own.filter((map) => map.model === model);
    const site = this.offer("site", unique(own.map((map) => map.site)).map((name) => [name, SITES[name]]));
    this.map = own.find((map) => map.site === site);
    if (!this.map) return;
    const layer = Number(this.offer("layer", unique(this.map.heads.map((head) => head[0])).map((number) => [number, number])));
    this.offer("head", this.map.heads.filter((head) => head[0] === layer).map((head) => [head[1], head[1]]));
    this.draw();
  }

  async draw() {
    const map = this.map;
    if (!map) return;
    let bytes;
    try {
      bytes = await unpacked(map);
    } catch {
      this.place.querySelector(".readout").textContent = "This browser cannot decompress the maps: use a newer one.";
      return;
    }
    if (map !== this.map) return; // another one was chosen meanwhile
    const layer = Number(this.selects.layer.value), head = Number(this.selects.head.value);
    const index = map.heads.findIndex((each) => each[0] === layer && each[1] === head);
    const merged = this.mergeBox.checked;
    this.rows = merged ? wordsOf(map.rows, map.rowWords) : alone(map.rows);
    this.columns = merged ? wordsOf(map.columns, map.columnWords) : alone(map.columns);
    this.values = mergedMatrix(matrixOf(map, bytes, index), this.rows, this.columns);
    this.drawTable(map, layer, head);
    this.drawHeads(map, bytes, index);
  }

  drawTable(map, layer, head) {
    const most = Math.max(...this.values.flat(), 1e-9);
    const dropped = new Set(map.dropped);
    const marks = this.columns.map((column, i) => (map.standIn && i === 0 ? "stand-in" : column.places.every((place) => dropped.has(place)) ? "gone" : ""));
    const table = this.place.querySelector("table");
    const names = this.columns.map((column, i) => {
      const cell = element("th", undefined, marks[i]);
      cell.scope = "col";
      cell.append(element("span", column.text));
      return cell;
    });
    const corner = element("td", undefined, "corner");
    const top = element("tr");
    top.append(corner, ...names);
    table.tHead.replaceChildren(top);
    const lines = this.rows.map((row, i) => {
      const name = element("th", row.text);
      name.scope = "row";
      name.title = row.text;
      const cells = this.values[i].map((value, j) => {
        const look = value === 0 ? "zero" : `shade-${shadeOf(value, most)}`;
        const cell = element("td", percentText(value), `${look} ${marks[j]}`);
        cell.tabIndex = i === 0 && j === 0 ? 0 : -1;
        return cell;
      });
      const line = element("tr");
      line.append(name, ...cells);
      return line;
    });
    table.tBodies[0].replaceChildren(...lines);
    this.place.querySelector(".map-caption").textContent = this.caption(map, layer, head, most);
    this.place.querySelector(".readout").textContent = "Point at a cell, or move to it with the arrow keys, to read its weight.";
  }

  caption(map, layer, head, most) {
    const own = this.data.heads.find((each) => each.model === map.model && each.site === map.site && each.head[0] === layer && each.head[1] === head);
    const parts = [`Line ${map.number}, ${this.data.models[map.model]}, ${SITES[map.site]}, layer ${layer}, head ${head}`];
    if (own?.role) parts.push(`role: ${own.role}`);
    if (own?.transform) parts.push(own.transform);
    if (own && own.alpha !== null) parts.push(`alpha ${own.alpha.toFixed(3)}`);
    if (own && own.density !== null) parts.push(`density ${(own.density * 100).toFixed(1)}%`);
    const exact = this.values.flat().filter((value) => value === 0).length;
    const size = this.rows.length * this.columns.length;
    parts.push(`${exact} of ${size} weights are exactly 0`, `largest weight ${inWords(most)}`);
    return parts.join("; ");
  }

  // A small picture of every head of the site, which chooses the head.
  drawHeads(map, bytes, chosen) {
    const place = this.place.querySelector(".heads");
    if (!this.place.querySelector("details").open) return place.replaceChildren();
    const style = getComputedStyle(this.place);
    const colours = [...Array(10).keys()].map((i) => this.colour(style, `--shade-${i}`));
    const paper = this.colour(style, "--paper");
    const hadFocus = place.contains(document.activeElement);
    const most = Math.max(...map.heads.map((each) => each[1]));
    place.style.gridTemplateColumns = `repeat(${most}, max-content)`;
    place.replaceChildren(...map.heads.map(([layer, head], index) => {
      const button = element("button", `${layer}.${head}`);
      button.type = "button";
      button.setAttribute("aria-label", `Layer ${layer}, head ${head}`);
      button.setAttribute("aria-pressed", String(index === chosen));
      button.prepend(this.thumbnail(matrixOf(map, bytes, index), colours, paper));
      button.addEventListener("click", () => {
        this.selects.layer.value = layer;
        this.refresh();
        this.selects.head.value = head;
        this.draw();
      });
      return button;
    }));
    if (hadFocus) place.children[chosen]?.focus();
  }

  colour(style, name) {
    const probe = element("span");
    probe.style.color = `var(${name})`;
    this.place.append(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  }

  thumbnail(values, colours, paper) {
    const canvas = element("canvas");
    canvas.width = Math.max(values[0]?.length || 0, 1);
    canvas.height = Math.max(values.length, 1);
    const pen = canvas.getContext("2d");
    const most = Math.max(...values.flat(), 1e-9);
    values.forEach((line, row) => line.forEach((value, column) => {
      pen.fillStyle = value === 0 ? paper : colours[shadeOf(value, most)];
      pen.fillRect(column, row, 1, 1);
    }));
    return canvas;
  }

  move(event) {
    const cell = event.target.closest("tbody td");
    const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
    if (!cell || !step) return;
    event.preventDefault();
    const row = cell.parentNode.sectionRowIndex + step[0], column = cell.cellIndex + step[1];
    const next = this.place.querySelector("tbody").rows[row]?.cells[column];
    if (!next || next.tagName !== "TD") return;
    cell.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }

  tell(event) {
    const cell = event.target.closest("tbody td");
    if (!cell) return;
    const i = cell.parentNode.sectionRowIndex, j = cell.cellIndex - 1;
    this.place.querySelector(".readout").textContent = `${this.rows[i].text} → ${this.columns[j].text}: ${inWords(this.values[i][j])}`;
  }
}

for (const place of all(document, ".attention")) new AttentionView(place);
