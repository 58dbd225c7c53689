/** What is open stays open until another checkpoint can be shown, and the address names what is open. */
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { ENTRIES, PATIENCE, samples } from "./browser.mjs";
import { tessera } from "./files.mjs";
import { check, test } from "../support/harness.mjs";
import { fromMenu, goTo } from "./views.mjs";

const LINKED = "safetensors_index/model-00001-of-00003.safetensors", TITLE = path.basename(LINKED);

const titleOf = async (page, wanted) => page.locator(".top h1", { hasText: wanted }).waitFor();
const ready = (page) => page.locator(".window .row .text").first().waitFor();
const urlIn = (page) => new URL(page.url()).searchParams.get("url");

/** Drops files and directories in the middle of the page. */
async function dropperOf(page, context) {
  const session = await context.newCDPSession(page);
  return async (...paths) => {
    const data = { items: [], files: paths, dragOperationsMask: 1 };
    for (const type of ["dragEnter", "dragOver", "drop"]) await session.send("Input.dispatchDragEvent", { type, x: 640, y: 500, data });
  };
}

/** Opens, reads, compares and looks at what Convert would write, and returns how much the tab then holds. */
async function heldAfter(page, session) {
  await page.getByRole("button", { name: "Tessera", exact: true }).click();
  await page.locator(".samples button", { hasText: "dcp_tp_fsdp2" }).click();
  await ready(page);
  await page.locator(ENTRIES).nth(1).click();
  await page.locator("aside table.values").waitFor();
  await goTo(page, "Compare");
  await page.locator(".samples button", { hasText: "dcp_fsdp2" }).click();
  await page.getByRole("button", { name: /^Values/ }).click();
  await page.locator(".current[aria-busy=false] .verdict-line", { hasText: "values included" }).waitFor();
  await goTo(page, "Convert…");
  await page.locator("section[aria-label=Save] table").waitFor();
  for (const end = Date.now() + PATIENCE; page.workers().length > 1 && Date.now() < end;) await page.waitForTimeout(20); // the worker that compared has ended, which the browser reports later
  await session.send("HeapProfiler.collectGarbage");
  const { metrics } = await session.send("Performance.getMetrics"), held = Object.fromEntries(metrics.map(({ name, value }) => [name, value]));
  return { nodes: held.Nodes, listeners: held.JSEventListeners, workers: page.workers().length };
}

/** Files that are chosen in a dialog would be held by the test. */
async function testHeld(page, context, url) {
  await test("nothing is kept of a checkpoint that was closed", async () => {
    await page.goto(url);
    const session = await context.newCDPSession(page);
    await session.send("Performance.enable");
    await heldAfter(page, session);
    const first = await heldAfter(page, session);
    for (let i = 0; i < 5; i++) await heldAfter(page, session);
    const last = await heldAfter(page, session);
    check(last.nodes < first.nodes + 40 && last.listeners < first.listeners + 10 && last.workers === 1, `${JSON.stringify(first)} became ${JSON.stringify(last)}`); // the start page alone has 125 nodes
  });
}

