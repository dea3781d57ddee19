// The page works without this script; with it graphs can be zoomed, operators looked at, steps walked through.
"use strict";

const make = (name, text, className) => {
  const node = document.createElement(name);
  if (text !== undefined) node.textContent = text;
  if (className) node.className = className;
  return node;
};

const tip = make("div");
tip.id = "tip";
tip.hidden = true;
document.body.append(tip);

function showTip(event, lines) {
  tip.replaceChildren(...lines);
  tip.hidden = false;
  const { clientX: x, clientY: y } = event;
  const { offsetWidth: width, offsetHeight: height } = tip;
  tip.style.left = `${Math.max(8, x + 16 + width > innerWidth ? x - width - 12 : x + 16)}px`;
  tip.style.top = `${Math.max(8, y + 16 + height > innerHeight ? y - height - 12 : y + 16)}px`;
}

// Lines of the user's program, each once, with the modules that ran it.
function linesOf(sources, numbers) {
  const found = new Map();
  for (const [place, text, module] of numbers.map((at) => sources[at])) {
    const key = `${place}\n${text}`;
    if (!found.has(key)) found.set(key, { place, text, modules: [] });
    if (module) found.get(key).modules.push(module);
  }
  return [...found.values()].map(({ place, text, modules }) => {
    const few = modules.slice(0, 3).join(", ") + (modules.length > 3 ? ` and ${modules.length - 3} more` : "");
    return { text, where: [place, few].filter(Boolean).join(" in ") };
  });
}

class GraphView {
  constructor(root) {
    this.root = root;
    this.shown = JSON.parse(document.getElementById(`data${root.dataset.graph}`).textContent);
    this.canvases = [...root.querySelectorAll(".canvas")];
    this.own = this.canvases.map((canvas) => canvas.firstElementChild);
    this.whole = this.canvases.map((canvas) => {
      const template = canvas.parentElement.querySelector("template");
      return template && template.content.firstElementChild;
    });
    this.isWhole = false;
    this.scale = 1;
    this.details = root.querySelector(".details");
    this.bandOf = new Map();
    for (const [band, keys] of Object.entries(this.shown.folded)) {
      for (const key of keys) this.bandOf.set(band[0] + key, band);
    }
    this.after = new Map();  // operator before -> operators after that come from it
    for (const [key, op] of Object.entries(this.shown.ops)) {
      for (const origin of op[8]) {
        if (!this.after.has(origin)) this.after.set(origin, []);
        this.after.get(origin).push(Number(key.slice(1)));
      }
    }
    this.listen();
    this.fit();
  }

  listen() {
    for (const canvas of this.canvases) {
      canvas.addEventListener("scroll", () => this.follow(canvas), { passive: true });
      canvas.addEventListener("wheel", (event) => {
        if (!event.ctrlKey && !event.metaKey) return;
        event.preventDefault();
        this.zoom(this.scale * Math.exp(-event.deltaY / 300), canvas, event);
      }, { passive: false });
      canvas.addEventListener("pointermove", (event) => this.hover(event));
      canvas.addEventListener("pointerleave", () => this.leave());
      canvas.addEventListener("click", (event) => this.choose(event.target.closest(".box")));
      canvas.addEventListener("keydown", (event) => {
        const box = event.target.closest(".box");
        if (!box || (event.key !== "Enter" && event.key !== " ")) return;
        event.preventDefault();
        this.choose(box);
      });
      this.drag(canvas);
    }
    const act = {
      "zoom-in": () => this.zoom(this.scale * 1.25),
      "zoom-out": () => this.zoom(this.scale / 1.25),
      fit: () => this.fit(),
      whole: (button) => this.swap(button),
    };
    for (const button of this.root.querySelectorAll("button")) {
      const found = act[button.dataset.do];
      if (found) button.addEventListener("click", () => found(button));
    }
  }

