// Opens the address of `penstock gateway --phone` as a phone would, and a second time as another one.
// Prints one line of JSON.
//
// Usage: node phone.mjs MODULES URL FUNCTION SCREENSHOTS VIDEO
import { createRequire } from "node:module";

const [modules, url, name, screenshots, video] = process.argv.slice(2);
const { chromium } = createRequire(modules + "/")("playwright-core");

const browser = await chromium.launch({
  executablePath: process.env.PENSTOCK_CHROMIUM || "/usr/bin/chromium",
  args: ["--no-sandbox", "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream", `--use-file-for-fake-video-capture=${video}`],
});
try {
  const phone = { ignoreHTTPSErrors: true, viewport: { width: 375, height: 800 }, isMobile: true, hasTouch: true };
  const first = await (await browser.newContext(phone)).newPage();
  first.setDefaultTimeout(60000); // detects hangs; a busy machine may take half of it
  await first.goto(url);
  await first.waitForSelector(`.row[data-function="${name}"]`);
  await first.selectOption("#camera-function", name);
  await first.click("#camera-start");
  await first.waitForFunction(() => JSON.parse(document.querySelector("#camera canvas").dataset.boxes || "[]").length > 0);
  const text = await first.textContent("#camera-text");
  const boxes = await first.$eval("#camera canvas", (c) => JSON.parse(c.dataset.boxes).map((b) => b.label));
  await first.screenshot({ path: `${screenshots}/phone.png` });

  const second = await (await browser.newContext(phone)).newPage();
  second.setDefaultTimeout(60000);
  const answer = await second.goto(url);
  console.log(JSON.stringify({ address: first.url(), text, boxes, scrollWidth: await first.evaluate(() => document.documentElement.scrollWidth), refused: answer.status(), why: await second.textContent("body") }));
} finally {
  await browser.close();
}
