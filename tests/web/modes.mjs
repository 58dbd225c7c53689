/** What the system asks of a page: its light or dark colours, forced colours, less motion, and print. */
import path from "node:path";
import { ENTRIES, pick, samples } from "./browser.mjs";
import { check, test } from "../support/harness.mjs";
import { goTo, openSample } from "./views.mjs";

/** How light a colour of the page is, from 0 to 1. */
const lightness = (page, property, selector = "body") => page.locator(selector).first().evaluate((e, name) => {
  const [r, g, b] = getComputedStyle(e)[name].match(/[\d.]+/g).map(Number);
  return (r + g + b) / 765;
}, property);

async function testColours(page, url) {
  await test("colours follow the system while the page is open, until they are chosen", async () => {
    await page.emulateMedia({ colorScheme: "light" });
    await page.goto(url);
    await page.evaluate(() => localStorage.clear());
    await page.reload();
    await page.getByRole("button", { name: "Dark colours" }).waitFor();
    await page.emulateMedia({ colorScheme: "dark" });
    await page.getByRole("button", { name: "Light colours" }).click();
    check(await lightness(page, "backgroundColor") > 0.8, "the button did not do what it says");
    await page.emulateMedia({ colorScheme: "light" });
    await page.getByRole("button", { name: "Dark colours" }).click();
    check(await lightness(page, "backgroundColor") < 0.2, "the button did not do what it says");
  });
  await test("what is dark on the screen is printed dark on light", async () => {
    for (const how of ["chosen", "the system's"]) {
      if (how !== "chosen") await page.evaluate(() => localStorage.clear());
      await page.emulateMedia({ colorScheme: "dark" });
      await page.reload();
      check(await lightness(page, "backgroundColor") < 0.2, `${how}: it is not dark on the screen`);
      await page.emulateMedia({ media: "print" });
      check(await lightness(page, "backgroundColor") > 0.8 && await lightness(page, "color") < 0.3, `${how}: light on dark`);
      await page.emulateMedia({ media: null });
    }
    await page.emulateMedia({ colorScheme: "light" });
  });
}

/** In forced colours the system chooses the colours of backgrounds, and leaves out shadows. */
async function testForced(page) {
  const look = (selector) => page.locator(selector).first().evaluate((e) => { const s = getComputedStyle(e); return [s.backgroundColor, s.outlineStyle, s.outlineWidth, s.color, s.textDecorationLine].join(); });
  const differ = async (a, b) => check(await look(a) !== await look(b), `${a} looks like ${b}: ${await look(a)}`);
  await page.emulateMedia({ forcedColors: "active" });
  await test("in forced colours the chosen tab, the chosen row and a button that is on are marked, and bars are seen", async () => {
    await openSample(page, "dcp_tp_fsdp2");
    await differ("[role=tab][aria-selected=true]", "[role=tab][aria-selected=false]");
    await differ(".bar > span", ".bar");
    await page.locator(ENTRIES).first().click();
    await page.locator("aside h2").waitFor();
    await differ(".window .row.selected", ".window .row:not(.selected, .cursor)");
    await goTo(page, "Compare");
    await pick(page, path.join(samples, "dcp_fsdp2"));
    await page.getByRole("button", { name: "Sharding" }).click();
    await page.locator(".toggles [aria-pressed=true]").waitFor();
    await differ(".toggles [aria-pressed=true]", ".toggles [aria-pressed=false]");
    await page.keyboard.press("Control+k");
    await differ("[role=option][aria-selected=true]", "[role=option][aria-selected=false]");
    await page.keyboard.press("Escape");
  });
  await page.emulateMedia({ forcedColors: "none" });
}

async function testMotion(page) {
  await test("who asks for less motion gets none", async () => {
    await page.emulateMedia({ reducedMotion: "reduce" });
    await page.waitForFunction(() => matchMedia("(prefers-reduced-motion: reduce)").matches);
    const moving = await page.evaluate(() => [...document.querySelectorAll("*")].filter((e) => { const s = getComputedStyle(e); return s.animationName !== "none" || s.transitionDuration.split(", ").some((d) => parseFloat(d) > 0); }).length);
    check(moving === 0, `${moving} elements move`);
    await page.emulateMedia({ reducedMotion: null });
  });
}

/** The colour of a point of an element's picture, at a fraction of its width. */
async function colourAt(page, element, fraction) {
  const png = (await element.screenshot()).toString("base64");
  return page.evaluate(async ([data, at]) => {
    const picture = await createImageBitmap(new Blob([Uint8Array.from(atob(data), (c) => c.charCodeAt(0))])), to = new OffscreenCanvas(picture.width, picture.height).getContext("2d");
    to.drawImage(picture, 0, 0);
    return [...to.getImageData(Math.floor(picture.width * at), picture.height >> 1, 1, 1).data].slice(0, 3);
  }, [png, fraction]);
}

async function testProgress(page, url) {
  await page.goto(url);
  const bar = page.locator("progress");
  await page.locator(".page").evaluate((element) => { // as work that is half done has it
    const [jobs, job, text, progress, button] = ["div", "div", "span", "progress", "button"].map((name) => document.createElement(name));
    Object.assign(jobs, { className: "jobs" }).append(Object.assign(job, { className: "job" }));
    job.append(Object.assign(text, { textContent: "Checking every byte … 1.5 GiB of 3.0 GiB" }), Object.assign(progress, { max: 100, value: 50 }), Object.assign(button, { textContent: "Cancel" }));
    element.append(jobs);
  });
  for (const [what, media] of [["light", { colorScheme: "light" }], ["dark", { colorScheme: "dark" }], ["forced", { colorScheme: "dark", forcedColors: "active" }]]) {
    await test(`${what} colours: a bar shows how much is done`, async () => {
      await page.emulateMedia(media);
      await bar.waitFor();
      const [done, left] = [await colourAt(page, bar, 0.25), await colourAt(page, bar, 0.75)];
      check(done.some((c, i) => Math.abs(c - left[i]) > 60), `${done} is done, ${left} is left`);
    });
  }
  await test("its numbers are not cut off on a phone", async () => {
    const size = page.viewportSize();
    await page.setViewportSize({ width: 390, height: 844 });
    check(await page.locator(".job span").evaluate((e) => e.scrollWidth <= e.clientWidth), "they are");
    await page.setViewportSize(size);
  });
  await page.emulateMedia({ colorScheme: "light", forcedColors: "none" });
  await page.reload();
}

export async function testModes({ page, url, broken }) {
  await testColours(page, url);
  await testForced(page);
  await testMotion(page);
  await testProgress(page, url);
  await test("no mode breaks the page", () => check(broken.length === 0, broken.join("; ")));
}
