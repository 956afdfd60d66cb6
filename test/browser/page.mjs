// Opens the page of a gateway in Chromium and checks what a user sees. Prints one line of JSON per
// step; the Go test that runs it acts on the node between the steps.
//
// Usage: node page.mjs MODULES URL FUNCTION SCREENSHOTS VIDEO
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const [modules, url, name, screenshots, video] = process.argv.slice(2);
const require = createRequire(modules + "/");
const { chromium } = require("playwright-core");
const axe = require.resolve("axe-core/axe.min.js");

const steps = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const wait = async () => (await steps.next()).value; // the Go test has acted
const report = (step, facts) => console.log(JSON.stringify({ step, ...facts }));

const browser = await chromium.launch({
  executablePath: process.env.PENSTOCK_CHROMIUM || "/usr/bin/chromium",
  args: ["--no-sandbox", "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream", `--use-file-for-fake-video-capture=${video}`],
});
const errors = [];

async function open(width, scheme) {
  const page = await browser.newPage({ viewport: { width, height: 900 }, colorScheme: scheme });
  page.setDefaultTimeout(60000); // detects hangs; a busy machine may take half of it
  page.on("pageerror", (e) => errors.push(String(e)));
  page.on("console", (m) => { if (m.type() === "error") errors.push(m.text()); });
  await page.goto(url);
  await page.waitForSelector(`.row[data-function="${name}"]`);
  return page;
}

// over returns the area of the function's chart after scrolling to it.
async function over(page) {
  const chart = page.locator(`.row[data-function="${name}"] .u-over`).first();
  await chart.scrollIntoViewIfNeeded();
  return chart.boundingBox();
}

// repeat acts until done holds in the page. A chart that is drawn or moves while the mouse acts may
// miss the mouse.
async function repeat(page, act, done) {
  for (let attempt = 1; ; attempt++) {
    await act();
    try {
      return await page.waitForFunction(done, null, { timeout: 5000 });
    } catch (e) {
      if (attempt === 10) throw e;
    }
  }
}

const newest = (page) => page.$eval(`.row[data-function="${name}"]`, (e) => +e.dataset.newest);

const page = await open(1280, "light");
try {
  // The camera's picture has a box where the model finds it.
  await page.selectOption("#camera-function", name);
  await page.click("#camera-start");
  await page.waitForFunction(() => JSON.parse(document.querySelector("#camera canvas").dataset.boxes || "[]").length > 0);
  report("camera", await page.$eval("#camera canvas", (c) => ({ width: c.width, height: c.height, boxes: JSON.parse(c.dataset.boxes), text: document.getElementById("camera-text").textContent })));

  // Charts move, and requests of the camera are in them.
  await page.evaluate((n) => document.querySelector(`.row[data-function="${n}"]`).scrollIntoView(), name);
  const before = await newest(page);
  await page.waitForFunction(([n, t]) => +document.querySelector(`.row[data-function="${n}"]`).dataset.newest > t, [name, before]);
  report("charts", { moved: (await newest(page)) - before });
  await page.screenshot({ path: `${screenshots}/page.png`, fullPage: true });

  // A process is killed: its mark appears, and the camera goes on.
  report("kill", {});
  await wait();
  await page.waitForFunction(() => window.penstock.store.marks.some((m) => m.kind === "failure"));
  const answers = await page.$eval("#camera canvas", (c) => +c.dataset.answers);
  await page.waitForFunction((n) => +document.querySelector("#camera canvas").dataset.answers > n + 5, answers);
  report("mark", await page.evaluate((n) => ({ marks: window.penstock.store.marks, lost: window.penstock.status(n).lost }), name));

  // A drag in one chart zooms all rows, and the address keeps the view.
  await repeat(page, async () => {
    const box = await over(page);
    await page.mouse.move(box.x + box.width * 0.6, box.y + 40);
    await page.mouse.down();
    await page.mouse.move(box.x + box.width * 0.9, box.y + 40, { steps: 5 });
    await page.mouse.up();
  }, () => location.hash.includes("from="));
  await page.evaluate(() => document.querySelectorAll(".row").forEach((r) => r.scrollIntoView()));
  await page.waitForFunction(() => new Set([...document.querySelectorAll(".row")].map((r) => r.dataset.from)).size === 1);
  report("zoom", await page.evaluate(() => ({ hash: location.hash, rows: document.querySelectorAll(".row").length, from: [...document.querySelectorAll(".row")].map((r) => Math.round(+r.dataset.from)) })));
  await page.keyboard.press("Escape");

  // A click shows single requests.
  await repeat(page, async () => {
    const box = await over(page);
    await page.mouse.click(box.x + box.width * 0.95, box.y + 40);
  }, () => document.querySelector("#slow:not([hidden]) .waterfall"));
  const [download] = await Promise.all([page.waitForEvent("download"), page.click("#save")]);
  await page.waitForFunction(() => document.getElementById("receivers-text").textContent.includes("hook waiting"));
  report("slow", { receivers: await page.textContent("#receivers-text"), text: await page.textContent("#slow-text"), waterfalls: await page.$$eval(".waterfall", (l) => l.length), file: download.suggestedFilename() });

  // The gateway is killed: the page says that there is no news, and goes on when it is back.
  report("gateway", {});
  await wait();
  await page.waitForFunction(() => document.getElementById("news").textContent.startsWith("no news for"));
  await page.waitForFunction(() => document.getElementById("news").textContent === "live");
  report("back", {});

  // Nothing serious for readers with a screen reader or bad eyes, in both schemes and on a phone.
  for (const [width, scheme] of [[1280, "light"], [1280, "dark"], [375, "light"]]) {
    const other = await open(width, scheme);
    await other.waitForTimeout(1500);
    await other.addScriptTag({ path: axe }).catch(() => other.evaluate(require("node:fs").readFileSync(axe, "utf8")));
    const found = await other.evaluate(async () => (await window.axe.run()).violations.map((v) => ({ id: v.id, impact: v.impact, nodes: v.nodes.slice(0, 3).map((n) => n.html) })));
    const wide = await other.evaluate(() => document.documentElement.scrollWidth);
    await other.screenshot({ path: `${screenshots}/page-${width}-${scheme}.png` });
    report("access", { width, scheme, scrollWidth: wide, violations: found.filter((v) => ["serious", "critical"].includes(v.impact)) });
    await other.close();
  }
  report("end", { errors: errors.filter((e) => !e.includes("ERR_") && !e.includes("Content Security Policy")) });
} catch (e) {
  await page.screenshot({ path: `${screenshots}/failure.png`, fullPage: true }).catch(() => {});
  report("failed", { error: String(e), errors });
  process.exitCode = 1;
} finally {
  await browser.close();
  process.stdin.destroy();
}
