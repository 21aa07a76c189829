// The page in a browser: every view under load, sliders, changes, the death of the server, reports.
import { after, before, test } from "node:test";
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { join } from "node:path";
import { Place, TOKEN, until } from "./place.mjs";

const WORK = process.env.OCTAVO_WORK;
const require = createRequire(join(WORK, "package.json"));
const { chromium } = require("playwright-core");
const axe = require("axe-core");

const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync"];

const place = new Place();
let browser;

before(async () => {
  await place.start();
  browser = await chromium.launch({ executablePath: process.env.OCTAVO_BROWSER, args: FLAGS });
});

after(async () => {
  await browser?.close();
  await place.stop();
});

// Opens a page that fails the test for an error in the console, and for a request to elsewhere.
async function opened(url, { width = 1400, theme = "light" } = {}) {
  const page = await browser.newPage({ viewport: { width, height: 900 }, colorScheme: theme, reducedMotion: "reduce" });
  // A slow machine may take so long for a step that is usually immediate.
  page.setDefaultTimeout(60_000);
  const faults = [];
  page.on("pageerror", (error) => faults.push(`error: ${error.message}`));
  page.on("console", (message) => {
    // The browser itself reports refused requests, which some tests provoke.
    if (message.type() === "error" && !message.text().startsWith("Failed to load resource")) faults.push(message.text());
  });
  page.on("request", (request) => {
    if (!request.url().startsWith(url)) faults.push(`request to ${request.url()}`);
  });
  await page.goto(url);
  return { page, faults };
}

async function close({ page, faults }) {
  await page.close();
  assert.deepEqual(faults, []);
}

// The findings of axe that keep someone from using the page.
async function grave(page) {
  await page.evaluate(axe.source);
  const { violations } = await page.evaluate(() => axe.run(document, { resultTypes: ["violations"] }));
  return violations.filter(({ impact }) => ["serious", "critical"].includes(impact))
    .map(({ id, nodes }) => `${id}: ${nodes.map((node) => node.html.slice(0, 120)).join(" | ")}`);
}

function rows(page, table) {
  return page.locator(`#${table} tbody tr`).count();
}

// Waits until every view has something to show.
async function filled(page) {
  await page.waitForSelector("#tiles .tile .value");
  await page.waitForSelector("#memory-chart path.area");
  await page.waitForFunction(() => document.querySelectorAll("#curves path.ratio").length === 3, null, { timeout: 60_000 });
  await page.waitForFunction(() => document.querySelectorAll("#heat .card:not([hidden])").length >= 4);
  await until("exports", async () => (await rows(page, "exports")) === 3);
  await until("events", async () => (await rows(page, "events-list")) >= 1);
}

for (const [width, theme] of [[1400, "light"], [1400, "dark"], [400, "light"], [400, "dark"]]) {
  test(`every view shows a server under load, ${width} pixels wide, ${theme}`, async () => {
    const open = await opened(place.url, { width, theme });
    const { page } = open;
    await filled(page);
    await page.click("#sets-load");
    await page.waitForSelector("#sets-chart rect.occupied", { state: "attached" });
    await page.click("#files-load");
    await page.getByText("No file of a mount has pages in the cache.").waitFor();
    const tiles = await page.locator("#tiles .value").allTextContents();
    assert.equal(tiles.length, 9);
    assert.match(tiles[0], /^\d+(\.\d)? %$/);
    assert.match(tiles[1], /\/s$/);
    // Under load, some requests find their set busy.
    const kinds = (await page.locator("#heat h3").allTextContents()).filter((kind) => kind !== "bypass");
    assert.deepEqual(kinds, ["hit", "miss", "store", "write"]);
    const isWide = await page.evaluate(() => document.documentElement.scrollWidth > innerWidth);
    assert.equal(isWide, false, "the page must not scroll sideways");
    assert.deepEqual(await grave(page), []);
    await page.screenshot({ path: join(WORK, `page-${width}-${theme}.png`), fullPage: true });
    await close(open);
  });
}

test("the switches of theme and of time work without a mouse", async () => {
  const open = await opened(place.url);
  const { page } = open;
  await filled(page);
  const paper = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const light = await paper();
  await page.focus("#theme input[value=auto]");
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("ArrowRight");
  assert.notEqual(await paper(), light);
  await page.reload();
  await filled(page);
  assert.notEqual(await paper(), light, "the theme is kept");
  await page.focus("#memory-chart svg");
  await page.keyboard.press("Home");
  assert.match(await page.textContent("#memory-chart .when"), /^\d+:\d+:\d+/);
  await page.focus("#window input[value=recent]");
  await page.keyboard.press("ArrowRight");
  await until("an interval of the hour", async () =>
    (await page.locator("#memory-chart .entry").count()) > 0);
  await close(open);
});

test("sliders predict misses under the bound, and sizes over it cannot be applied", async () => {
  const open = await opened(place.url);
  const { page } = open;
  await filled(page);
  const slider = page.getByLabel("Size of vm1");
  await slider.scrollIntoViewIfNeeded();
  const box = await slider.boundingBox();
  const before = await slider.inputValue();
  const now = await page.textContent("#bound");
  await page.mouse.move(box.x + box.width / 2, box.y + box.height / 2);
  await page.mouse.down();
  await page.mouse.move(box.x + box.width * 0.95, box.y + box.height / 2, { steps: 5 });
  await page.mouse.up();
  assert.ok(Number(await slider.inputValue()) > Number(before), `from ${before}`);
  assert.notEqual(await page.textContent("#bound"), now);
  assert.match(await slider.getAttribute("aria-valuetext"), /iB, .* misses per second predicted$/);
  await slider.focus();
  await page.keyboard.press("End");
  assert.match(await page.textContent("#bound"), /over the bound by/);
  assert.ok(await page.getByRole("button", { name: "Apply…" }).isDisabled());
  assert.deepEqual(await grave(page), []);
  await page.screenshot({ path: join(WORK, "over-the-bound.png"), fullPage: true });
  await page.getByRole("button", { name: "Back to present sizes" }).click();
  assert.doesNotMatch(await page.textContent("#bound"), /over the bound by/);
  await close(open);
});

