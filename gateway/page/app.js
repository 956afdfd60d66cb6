// The page: it loads the state and the history once, follows the events, and draws.
import { Store, quantile, recent } from "./data.js";
import { Row } from "./chart.js";
import { Slow } from "./slow.js";
import { Camera, describe, draw } from "./camera.js";
import { functionColours } from "./palette.js";

const $ = (id) => document.getElementById(id);
const recentSeconds = 5; // of the tiles
const drawEvery = 500; // ms
const silentAfter = 2000; // ms
const smallestPicture = 192; // CSS pixels; smaller pictures of the wall are enlarged

class View {
  constructor() {
    this.store = new Store();
    this.rows = new Map();
    this.slow = new Slow();
    this.level = 0;
    this.fixed = null; // a zoomed interval, ms
    this.paused = null; // the end of the interval while paused, ms
    this.heard = performance.now();
    this.readAddress();
  }

  async begin() {
    await this.loadState();
    this.camera = new Camera(this.state);
    await this.loadHistory();
    this.listen();
    setInterval(() => this.draw(), drawEvery);
    setInterval(() => this.news(), 250);
  }

  async loadState() {
    const response = await fetch("api/state");
    if (!response.ok) throw new Error(`state: ${response.status}`);
    this.state = await response.json();
    this.stages = this.state.stages;
    this.store.setState(this.state);
    if (this.camera) this.camera.update(this.state);
    $("demo").hidden = !this.state.demo;
    this.showReceivers(this.state.receivers || []);
    this.arrangeRows();
  }

  // loadHistory loads the level that is shown. The events keep all levels up to date.
  async loadHistory() {
    const level = this.level;
    await Promise.all(this.store.names.map(async (name) => {
      const response = await fetch(`api/history?function=${encodeURIComponent(name)}&level=${level}`);
      if (response.ok) this.store.load(name, level, await response.json());
    }));
  }

  listen() {
    const source = new EventSource("api/events");
    source.onmessage = async (message) => {
      const event = JSON.parse(message.data);
      const lost = this.number !== undefined && event.number !== this.number + 1;
      this.number = event.number;
      this.heard = performance.now();
      this.store.add(event);
      this.showWall(event.wall || []);
      const other = Object.keys(event.functions).sort().join() !== [...this.store.names].sort().join();
      if (lost || other || event.marks || this.heard - (this.loaded || 0) > 5000) {
        this.loaded = this.heard;
        try {
          await this.loadState();
          if (lost || other) await this.loadHistory();
        } catch { /* the next event tries again */ }
      }
    };
    source.onerror = () => { this.number = -1; }; // the browser connects again
  }

  // arrangeRows makes one row per task, so that many functions do not block the page.
  arrangeRows() {
    for (const [name, row] of this.rows) if (!this.store.names.includes(name)) { row.element.remove(); this.rows.delete(name); }
    const name = this.store.names.find((n) => !this.rows.has(n));
    if (name === undefined) return;
    const row = new Row(this, name);
    this.rows.set(name, row);
    $("rows").append(row.element);
    row.resize();
    setTimeout(() => this.arrangeRows());
  }

  status(name) { return this.state.status.functions.find((f) => f.name === name); }
  objective(name) { const f = this.status(name); return f ? f.slo_ms : 0; }
  marksOf(name) { return this.store.marks.filter((m) => !m.function || m.function === name || m.kind === "failure" || m.kind === "demoted"); }

  // interval returns the shown interval in ms.
  interval() {
    if (this.fixed) return this.fixed;
    const l = this.store.levels[this.level], to = this.paused || this.store.newest || Date.now();
    return [to - l.step_ms * (l.points - 1), to];
  }

  zoom(from, to) {
    this.fixed = [from, to];
    $("reset").hidden = false;
    this.writeAddress();
    this.draw(true);
  }

  reset() {
    this.fixed = null;
    $("reset").hidden = true;
    this.writeAddress();
    this.draw(true);
  }

  async setLevel(level) {
    this.level = level;
    this.fixed = null;
    $("reset").hidden = true;
    document.querySelectorAll("[data-level]").forEach((b) => b.setAttribute("aria-pressed", b.dataset.level === String(level)));
    this.writeAddress();
    await this.loadHistory();
    this.draw(true);
  }

  pause() {
    this.paused = this.paused ? null : this.store.newest;
    $("pause").setAttribute("aria-pressed", this.paused !== null);
    this.draw(true);
  }

  writeAddress() {
    const p = new URLSearchParams({ level: this.level });
    if (this.fixed) { p.set("from", Math.round(this.fixed[0])); p.set("to", Math.round(this.fixed[1])); }
    history.replaceState(null, "", "#" + p);
  }

