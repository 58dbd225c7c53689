/** Whole tours of the page by touch, on a phone, and by what a screen reader is told. The tour by keys is keyboard.mjs. */
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { ENTRIES, launch, rowsIn } from "./browser.mjs";
import { check, test } from "../support/harness.mjs";
import { count, made } from "./product.mjs";
import { goTo, openSample, READY } from "./views.mjs";

const PHONE = { viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true, acceptDownloads: true };
/** The least width and height of what is tapped, in px: WCAG 2.2, 2.5.8. Links in a line of text are excepted. */
const LEAST_TARGET = 24;

const tap = (page, role, name) => page.getByRole(role, { name }).first().tap();

/** What is too small for a finger: what is drawn, can be tapped, and is not in a line of text. */
const smallTargets = (page) => page.evaluate((least) => [...document.querySelectorAll("button, input, select, textarea, summary, [role=tab], [role=option]")].filter((e) => {
  const box = (e.closest("label") ?? e).getBoundingClientRect();
  return e.checkVisibility({ visibilityProperty: true }) && box.width > 0 && !e.matches(".link, .samples button") && (box.width < least || box.height < least);
}).map((e) => `${e.localName} “${e.getAttribute("aria-label") ?? e.textContent.slice(0, 30)}” ${JSON.stringify(e.getBoundingClientRect())}`), LEAST_TARGET);

async function expectTouchable(page, where) {
  const small = await smallTargets(page);
  check(small.length === 0, `${where}: ${small.join("; ")}`);
  check(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), `${where} is wider than the phone`);
}

/** Moves a finger up several times, as one scrolls down. */
async function swipe(page, selector, times) {
  const { x, y, width, height } = await page.locator(selector).boundingBox(), session = await page.context().newCDPSession(page), STEPS = 10;
  const at = (share) => [{ x: x + width / 2, y: y + height * (0.9 - 0.8 * share) }];
  for (let i = 0; i < times; i++) {
    await session.send("Input.dispatchTouchEvent", { type: "touchStart", touchPoints: at(0) });
    for (let step = 1; step <= STEPS; step++) await session.send("Input.dispatchTouchEvent", { type: "touchMove", touchPoints: at(step / STEPS) });
    await session.send("Input.dispatchTouchEvent", { type: "touchEnd", touchPoints: [] });
  }
  await session.detach();
}

async function testListByTouch(page, scratch) {
  await test("by touch, a long list is scrolled, an entry is shown, and Back returns to the place in the list", async () => {
    await expectTouchable(page, "the start page");
    const file = made(scratch, "long.safetensors", Object.fromEntries(count(3000, (i) => [`name${i}.weight`, ["float32", [2, 2], [i, i + 1, i + 2, i + 3]]])));
    const [chooser] = await Promise.all([page.waitForEvent("filechooser"), tap(page, "button", "Choose files…")]);
    await chooser.setFiles(file);
    await page.locator(".window .row .text").first().waitFor();
    await expectTouchable(page, "the list");
    await swipe(page, ".grid", 6);
    await page.waitForFunction(() => document.querySelector(".grid").scrollTop > 1000);
    // The list must have come to rest, and the row be visible, or the tap scrolls to it.
    await page.waitForFunction(() => { const { scrollTop } = document.querySelector(".grid"), rests = scrollTop === globalThis.before; globalThis.before = scrollTop; return rests; }, undefined, { polling: 300 });
    const at = await page.locator(".grid").evaluate((e) => e.scrollTop), top = await page.locator(".grid").evaluate((e) => e.getBoundingClientRect().top);
    const shown = await (await rowsIn(page, ":not(.group)")).evaluateAll((rows, from) => rows.findIndex((r) => r.getBoundingClientRect().top > from), top + 100);
    const row = page.locator(ENTRIES).nth(shown), name = await row.locator(".text").textContent();
    await row.tap();
    await page.locator("aside[aria-label=Entry] table.values").waitFor();
    check((await page.locator("aside h2").textContent()).endsWith(name.split(".").at(-1)), `${await page.locator("aside h2").textContent()} and not ${name}`);
    await expectTouchable(page, "the entry");
    await page.goBack();
    await page.locator("aside[aria-label=Entry]").waitFor({ state: "detached" });
    check(Math.abs(await page.locator(".grid").evaluate((e) => e.scrollTop) - at) < 60, "the list is elsewhere");
  });
}