async function testDrops(page, url, drop, scratch) {
  const notes = path.join(scratch, "notes.txt"), directory = path.join(scratch, "directory");
  fs.mkdirSync(directory);
  for (const at of [notes, path.join(directory, "readme.txt")]) fs.writeFileSync(at, "not a checkpoint\n");
  await test("the message about what did not open leads back to the start page once it is dismissed", async () => {
    await page.goto(url);
    await page.locator(".samples button").first().waitFor();
    await drop(notes);
    await page.getByRole("button", { name: "Dismiss" }).click();
    await page.getByRole("heading", { name: "Inspect a PyTorch checkpoint" }).waitFor();
    await page.locator(".samples button", { hasText: "dcp_fsdp2" }).first().click();
    await ready(page);
  });
  for (const [what, target, view, mark] of [["file", notes, "Files", ".treemap"], ["directory", directory, "Convert…", "section[aria-label=Convert]"], ["file below a long list", notes, "Contents", ".window .row"]]) {
    await test(`a dropped ${what} that is not a checkpoint leaves the open one as it is, and says so there`, async () => {
      await page.goto(url);
      await page.locator(".samples button").first().waitFor();
      await drop(path.join(samples, "dcp_fsdp2"));
      await ready(page);
      await page.locator(ENTRIES).first().click();
      await page.locator("aside .map").waitFor();
      await goTo(page, view);
      await page.locator(mark).first().waitFor();
      await page.evaluate(() => scrollTo(0, document.documentElement.scrollHeight));
      await drop(target);
      await page.locator(".page > .trouble").waitFor();
      check(await page.locator(".page > .trouble").evaluate((e) => { const { top, bottom } = e.getBoundingClientRect(); return top >= 0 && bottom <= innerHeight; }), "the message is out of sight");
      await titleOf(page, "dcp_fsdp2");
      check(await page.locator(mark).first().isVisible() && (view === "Convert…" || await page.locator("aside .map").isVisible()), "another view"); // Convert has the whole width
      await page.getByRole("button", { name: "Dismiss" }).click();
      await goTo(page, "Contents");
      await page.getByRole("button", { name: "Close entry" }).click();
      await page.locator(ENTRIES).nth(1).click();
      await page.locator("table.values").waitFor(); // its worker still answers
    });
  }
  await test("another checkpoint replaces the open one", async () => {
    await drop(path.join(samples, "dcp_hsdp"));
    await titleOf(page, "dcp_hsdp");
    await ready(page);
    check(await page.locator("aside .map").count() === 0, "an entry of the old one is shown");
  });
  await test("Convert and Reshard ask again what would be written when another checkpoint replaces the open one", async () => {
    for (const [view, name] of [["Convert…", "torch_train_state"], ["Reshard…", "safetensors_index"]]) {
      await goTo(page, view);
      if (view === "Convert…") await page.getByLabel("Form", { exact: true }).selectOption("dcp");
      await page.locator("section[aria-label=Save] table").waitFor();
      await drop(path.join(samples, name));
      await titleOf(page, name);
      await page.locator("section[aria-label=Save] table").waitFor();
      if (view === "Convert…") check(await page.getByLabel("Form", { exact: true }).inputValue() === "safetensors", "the form is that of before");
    }
    await drop(path.join(samples, "dcp_hsdp"));
    await titleOf(page, "dcp_hsdp");
    await page.locator("section[aria-label=Save] table").waitFor();
  });
  await test("of several dropped checkpoints none needs to be chosen", async () => {
    await goTo(page, "Files");
    await drop(path.join(samples, "dcp_fsdp2"), path.join(samples, "dcp_tp_fsdp2"), path.join(samples, "safetensors_index"));
    await page.getByRole("heading", { name: "Which one?" }).waitFor();
    await page.getByRole("button", { name: "Return to dcp_hsdp" }).click();
    await page.locator(".treemap").waitFor();
    await drop(path.join(samples, "dcp_fsdp2"), path.join(samples, "dcp_tp_fsdp2"), path.join(samples, "safetensors_index"));
    await page.locator(".chooser button", { hasText: "safetensors_index" }).click();
    await titleOf(page, "safetensors_index");
  });
  await test("of two drops in a row the latter is opened", async () => {
    await drop(path.join(samples, "dcp_fsdp2"));
    await drop(path.join(samples, "dcp_hsdp"));
    await titleOf(page, "dcp_hsdp");
    await page.waitForTimeout(300);
    await titleOf(page, "dcp_hsdp");
  });
  await test("a layout that is dropped where a checkpoint is expected is sent to Would it load?", async () => {
    const layout = path.join(scratch, "layout.json");
    fs.writeFileSync(layout, tessera("layout", path.join(samples, "dcp_fsdp2")));
    await drop(path.join(samples, "dcp_fsdp2"));
    await titleOf(page, "dcp_fsdp2");
    await drop(layout);
    await page.locator(".page > .trouble", { hasText: "layout.json is a JSON document" }).filter({ hasText: "choose “Would it load?” and drop the document there" }).waitFor();
    await goTo(page, "Would it load?");
    await page.locator("section[aria-label='Would it load?']").waitFor();
    await drop(layout);
    await page.getByText("It would load").waitFor();
  });
  await test("an index that is damaged is not sent there", async () => {
    const index = path.join(scratch, "model.safetensors.index.json");
    fs.writeFileSync(index, fs.readFileSync(path.join(samples, "safetensors_index/model.safetensors.index.json")).subarray(0, 200));
    await goTo(page, "Contents");
    await drop(index);
    await page.locator(".page > .trouble", { hasText: "unterminated string" }).waitFor();
    check(!/Would it load/.test(await page.locator(".page > .trouble").textContent()), await page.locator(".page > .trouble").textContent());
  });
}