  readAddress() {
    const p = new URLSearchParams(location.hash.slice(1)), from = +p.get("from"), to = +p.get("to");
    this.level = [0, 1, 2].includes(+p.get("level")) ? +p.get("level") : 0;
    if (from > 0 && to > from) { this.fixed = [from, to]; $("reset").hidden = false; }
    document.querySelectorAll("[data-level]").forEach((b) => b.setAttribute("aria-pressed", b.dataset.level === String(this.level)));
  }

  showSlow(name, at) {
    const [from, to] = this.interval(), around = Math.max(10000, (to - from) / 40);
    this.slow.show(name, at - around, at + around, this.stages);
  }

  // news says whether the numbers are of now.
  news() {
    const silent = performance.now() - this.heard, bad = silent > silentAfter;
    $("news").classList.toggle("bad", bad);
    const text = bad ? `no news for ${(silent / 1000).toFixed(0)} s` : this.paused ? "paused" : "live";
    if ($("news").textContent !== text) $("news").textContent = text;
  }

  // draw draws the tiles, and one row per animation frame.
  draw(now) {
    this.drawTiles();
    this.drawDevices();
    if ((this.paused || this.fixed) && !now) return;
    const rows = [...this.rows.values()];
    const next = () => { const row = rows.shift(); if (row) { row.draw(); requestAnimationFrame(next); } };
    requestAnimationFrame(next);
  }

  drawTiles() {
    const tiles = $("tiles");
    for (const tile of [...tiles.children]) if (!this.store.names.includes(tile.dataset.function)) tile.remove();
    for (const name of this.store.names) {
      let tile = [...tiles.children].find((t) => t.dataset.function === name);
      if (!tile) {
        tile = document.createElement("article");
        tile.className = "tile";
        tile.dataset.function = name;
        tile.innerHTML = '<h2><span class="name"></span><span class="model"></span></h2><p class="p99"></p><p class="facts"></p><p class="facts why"></p>';
        tiles.append(tile);
      }
      this.fillTile(tile, name);
    }
  }

  fillTile(tile, name) {
    const f = this.status(name), { total, seconds } = recent(this.store, name, recentSeconds);
    if (!f) return;
    const p99 = total && quantile(total.l, this.store.bounds, 0.99), answers = total ? total.r.reduce((a, b) => a + b, 0) : 0;
    const late = total ? answers - total.r[0] : 0;
    const serving = (f.instances || []).every((i) => (i.processes || []).some((p) => p.role === "serve" && p.state === "active"));
    const bad = !serving || f.lost > 0 || (p99 !== null && p99 > f.slo_ms) || late > 0.01 * answers;
    tile.style.order = this.state.status.devices.findIndex((d) => d.name === f.instances?.[0]?.device);
    tile.classList.toggle("bad", bad);
    tile.classList.toggle("idle", !bad && answers === 0);
    const set = (selector, text) => { const e = tile.querySelector(selector); if (e.textContent !== text) e.textContent = text; };
    set(".name", name);
    set(".model", `${f.model} v${f.version}${f.residency ? ` · ${f.residency.state}` : ""}`);
    set(".p99", p99 === null ? "idle" : `${p99.toPrecision(3)} ms`);
    set(".facts", `p99, objective ${+f.slo_ms.toPrecision(3)} ms · ${seconds ? (answers / seconds).toFixed(0) : 0}/s · ${late} not ok · lost ${f.lost}`);
    let why = "";
    if (!serving) why = "no process serves";
    else if (bad && p99 > f.slo_ms) why = "objective missed";
    else if (bad && f.lost > 0) why = "requests lost";
    else if (bad) why = "requests not answered ok";
    if (f.guarantee && f.guarantee.infeasible) why += `${why ? "; " : ""}objective is not guaranteed: ${f.guarantee.infeasible}`;
    if (f.guarantee && f.guarantee.demoted_percent >= 1) why += `${why ? "; " : ""}uses more than its guarantee: ${f.guarantee.demoted_percent.toFixed(0)} % of the device at low priority`;
    set(".why", why);
  }

  // drawDevices draws a bar per device.
  drawDevices() {
    const devices = this.state.status.devices, box = $("devices");
    while (box.children.length > devices.length) box.lastChild.remove();
    devices.forEach((d, i) => {
      if (!box.children[i]) box.append(document.createElement("div"));
      const element = box.children[i];
      if (!element.firstChild) element.innerHTML = '<h2></h2><div class="bar" role="img"></div><p></p>';
      element.firstChild.textContent = devices.length === 1 ? "Device" : d.name + (d.gpu ? ` · ${d.gpu.name}` : "");
      this.drawDevice(element, d, i === 0 ? this.state.status.foreign_cpu_percent || 0 : 0);
    });
  }

  // partOn is the part of a function's use that is on a device.
  partOn(name, device) {
    let on = 0, all = 0;
    for (const i of this.status(name)?.instances || []) {
      const use = (i.use_percent || 0) + 0.001; // not used yet: equal parts
      all += use;
      if (i.device === device) on += use;
    }
    return all && on / all;
  }

