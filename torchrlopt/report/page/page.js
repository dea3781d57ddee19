// Draws the graphs, and lets the reader zoom, look at operators and walk through the steps.
"use strict";

const SVG = document.getElementById("svg").content.firstElementChild.namespaceURI;
const HEIGHT = 40;
const GAP = [18, 30]; // between boxes and between rows
const PITCH = HEIGHT + GAP[1];
const MAX_EXACT = 150; // boxes: the simplex takes 1 s for 200 of them and grows faster than linearly
const WHAT = { gone: "taken away", new: "made by the plan", stays: "unchanged" };

function make(name, text, className) {
  const node = document.createElement(name);
  if (text !== undefined) node.textContent = text;
  if (className) node.className = className;
  return node;
}

function shape(name, attributes, ...children) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

// The lines of a program: each a text, which may be empty, and where it stands.
function linesOf(lines) {
  return lines.map(([text, where]) => {
    const line = make("div", undefined, "line");
    if (text) line.append(make("code", text, "source"));
    line.append(make("small", where, "place"));
    return line;
  });
}

// Widths of letters are those of a wide font, so that the text fits in any.
function widthOf({ kind, label, small, time }) {
  if (kind === "leaf") return label.length * 6.2 + 20;
  const first = label.length * 8.3 + (time ? time.length * 6.2 + 10 : 0);
  return Math.max(96, first + 20, small.length * 6.2 + 20);
}

// An SVG of boxes whose rows are known: d3-dag orders the boxes of each row and places them.
function draw(boxes, title, className) {
  const dag = d3.graph();
  const nodes = new Map(boxes.map((box) => [box.key, dag.node(box)]));
  for (const box of boxes) {
    for (const key of new Set(box.reads)) if (nodes.has(key)) dag.link(nodes.get(key), nodes.get(box.key));
  }
  // d3-dag takes no empty layers, but a row may be empty here that the other graph uses.
  const used = [...new Set(boxes.map((box) => box.row))].sort((one, other) => one - other);
  const layers = new Map(used.map((row, layer) => [row, layer]));
  const byRow = () => {
    for (const node of dag.nodes()) node.y = layers.get(node.data.row);
    return used.length - 1;
  };
  const { width } = d3.sugiyama()
    .layering(byRow)
    .decross(d3.decrossTwoLayer().order(d3.twolayerAgg()))
    .coord(boxes.length > MAX_EXACT ? d3.coordGreedy() : d3.coordSimplex())
    .nodeSize((node) => [widthOf(node.data), HEIGHT])
    .gap(GAP)(dag);
  const place = (y) => used[Math.round((y - HEIGHT / 2) / PITCH)] * PITCH + HEIGHT / 2;
  const height = place((used.length - 1) * PITCH + HEIGHT / 2) + HEIGHT / 2;
  const ways = [...dag.links()].map((link) => {
    const points = link.points.map(([x, y]) => [x, place(y)]);
    points[0][1] += HEIGHT / 2;
    points.at(-1)[1] -= HEIGHT / 2;
    return shape("path", { d: curve(points), "data-from": link.source.data.key });
  });
  return shape("svg",
    { class: className, viewBox: `-4 -4 ${width + 8} ${height + 8}`, width: width + 8, height: height + 8, role: "group", "aria-label": title },
    shape("g", { class: "edges" }, ...ways),
    ...[...dag.nodes()].map((node) => boxAt(node.data, node.x, place(node.y))));
}

// Points from above to below, joined by curves that leave and arrive upright.
function curve([[x, y], ...others]) {
  let way = `M${x} ${y}`;
  for (const [nextX, nextY] of others) {
    const middle = (y + nextY) / 2;
    way += `C${x} ${middle} ${nextX} ${middle} ${nextX} ${nextY}`;
    [x, y] = [nextX, nextY];
  }
  return way;
}

