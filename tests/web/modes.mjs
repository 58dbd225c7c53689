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

export async function testModes({ page, url, broken }) {
  await testColours(page, url);
  await testForced(page);
  await testMotion(page);
  await test("no mode breaks the page", () => check(broken.length === 0, broken.join("; ")));
}
