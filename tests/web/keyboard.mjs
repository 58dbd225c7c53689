/** The whole path with the keyboard alone: open, look, check, compare, convert, reshard. What has the focus must be seen after every
 *  key, and the focus returns to where it came from. */
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { PATIENCE, rowsIn } from "./browser.mjs";
import { takePickers } from "./files.mjs";
import { check, test } from "../support/harness.mjs";
import { lendDirectory } from "./opening.mjs";
import { count, made } from "./product.mjs";

const MOST_TABS = 60, TABS = /^(Contents|Problems( \d+)?|Files|Optimizer|Names|Compare|Convert|Reshard)$/;

/** The name of what has the focus, and why it would not be seen. */
const focused = (page) => page.evaluate(() => {
  const e = document.activeElement, style = getComputedStyle(e), box = e.getBoundingClientRect();
  const name = e.getAttribute("aria-label") ?? e.labels?.[0]?.textContent ?? e.textContent.slice(0, 60);
  const hidden = e === document.body ? "nothing has the focus" : !e.matches(":focus-visible") ? "the focus is not shown"
    : !e.matches(".divider") && (style.outlineStyle === "none" || parseFloat(style.outlineWidth) < 2) ? "there is no outline" // the divider has a broad line
    : box.right <= 0 || box.bottom <= 0 || box.left >= innerWidth || box.top >= innerHeight ? "it is out of sight" : "";
  return { name, role: e.getAttribute("role") ?? e.localName, hidden };
});

async function see(page) {
  const { name, role, hidden } = await focused(page);
  check(!hidden, `${role} “${name}”: ${hidden}`);
  return name;
}

/** Waits until something of this name has the focus, and it is seen. */
async function expectFocus(page, name) {
  const is = (text) => typeof name === "string" ? text === name : name.test(text), end = Date.now() + PATIENCE;
  while (!is((await focused(page)).name)) {
    if (Date.now() > end) throw new Error(`${JSON.stringify(await focused(page))} has the focus, and not ${name}`);
    await page.waitForTimeout(50);
  }
  await see(page);
}

async function press(page, ...keys) {
  for (const key of keys) {
    await page.keyboard.press(key);
    await page.waitForTimeout(30);
  }
}

/** Presses Tab until what has this name has the focus. Everything on the way must be seen. */
async function tabTo(page, name, key = "Tab") {
  const passed = [];
  for (let i = 0; i < MOST_TABS; i++) {
    await press(page, key);
    const got = await see(page);
    if (typeof name === "string" ? got === name : name.test(got)) return;
    passed.push(got);
  }
  throw new Error(`${name} was not reached: ${passed.join(" · ").slice(0, 600)}`);
}

const rows = (page) => page.locator(".window .row .text").first().waitFor();
const tab = async (page, name) => {
  for (let i = 0; i < 9 && !(await focused(page)).name.startsWith(name); i++) {
    if ((await focused(page)).role !== "tab") await tabTo(page, TABS, "Shift+Tab");
    if (!(await focused(page)).name.startsWith(name)) await press(page, "ArrowRight");
  }
  await expectFocus(page, new RegExp(`^${name}`));
};