  drag(canvas) {
    let from = null;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.pointerType === "mouse" && event.button === 0 && !event.target.closest(".box")) {
        from = [event.clientX + canvas.scrollLeft, event.clientY + canvas.scrollTop];
        canvas.setPointerCapture(event.pointerId);
      }
    });
    canvas.addEventListener("pointermove", (event) => {
      if (from) canvas.scrollTo(from[0] - event.clientX, from[1] - event.clientY);
    });
    canvas.addEventListener("pointerup", () => { from = null; });
  }

  follow(canvas) {
    for (const other of this.canvases) {
      if (other !== canvas && Math.abs(other.scrollTop - canvas.scrollTop) > 1) other.scrollTop = canvas.scrollTop;
    }
  }

  drawn() {
    return this.canvases.map((canvas) => canvas.firstElementChild);
  }

  fit() {
    const room = this.canvases.map((canvas, at) => (canvas.clientWidth - 12) / this.drawn()[at].viewBox.baseVal.width);
    this.zoom(Math.min(1.15, Math.max(0.35, Math.min(...room))));
    for (const canvas of this.canvases) canvas.scrollLeft = (canvas.scrollWidth - canvas.clientWidth) / 2;
  }

  zoom(scale, canvas, event) {
    const old = this.scale;
    this.scale = Math.min(4, Math.max(0.05, scale));
    const at = this.canvases.map((each) => {
      const box = each.getBoundingClientRect();
      const isHere = each === canvas;
      return [
        each,
        isHere ? event.clientX - box.left : each.clientWidth / 2,
        canvas ? event.clientY - canvas.getBoundingClientRect().top : each.clientHeight / 2,
        each.scrollLeft,
        each.scrollTop,
      ];
    });
    for (const svg of this.drawn()) {
      svg.setAttribute("width", svg.viewBox.baseVal.width * this.scale);
      svg.setAttribute("height", svg.viewBox.baseVal.height * this.scale);
    }
    const grown = this.scale / old;
    for (const [each, x, y, left, top] of at) {
      each.scrollTo((left + x) * grown - x, (top + y) * grown - y);
    }
  }

  swap(button) {
    this.isWhole = !this.isWhole;
    button.setAttribute("aria-pressed", this.isWhole);
    this.canvases.forEach((canvas, at) => canvas.replaceChildren((this.isWhole ? this.whole : this.own)[at]));
    this.fit();
    if (this.marked) this.mark(...this.marked);
  }

  leave() {
    tip.hidden = true;
    for (const path of this.root.querySelectorAll(".lit")) path.classList.remove("lit");
  }

  hover(event) {
    const box = event.target.closest(".box");
    this.leave();
    if (!box) return;
    const key = box.dataset.key;
    for (const path of box.ownerSVGElement.querySelectorAll(".edges path")) {
      if (path.dataset.from === key) path.classList.add("lit");
    }
    const op = this.shown.ops[key];
    const lines = [make("b", box.querySelector("text").textContent)];
    if (op) {
      lines[0] = make("b", op[0]);
      lines.push(make("div", op[2], "dim"));
      if (op[4]) lines.push(make("div", `${op[4]}, ${op[5] ? "measured" : "estimated"}`));
      if (op[1]) lines.push(make("div", op[1], "dim"));
      for (const { text, where } of linesOf(this.shown.sources, op[6]).slice(0, 3)) {
        if (text) lines.push(make("code", text));
        lines.push(make("div", where, "dim"));
      }
    } else {
      lines.push(make("div", box.querySelectorAll("text")[1]?.textContent ?? "", "dim"));
    }
    showTip(event, lines);
  }

  choose(box) {
    if (!box || box.classList.contains("leaf")) return;
    const key = box.dataset.key;
    const keys = this.shown.folded[key] ?? [Number(key.slice(1))];
    const isBefore = key[0] === "b";
    const others = new Set();
    for (const each of keys) {
      if (isBefore) (this.after.get(each) ?? []).forEach((one) => others.add(one));
      else (this.shown.ops[`a${each}`]?.[8] ?? []).forEach((one) => others.add(one));
    }
    this.mark(isBefore ? keys : [...others], isBefore ? [...others] : keys);
    this.tell(key, isBefore, others.size);
  }

  tell(key, isBefore, count) {
    const op = this.shown.ops[key];
    if (!op) {
      this.details.textContent = "A folded box. “All operators” draws what is in it, where the graph is not too large.";
      return;
    }
    const stays = this.shown.ops[`b${key.slice(1)}`] && this.shown.ops[`a${key.slice(1)}`];
    const became = stays ? "It stayed." : isBefore
      ? (count ? `It was taken away; what stands in its place is marked (${count}).` : "It was taken away; nothing that runs at every call stands in its place.")
      : `The plan made it of ${count} operator${count === 1 ? "" : "s"}, which ${count === 1 ? "is" : "are"} marked.`;
    const list = make("dl");
    const add = (name, text) => { if (text) list.append(make("dt", name), make("dd", text)); };
    add("result", op[2]);
    add("set to", op[1]);
    add("time", op[4] && `${op[4]}, ${op[5] ? "measured" : "estimated"}`);
    add("weights", op[7].join("; "));
    add("name", op[3]);
    for (const { text, where } of linesOf(this.shown.sources, op[6])) add(where, text || "–");
    this.details.replaceChildren(make("b", op[0]), ` ${became}`, list);
  }

  boxes(side, keys) {
    const svg = this.drawn()[side === "b" ? 0 : 1];
    const wanted = new Set(keys.map((key) => (this.isWhole ? side + key : this.bandOf.get(side + key) ?? side + key)));
    return [...svg.querySelectorAll(".box")].filter((box) => wanted.has(box.dataset.key));
  }

  mark(before, after, isToShow = false) {
    this.marked = [before, after];
    for (const box of this.root.querySelectorAll(".chosen")) box.classList.remove("chosen");
    const found = [this.boxes("b", before), this.boxes("a", after)];
    for (const box of found.flat()) box.classList.add("chosen");
    found.forEach(([first], at) => {
      if (!first) return;
      const canvas = this.canvases[at];
      const box = first.getBoundingClientRect();
      const room = canvas.getBoundingClientRect();
      const isSeen = box.top >= room.top && box.bottom <= room.bottom && box.left >= room.left && box.right <= room.right;
      if (isSeen && !isToShow) return;
      canvas.scrollTo({
        left: canvas.scrollLeft + (box.left + box.right - room.left - room.right) / 2,
        top: canvas.scrollTop + (box.top + box.bottom - room.top - room.bottom) / 2,
      });
    });
  }
}