function boxAt(box, x, y) {
  const width = widthOf(box);
  const said = [box.label, box.small, box.time, box.low, WHAT[box.kind]].filter(Boolean).join(", ");
  const group = shape("g", {
    class: `box ${box.kind} ${box.low ?? ""}${box.is_output ? " output" : ""}`,
    transform: `translate(${x - width / 2} ${y - HEIGHT / 2})`,
    "data-key": box.key, role: "img", "aria-label": said,
  }, shape("rect", { width, height: HEIGHT, rx: 6 }));
  if (box.kind === "leaf") {
    group.append(shape("text", { x: width / 2, y: 24, class: "type", "text-anchor": "middle" }, box.label));
    return group;
  }
  group.setAttribute("tabindex", 0);
  const long = Math.max(2, box.share * (width - 12));
  if (box.share > 0.005) group.append(shape("rect", { x: 6, y: HEIGHT - 6, width: long, height: 3, class: "heat" }));
  group.append(shape("text", { x: 9, y: 16 }, box.label));
  if (box.time) group.append(shape("text", { x: width - 9, y: 16, class: "time", "text-anchor": "end" }, box.time));
  group.append(shape("text", { x: 9, y: 30, class: "type" }, box.small));
  if (box.facts) group.append(shape("title", {}, [box.op, ...box.facts.map(([, text]) => text), ...box.lines.flat()].join("\n")));
  return group;
}

class GraphView {
  constructor(root) {
    this.root = root;
    this.data = JSON.parse(document.getElementById(`data${root.dataset.graph}`).textContent);
    this.canvases = [...root.querySelectorAll(".canvas")];
    this.details = root.querySelector(".details");
    this.isWhole = false;
    this.drawings = new Map(); // by whether all operators are drawn
    this.after = new Map(); // operator before -> operators after that come from it
    for (const [key, op] of Object.entries(this.data.ops)) {
      for (const origin of op.origins) this.after.set(origin, [...(this.after.get(origin) ?? []), Number(key.slice(1))]);
    }
    this.listen();
    this.show();
  }