async function testOpeningByKeys(page, url, scratch) {
  await test("a URL is pasted and opened, and the list has the focus", async () => {
    await page.goto(url);
    await page.locator(".samples button").first().waitFor();
    await press(page, "Control+k"); // there is nothing to go to yet
    await tabTo(page, /^URL of a file/);
    await page.keyboard.insertText("safetensors_index/model.safetensors.index.json");
    await press(page, "Enter");
    await rows(page);
    await expectFocus(page, "Entries");
    check(await page.getByRole("dialog").count() === 0, "the palette opened by itself");
  });
  await test("the menu leads back to the start page, and a sample opens", async () => {
    await tabTo(page, "Menu", "Shift+Tab");
    await press(page, "Enter");
    await expectFocus(page, /^Go to an entry/);
    await press(page, "ArrowUp");
    await expectFocus(page, "Open another");
    await press(page, "Enter");
    await page.locator(".samples button").first().waitFor();
    await expectFocus(page, "Menu");
    await tabTo(page, "dcp_tp_fsdp2");
    await press(page, "Enter");
    await rows(page);
    await expectFocus(page, "Entries");
  });
  await test("files are chosen, and a recent checkpoint is opened and forgotten", async () => {
    await page.goto(url);
    await page.locator(".samples button").first().waitFor();
    await lendDirectory(page, "dcp_fsdp2");
    await tabTo(page, "Choose directory…");
    await press(page, "Enter");
    await rows(page);
    await expectFocus(page, "Entries");
    await page.waitForFunction(() => new Promise((resolve) => { const r = indexedDB.open("tessera"); r.onsuccess = () => { const has = r.result.objectStoreNames.contains("recent"); r.result.close(); resolve(has); }; }));
    await page.goto(url);
    await page.locator(".recents button").first().waitFor();
    await tabTo(page, /^dcp_fsdp2\d/);
    await press(page, "Enter");
    await rows(page);
    await expectFocus(page, "Entries");
    await tabTo(page, "Tessera", "Shift+Tab");
    await press(page, "Enter");
    await page.locator(".recents button").first().waitFor();
    await tabTo(page, "Forget dcp_fsdp2");
    await press(page, "Enter");
    await page.locator(".recents").waitFor({ state: "detached" });
    await press(page, "Tab");
    await see(page);
    await page.reload(); // without the directory that was lent
    await page.locator(".samples button").first().waitFor();
    const chosen = made(scratch, "big.safetensors", { big: ["float32", [3, 100, 70], count(21000, (i) => i / 7)], one: ["float32", [2], [1, 2]], two: ["int64", [9], count(9)] });
    await tabTo(page, "Choose files…");
    const [chooser] = await Promise.all([page.waitForEvent("filechooser"), page.keyboard.press("Enter")]);
    await chooser.setFiles(chosen);
    await rows(page);
    await expectFocus(page, "Entries");
  });
}

async function testEntryByKeys(page) {
  await test("an entry is shown, its parts are reached, and closing it returns to the list", async () => {
    await press(page, "Home", "Enter");
    await page.locator("table.values").waitFor();
    await expectFocus(page, "Entries");
    await tabTo(page, "Copy name");
    await tabTo(page, "Close entry");
    await press(page, "Enter");
    await page.locator("aside[aria-label=Overview]").waitFor();
    await expectFocus(page, "Entries");
    await press(page, "Enter");
    await page.locator("aside[aria-label=Entry]").waitFor();
    await press(page, "Escape");
    await page.locator("aside[aria-label=Overview]").waitFor();
    await expectFocus(page, "Entries");
  });
  await test("values are stepped through, and a button at its end keeps the focus", async () => {
    await press(page, "Enter");
    await page.locator("table.values").waitFor();
    const slice = () => page.getByLabel("Slice").inputValue();
    await tabTo(page, "Forward along dim 1");
    await press(page, "Enter");
    await page.locator("table.values tbody th", { hasText: /36$/ }).first().waitFor(); // the last 64 of 100
    check(await slice() === "0,36:100,0:64", await slice());
    await expectFocus(page, "Forward along dim 1");
    await press(page, "Enter");
    check(await slice() === "0,36:100,0:64", await slice());
    await press(page, "Shift+Tab");
    await expectFocus(page, "Back along dim 1");
    await press(page, "Enter");
    await page.waitForFunction(() => document.querySelector('[aria-label="Slice"]').value === "0,0:64,0:64");
    await expectFocus(page, "Back along dim 1");
  });
  await test("a button that has done its work leaves the focus where it was", async () => {
    await tabTo(page, /^Statistics and histogram/, "Shift+Tab");
    await press(page, "Enter");
    await page.locator(".histogram").waitFor();
    await page.getByRole("button", { name: /^Statistics/ }).waitFor({ state: "detached" });
    await page.locator("aside :focus").waitFor(); // given after the page has been drawn
    await see(page);
    await tabTo(page, "Slice");
  });
  await test("columns sort", async () => {
    await tabTo(page, /^dtype/, "Shift+Tab");
    const order = async () => (await (await rowsIn(page, " .text")).allTextContents()).join();
    await press(page, "Enter");
    await page.waitForFunction(() => [...document.querySelectorAll(".window .row .text")].map((e) => e.textContent).join() === "big,one,two");
    await press(page, "Enter");
    await page.waitForFunction(() => document.querySelector(".window .row .text").textContent === "two");
    check(await order() === "two,big,one", await order());
    await expectFocus(page, /^dtype/);
  });
}

