/** A smoke test in Firefox, by WebDriver BiDi: opens, validates, compares and converts. Firefox gives no access to
 *  directories for writing, so a conversion uses the origin's private file system and a download. Usage: node
 *  tests/web/firefox.mjs */
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { createRequire } from "node:module";
import { PATIENCE, root, samples, serve } from "./browser.mjs";
import { tessera } from "./files.mjs";
import { check, report, skip, test } from "./harness.mjs";

const require = createRequire(path.join(root, "web/package.json"));
const FIREFOX = ["/usr/bin/firefox-esr", "/usr/bin/firefox"].find((at) => fs.existsSync(at));

const button = (page, text) => page.locator(`::-p-xpath(//button[normalize-space(.)=${JSON.stringify(text)}])`);
const shown = (page, selector, text) => page.waitForFunction((s, t) => [...document.querySelectorAll(s)].some((e) => e.textContent.includes(t)), {}, selector, text);

async function openSample(page, url, name) {
  await page.goto(url);
  await page.locator(`::-p-xpath(//ul[@class="samples"]//button[strong=${JSON.stringify(name)}])`).click();
  await page.waitForSelector(".window .row .text");
}

/** Returns the bytes of what the page downloads, which it provides as a blob. */
async function watchDownloads(page) {
  await page.evaluate(() => {
    const make = URL.createObjectURL;
    globalThis.downloads = [];
    URL.createObjectURL = (blob) => { globalThis.downloads.push(blob); return make.call(URL, blob); };
  });
  return () => page.evaluate(async () => {
    const bytes = new Uint8Array(await globalThis.downloads.at(-1).arrayBuffer());
    let text = "";
    for (let i = 0; i < bytes.length; i += 8192) text += String.fromCharCode(...bytes.subarray(i, i + 8192));
    return btoa(text);
  }).then((text) => Buffer.from(text, "base64"));
}

async function testPage(page, url, scratch) {
  const broken = [];
  page.on("pageerror", (e) => broken.push(e.message));
  await test("Firefox opens a checkpoint and checks every byte", async () => {
    await openSample(page, url, "dcp_tp_fsdp2");
    await page.locator("#tab-problems").click();
    await page.locator('::-p-xpath(//button[starts-with(., "Check every byte")])').click();
    await shown(page, ".view", "Every byte was checked. No problems were found.");
  });
  await test("Firefox finds a planted fault", async () => {
    await openSample(page, url, "broken_dcp_hole");
    await page.locator("#tab-problems").click();
    await shown(page, ".findings code", "layout/hole");
  });
  await test("Firefox compares two checkpoints by values", async () => {
    await openSample(page, url, "dcp_fsdp2");
    await page.locator("#tab-compare").click();
    await page.locator('::-p-xpath(//section[@aria-label="Compare"]//button[strong="dcp_hsdp"])').click();
    await page.waitForSelector(".verdict-line");
    await page.locator('::-p-xpath(//button[starts-with(., "Values")])').click();
    await shown(page, ".verdict-line", "values included");
  });
  await test("Firefox converts to the bytes of the command line, as a download", async () => {
    await openSample(page, url, "dcp_tp_fsdp2");
    await button(page, "Convert…").click();
    await page.waitForSelector('select[aria-label="Form"]');
    await page.select('select[aria-label="Form"]', "torch");
    await page.waitForSelector("section[aria-label=Save] table");
    const taken = await watchDownloads(page);
    await button(page, "Save…").click();
    await page.waitForSelector(".written");
    const to = path.join(scratch, "converted.pt");
    tessera("convert", path.join(samples, "dcp_tp_fsdp2"), to, "--to", "torch");
    const bytes = await taken();
    check(bytes.equals(fs.readFileSync(to)), `${bytes.length} bytes instead of ${fs.statSync(to).size}, or other ones`);
  });
  await test("nothing breaks the page in Firefox", () => check(broken.length === 0, broken.join("; ")));
}

export async function testFirefox() {
  if (!FIREFOX) return skip("the page in Firefox", "there is no firefox-esr, and it could not be installed");
  const puppeteer = require("puppeteer-core"), scratch = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-firefox-")), server = await serve();
  const browser = await puppeteer.launch({ browser: "firefox", executablePath: FIREFOX, headless: true, protocol: "webDriverBiDi", timeout: PATIENCE * 2 });
  try {
    const page = await browser.newPage();
    page.setDefaultTimeout(PATIENCE);
    await testPage(page, server.url, scratch);
  } finally {
    await browser.close();
    server.stop();
    fs.rmSync(scratch, { recursive: true });
  }
  return undefined;
}

if (process.argv[1] === new URL(import.meta.url).pathname) {
  await testFirefox();
  report();
}