async function testViewsByTouch(page) {
  await test("by touch, every view is opened and has targets that a finger can hit", async () => {
    await openSample(page, "dcp_tp_fsdp2");
    for (const view of ["Problems", "Files", "Optimizer", "Names", "Compare", "Convert…", "Reshard…"]) {
      await page.getByRole("tab", { name: view === "Problems" ? /^Problems/ : view.replace("…", "") }).tap();
      await page.locator(READY[view]).first().waitFor();
      await expectTouchable(page, view);
    }
  });
  await test("by touch, the list of commands and entries opens, and Back or a tap beside it closes it", async () => {
    await page.getByRole("tab", { name: "Contents" }).tap();
    const dialog = page.getByRole("dialog", { name: "Go to" }), ask = async () => {
      await tap(page, "button", "Menu");
      await page.locator(".menu .items").getByRole("button", { name: /^Go to an entry/ }).tap();
      await dialog.waitFor();
    };
    await ask();
    await expectTouchable(page, "the list of commands");
    await page.touchscreen.tap(195, 830);
    await dialog.waitFor({ state: "detached" });
    await ask();
    await page.goBack();
    await dialog.waitFor({ state: "detached" });
    await page.getByRole("tab", { name: "Contents" }).tap();
    await ask();
    await page.locator("dialog input").fill("emb.weight");
    await page.getByRole("option", { name: /emb\.weight/ }).first().tap();
    await page.locator("aside h2", { hasText: "emb.weight" }).waitFor();
    await page.goBack();
    await page.locator("aside[aria-label=Entry]").waitFor({ state: "detached" });
  });
  await test("by touch, two checkpoints are compared, and an entry of both is shown and left", async () => {
    await page.getByRole("tab", { name: "Compare" }).tap();
    await page.locator(".view .samples button", { hasText: "dcp_fsdp2" }).first().tap();
    await page.locator(".current[aria-busy=false] .verdict-line").waitFor();
    await expectTouchable(page, "the comparison");
    await page.locator(ENTRIES).first().tap();
    await page.locator("[aria-label='B of the comparison'] dl").first().waitFor();
    await expectTouchable(page, "an entry of both");
    await page.goBack();
    await page.locator("aside[aria-label=Entry]").waitFor({ state: "detached" });
    await page.locator(".current[aria-busy=false] .verdict-line").waitFor();
  });
}

/** What a screen reader cannot say: drawings that are neither hidden from it nor have a text, and controls and tables without a name. */
const unnamed = (page) => page.evaluate(() => {
  const shown = (e) => e.checkVisibility({ visibilityProperty: true }), hidden = (e) => e.closest("[aria-hidden=true]") !== null, id = (e) => `${e.localName}.${e.getAttribute("class") ?? ""}`;
  const name = (e) => e.getAttribute("aria-label") ?? document.getElementById(e.getAttribute("aria-labelledby") ?? "")?.textContent ?? e.labels?.[0]?.textContent ?? "";
  const drawings = [...document.querySelectorAll("svg, canvas, img")].filter((e) => shown(e) && !hidden(e) && (e.getAttribute("role") !== "img" || !/\w\w/.test(name(e))));
  const controls = [...document.querySelectorAll("input, select, textarea, progress, dialog, [role=treegrid], [role=tablist], [role=listbox], [role=combobox], [role=separator], [role=group], [role=region], section, aside")].filter((e) => shown(e) && !name(e).trim());
  const buttons = [...document.querySelectorAll("button, summary, [role=tab]")].filter((e) => shown(e) && !(name(e) || e.textContent).replace(/[^\p{L}\p{N}?]/gu, ""));
  const tables = [...document.querySelectorAll("table")].filter((e) => shown(e) && e.querySelector("td") && !e.querySelector("th") && !e.closest("[aria-label]"));
  return [...drawings, ...controls, ...buttons, ...tables].map(id);
});
async function expectNames(page, where) {
  const found = await unnamed(page);
  check(found.length === 0, `${where}: ${found.join(", ")}`);
}