async function openByKeys(page, name) {
  await tabTo(page, "Tessera", "Shift+Tab");
  await press(page, "Enter");
  await page.locator(".samples button").first().waitFor();
  await tabTo(page, name);
  await press(page, "Enter");
  await rows(page);
  await expectFocus(page, "Entries");
}

async function testViewsByKeys(page) {
  await test("Problems: a finding leads to its entry and back, and a check that is done leaves the focus in the view", async () => {
    await openByKeys(page, "broken_dcp_hole");
    await tab(page, "Problems");
    await tabTo(page, "weight");
    await press(page, "Enter");
    await page.locator("aside .map .gap").waitFor();
    await expectFocus(page, "weight");
    await tabTo(page, "Close entry");
    await press(page, "Enter");
    await page.locator("aside").waitFor({ state: "detached" });
    await expectFocus(page, "weight");
    await tabTo(page, /^Check every byte/, "Shift+Tab");
    await press(page, "Enter");
    await page.getByText("Every byte was checked").waitFor();
    await page.locator(".job").waitFor({ state: "detached" });
    await page.locator("#panel:focus, #panel :focus").waitFor();
    await see(page);
  });
  await test("Compare: another checkpoint, its values, an entry", async () => {
    await openByKeys(page, "dcp_fsdp2");
    await tab(page, "Compare");
    await page.locator(".view .samples button").first().waitFor();
    await tabTo(page, "dcp_hsdp");
    await press(page, "Enter");
    await page.locator(".current[aria-busy=false] .verdict-line").waitFor();
    await expectFocus(page, "Comparison");
    await tabTo(page, /^Values/, "Shift+Tab");
    await press(page, "Enter");
    await page.locator(".current[aria-busy=false] .verdict-line", { hasText: "values included" }).waitFor();
    await expectFocus(page, "Values");
    await tabTo(page, "Filter");
    await press(page, "Control+a", "Delete", "ArrowDown");
    await expectFocus(page, "Comparison");
    await press(page, "End", "Enter");
    await page.locator("aside[aria-label=Entry] h3", { hasText: "Comparison" }).waitFor();
    await press(page, "Escape");
    await page.locator("aside").waitFor({ state: "detached" });
    await expectFocus(page, "Comparison");
  });
  await test("Compare: a third checkpoint becomes a column, and all are read layer by layer", async () => {
    await tabTo(page, "Layer by layer", "Shift+Tab");
    await press(page, "Enter");
    await page.locator("section[aria-label=Series]").waitFor();
    await expectFocus(page, "Layer by layer");
    await tabTo(page, "Add a checkpoint");
    await press(page, "Enter");
    await page.locator("section[aria-label=Series] .samples button").first().waitFor();
    await tabTo(page, "dcp_tp_fsdp2");
    await press(page, "Enter");
    await page.locator("[aria-label=Columns] li", { hasText: "dcp_tp_fsdp2" }).waitFor();
    await see(page);
    await tabTo(page, /^Read norms/);
    await press(page, "Enter");
    await page.locator("table.series td:nth-of-type(3)", { hasText: /\d/ }).first().waitFor(); // the others are shown before it is read
    const rows = await page.locator("table.series tbody tr").evaluateAll((list) => list.map((row) => [...row.querySelectorAll("td")].map((td) => td.textContent)));
    check(rows.every((cells) => cells.length === 3) && [0, 1, 2].every((i) => rows.some((cells) => Number(cells[i]) > 0)), JSON.stringify(rows)); // not all have the same layers
    await see(page);
  });
  const saved = async (name) => {
    await tabTo(page, "Save…");
    const [download] = await Promise.all([page.waitForEvent("download"), page.keyboard.press("Enter")]);
    check(download.suggestedFilename() === name, download.suggestedFilename());
    await page.locator(".written").waitFor();
    await expectFocus(page, "Save…");
  };
  await test("Convert: the questions are answered and a file is saved", async () => {
    await takePickers(page);
    await tab(page, "Convert");
    await page.locator("section[aria-label=Save] table").waitFor();
    await tabTo(page, "Everything");
    await press(page, "ArrowUp");
    await expectFocus(page, "Weights only");
    await tabTo(page, "Form");
    await page.keyboard.type("torch.save");
    await page.locator("td", { hasText: ".pt" }).first().waitFor();
    await saved("dcp_fsdp2.pt");
  });
  await test("Reshard: a number of ranks, and the files are saved", async () => {
    await tab(page, "Reshard");
    await page.locator("section[aria-label=Save] table").waitFor();
    await tabTo(page, "Ranks");
    await press(page, "Control+a");
    await page.keyboard.type("3");
    await page.locator("td", { hasText: "__2_0.distcp" }).waitFor();
    await saved("dcp_fsdp2-resharded.zip");
  });
}