// The curve of an LRU predicted more misses than the policy has, so that each change looked too good.
test("the misses predicted for the present sizes are those that are measured", async () => {
  const open = await opened(place.url);
  const { page } = open;
  await filled(page);
  const number = (text) => Number.parseFloat(text) * (text.includes(" k ") ? 1000 : 1);
  await until("the two agree", async () => {
    const predicted = number(await page.textContent("#bound .sum span:nth-child(2) b"));
    const tile = page.locator("#tiles .tile").nth(1).locator(".value");
    const measured = number(await tile.textContent());
    // The tile shows one interval, the prediction 15 seconds.
    return predicted > 0.7 * measured && predicted < 1.4 * measured;
  });
  await close(open);
});

test("the plan is applied with the token and not without it", async () => {
  const open = await opened(place.url);
  const { page } = open;
  await filled(page);
  const apply = page.getByRole("button", { name: "Apply…" });
  const changeSizes = async () => {
    await page.getByRole("button", { name: "Take the plan’s sizes" }).click();
    // The plan may be content with the present sizes.
    await page.getByLabel("Size of vm2").focus();
    await page.keyboard.press("PageDown");
  };
  await changeSizes();
  assert.ok(await apply.isDisabled(), "without the token");
  const token = page.getByLabel("Token", { exact: true });
  await token.fill("not-the-token-at-all");
  await page.getByRole("button", { name: "Unlock" }).click();
  await page.getByText("this is not the token").waitFor();
  await token.fill(TOKEN);
  await token.press("Enter");
  await page.getByText("Changes are allowed until this page is closed.").waitFor();
  await changeSizes();
  const size = async (name) => Number(await page.getByLabel(`Size of ${name}`).inputValue());
  const wanted = await size("vm2");
  await apply.click();
  assert.deepEqual(await grave(page), []);
  await page.screenshot({ path: join(WORK, "confirm.png") });
  await page.keyboard.press("Escape");
  assert.equal((await place.ask({ do: "partitions" })).partitions[0].max, null, "Escape changes nothing");
  await apply.click();
  await page.getByRole("button", { name: "Apply", exact: true }).click();
  await page.getByText("Applied.").waitFor();
  const { partitions } = await place.ask({ do: "partitions" });
  assert.ok(partitions.every(({ max }) => max !== null), JSON.stringify(partitions));
  // A slider has steps, and the plan's size need not be one.
  assert.ok(Math.abs(partitions[1].max - wanted) <= 2 << 20, JSON.stringify([partitions[1], wanted]));
  await close(open);
});

test("events are filtered by kind and by words", async () => {
  await place.ask({ do: "set", partition: "db", values: [["weight", "150"]] });
  const open = await opened(place.url);
  const { page } = open;
  await filled(page);
  await page.locator("#events-list", { hasText: "weight=150" }).waitFor();
  const all = await rows(page, "events-list");
  await page.selectOption("#events-kind", "start");
  assert.equal(await rows(page, "events-list"), 1);
  await page.selectOption("#events-kind", "");
  await page.fill("#events-text", "WEIGHT=150");
  assert.equal(await rows(page, "events-list"), 1);
  assert.ok(all > 1);
  await page.fill("#events-text", "nothing like this");
  await page.getByText("No event matches.").waitFor();
  await close(open);
});

test("a report is one file with the same views, which loads nothing", async () => {
  const url = `file://${await place.report()}`;
  for (const [width, theme] of [[1400, "light"], [400, "dark"]]) {
    const open = await opened(url, { width, theme });
    const { page } = open;
    await filled(page);
    await page.waitForSelector("#sets-chart rect.occupied", { state: "attached" });
    const bound = await page.textContent("#bound");
    await page.getByLabel("Size of vm1").focus();
    await page.keyboard.press("Home");
    assert.notEqual(await page.textContent("#bound"), bound);
    assert.match(await page.textContent("#state"), /^\s*report of /);
    assert.deepEqual(await grave(page), []);
    await page.screenshot({ path: join(WORK, `report-${width}-${theme}.png`), fullPage: true });
    await close(open);
  }
});

test("a server that dies is said to be dead, and the page goes on with the next one", async () => {
  const open = await opened(place.url);
  const { page } = open;
  await filled(page);
  const { pid } = await place.ask({ do: "stat" });
  await page.getByText(`process ${pid}`).waitFor();
  await place.killServer();
  await page.locator("#trouble", { hasText: "The server does not answer" }).waitFor();
  assert.deepEqual(await grave(page), []);
  await page.screenshot({ path: join(WORK, "dead.png") });
  await place.startServer();
  const next = await place.ask({ do: "stat" });
  await page.getByText(`process ${next.pid}`).waitFor();
  assert.ok(await page.locator("#trouble").isHidden());
  await page.getByText("has been restarted once").waitFor();
  await close(open);
});