/** Another view replaces what is under the pointer. */
async function testReplaced(page, context) {
  const session = await context.newCDPSession(page);
  const drag = async (files, ...types) => {
    for (const type of types) await session.send("Input.dispatchDragEvent", { type, x: 640, y: 500, data: { items: [], files, dragOperationsMask: 1 } });
  };
  for (const [name, view, ready] of [["dcp_fsdp2", "files", ".treemap"], ["dcp_hsdp", "contents", ".window .row"]]) {
    await test(`a drop is not lost if ${view} replace what was under the pointer`, async () => {
      const files = [path.join(samples, name)];
      await drag(files, "dragEnter", "dragOver");
      await page.evaluate((to) => document.getElementById(`tab-${to}`).click(), view);
      await page.locator(ready).first().waitFor();
      await drag(files, "drop");
      await titleOf(page, name);
    });
  }
  await test("after a drag that was cancelled the page hears clicks again", async () => {
    await drag([path.join(samples, "dcp_fsdp2")], "dragEnter", "dragOver", "dragCancel");
    await page.mouse.move(640, 400);
    await page.locator(".page:not(.over)").waitFor();
    await goTo(page, "Files");
    await page.locator(".treemap").waitFor();
  });
}

async function testAddress(page, url, drop) {
  await test("a link stays in the address as it was given, and a reload opens it again", async () => {
    await page.goto(`${url}?url=${LINKED}&tab=files`);
    await page.locator(".treemap").waitFor();
    check(urlIn(page) === LINKED, page.url());
    await page.reload();
    await titleOf(page, TITLE);
  });
  await test("another checkpoint takes the link out of the address, and a reload does not open it", async () => {
    await drop(path.join(samples, "dcp_fsdp2"));
    await titleOf(page, "dcp_fsdp2");
    await page.waitForURL((u) => !u.searchParams.has("url"));
    await page.reload();
    await page.locator(".samples button").first().waitFor();
    check(urlIn(page) === null && await page.locator(".top h1").count() === 0, page.url());
  });
  await test("Back keeps the checkpoint, and does not bring the link of another one", async () => {
    await page.goto(`${url}?url=${LINKED}`);
    await ready(page);
    await goTo(page, "Files");
    await goTo(page, /^Problems/);
    await drop(path.join(samples, "dcp_fsdp2"));
    await titleOf(page, "dcp_fsdp2");
    for (const there of [".treemap", ".window .row"]) {
      await page.goBack();
      await page.locator(there).first().waitFor();
      await page.waitForURL((u) => !u.searchParams.has("url"));
      await titleOf(page, "dcp_fsdp2");
    }
  });
  await test("a URL that was typed is in the address, and is taken out when the checkpoint is closed", async () => {
    await fromMenu(page, "Open another");
    await page.getByLabel(/^URL/).fill(LINKED);
    await page.getByRole("button", { name: "Open URL" }).click();
    await titleOf(page, TITLE);
    await page.waitForURL((u) => u.searchParams.get("url") === `${url}${LINKED}`);
    await page.reload();
    await titleOf(page, TITLE);
    await fromMenu(page, "Open another");
    await page.waitForURL((u) => !u.searchParams.has("url"));
    await page.goBack();
    await page.waitForURL((u) => !u.searchParams.has("url"));
  });
  await test("a link that cannot be opened stays, so that a reload tries it again", async () => {
    await page.goto(`${url}?url=gone.safetensors`);
    await page.locator(".page > .trouble").waitFor();
    check(urlIn(page) === "gone.safetensors", page.url());
  });
}

export async function testStaying({ page, url, context, broken }) {
  const scratch = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-staying-")), drop = await dropperOf(page, context);
  try {
    await testHeld(page, context, url);
    await testDrops(page, url, drop, scratch);
    await testReplaced(page, context);
    await testAddress(page, url, drop);
  } finally {
    fs.rmSync(scratch, { recursive: true });
  }
  return test("none of these breaks the page", () => check(broken.length === 0, broken.join("; ")));
}
