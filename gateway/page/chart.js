// One row of charts per function. All charts have the same time axis: zoom and cursor move
// together.
import uPlot from "./vendor/uplot/uPlot.esm.js";
import { quantile, statuses } from "./data.js";
import { stageColours, statusColours, css, dash, legend } from "./palette.js";

const height = 130;

export class Row {
  constructor(view, name) {
    this.view = view;
    this.name = name;
    this.element = document.createElement("article");
    this.element.className = "row";
    this.element.dataset.function = name;
    const title = document.createElement("h2");
    title.textContent = name;
    const charts = document.createElement("div");
    charts.className = "charts";
    this.text = document.createElement("p");
    this.text.className = "mark-text";
    this.element.append(title, charts, this.text);

    this.latency = this.chart(charts, "Latency: requests, p50 (thin), p99 (thick), objective (dashed)", {
      series: [{}, line("p50", "--text", 1), line("p99", "--text", 2)],
      scales: { x: { time: true }, y: { distr: 3, range: () => this.latencyRange() } },
      unit: "ms", hooks: { drawClear: [(u) => this.heat(u)], draw: [(u) => this.objective(u), (u) => this.marks(u)] },
    });
    this.stages = this.chart(charts, "Stages, mean ms per request", {
      series: [{}, ...stack(view.stages, stageColours)], unit: "ms", hooks: { draw: [(u) => this.marks(u)] },
    }, legend(view.stages, stageColours));
    this.answers = this.chart(charts, "Answers per second", {
      series: [{}, ...stack(statuses, statusColours)], unit: "/s", hooks: { draw: [(u) => this.marks(u)] },
    }, legend(statuses, statusColours));
    this.load = this.chart(charts, "Device use %, demoted %, mean batch, in flight", {
      series: [{}, line("use", "#0072b2", 2), line("demoted", "#d55e00", 2), line("batch", "#009e73", 1), line("in flight", "#999999", 1)],
      unit: "", hooks: { draw: [(u) => this.marks(u)] },
    }, legend(["use", "demoted", "batch", "in flight"], ["#0072b2", "#d55e00", "#009e73", "#999999"]));
    this.latency.over.addEventListener("click", (e) => this.click(e));
    this.visible = true;
    new IntersectionObserver((entries) => { this.visible = entries[entries.length - 1].isIntersecting; if (this.visible) this.draw(); }).observe(this.element);
    new ResizeObserver(() => this.resize()).observe(charts);
  }

  chart(parent, title, o, below) {
    const box = document.createElement("div"), h = document.createElement("h3");
    h.textContent = title;
    box.append(h);
    parent.append(box);
    const axis = { stroke: () => css("--quiet"), grid: { stroke: () => css("--line"), width: 0.5 }, ticks: { show: false }, font: "11px system-ui" };
    const plot = new uPlot({
      width: 300, height, legend: { show: false }, padding: [6, 4, 0, 0],
      cursor: { sync: { key: "time" }, drag: { x: true, y: false, setScale: false } },
      scales: { x: { time: true }, y: { range: (u, low, high) => [0, Math.max(high || 0, 1) * 1.1] }, ...o.scales },
      axes: [{ ...axis, size: 22, space: 60, values: (u, values) => values.map((v) => clock(v, u.scales.x.max - u.scales.x.min)) }, { ...axis, size: 42, values: (u, values) => values.map((v) => (v === null ? "" : +v.toPrecision(3) + "")) }],
      series: o.series,
      hooks: { ...o.hooks, setSelect: [(u) => this.select(u)], setCursor: [(u) => this.cursor(u)] },
    }, [[], ...o.series.slice(1).map(() => [])], box);
    plot.root.setAttribute("role", "img");
    plot.root.setAttribute("aria-label", `${title} of ${this.name}`);
    if (below) box.append(below);
    return plot;
  }

  resize() {
    for (const plot of this.plots()) {
      const width = plot.root.parentElement.clientWidth;
      if (width > 0 && width !== plot.width) plot.setSize({ width, height });
    }
  }

  plots() { return [this.latency, this.stages, this.answers, this.load]; }

  // draw shows the points of the view's interval.
  draw() {
    if (!this.visible) return;
    const { store, level } = this.view, [from, to] = this.view.interval(), step = store.levels[level].step_ms;
    const points = store.points(this.name, level);
    this.columns = [];
    const x = [], p50 = [], p99 = [], stages = this.view.stages.map(() => []), answers = statuses.map(() => []);
    const use = [], demoted = [], batch = [], waiting = [];
    const seconds = step / 1000;
    for (let n = Math.floor(from / step); n <= Math.floor(to / step); n++) {
      const p = points.get(n) || null;
      x.push((n * step) / 1000);
      this.columns.push(p);
      p50.push(p && quantile(p.l, store.bounds, 0.5));
      p99.push(p && quantile(p.l, store.bounds, 0.99));
      sums(stages, p && p.n > 0 && p.s, (v) => v / p.n);
      // The newest point of a coarse level is not complete.
      const covered = p ? Math.min(seconds, (p.m * store.levels[0].step_ms) / 1000) || seconds : seconds;
      sums(answers, p && p.r, (v) => v / covered);
      use.push(p && p.u);
      demoted.push(p && p.d);
      batch.push(p && p.n > 0 ? p.b / p.n : null);
      waiting.push(p && p.q);
    }
    const set = (plot, data) => { plot.batch(() => { plot.setData(data, false); plot.setScale("x", { min: from / 1000, max: to / 1000 }); plot.setScale("y", autoRange(plot, data)); }); };
    set(this.latency, [x, p50, p99]);
    set(this.stages, [x, ...stages]);
    set(this.answers, [x, ...answers]);
    set(this.load, [x, use, demoted, batch, waiting]);
    this.element.dataset.newest = x.length ? x[x.length - 1] : "";
    this.element.dataset.from = from;
    this.element.dataset.to = to;
  }