  drawDevice(element, d, foreign) {
    const bar = element.querySelector(".bar"), parts = [];
    let used = 0, demoted = 0;
    this.store.names.forEach((name, i) => {
      const { total } = recent(this.store, name, 2), part = this.partOn(name, d.name);
      if (!total) return;
      used += part * total.u;
      demoted += part * total.d;
      parts.push([name, part * (total.u - total.d), functionColours[i % functionColours.length], false], [name, part * total.d, functionColours[i % functionColours.length], true]);
    });
    const needs = d.needs_percent || 0;
    const text = (d.lost ? `lost: ${d.lost} · ` : "") + `${used.toFixed(0)} % used, ${demoted.toFixed(0)} % at low priority (hatched)` +
      (needs > 100 ? ` · overload: functions need ${needs.toFixed(0)} % of the device` : "") +
      (foreign > 5 ? ` · other programs use ${foreign.toFixed(0)} % of the CPUs; requests wait for them` : "");
    element.lastChild.textContent = text;
    bar.setAttribute("aria-label", text);
    bar.replaceChildren(...parts.filter((p) => p[1] > 0.2).map(([name, percent, colour, low]) => {
      const span = document.createElement("span");
      span.style.width = `${Math.min(100, percent)}%`;
      span.style.backgroundColor = colour;
      span.className = low ? "demoted" : "";
      span.title = `${name}: ${percent.toFixed(1)} %${low ? " at low priority" : ""}`;
      if (!low && percent > 6) span.textContent = name;
      return span;
    }));
  }

  // showReceivers shows who gets published answers, and what does not arrive.
  showReceivers(list) {
    $("receivers").hidden = list.length === 0;
    $("receivers-text").textContent = list.map((r) =>
      `${r.name} ${r.state}: ${r.sent} sent, ${r.dropped} dropped, ${r.refused} refused${r.error ? ` (${r.error})` : ""}`).join(" · ");
  }

  // showWall shows the newest pictures that came through the gateway, or that the manager copied.
  showWall(wall) {
    const box = $("wall");
    for (const figure of [...box.children]) if (!wall.some((s) => s.function === figure.dataset.function)) figure.remove();
    for (const s of wall) {
      let figure = [...box.children].find((e) => e.dataset.function === s.function);
      if (!figure) {
        figure = document.createElement("figure");
        figure.dataset.function = s.function;
        figure.append(document.createElement("canvas"), document.createElement("figcaption"));
        box.append(figure);
      }
      const found = s.found.filter((o) => !o.box).slice(0, 1).map((o) => `, ${describe(o)}`).join("");
      figure.querySelector("figcaption").textContent = `${s.function}${s.client ? ` from ${s.client}` : ""}${found}: answered in ${s.latency_ms.toFixed(1)} ms, ${(s.age_ms / 1000).toFixed(1)} s ago`;
      if (figure.dataset.number === String(s.number)) continue;
      figure.dataset.number = s.number;
      const picture = new Image();
      picture.onload = () => draw(figure.querySelector("canvas"), picture, s.found, s.width || picture.width, Math.max(1, Math.floor(smallestPicture / picture.width)));
      picture.src = `api/wall/${encodeURIComponent(s.function)}?number=${s.number}`;
    }
  }
}

const view = new View();
window.penstock = view; // for tests and the console
document.querySelectorAll("[data-level]").forEach((b) => b.addEventListener("click", () => view.setLevel(+b.dataset.level)));
$("pause").addEventListener("click", () => view.pause());
$("reset").addEventListener("click", () => view.reset());
$("crowd").addEventListener("click", async (e) => {
  const on = e.target.getAttribute("aria-pressed") !== "true";
  const response = await fetch(`api/demo/crowd?on=${on}`, { method: "POST" });
  if (!response.ok) return;
  e.target.setAttribute("aria-pressed", on);
  $("demo-text").textContent = on ? "fashion gets ten times its load" : "";
});
$("kill").addEventListener("click", async () => {
  const response = await fetch("api/demo/kill", { method: "POST" });
  const answer = await response.json();
  $("demo-text").textContent = response.ok ? `the process that served ${answer.killed} was killed` : answer.error;
});
document.addEventListener("keydown", (e) => {
  if (e.target.closest("input, select, textarea, button")) return;
  if (e.key === " ") { e.preventDefault(); view.pause(); }
  if (["1", "2", "3"].includes(e.key)) view.setLevel(+e.key - 1);
  if (e.key === "Escape") { view.slow.section.hidden = true; view.reset(); }
});

const begin = () => view.begin().catch(() => { $("news").textContent = "the gateway does not answer; trying again"; setTimeout(begin, 1000); });
begin();
