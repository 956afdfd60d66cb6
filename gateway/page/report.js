// A report: finished runs side by side. The runs are in the page.
import uPlot from "./vendor/uplot/uPlot.esm.js";
import { statuses } from "./data.js";
import { stageColours, statusColours, css, dash, legend } from "./palette.js";

const height = 150;
const ends = [...statuses, "unanswered"];
const endColours = [...statusColours, "#f0e442"];
const plots = [];

const element = (name, text = "", className = "") => Object.assign(document.createElement(name), { textContent: text, className });
const number = (v, digits = 3) => (v === null || v === undefined ? "–" : String(+v.toPrecision(digits)));
const latency = (v) => number(v || null); // 0: there was no answer

// section shows all runs: a table, then one row of charts per function.
function section(all) {
  const box = element("section"), names = [...new Set(all.flatMap((r) => r.functions.map((f) => f.name)))];
  box.append(element("h2", "Runs of penstock load"), table(all, names));
  for (const name of names) box.append(row(all, name));
  return box;
}

function table(all, names) {
  const wrapper = element("div", "", "table"), t = element("table"), head = t.createTHead(), body = t.createTBody();
  wrapper.tabIndex = 0; // it scrolls
  wrapper.setAttribute("role", "region");
  wrapper.setAttribute("aria-label", "Runs of penstock load");
  const first = head.insertRow(), second = head.insertRow();
  const cell = (to, text, span = 1) => { const th = element("th", text); th.scope = span > 1 ? "colgroup" : "col"; th.colSpan = span; to.append(th); };
  cell(first, "");
  cell(first, "");
  cell(second, "no.");
  cell(second, "run");
  for (const name of names) {
    cell(first, name, 4);
    for (const title of ["p99 ms", "objective", "in time %", "in time/s"]) cell(second, title);
  }
  all.forEach((run, i) => {
    const tr = body.insertRow(), title = element("th", run.name);
    title.scope = "row";
    if (run.note) title.append(element("span", ` (${run.note})`, "note"));
    tr.append(element("td", i + 1), title);
    for (const name of names) {
      const f = run.functions.find((x) => x.name === name);
      const missed = f && f.sent > 0 && (!f.p99_ms || f.p99_ms > f.slo_ms), lost = f && f.lost ? `, ${f.lost} lost` : "";
      for (const text of f ? [latency(f.p99_ms), latency(f.slo_ms), number(f.within_slo, 5) + lost, number(f.goodput_rps)] : ["", "", "", ""]) tr.append(element("td", text, missed || lost ? "bad" : ""));
    }
  });
  wrapper.append(t);
  return wrapper;
}

// row shows one function in all runs.
function row(all, name) {
  const box = element("article", "", "row"), charts = element("div", "", "charts"), text = element("p", "", "mark-text");
  box.dataset.function = name;
  const runs = all.map((r) => r.functions.find((f) => f.name === name));
  const column = (value) => runs.map((f) => (f ? value(f) : null));
  const say = (i) => {
    const f = runs[i];
    text.textContent = f ? `${i + 1}: ${all[i].name}: p50 ${latency(f.p50_ms)} ms, p99 ${latency(f.p99_ms)} ms, ${number(f.within_slo, 5)} % in time, ${number(f.goodput_rps)}/s, mean batch ${number(f.mean_batch)}` : "";
  };
  const slo = Math.max(0, ...column((f) => f.slo_ms));
  const stages = [...new Set(runs.flatMap((f) => Object.keys((f && f.stages_ms) || {})))].sort((a, b) => order.indexOf(a) - order.indexOf(b));
  box.append(element("h3", name), charts, text);

  bars(charts, `Latency of ${name}, ms: p50 (dark), p99, objective (dashed)`, [column((f) => f.p99_ms || null), column((f) => f.p50_ms || null)], ["#56b4e9", "#0072b2"], { say, line: slo });
  if (stages.length > 0) bars(charts, `Stages of ${name}, median ms`, stack(stages.map((s) => column((f) => ((f.stages_ms || {})[s] || {}).p50 || 0))), reversed(stages.map(colourOf)), { say }, legend(stages, stages.map(colourOf)));
  bars(charts, `Requests of ${name}, %`, stack(ends.map((s) => column((f) => (f.sent ? (100 * f[s]) / f.sent : 0)))), reversed(endColours), { say, top: 100 }, legend(ends, endColours));
  bars(charts, `Requests of ${name} per second: offered, in time (dark)`, [column((f) => f.offered_rps), column((f) => f.goodput_rps)], ["#56b4e9", "#0072b2"], { say });
  return box;
}

// The stages in the order of a request, with the page's colours. "way" is the network.
const order = ["way", "aggregate", "queue", "gather", "infer", "reply"];
const colourOf = (stage) => stageColours[Math.max(0, order.indexOf(stage))];
const reversed = (list) => [...list].reverse();

// stack turns columns into sums, the largest first: each bar covers those before it.
function stack(columns) {
  const sums = columns.map((c) => [...c]);
  for (let i = 1; i < sums.length; i++) sums[i] = sums[i].map((v, j) => (v === null ? null : v + sums[i - 1][j]));
  return sums.reverse();
}

// bars draws one place per run. The columns are drawn in order, one over the other.
function bars(parent, title, columns, colours, o, below) {
  const n = columns[0].length, paths = uPlot.paths.bars({ size: [0.7, 60] });
  const numbers = columns[0].map((_, i) => i + 1), every = Math.ceil(n / 12);
  chart(parent, title, {
    scales: { x: { time: false, range: () => [0.4, n + 0.6] }, y: { range: (u, low, high) => [0, o.top || upTo(high, o.line)] } },
    axes: [{ splits: () => numbers.filter((i) => (i - 1) % every === 0) }, {}],
    series: [{}, ...columns.map((_, i) => ({ fill: colours[i], stroke: colours[i], width: 0, paths, points: { show: false } }))],
    cursor: { drag: { x: false, y: false }, points: { show: false } },
    hooks: { draw: [(u) => dash(u, o.line)], setCursor: [(u) => { if (u.cursor.idx !== null && u.cursor.idx !== undefined) o.say(u.cursor.idx); }] },
  }, [numbers, ...columns], below);
}

function chart(parent, title, o, data, below) {
  const box = element("div"), axis = { stroke: () => css("--quiet"), grid: { stroke: () => css("--line"), width: 0.5 }, ticks: { show: false }, font: "11px system-ui" };
  box.append(element("h4", title));
  parent.append(box);
  const plot = new uPlot({
    width: 300, height, legend: { show: false }, padding: [6, 4, 0, 0], ...o,
    axes: [{ ...axis, size: 22, ...o.axes[0] }, { ...axis, size: 46, values: (u, values) => values.map((v) => (v === null ? "" : +v.toPrecision(3) + "")), ...o.axes[1] }],
  }, data, box);
  plot.root.setAttribute("role", "img");
  plot.root.setAttribute("aria-label", title);
  if (below) box.append(below);
  plots.push(plot);
}

// upTo is the end of a scale. An objective far above all values is not on it.
const upTo = (high, line) => Math.max(high || 0, line && (!high || line < 5 * high) ? line : 0, 1e-3) * 1.1;

function resize() {
  for (const plot of plots) {
    const width = plot.root.parentElement.clientWidth;
    if (width > 0 && width !== plot.width) plot.setSize({ width, height });
  }
}

const report = JSON.parse(document.getElementById("runs").textContent), main = document.getElementById("report");
main.append(section(report.runs));
resize();
new ResizeObserver(resize).observe(main);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => plots.forEach((p) => p.redraw()));
document.body.dataset.charts = plots.length; // for tests
