// Opens a report from a file in Chromium and prints one line of JSON per width and scheme.
//
// Usage: node report.mjs MODULES FILE SCREENSHOTS
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";

const [modules, file, screenshots] = process.argv.slice(2);
const require = createRequire(modules + "/");
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

const browser = await chromium.launch({ executablePath: process.env.PENSTOCK_CHROMIUM || "/usr/bin/chromium", args: ["--no-sandbox"] });
try {
  for (const [width, scheme] of [[1280, "light"], [1280, "dark"], [375, "light"]]) {
    const page = await browser.newPage({ viewport: { width, height: 900 }, colorScheme: scheme });
    page.setDefaultTimeout(60000); // detects hangs; a busy machine may take half of it
    const errors = [], requests = [];
    page.on("pageerror", (e) => errors.push(String(e)));
    page.on("console", (m) => { if (m.type() === "error") errors.push(m.text()); });
    page.on("request", (r) => { if (!r.url().startsWith("data:")) requests.push(r.url()); });
    await page.goto("file://" + file);
    await page.waitForFunction(() => document.body.dataset.charts > 0).catch((e) => errors.push(String(e)));
    // A chart is drawn when its canvas has something opaque in the middle of its area.
    await page.waitForFunction(() => [...document.querySelectorAll("canvas")].every((c) => {
      const pixels = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
      return pixels.some((v, i) => i % 4 === 3 && v > 0);
    })).catch((e) => errors.push(String(e)));
    const facts = await page.evaluate(() => ({
      charts: document.querySelectorAll("canvas").length, rows: [...document.querySelectorAll("#report .row")].map((r) => r.dataset.function),
      cells: [...document.querySelectorAll("tbody td")].map((c) => c.textContent), bad: document.querySelectorAll("td.bad").length,
      scrollWidth: document.documentElement.scrollWidth,
    }));
    // The pointer over a chart shows its run in words.
    const over = await (await page.$(".u-over")).boundingBox();
    await page.mouse.move(over.x + over.width * 0.8, over.y + over.height / 2);
    facts.text = await page.textContent(".mark-text");
    await page.screenshot({ path: `${screenshots}/report-${width}-${scheme}.png`, fullPage: true });
    await page.evaluate(axe).catch((e) => errors.push(String(e)));
    facts.violations = (await page.evaluate(async () => (await window.axe.run()).violations)).filter((v) => ["serious", "critical"].includes(v.impact)).map((v) => ({ id: v.id, impact: v.impact, nodes: v.nodes.slice(0, 3).map((n) => n.html) }));
    console.log(JSON.stringify({ width, scheme, requests, errors, ...facts }));
    await page.close();
  }
} finally {
  await browser.close();
}
