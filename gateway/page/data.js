// The history of a node in the browser: for each function and resolution the points by their
// interval's number. A point that is not known is null.

export const statuses = ["ok", "late", "incomplete", "busy", "refused", "failed"];

export class Store {
  constructor() {
    this.levels = []; // {step_ms, points}
    this.bounds = []; // ms
    this.series = new Map(); // name -> per level a Map of number -> point
    this.marks = [];
    this.newest = 0; // ms
  }

  setState(state) {
    this.levels = state.levels;
    this.bounds = state.bounds_ms || [];
    this.marks = state.marks || [];
    this.names = (state.status.functions || []).map((f) => f.name);
    for (const name of this.series.keys()) if (!this.names.includes(name)) this.series.delete(name);
  }

  points(name, level) {
    if (!this.series.has(name)) this.series.set(name, this.levels.map(() => new Map()));
    return this.series.get(name)[level];
  }

  // load replaces a level by the gateway's.
  load(name, level, history) {
    const points = this.points(name, level);
    points.clear();
    history.points.forEach((p, i) => { if (p) points.set(Math.floor(history.t / history.step_ms) + i, expand(p, this.bounds.length + 1)); });
  }

  // add merges an event into all levels.
  add(event) {
    this.newest = event.t;
    for (const [name, short] of Object.entries(event.functions)) {
      if (!short) continue;
      this.levels.forEach((l, level) => {
        const points = this.points(name, level), number = Math.floor(event.t / l.step_ms);
        const p = expand(short, this.bounds.length + 1), old = points.get(number);
        points.set(number, old ? merge(old, p) : p);
        points.delete(number - l.points);
        if (points.size > l.points) for (const n of points.keys()) if (n <= number - l.points) points.delete(n);
      });
    }
    if (event.marks) this.marks = this.marks.concat(event.marks).slice(-512);
  }
}

// expand gives a point all of its latency buckets. m is how many events are in it.
function expand(p, buckets) {
  const latency = new Array(buckets).fill(0);
  for (let i = 1; i < p.l.length; i++) latency[p.l[0] + i - 1] = p.l[i];
  return { ...p, l: latency, m: 1 };
}

function merge(a, b) {
  const sum = (x, y) => x.map((v, i) => v + y[i]);
  const mean = (x, y) => x + (y - x) / (a.m + 1);
  return {
    l: sum(a.l, b.l), r: sum(a.r, b.r), s: sum(a.s, b.s), n: a.n + b.n, b: a.b + b.b,
    q: mean(a.q, b.q), g: mean(a.g, b.g), nd: mean(a.nd, b.nd), u: mean(a.u, b.u), d: mean(a.d, b.d), m: a.m + 1,
  };
}

// quantile returns a quantile of bucket counts in ms, interpolated within its bucket; null
// without requests.
export function quantile(counts, bounds, q) {
  const total = counts.reduce((a, b) => a + b, 0);
  if (total === 0) return null;
  let rank = q * total;
  for (let i = 0; i < counts.length; i++) {
    if (counts[i] > 0 && rank <= counts[i]) {
      const low = i > 0 ? bounds[i - 1] : 0, high = i < bounds.length ? bounds[i] : bounds[bounds.length - 1];
      return low + (high - low) * (rank / counts[i]);
    }
    rank -= counts[i];
  }
  return bounds[bounds.length - 1];
}

// recent sums up the known points of the last seconds of the finest level.
export function recent(store, name, seconds) {
  const points = store.points(name, 0), step = store.levels[0].step_ms;
  const last = Math.floor(store.newest / step), n = Math.round((seconds * 1000) / step);
  let total = null, known = 0;
  for (let i = last - n + 1; i <= last; i++) {
    const p = points.get(i);
    if (p) { total = total ? merge(total, p) : p; known++; }
  }
  return { total, seconds: (known * step) / 1000 };
}