async function testNames(page) {
  await test("a screen reader is told names and roles of every view, and of an entry with its figures", async () => {
    await openSample(page, "dcp_tp_fsdp2");
    await expectNames(page, "Contents");
    await page.getByLabel("Filter").fill("model.block.down.weight");
    await page.locator(".filter [role=status][aria-busy=false]", { hasText: /^1 match/ }).waitFor();
    await page.locator(ENTRIES).first().click();
    await page.getByRole("button", { name: /^Statistics/ }).click();
    await page.locator("aside dt", { hasText: "std" }).waitFor();
    await expectNames(page, "an entry");
    const figures = await page.locator("aside").getByRole("img").evaluateAll((l) => l.map((e) => e.getAttribute("aria-label")));
    for (const says of [/^4 chunks; /, /^\d+ bins from /, /^Heat map of 8 × 8 values/]) check(figures.some((text) => says.test(text)), `${says} is not among ${figures.join(" | ")}`);
    await page.getByRole("button", { name: "Close entry" }).click();
    for (const view of ["Problems", "Files", "Optimizer", "Names", "Compare", "Convert…", "Reshard…", "Would it load?", "Share"]) {
      await goTo(page, view === "Problems" ? /^Problems/ : view);
      await page.locator(READY[view]).first().waitFor();
      await expectNames(page, view);
    }
  });
  await test("the tree is a treegrid whose rows have a level, a state and a position, and whose columns have names", async () => {
    await goTo(page, "Contents");
    await page.getByLabel("Filter").fill("");
    await page.locator(".filter [role=status][aria-busy=false]", { hasText: /^$/ }).waitFor({ state: "attached" });
    const grid = page.getByRole("treegrid", { name: "Entries" });
    const columns = await grid.getByRole("columnheader").allTextContents(), rows = await (await rowsIn(page)).evaluateAll((l) => l.map((r) => ({ text: r.textContent, level: r.ariaLevel, expanded: r.ariaExpanded, index: Number(r.getAttribute("aria-rowindex")), cells: r.querySelectorAll("[role=gridcell]").length })));
    check(columns.length === 5 && columns.every((text) => /\w/.test(text)) && rows.every((r) => r.cells === 5 && Number(r.level) >= 1), JSON.stringify({ columns, rows }));
    check(new Set(rows.map((r) => r.index)).size === rows.length && rows.some((r) => r.expanded === "true") && rows.some((r) => r.expanded === null), JSON.stringify(rows));
    check(Number(await grid.getAttribute("aria-rowcount")) >= rows.length + 1, "it has more rows than it says");
    await grid.focus();
    await page.keyboard.press("Home");
    await page.keyboard.press("ArrowDown");
    const active = await grid.getAttribute("aria-activedescendant");
    check(await page.locator(`[id="${active}"]`).getAttribute("aria-rowindex") === "3", `${active} is the row that is read`);
  });
  await test("dialogs have names, take the focus and give it back", async () => {
    for (const [key, name] of [["Control+k", "Go to"], ["?", "Shortcuts"]]) {
      await page.locator(".grid").focus();
      await page.keyboard.press(key);
      const dialog = page.getByRole("dialog", { name });
      await dialog.waitFor();
      await expectNames(page, name);
      check(await dialog.evaluate((e) => e.contains(document.activeElement)), `${name} does not have the focus`);
      await page.keyboard.press("Escape");
      await dialog.waitFor({ state: "detached" });
      check(await page.evaluate(() => document.activeElement.classList.contains("grid")), "the focus did not return");
    }
  });
  await test("what is found and what is done is announced", async () => {
    await goTo(page, /^Problems/);
    await page.getByRole("button", { name: /^Check every byte/ }).click();
    await page.getByRole("status").filter({ hasText: "Every byte was checked" }).waitFor();
    await goTo(page, "Compare");
    await page.locator(".view .samples button", { hasText: "dcp_hsdp" }).click();
    await page.getByRole("status").filter({ hasText: "values not compared yet" }).waitFor();
    await expectNames(page, "a comparison");
  });
}

export async function testTours({ page, url, broken }) {
  const scratch = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-tours-"));
  try {
    await page.goto(url);
    await page.locator(".samples button").first().waitFor();
    await testNames(page);
    const phone = await launch(PHONE);
    try {
      const touched = await phone.context.newPage();
      touched.on("pageerror", (e) => broken.push(e.message));
      await touched.goto(url);
      await touched.locator(".samples button").first().waitFor();
      await testListByTouch(touched, scratch);
      await testViewsByTouch(touched);
    } finally {
      await phone.close();
    }
    await test("no tour breaks the page", () => check(broken.length === 0, broken.join("; ")));
  } finally {
    fs.rmSync(scratch, { recursive: true });
  }
}