async function testDialogsByKeys(page) {
  await test("the palette goes to a view and to an entry, and Escape returns to where it was called", async () => {
    await tab(page, "Files");
    await page.locator(".treemap").waitFor();
    await tabTo(page, ".metadata");
    await press(page, "Control+k");
    await expectFocus(page, "Go to");
    await press(page, "Escape");
    await expectFocus(page, ".metadata");
    await press(page, "Control+k");
    await page.keyboard.type("optim");
    await press(page, "Enter");
    await page.locator("section[aria-label=Optimizer]").waitFor();
    await page.locator("#panel:focus").waitFor();
    await see(page);
    await press(page, "Control+k");
    await page.keyboard.type("emb.weight");
    await page.getByRole("option", { name: /emb\.weight/ }).first().waitFor();
    await press(page, "Enter");
    await page.locator("aside h2", { hasText: "emb.weight" }).waitFor();
    await expectFocus(page, "Entries");
  });
  await test("the shortcuts open from the menu and by ?, and the focus returns", async () => {
    await tabTo(page, "Menu", "Shift+Tab");
    await press(page, "Enter", "ArrowDown", "ArrowDown", "ArrowDown");
    await expectFocus(page, /^Shortcuts/);
    await press(page, "Enter");
    await page.getByRole("dialog", { name: "Shortcuts" }).waitFor();
    await press(page, "Escape");
    await page.getByRole("dialog").waitFor({ state: "detached" });
    await expectFocus(page, "Menu");
    await press(page, "?");
    await page.getByRole("dialog", { name: "Shortcuts" }).waitFor();
    await press(page, "Enter"); // its button closes it
    await page.getByRole("dialog").waitFor({ state: "detached" });
    await expectFocus(page, "Menu");
  });
  await test("the menu's views open, and Tab beyond its end closes it", async () => {
    await press(page, "Enter", "ArrowDown");
    await expectFocus(page, "Would it load?");
    await press(page, "Enter");
    await page.locator("section[aria-label='Layout contract']").waitFor();
    await expectFocus(page, "Menu");
    await press(page, "Enter", "ArrowUp", "Tab");
    await page.locator(".menu .items").waitFor({ state: "detached" });
    await see(page);
    await press(page, "Shift+Tab");
    await expectFocus(page, "Menu");
  });
  await test("on a narrow page an entry has the focus, and Escape returns to the list", async () => {
    await page.setViewportSize({ width: 390, height: 780 });
    await tabTo(page, TABS);
    await press(page, "Enter"); // none was chosen, so it is the first
    if (await page.locator("aside[aria-label=Entry]").count()) await press(page, "Escape");
    await tabTo(page, "Entries");
    await press(page, "End", "Enter");
    await expectFocus(page, "Entry");
    await press(page, "Escape");
    await page.locator("aside[aria-label=Entry]").waitFor({ state: "detached" });
    await expectFocus(page, "Entries");
    await page.setViewportSize({ width: 1280, height: 800 });
  });
}

export async function testKeyboard({ page, url, broken }) {
  const scratch = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-keyboard-"));
  try {
    await testOpeningByKeys(page, url, scratch);
    await testEntryByKeys(page);
    await testViewsByKeys(page);
    await testDialogsByKeys(page);
    await test("no key breaks the page", () => check(broken.length === 0, broken.join("; ")));
  } finally {
    fs.rmSync(scratch, { recursive: true });
  }
}
