/** A smoke test in Firefox, by WebDriver BiDi: opens, validates, compares and converts. Firefox gives no access to
 *  directories for writing, so a conversion uses the origin's private file system and a download. */
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { spawnSync } from "node:child_process";
import { createRequire } from "node:module";
import { PATIENCE, root, samples, serve } from "./browser.mjs";
import { diffOf, expectSame, filesBelow, tessera } from "./files.mjs";
import { check, skip, test } from "../support/harness.mjs";

const require = createRequire(path.join(root, "web/package.json"));
const FIREFOX = ["/usr/bin/firefox-esr", "/usr/bin/firefox"].find((at) => fs.existsSync(at));

/** Waits until `condition`, which runs in the page, returns true. The waiting of puppeteer compiles text in the page, which the
 *  page's Content-Security-Policy forbids, and Firefox 140 then refuses it. */
async function until(page, condition, ...args) {
  const end = Date.now() + PATIENCE;
  while (!await page.evaluate(condition, ...args)) {
    if (Date.now() > end) throw new Error(`not reached: ${args.join(", ")}`);
    await new Promise((resolve) => { setTimeout(resolve, 50); });
  }
}

const shown = (page, selector, text = "") => until(page, (s, t) => [...document.querySelectorAll(s)].some((e) => e.textContent.includes(t)), selector, text);
const click = (page, selector, text = "") => until(page, (s, t) => {
  const found = [...document.querySelectorAll(s)].find((e) => e.textContent.trim().startsWith(t) && !e.disabled);
  found?.click();
  return found !== undefined;
}, selector, text);
const select = (page, selector, value) => until(page, (s, v) => {
  const found = document.querySelector(s);
  if (!found) return false;
  found.value = v;
  return found.dispatchEvent(new Event("change", { bubbles: true }));
}, selector, value);

/** Loads the page again, but only when it loads nothing more: what a navigation cuts short, such as a file that the page is storing for
 *  use without a network, Firefox reports as an error of the page. */
async function goTo(page, url) {
  if (page.url().startsWith(url)) {
    await until(page, () => document.documentElement.dataset.kept === "yes");
    await page.waitForNetworkIdle({ idleTime: 300 });
  }
  await page.goto(url);
}

async function openSample(page, url, name) {
  await goTo(page, url);
  await click(page, ".samples button", name);
  await shown(page, ".window .row .text");
}

