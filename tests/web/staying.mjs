/** What is open stays open until another checkpoint can be shown. */
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { samples } from "./browser.mjs";
import { check, test } from "./harness.mjs";
import { goTo } from "./views.mjs";

const titleOf = async (page, wanted) => page.locator(".top h1", { hasText: wanted }).waitFor();
const ready = (page) => page.locator(".window .row .text").first().waitFor();

/** Drops files and directories in the middle of the page. */
async function dropperOf(page, context) {
  const session = await context.newCDPSession(page);
  return async (...paths) => {
    const data = { items: [], files: paths, dragOperationsMask: 1 };
    for (const type of ["dragEnter", "dragOver", "drop"]) await session.send("Input.dispatchDragEvent", { type, x: 640, y: 500, data });
  };
}

async function testDrops(page, url, drop, scratch) {
  const notes = path.join(scratch, "notes.txt"), folder = path.join(scratch, "folder");
  fs.mkdirSync(folder);
  for (const at of [notes, path.join(folder, "readme.txt")]) fs.writeFileSync(at, "not a checkpoint\n");
  for (const [what, target, view, mark] of [["file", notes, "Files", ".treemap"], ["directory", folder, "Convert…", "section[aria-label=Convert]"], ["file below a long list", notes, "Contents", ".window .row"]]) {
    await test(`a dropped ${what} that is not a checkpoint leaves the open one as it is, and says so there`, async () => {
      await page.goto(url);
      await page.locator(".samples button").first().waitFor();
      await drop(path.join(samples, "dcp_fsdp2"));
      await ready(page);
      await page.locator(".window .row:not(.group)").first().click();
      await page.locator("aside .map").waitFor();
      await goTo(page, view);
      await page.locator(mark).first().waitFor();
      await page.evaluate(() => scrollTo(0, document.documentElement.scrollHeight));
      await drop(target);
      await page.locator(".page > .trouble").waitFor();
      check(await page.locator(".page > .trouble").evaluate((e) => { const { top, bottom } = e.getBoundingClientRect(); return top >= 0 && bottom <= innerHeight; }), "the message is out of sight");
      await titleOf(page, "dcp_fsdp2");
      check(await page.locator(mark).first().isVisible() && await page.locator("aside .map").isVisible(), "another view");
      await page.getByRole("button", { name: "Dismiss" }).click();
      await page.getByRole("button", { name: "Close entry" }).click();
      await goTo(page, "Contents");
      await page.locator(".window .row:not(.group)").nth(1).click();
      await page.getByRole("button", { name: "Show values" }).click(); // its worker still answers
      await page.locator("table.values").waitFor();
    });
  }
  await test("another checkpoint replaces the open one", async () => {
    await drop(path.join(samples, "dcp_hsdp"));
    await titleOf(page, "dcp_hsdp");
    await ready(page);
    check(await page.locator("aside .map").count() === 0, "an entry of the old one is shown");
  });
  await test("of several dropped checkpoints none needs to be chosen", async () => {
    await goTo(page, "Files");
    await drop(path.join(samples, "dcp_fsdp2"), path.join(samples, "safetensors_index"));
    await page.getByRole("heading", { name: "Which one?" }).waitFor();
    await page.getByRole("button", { name: "Return to dcp_hsdp" }).click();
    await page.locator(".treemap").waitFor();
    await drop(path.join(samples, "dcp_fsdp2"), path.join(samples, "safetensors_index"));
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
}

export async function testStaying({ page, url, context, broken }) {
  const scratch = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-staying-")), drop = await dropperOf(page, context);
  try {
    await testDrops(page, url, drop, scratch);
  } finally {
    fs.rmSync(scratch, { recursive: true });
  }
  return test("none of these breaks the page", () => check(broken.length === 0, broken.join("; ")));
}