  listen() {
    for (const canvas of this.canvases) {
      canvas.addEventListener("scroll", () => this.follow(canvas), { passive: true });
      canvas.addEventListener("wheel", (event) => {
        if (!event.ctrlKey && !event.metaKey) return;
        event.preventDefault();
        this.zoom(this.scale * Math.exp(-event.deltaY / 300));
      }, { passive: false });
      canvas.addEventListener("pointerover", (event) => this.light(event.target.closest(".box")));
      canvas.addEventListener("click", (event) => this.choose(event.target.closest(".box")));
      canvas.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") this.choose(event.target.closest(".box"), event);
      });
    }
    const act = {
      "zoom-in": () => this.zoom(this.scale * 1.25),
      "zoom-out": () => this.zoom(this.scale / 1.25),
      fit: () => this.fit(),
      whole: (button) => {
        this.isWhole = !this.isWhole;
        button.setAttribute("aria-pressed", this.isWhole);
        this.show();
      },
    };
    for (const [name, action] of Object.entries(act)) {
      const button = this.root.querySelector(`[data-do="${name}"]`);
      button?.addEventListener("click", () => action(button));
    }
  }

  show() {
    if (!this.drawings.has(this.isWhole)) {
      const sides = [["b", "Graph before"], ["a", "Graph after"]];
      this.drawings.set(this.isWhole, sides.map(([side, title]) => draw(this.boxes(side), title, "graph")));
    }
    this.canvases.forEach((canvas, at) => canvas.replaceChildren(this.drawings.get(this.isWhole)[at]));
    this.fit();
    if (this.marked) this.mark(...this.marked);
  }

  // The band of a row; none where all operators are drawn.
  bandOf(row) {
    return this.isWhole ? -1 : this.data.bands.findIndex(({ first, end }) => first <= row && row < end);
  }

  keyOf(key) {
    const band = key in this.data.ops ? this.bandOf(this.data.ops[key].row) : -1;
    return band < 0 ? key : `${key[0]}~${band}`;
  }

  boxes(side) {
    const rowOf = []; // of each row where a band has one
    for (let row = 0, at = -1; row < this.data.rows; row++) {
      const band = this.bandOf(row);
      if (row === 0 || band < 0 || band !== this.bandOf(row - 1)) at += 1;
      rowOf.push(at);
    }
    const boxes = new Map();
    for (const [own, op] of Object.entries(this.data.ops)) {
      if (own[0] !== side) continue;
      const key = this.keyOf(own);
      const reads = op.reads.map((read) => this.keyOf(read)).filter((read) => read !== key);
      if (boxes.has(key)) boxes.get(key).reads.push(...reads);
      else if (key === own) boxes.set(key, { ...op, key, reads, row: rowOf[op.row] });
      else {
        const band = this.data.bands[this.bandOf(op.row)];
        boxes.set(key, { key, reads, row: rowOf[op.row], kind: "band", label: band.text, small: band[side], share: 0 });
      }
    }
    return [...boxes.values()];
  }

  follow(canvas) {
    for (const other of this.canvases) if (other !== canvas) other.scrollTop = canvas.scrollTop;
  }

  fit() {
    const room = this.canvases.map((canvas) => (canvas.clientWidth - 12) / canvas.firstElementChild.viewBox.baseVal.width);
    this.scale = 1;
    this.zoom(Math.min(1.15, Math.max(0.35, Math.min(...room))));
    for (const canvas of this.canvases) canvas.scrollLeft = (canvas.scrollWidth - canvas.clientWidth) / 2;
  }

  // What is in the middle of a canvas stays there.
  zoom(scale) {
    const grown = Math.min(4, Math.max(0.05, scale)) / this.scale;
    this.scale *= grown;
    for (const canvas of this.canvases) {
      const svg = canvas.firstElementChild;
      const [x, y] = [canvas.clientWidth / 2, canvas.clientHeight / 2];
      const [left, top] = [canvas.scrollLeft, canvas.scrollTop];
      svg.setAttribute("width", svg.viewBox.baseVal.width * this.scale);
      svg.setAttribute("height", svg.viewBox.baseVal.height * this.scale);
      canvas.scrollTo((left + x) * grown - x, (top + y) * grown - y);
    }
  }

  light(box) {
    for (const path of this.root.querySelectorAll(".edges path")) {
      path.classList.toggle("lit", box !== null && box.parentElement.contains(path) && path.dataset.from === box.dataset.key);
    }
  }

  choose(box, event) {
    if (!box || box.classList.contains("leaf")) return;
    event?.preventDefault();
    const key = box.dataset.key;
    const side = key[0];
    const op = this.data.ops[key];
    const keys = Object.keys(this.data.ops).filter((own) => own[0] === side && this.keyOf(own) === key).map((own) => Number(own.slice(1)));
    const come = (each) => (side === "b" ? this.after.get(each) : this.data.ops[`a${each}`].origins) ?? [];
    const others = [...new Set(keys.flatMap(come))];
    this.mark(...(side === "b" ? [keys, others] : [others, keys]));
    if (op) this.describe(op, key, others.length);
    else this.details.textContent = "A folded box. “All operators” draws what is in it, where the graph is not too large.";
  }

  describe(op, key, count) {
    const became = {
      stays: "It stayed.",
      gone: count ? `It was taken away; what stands in its place is marked (${count}).` : "It was taken away; nothing that runs at every call stands in its place.",
      new: `The plan made it of ${count} operator${count === 1 ? "" : "s"}, which ${count === 1 ? "is" : "are"} marked.`,
    };
    const list = make("dl");
    for (const [name, text] of op.facts) list.append(make("dt", name), make("dd", text));
    this.details.replaceChildren(make("b", op.op), ` ${became[op.kind]}`, list, ...linesOf(op.lines));
  }

  // Marks operators of both graphs, by number, and scrolls to the first of each.
  mark(before, after) {
    this.marked = [before, after];
    [["b", before], ["a", after]].forEach(([side, keys], at) => {
      const canvas = this.canvases[at];
      const wanted = new Set(keys.map((key) => this.keyOf(side + key)));
      for (const box of canvas.querySelectorAll(".box")) box.classList.toggle("chosen", wanted.has(box.dataset.key));
      const first = canvas.querySelector(".chosen")?.getBoundingClientRect();
      const room = canvas.getBoundingClientRect();
      if (!first || (first.top >= room.top && first.bottom <= room.bottom && first.left >= room.left && first.right <= room.right)) return;
      canvas.scrollBy((first.left + first.right - room.left - room.right) / 2, (first.top + first.bottom - room.top - room.bottom) / 2);
    });
  }
}