class Walk {
  constructor(root, view) {
    this.view = view;
    this.steps = view.shown.steps;
    this.box = root.querySelector(".step");
    if (!this.box) return;
    this.minis = [...root.querySelectorAll("template.mini-of")];
    this.range = root.querySelector('[data-do="step"]');
    this.chart = document.getElementById(`curve${root.dataset.graph}`);
    this.places = this.chart.dataset.points.split(" ").map((point) => point.split(",").map(Number));
    this.rows = [...root.querySelectorAll("details tbody tr")];
    this.range.addEventListener("input", () => this.show(Number(this.range.value)));
    const by = (way) => () => this.show(Math.min(this.steps.length, Math.max(1, this.at + way)));
    root.querySelector('[data-do="previous"]').addEventListener("click", by(-1));
    root.querySelector('[data-do="next"]').addEventListener("click", by(1));
    const play = root.querySelector('[data-do="play"]');
    play.addEventListener("click", () => this.play(play));
    this.rows.forEach((row, at) => row.addEventListener("click", () => this.show(at + 1)));
    this.chart.addEventListener("click", (event) => {
      const room = this.chart.getBoundingClientRect();
      const x = ((event.clientX - room.left) / room.width) * this.chart.viewBox.baseVal.width;
      const far = this.places.map(([at]) => Math.abs(at - x));
      this.show(Math.max(1, far.indexOf(Math.min(...far))));
    });
    const saved = this.steps.map((step) => Number.parseFloat(step.saved) || 0);
    this.show(1 + saved.indexOf(Math.min(...saved)), false);
  }

  play(button) {
    if (this.timer) {
      clearInterval(this.timer);
      this.timer = null;
      button.textContent = "play";
      return;
    }
    if (this.at === this.steps.length) this.show(1);
    button.textContent = "stop";
    this.timer = setInterval(() => {
      if (this.at === this.steps.length) this.play(button);
      else this.show(this.at + 1);
    }, 900);
  }

  show(at, isToMark = true) {
    this.at = at;
    this.range.value = at;
    const step = this.steps[at - 1];
    const title = make("h3", `Step ${at} of ${this.steps.length}: `);
    title.append(make("code", step.name));
    if (step.proof && step.proof !== "proved") title.append(" ", make("span", `${step.proof} only`, "mark"));
    const told = make("p", `${step.group}, ${step.saved} predicted; the graph takes ${step.cost} after it.`);
    const pair = make("div", undefined, "pair");
    pair.append(this.minis[step.mini].content.cloneNode(true));
    const parts = [title, told];
    if (step.says) parts.push(make("p", step.says, "says"));
    for (const { text, where } of linesOf(this.view.shown.sources, step.sources)) {
      const line = make("div", undefined, "line");
      if (text) line.append(make("code", text, "source"));
      line.append(make("small", where, "place"));
      parts.push(line);
    }
    if (pair.querySelector(".once")) parts.push(make("p", "Dashed: on weights only, evaluated once for each set of them.", "note"));
    this.box.replaceChildren(...parts, pair);
    const [x, y] = this.places[at];
    const mark = this.chart.querySelector(".mark");
    mark.setAttribute("cx", x);
    mark.setAttribute("cy", y);
    this.rows.forEach((row, number) => row.classList.toggle("current", number === at - 1));
    if (isToMark) this.view.mark(step.before, step.after, true);
  }
}

for (const root of document.querySelectorAll("article.of-graph")) new Walk(root, new GraphView(root));
