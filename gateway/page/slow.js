// Waterfalls of single requests, and their export as a trace that Perfetto opens.
import { stageColours, legend } from "./palette.js";

export class Slow {
  constructor() {
    this.section = document.getElementById("slow");
    this.list = [];
    document.getElementById("slow-close").addEventListener("click", () => { this.section.hidden = true; });
    document.getElementById("save").addEventListener("click", () => this.save());
  }

  async show(name, from, to, stages) {
    const response = await fetch(`api/outliers?function=${encodeURIComponent(name)}&from=${Math.floor(from)}&to=${Math.ceil(to)}`);
    if (!response.ok) return;
    this.list = await response.json();
    this.name = name;
    this.stages = stages;
    this.section.hidden = false;
    const text = this.list.length === 0 ? "No request of this time was kept. The slowest, the late and the failed ones of each ten seconds are." : `${this.list.length} requests of ${name}, the slowest first.`;
    document.getElementById("slow-text").textContent = `${new Date(from).toLocaleTimeString()} to ${new Date(to).toLocaleTimeString()}: ${text}`;
    const box = document.getElementById("waterfalls");
    box.replaceChildren(legend(stages, stageColours));
    const longest = Math.max(1, ...this.list.map(total));
    for (const o of this.list.slice(0, 30)) box.append(waterfall(o, longest, stages));
    this.section.scrollIntoView({ block: "nearest" });
  }

  // save writes the requests as Chrome's trace events: one thread per request, one slice per stage.
  save() {
    const events = [];
    this.list.forEach((o, i) => {
      events.push({ ph: "M", name: "thread_name", pid: 1, tid: i + 1, args: { name: `${this.name} request ${o.request} ${o.status}` } });
      let at = Date.parse(o.began) * 1000;
      o.stages_us.forEach((us, s) => {
        if (us > 0) events.push({ ph: "X", name: this.stages[s], cat: o.status, pid: 1, tid: i + 1, ts: at, dur: us, args: { batch: o.batch } });
        at += us;
      });
    });
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([JSON.stringify({ traceEvents: events })], { type: "application/json" }));
    link.download = `penstock-${this.name}.json`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }
}

const total = (o) => o.stages_us.reduce((a, b) => a + b, 0);

function waterfall(o, longest, stages) {
  const row = document.createElement("div"), text = document.createElement("span"), bar = document.createElement("div");
  row.className = "waterfall";
  bar.className = "stages";
  text.textContent = `${o.status} · ${(total(o) / 1000).toFixed(2)} ms${o.batch ? " · batch of " + o.batch : ""}`;
  o.stages_us.forEach((us, i) => {
    const part = document.createElement("span");
    part.style.width = `${(100 * us) / longest}%`;
    part.style.background = stageColours[i];
    part.title = `${stages[i]} ${(us / 1000).toFixed(3)} ms`;
    bar.append(part);
  });
  row.append(text, bar);
  return row;
}