  latencyRange() {
    const bounds = this.view.store.bounds;
    let low = bounds.length, high = 0;
    for (const p of this.columns || []) {
      if (!p) continue;
      p.l.forEach((n, i) => { if (n > 0) { low = Math.min(low, i); high = Math.max(high, i); } });
    }
    const slo = this.view.objective(this.name) || 10;
    const least = low < bounds.length ? bounds[Math.max(0, low - 1)] : slo / 20;
    return [Math.min(least, slo / 4), Math.max(bounds[Math.min(high, bounds.length - 1)] || 0, slo * 1.5)];
  }

  // heat draws a column per point: the darker, the more of its requests are in the bucket.
  heat(u) {
    const { store, level } = this.view, step = store.levels[level].step_ms / 1000, ctx = u.ctx, bounds = store.bounds;
    if (!this.columns || bounds.length === 0) return;
    const rgb = matchMedia("(prefers-color-scheme: dark)").matches ? "108,184,236" : "0,86,138";
    const [bottom, top] = [u.scales.y.min, u.scales.y.max];
    ctx.save();
    ctx.beginPath();
    ctx.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height);
    ctx.clip();
    this.columns.forEach((p, i) => {
      if (!p) return;
      const most = Math.max(...p.l);
      if (most === 0) return;
      const left = u.valToPos(u.data[0][i], "x", true), right = u.valToPos(u.data[0][i] + step, "x", true);
      p.l.forEach((n, b) => {
        if (n === 0) return;
        const low = Math.max(b > 0 ? bounds[b - 1] : 0, bottom), high = Math.min(b < bounds.length ? bounds[b] : top, top);
        if (low >= high) return;
        const y0 = u.valToPos(high, "y", true), y1 = u.valToPos(low, "y", true);
        ctx.fillStyle = `rgba(${rgb},${0.15 + 0.75 * Math.sqrt(n / most)})`;
        ctx.fillRect(left, y0, Math.max(1, right - left), y1 - y0);
      });
    });
    ctx.restore();
  }

  objective(u) {
    dash(u, this.view.objective(this.name));
  }

  // marks draws a line per event of the function or of the node.
  marks(u) {
    const ctx = u.ctx;
    ctx.save();
    ctx.lineWidth = 1.5;
    for (const m of this.view.marksOf(this.name)) {
      const x = u.valToPos(m.t / 1000, "x", true);
      if (x < u.bbox.left || x > u.bbox.left + u.bbox.width) continue;
      ctx.strokeStyle = ["failure", "hang", "fault"].includes(m.kind) ? css("--bad") : css("--quiet");
      ctx.setLineDash(m.kind === "demoted" ? [2, 3] : []);
      ctx.beginPath();
      ctx.moveTo(x, u.bbox.top);
      ctx.lineTo(x, u.bbox.top + u.bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  }

  // cursor shows the marks near the cursor in words.
  cursor(u) {
    if (u.cursor.left < 0) return;
    const at = u.posToVal(u.cursor.left, "x") * 1000, [from, to] = this.view.interval();
    const near = this.view.marksOf(this.name).filter((m) => Math.abs(m.t - at) < (to - from) / 80);
    this.text.textContent = near.map((m) => `${new Date(m.t).toLocaleTimeString()} ${m.text}`).join(" · ");
  }

  select(u) {
    if (u.select.width < 4) return;
    const from = u.posToVal(u.select.left, "x") * 1000, to = u.posToVal(u.select.left + u.select.width, "x") * 1000;
    u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.selected = performance.now();
    this.view.zoom(from, to);
  }

  click() {
    if (performance.now() - (this.selected || -1000) < 300) return; // the end of a drag
    const u = this.latency, at = u.posToVal(u.cursor.left, "x") * 1000;
    this.view.showSlow(this.name, at);
  }
}

// clock shows a time of day; seconds only if the interval is short.
const clock = (seconds, shown) => new Date(seconds * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: shown < 600 ? "2-digit" : undefined, hour12: false });

const line = (label, colour, width) => ({ label, stroke: () => (colour.startsWith("--") ? css(colour) : colour), width, points: { show: false }, spanGaps: false });

// stack returns series that are drawn as areas, the last one first, since each contains those
// below it.
const stack = (names, colours) => names.map((label, i) => ({ label, stroke: colours[names.length - 1 - i], fill: colours[names.length - 1 - i], width: 0.5, points: { show: false } }));

// sums appends to each column the sum of the values up to its own, the largest sum first.
function sums(columns, values, scale) {
  let sum = 0;
  columns.forEach((_, i) => {
    if (values) sum += scale(values[i]);
    columns[columns.length - 1 - i].push(values ? sum : null);
  });
}

function autoRange(plot, data) {
  if (plot.scales.y.distr === 3) return { min: null, max: null };
  let high = 0;
  for (const column of data.slice(1)) for (const v of column) if (v > high) high = v;
  return { min: 0, max: high };
}