/** Drops a file of a sample on the page. No protocol lets a test drag from outside the browser, so the events are made in the page. */
const drop = (page, file) => page.evaluate(async (at) => {
  const dataTransfer = new DataTransfer(), response = await fetch(at);
  dataTransfer.items.add(new File([await response.blob()], at.split("/").pop()));
  for (const type of ["dragenter", "dragover", "drop"]) document.querySelector("main").dispatchEvent(new DragEvent(type, { dataTransfer, bubbles: true, cancelable: true }));
}, file);

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
    await click(page, "#tab-problems");
    await click(page, "button", "Check every byte");
    await shown(page, ".view", "Every byte was checked. No problems were found.");
  });
  await test("Firefox finds a planted fault", async () => {
    await openSample(page, url, "broken_dcp_hole");
    await click(page, "#tab-problems");
    await shown(page, ".findings code", "layout/hole");
  });
  await test("Firefox compares two checkpoints by values", async () => {
    await openSample(page, url, "dcp_fsdp2");
    await click(page, "#tab-compare");
    await click(page, "section[aria-label=Compare] button", "dcp_hsdp");
    await shown(page, ".current[aria-busy=false] .verdict-line");
    await click(page, "button", "Values");
    await shown(page, ".current[aria-busy=false] .verdict-line", "values included");
  });
  await test("Firefox converts to the bytes of the command line, as a download", async () => {
    await openSample(page, url, "dcp_tp_fsdp2");
    await click(page, "#tab-convert");
    await select(page, "select[aria-label=Form]", "torch");
    await shown(page, "section[aria-label=Save] table");
    const taken = await watchDownloads(page);
    await click(page, "button", "Save…");
    await shown(page, ".written");
    const to = path.join(scratch, "converted.pt");
    tessera("convert", path.join(samples, "dcp_tp_fsdp2"), to, "--to", "torch");
    const bytes = await taken();
    check(bytes.equals(fs.readFileSync(to)), `${bytes.length} bytes instead of ${fs.statSync(to).size}, or other ones`);
  });
  await test("Firefox shows values and statistics of a tensor, which it finds by the palette", async () => {
    await openSample(page, url, "dcp_tp_fsdp2");
    await page.keyboard.down("Control");
    await page.keyboard.press("k");
    await page.keyboard.up("Control");
    await shown(page, "dialog[open] [role=option]", "Contents");
    await page.keyboard.type("block.down.weight");
    await shown(page, "dialog[open] [role=option]", "model.block.down.weight");
    await click(page, "dialog[open] [role=option]", "model.block.down.weight");
    await shown(page, "aside h2", "weight"); // a name has places where a line may end
    await shown(page, "aside table.values td");
    const { chunks } = JSON.parse(tessera("inspect", path.join(samples, "dcp_tp_fsdp2"), "--include", "model.block.down.weight", "--json")).entries[0];
    await shown(page, "aside section[aria-label='Shard map']", `${chunks.length} chunks`);
    check(await page.evaluate(() => document.querySelectorAll("aside table.values tbody td").length) === 64, "8 × 8 values");
    await click(page, "aside button", "Statistics and histogram");
    await shown(page, "aside dt", "std");
  });
  await test("Firefox plans a reshard and writes its files, as a zip", async () => {
    await click(page, "#tab-reshard");
    await shown(page, "section[aria-label=Save] td", ".distcp");
    const taken = await watchDownloads(page);
    await click(page, "section[aria-label=Save] button", "Save…");
    await shown(page, ".written");
    const zip = path.join(scratch, "resharded.zip"), to = path.join(scratch, "resharded"), native = path.join(scratch, "native");
    fs.writeFileSync(zip, await taken());
    const p = spawnSync("python3", ["-m", "zipfile", "-e", zip, to], { encoding: "utf8" });
    check(p.status === 0, p.stderr);
    const options = (await page.evaluate(() => document.querySelector(".command code").textContent)).replace(/^.*?(?= --)/, "").trim().split(/\s+/).map((word) => word.replace(/^'|'$/g, ""));
    tessera("reshard", path.join(samples, "dcp_tp_fsdp2"), native, ...options);
    const [made] = fs.readdirSync(to);
    expectSame(filesBelow(path.join(to, made)), filesBelow(native));
  });
  await test("Firefox opens what is dropped, and compares it with what is dropped on Compare", async () => {
    const [first, second] = [1, 2].map((n) => `safetensors_index/model-0000${n}-of-00003.safetensors`);
    await openSample(page, url, "dcp_fsdp2");
    await drop(page, first);
    await shown(page, ".top h1", path.basename(first));
    await click(page, "#tab-compare");
    await shown(page, "section[aria-label=Compare] .drop");
    await drop(page, second);
    await shown(page, ".current[aria-busy=false] .verdict-line", "values not compared yet");
    const { summary: { changed, added, removed } } = diffOf(path.join(samples, first), path.join(samples, second));
    await shown(page, ".current[aria-busy=false] .verdict-line", [changed && `${changed} changed`, removed && `${removed} only in A`, added && `${added} only in B`].filter(Boolean).join(", "));
  });
  await test("Firefox says of a broken file what is wrong, and opens the next", async () => {
    const damaged = path.join(samples, "broken_safetensors_truncated/model.safetensors"), refused = path.join(samples, "broken_dcp_metadata_truncated/.metadata");
    await goTo(page, url);
    const choose = async (...files) => {
      await shown(page, ".drop button", "Choose files…");
      const inputs = await page.$$(".drop input[type=file]");
      await inputs.at(-1).uploadFile(...files);
    };
    await choose(refused);
    await shown(page, ".trouble strong", ".metadata");
    await shown(page, ".trouble", "Code: ");
    await choose(damaged);
    await shown(page, ".banner", "damaged");
    await openSample(page, url, "dcp_fsdp2");
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
