// Uses the page of a node with many functions in Chromium, and measures the tasks of the page's main
// thread. Prints one line of JSON.
//
// Usage: node many.mjs MODULES URL SCREENSHOTS WIDTH FUNCTIONS
import { createRequire } from "node:module";

const [modules, url, screenshots, width, functions] = process.argv.slice(2);
const require = createRequire(modules + "/");
const { chromium } = require("playwright-core");

const browser = await chromium.launch({ executablePath: process.env.PENSTOCK_CHROMIUM || "/usr/bin/chromium", args: ["--no-sandbox"] });
try {
  const page = await browser.newPage({ viewport: { width: +width, height: 900 } });
  // An observer is called once after each task that changed the page.
  await page.addInitScript(() => {
    window.rowsPerTask = 0;
    new MutationObserver((changes) => {
      const added = changes.flatMap((c) => [...c.addedNodes]).filter((n) => n.classList?.contains("row"));
      window.rowsPerTask = Math.max(window.rowsPerTask, added.length);
    }).observe(document, { childList: true, subtree: true });
  });
  const errors = [];
  page.on("pageerror", (e) => errors.push(String(e)));
  page.on("console", (m) => { if (m.type() === "error") errors.push(m.text()); });
  await browser.startTracing(page, { categories: ["disabled-by-default-devtools.timeline", "__metadata"] });
  await page.goto(url);
  const rows = () => page.$$eval(".row", (l) => l.length);
  await page.waitForFunction((n) => document.querySelectorAll(".row").length === n, +functions, { timeout: 60000 });

  // Wait for updates at each resolution, zoom, and scroll over all rows.
  const number = () => page.evaluate(() => window.penstock.number || 0);
  const updates = async (n) => { const from = await number(); await page.waitForFunction((to) => window.penstock.number >= to, from + n, { timeout: 60000 }); };
  await updates(8);
  const first = await number();
  for (const level of [1, 2, 0]) {
    await page.click(`[data-level="${level}"]`);
    await updates(4);
  }
  for (let i = 0; i < +functions; i++) {
    await page.evaluate((n) => document.querySelectorAll(".row")[n].scrollIntoView(), i);
    if (i % 4 === 0) await updates(1);
  }
  await page.evaluate(() => { const [from, to] = window.penstock.interval(); window.penstock.zoom(from + (to - from) / 3, to); });
  await updates(2);
  await page.evaluate(() => window.penstock.reset());
  await updates(4);
  const seen = { rows: await rows(), rowsPerTask: await page.evaluate(() => window.rowsPerTask), scrollWidth: await page.evaluate(() => document.documentElement.scrollWidth), updates: (await number()) - first };
  const trace = JSON.parse(await browser.stopTracing()).traceEvents;
  await page.evaluate(() => scrollTo(0, 0));
  await page.screenshot({ path: `${screenshots}/many-${width}.png` });

  // The main thread of the page is the renderer's main thread with the most tasks.
  const mains = new Set(trace.filter((e) => e.name === "thread_name" && e.args.name === "CrRendererMain").map((e) => `${e.pid} ${e.tid}`));
  const byThread = new Map();
  for (const e of trace) {
    const thread = `${e.pid} ${e.tid}`;
    if (e.ph !== "X" || e.name !== "RunTask" || !mains.has(thread) || e.tdur === undefined) continue; // the shortest tasks have no CPU time
    if (!byThread.has(thread)) byThread.set(thread, []);
    byThread.get(thread).push(e);
  }
  const tasks = [...byThread.values()].sort((a, b) => b.length - a.length)[0] || [];
  const cpu = tasks.map((e) => e.tdur / 1000), begin = Math.min(...tasks.map((e) => e.ts)), end = Math.max(...tasks.map((e) => e.ts + e.dur));
  console.log(JSON.stringify({
    ...seen, errors, tasks: tasks.length, longest: Math.max(...cpu), above50: cpu.filter((v) => v > 50).length,
    busy: (100 * cpu.reduce((a, b) => a + b, 0)) / ((end - begin) / 1000),
  }));
} finally {
  await browser.close();
}