class Walk {
  constructor(root, view) {
    this.view = view;
    this.steps = view.data.steps;
    this.box = root.querySelector(".step");
    this.range = root.querySelector('[data-do="step"]');
    this.chart = document.getElementById(`curve${root.dataset.graph}`);
    this.places = this.chart.dataset.points.trim().split(" ").map((point) => point.split(",").map(Number));
    this.rows = [...root.querySelectorAll("details tbody tr")];
    const on = (name, action) => root.querySelector(`[data-do="${name}"]`).addEventListener("click", action);
    on("previous", () => this.show(this.at - 1));
    on("next", () => this.show(this.at + 1));
    on("play", (event) => this.play(event.target));
    this.range.addEventListener("input", () => this.show(Number(this.range.value)));
    this.rows.forEach((row, at) => row.addEventListener("click", () => this.show(at + 1)));
    this.chart.addEventListener("click", (event) => {
      const room = this.chart.getBoundingClientRect();
      const x = ((event.clientX - room.left) / room.width) * this.chart.viewBox.baseVal.width;
      const far = this.places.map(([at]) => Math.abs(at - x));
      this.show(far.indexOf(Math.min(...far)));
    });
    const saved = this.steps.map((step) => Number.parseFloat(step.saved) || 0);
    this.show(1 + saved.indexOf(Math.min(...saved)), false);
  }

  play(button) {
    clearInterval(this.timer);
    const isToStop = button.textContent === "stop";
    button.textContent = isToStop ? "play" : "stop";
    if (isToStop) return;
    if (this.at === this.steps.length) this.show(1);
    this.timer = setInterval(() => {
      if (this.at === this.steps.length) this.play(button);
      else this.show(this.at + 1);
    }, 900);
  }

  show(wanted, isToMark = true) {
    this.at = Math.min(this.steps.length, Math.max(1, wanted));
    this.range.value = this.at;
    const step = this.steps[this.at - 1];
    const title = make("h3", `Step ${this.at} of ${this.steps.length}: `);
    title.append(make("code", step.name));
    if (step.proof && step.proof !== "proved") title.append(" ", make("span", `${step.proof} only`, "mark"));
    const parts = [title, make("p", `${step.group}, ${step.saved} predicted; the graph takes ${step.cost} after it.`)];
    if (step.says) parts.push(make("p", step.says, "says"));
    parts.push(...linesOf(step.lines));
    const [before, after] = this.view.data.minis[step.mini];
    const pair = make("div", undefined, "pair");
    pair.append(draw(before, "before the step", "mini"), make("div", "→", "arrow"), draw(after, "after the step", "mini"));
    if (pair.querySelector(".once")) parts.push(make("p", "Dashed: on weights only, evaluated once for each set of them.", "note"));
    this.box.replaceChildren(...parts, pair);
    const [x, y] = this.places[this.at];
    const mark = this.chart.querySelector(".mark");
    mark.setAttribute("cx", x);
    mark.setAttribute("cy", y);
    this.rows.forEach((row, at) => row.classList.toggle("current", at === this.at - 1));
    if (isToMark) this.view.mark(step.before, step.after);
  }
}

// On a narrow screen each cell of a table is a line, which says what it is.
for (const table of document.querySelectorAll("table")) {
  const heads = [...table.querySelectorAll("thead th")].map((head) => head.textContent);
  for (const row of table.querySelectorAll("tbody tr")) {
    [...row.children].forEach((cell, at) => { if (at > 0 && heads[at] && cell.textContent.trim()) cell.dataset.label = heads[at]; });
  }
  table.classList.add("labelled");
}

function open(root) {
  const view = new GraphView(root);
  if (view.data.steps.length) new Walk(root, view);
}

// A drawing of a large graph takes seconds, so all but the first wait until they are nearly seen.
const nearby = new IntersectionObserver((entries) => {
  for (const { target } of entries.filter(({ isIntersecting }) => isIntersecting)) {
    nearby.unobserve(target);
    open(target);
  }
}, { rootMargin: "100%" });
const [first, ...others] = document.querySelectorAll("article.of-graph");
if (first) open(first);
for (const root of others) nearby.observe(root);
