/** Concurrent actions: the page shows the result of the latest request, in whatever order answers arrive. Gates hold answers
 *  back, so no test depends on speed. */
import fs from "node:fs";
import http from "node:http";
import os from "node:os";
import path from "node:path";
import { ENTRIES, PATIENCE, pick, rowsOf, samples } from "./browser.mjs";
import { check, test } from "../support/harness.mjs";
import { holding } from "./current.mjs";
import { goTo, openSample, showFields } from "./views.mjs";

const title = (page) => page.locator(".top h1").textContent();
const home = async (page) => {
  await page.getByRole("button", { name: "Tessera", exact: true }).click();
  await page.locator(".samples button").first().waitFor();
};

async function until(holds) {
  for (const end = Date.now() + PATIENCE; !holds();) {
    check(Date.now() < end, "nothing was asked for");
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

/** A site that serves a file by ranges. Requests for ranges from `held.from` on wait until `release` is called. */
function heldSite(file) {
  const bytes = fs.readFileSync(file), held = { from: Infinity, waiting: [] };
  const server = http.createServer((request, response) => {
    const allow = { "Access-Control-Allow-Origin": "*", "Access-Control-Allow-Headers": "Range", "Access-Control-Expose-Headers": "Content-Range" };
    const range = /^bytes=(\d+)-(\d+)$/.exec(request.headers.range ?? "");
    if (!range) return void response.writeHead(204, allow).end();
    const [from, to] = [Number(range[1]), Math.min(Number(range[2]), bytes.length - 1)];
    const answer = () => response.writeHead(206, { ...allow, "Content-Range": `bytes ${from}-${to}/${bytes.length}` }).end(bytes.subarray(from, to + 1));
    if (to < held.from) answer();
    else held.waiting.push(answer);
    return undefined;
  });
  return new Promise((resolve) => server.listen(0, "127.0.0.1", () => resolve({
    url: `http://127.0.0.1:${server.address().port}/${path.basename(file)}`,
    hold: (from) => { held.from = from; },
    waits: () => until(() => held.waiting.length > 0),
    release: () => { held.from = Infinity; held.waiting.splice(0).forEach((answer) => answer()); },
    stop: () => { server.closeAllConnections(); server.close(); },
  })));
}

async function onHeldSite(page, url, body) {
  const site = await heldSite(path.join(samples, "torch_train_state", fs.readdirSync(path.join(samples, "torch_train_state"))[0]));
  try {
    await page.goto(`${url}remote.html`);
    await page.locator(".samples button").first().waitFor();
    await page.getByLabel(/^URL/).fill(site.url);
    await body(site);
  } finally {
    site.stop();
  }
}

const checkEveryByte = (page) => page.getByRole("button", { name: /^Check every byte/ }).click();

/** Opens the site's file and starts the check of its bytes, which waits for some of them. */
async function beginCheck(page, site) {
  await page.getByRole("button", { name: "Open URL" }).click();
  await page.locator(".window .row .text").first().waitFor();
  await goTo(page, /^Problems/);
  site.hold(0);
  await checkEveryByte(page);
  await site.waits();
}

/** The page's own server behind a gate: requests whose path contains `held.name` wait. */
function gatedPages(url) {
  const held = { name: undefined, waiting: [] };
  const server = http.createServer(async (request, response) => {
    if (held.name && request.url.includes(held.name)) await new Promise((go) => held.waiting.push(go));
    const got = await fetch(new URL(request.url, url), { headers: request.headers.range ? { Range: request.headers.range } : {} });
    response.writeHead(got.status, Object.fromEntries([...got.headers].filter(([name]) => !/^(connection|keep-alive|transfer-encoding)$/.test(name)))).end(Buffer.from(await got.arrayBuffer()));
  });
  return new Promise((resolve) => server.listen(0, "127.0.0.1", () => resolve({
    url: `http://127.0.0.1:${server.address().port}/`,
    hold: (name) => { held.name = name; },
    waits: () => until(() => held.waiting.length > 0),
    release: () => { held.name = undefined; held.waiting.splice(0).forEach((go) => go()); },
    stop: () => { server.closeAllConnections(); server.close(); },
  })));
}

/** The first B is a form that only the second file of the module reads; the other one is there before that file is. */
async function waitingForRest(page, url) {
  const pages = await gatedPages(url);
  try {
    pages.hold("tessera-writers");
    await page.goto(pages.url);
    await openSample(page, "dcp_fsdp2");
    await goTo(page, "Compare");
    await page.evaluate(() => {
      const post = Worker.prototype.postMessage;
      globalThis.opens = new Map(); // whether each request was answered
      Worker.prototype.postMessage = function (message, ...rest) {
        if (message.kind === "open") {
          opens.set(message.id, false);
          this.addEventListener("message", ({ data }) => { if (data.id === message.id) opens.set(data.id, true); });
        }
        post.call(this, message, ...rest);
      };
    });
    const choose = (name) => page.locator(".samples button", { hasText: name }).first().click(), sums = page.locator(".current[aria-busy=false] .sums");
    await choose("torch_ranks_tp_fsdp2");
    await page.waitForFunction(() => opens.size === 1);
    await choose("dcp_tp_fsdp2");
    await sums.waitFor();
    const before = await sums.textContent();
    check(await page.evaluate(() => [...opens.values()].join()) === "false,true", "the first B did not wait");
    pages.release();
    await page.waitForFunction(() => [...opens.values()].every(Boolean));
    await page.getByRole("button", { name: "Sharding", exact: true }).click();
    await page.locator("[aria-pressed=true]", { hasText: "Sharding" }).waitFor();
    await sums.waitFor();
    check(await sums.textContent() === before, `“${before}” became “${await sums.textContent()}”`);
  } finally {
    pages.stop();
  }
}

async function testOpenings(page, url) {
  const pages = await gatedPages(url);
  await page.goto(pages.url);
  await test("a second checkpoint opened while the first is fetched stays", async () => {
    await page.locator(".samples button").first().waitFor();
    pages.hold("dcp_fsdp2/");
    await page.locator(".samples button", { hasText: "dcp_fsdp2" }).first().click();
    await pages.waits();
    await page.locator(".samples button", { hasText: "torch_train_state" }).click();
    await page.locator(".window .row .text").first().waitFor();
    pages.release();
    await page.waitForLoadState("networkidle");
    check(await title(page) === "torch_train_state", `${await title(page)} took its place`);
    await goTo(page, "Files");
    check(await page.locator("td", { hasText: "distcp" }).count() === 0, "the files are the first one's");
  });
  await test("closing while opening leaves the start page", async () => {
    await home(page);
    pages.hold("dcp_fsdp2/");
    await page.locator(".samples button", { hasText: "dcp_fsdp2" }).first().click();
    await pages.waits();
    await page.getByRole("button", { name: "Cancel" }).click();
    await page.locator(".job").waitFor({ state: "detached" });
    pages.release();
    await page.waitForLoadState("networkidle");
    check(await page.locator(".start").count() === 1 && await page.locator(".trouble, .job").count() === 0, "something opened, or was no longer right");
    await openSample(page, "dcp_tp_fsdp2");
  });
  await test("another B chosen while the first is fetched stays", async () => {
    await openSample(page, "dcp_fsdp2");
    await goTo(page, "Compare");
    pages.hold("dcp_tp_fsdp2/");
    await page.locator(".samples button", { hasText: "dcp_tp_fsdp2" }).first().click();
    await pages.waits();
    await page.locator(".samples button", { hasText: "dcp_hsdp" }).first().click();
    await page.locator(".current[aria-busy=false] .verdict-line", { hasText: "values not compared yet" }).waitFor();
    pages.release();
    await page.waitForLoadState("networkidle");
    check(/B\s*dcp_hsdp/.test(await page.locator("section[aria-label=Comparison]").textContent()), "B is another");
  });
  pages.stop();
  await test("another B chosen while the first waits for the second file of the module stays", () => waitingForRest(page, url));
  await page.goto(url);
  await test("an optimizer asked for as the checkpoint closes is the next one's", async () => {
    await openSample(page, "broken_dcp_hole");
    await page.evaluate(() => {
      document.getElementById("tab-optimizer").click();
      return new Promise((resolve) => setTimeout(resolve)).then(() => document.querySelector(".brand").click());
    });
    await openSample(page, "torch_train_state");
    await goTo(page, "Optimizer");
    await page.locator(".fine", { hasText: "all complete" }).waitFor();
  });
}

async function testEnding(page, url) {
  await test("opening by ranges is cancelled while a range is waited for", () => onHeldSite(page, url, async (site) => {
    site.hold(2);
    await page.getByRole("button", { name: "Open URL" }).click();
    await site.waits();
    await page.getByRole("button", { name: "Cancel" }).click();
    await page.locator(".start").waitFor();
    site.release();
    await openSample(page, "dcp_fsdp2");
    check(await title(page) === "dcp_fsdp2", await title(page));
  }));
  await test("checking every byte is cancelled, and can be done again", () => onHeldSite(page, url, async (site) => {
    await beginCheck(page, site);
    await page.locator(".job").waitFor();
    const place = () => page.locator("#panel").evaluate((e) => e.getBoundingClientRect().top), during = await place();
    await page.getByRole("button", { name: "Cancel" }).click();
    await page.locator(".job").waitFor({ state: "detached" });
    check(await place() === during, "what is done in the meantime moves the page under the pointer");
    check(await page.locator(".trouble").count() === 0, "cancelling is an error");
    site.release();
    await checkEveryByte(page);
    await page.locator(".view", { hasText: "Every byte was checked" }).waitFor();
  }));
  await test("the page is usable while every byte is checked, and closing ends the check", () => onHeldSite(page, url, async (site) => {
    await beginCheck(page, site);
    await goTo(page, "Contents");
    await page.getByLabel("Filter").fill("weight");
    await page.locator(".filter [role=status][aria-busy=false]", { hasText: "match" }).waitFor();
    await home(page);
    check(await page.locator(".job").count() === 0, "the check goes on");
    site.release();
  }));
  await test("comparing values is cancelled, another B is compared", async () => {
    await page.goto(url);
    await openSample(page, "dcp_fsdp2");
    await goTo(page, "Compare");
    await page.locator(".samples button", { hasText: "dcp_tp_fsdp2" }).click();
    await page.locator(".current[aria-busy=false] .verdict-line", { hasText: "values not compared yet" }).waitFor();
    await page.evaluate(() => {
      const click = (text) => [...document.querySelectorAll("button")].find((b) => b.textContent.startsWith(text)).click();
      click("Values");
      click("Sharding");
      click("Values");
      click("Another B");
    });
    await page.locator(".samples button", { hasText: "dcp_hsdp" }).click();
    await page.getByRole("button", { name: /^Values/ }).click();
    await page.locator(".current[aria-busy=false] .verdict-line", { hasText: "values included" }).waitFor();
    check(/B\s*dcp_hsdp/.test(await page.locator("section[aria-label=Comparison]").textContent()), "B is another");
    check(await page.locator(".trouble").count() === 0, "an error is shown");
  });
}

async function testTrouble(page, url) {
  await test("a worker that broke says so, and the checkpoint opens again", async () => {
    await page.goto(url);
    await openSample(page, "dcp_fsdp2");
    await page.workers()[0].evaluate(() => { setTimeout(() => { throw new Error("planted"); }); });
    await page.locator(".trouble", { hasText: "planted" }).waitFor();
    await page.getByRole("button", { name: "Open again" }).click();
    await page.locator(".trouble").waitFor({ state: "detached" });
    await page.locator(".window .row .text").first().waitFor();
    check(await title(page) === "dcp_fsdp2", await title(page));
  });
  await test("a file that changed while it was open: a message, and the page goes on", async () => {
    const directory = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-web-")), own = path.join(directory, "model.safetensors");
    try {
      fs.copyFileSync(path.join(samples, "safetensors_index/model-00001-of-00003.safetensors"), own);
      await home(page);
      await pick(page, own);
      await page.locator(ENTRIES, { hasText: "bias" }).first().click();
      await page.locator("table.values").waitFor();
      fs.truncateSync(own, fs.statSync(own).size - 1);
      await page.getByLabel("Slice").fill("0");
      await page.getByRole("button", { name: "Show values" }).click();
      await page.locator("aside .trouble", { hasText: "Code: input/output" }).waitFor();
      await goTo(page, /^Problems/);
      await checkEveryByte(page);
      await page.locator(".page > .trouble", { hasText: "Drop the files again" }).waitFor();
      await openSample(page, "dcp_fsdp2");
      check(await page.locator(".trouble").count() === 0, "the trouble stayed");
    } finally {
      fs.rmSync(directory, { recursive: true });
    }
  });
  await test("a URL that is none, and a site that answers with another part, are told", async () => {
    for (const [text, says] of [["http://", "is not a URL"], ["javascript:alert(1)", "begins with https: or http:"], ["nothing-here.safetensors", "answered 404"]]) {
      await page.goto(`${url}remote.html`);
      await page.getByLabel(/^URL/).fill(text);
      await page.getByRole("button", { name: "Open URL" }).click();
      await page.locator(".trouble", { hasText: says }).waitFor();
    }
  });
}

/** A tab in the background has no frames, and its timers may be late. */
async function testWithoutFrames(url, context) {
  await test("what is told before the first frame is shown", async () => {
    const tab = await context.newPage();
    try {
      await tab.addInitScript(() => {
        const wait = setTimeout;
        globalThis.requestAnimationFrame = () => 0;
        globalThis.setTimeout = (body, ms = 0, ...rest) => (ms > 0 && ms < 1000 ? 0 : wait(body, ms, ...rest));
      });
      await tab.goto(`${url}?url=nothing-here.safetensors`);
      await tab.locator(".trouble", { hasText: "answered 404" }).waitFor();
    } finally {
      await tab.close();
    }
  });
}

async function testTyping(page, url) {
  await test("the rows are those of the filter's last text, however fast it is typed", async () => {
    await page.goto(url);
    await openSample(page, "dcp_tp_fsdp2");
    const typed = ["", "b", "bi", "bia", "bias", "", "**.weight", "kind:object", "weight kind:tensor", "kind:object", "bias"];
    await page.evaluate((texts) => {
      const input = document.querySelector(".filter input");
      for (const text of texts) {
        input.value = text;
        input.dispatchEvent(new Event("input", { bubbles: true }));
      }
    }, typed);
    await page.locator(".filter [role=status][aria-busy=false]", { hasText: "match" }).waitFor();
    const last = await rowsOf(page);
    check(last.length > 0 && last.some((r) => /bias/.test(r)) && !last.some((r) => /^\S*weight/.test(r)), last.join("\n"));
  });
  await test("a found entry is scrolled to, whatever redraws the page meanwhile", async () => {
    await page.getByLabel("Filter").fill("kind:object");
    await goTo(page, "Files");
    await goTo(page, "Contents");
    await page.getByLabel("Filter").fill("");
    await page.locator(".grid").press("End");
    await page.locator(".row.cursor").waitFor();
  });
}

/** Writes a safetensors file with a small tensor and a large one, whose end no reading ahead reaches. */
function writeLarge(at) {
  const large = 32 << 20, header = Buffer.from(JSON.stringify({ small: { dtype: "F32", shape: [1], data_offsets: [0, 4] }, large: { dtype: "F32", shape: [large / 4], data_offsets: [4, 4 + large] } })), size = Buffer.alloc(8);
  size.writeBigUInt64LE(BigInt(header.length));
  fs.writeFileSync(at, Buffer.concat([size, header, Buffer.alloc(4 + large)]));
}

/** The open checkpoint does not answer, because its worker waits for bytes, until another one has replaced it. */
async function testReplacing(page, url, context) {
  const scratch = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-races-")), file = path.join(scratch, "large.safetensors"), files = [path.join(samples, "torch_train_state")];
  writeLarge(file);
  const site = await heldSite(file), session = await context.newCDPSession(page);
  try {
    for (const [view, done] of [["Optimizer", page.locator(".fine", { hasText: "all complete" })], ["Names", page.locator("[aria-label=Map] option", { hasText: "llama" }).first()]]) {
      await test(`${view}, which was opened before another checkpoint replaced the open one, is that one's`, async () => {
        await page.goto(`${url}remote.html`);
        await page.getByLabel(/^URL/).fill(site.url);
        await page.getByRole("button", { name: "Open URL" }).click();
        await page.locator(".window .row", { hasText: "large" }).click();
        await page.getByLabel("Slice").fill("8388000:");
        site.hold(30 << 20);
        await page.getByRole("button", { name: "Show values" }).click();
        await site.waits();
        await goTo(page, view);
        await page.locator(`section[aria-label=${view}]`).waitFor();
        for (const type of ["dragEnter", "dragOver", "drop"]) await session.send("Input.dispatchDragEvent", { type, x: 640, y: 500, data: { items: [], files, dragOperationsMask: 1 } });
        await page.locator(".top h1", { hasText: "torch_train_state" }).waitFor();
        await done.waitFor({ state: "attached" });
        site.release();
      });
    }
  } finally {
    await session.detach();
    site.stop();
    fs.rmSync(scratch, { recursive: true });
  }
}

/** Enter follows the text at once, before what is listed for it can arrive. */
async function testPalette(page) {
  await test("Enter goes to what was typed last, not to what is still listed", async () => {
    await openSample(page, "dcp_fsdp2");
    await page.keyboard.press("Control+k");
    const field = page.getByRole("combobox", { name: "Go to" }), options = page.getByRole("option");
    await field.fill("norm");
    await options.filter({ hasText: /norm/ }).first().waitFor();
    await field.evaluate((input) => {
      Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set.call(input, "few");
      input.dispatchEvent(new Event("input", { bubbles: true }));
      input.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true, cancelable: true }));
    });
    await page.locator("aside h2", { hasText: "few" }).waitFor();
  });
  await test("what is typed right after Ctrl K goes into the field", async () => {
    const typed = await page.evaluate(async () => {
      document.querySelector(".grid").focus();
      document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key: "k", ctrlKey: true, bubbles: true, cancelable: true }));
      for (let i = 0; i < 20; i++) await null; // the page draws in microtasks
      return document.activeElement.ariaLabel;
    });
    check(typed === "Go to", `“${typed}” has the focus`);
    await page.keyboard.press("Escape");
    await page.getByRole("dialog").waitFor({ state: "detached" });
  });
}

/** Chooses a JSON file that the page reads only when the function that this returns is called. */
async function chooseHeld(page, button, name) {
  await page.evaluate(() => {
    const { text } = Blob.prototype, released = new Promise((resolve) => { globalThis.releaseFile = resolve; });
    globalThis.isRead = false;
    Blob.prototype.text = async function () {
      Blob.prototype.text = text;
      await released;
      const read = await text.call(this);
      setTimeout(() => { globalThis.isRead = true; }); // after everything that follows from the text
      return read;
    };
  });
  const [chooser] = await Promise.all([page.waitForEvent("filechooser"), page.getByRole("button", { name: button }).click()]);
  await chooser.setFiles({ name, mimeType: "application/json", buffer: Buffer.from("{}") });
  return async () => {
    await page.evaluate(() => globalThis.releaseFile());
    await page.waitForFunction(() => globalThis.isRead);
  };
}

/** What is chosen while a file is read stays chosen once the file is there, and what the file would replace then is not replaced. */
async function testChoosing(page) {
  const map = page.locator("[role=group][aria-label=Map]"), inAdvanced = page.locator(".advanced");
  const CASES = [
    ["Optimizer", "the module tree", async () => undefined, page.locator("section[aria-label='Another form']").getByLabel("Form"), "to-fqn"],
    ["Convert…", "the module tree", async () => { await showFields(page); await inAdvanced.getByLabel("Remove wrapper prefixes").check(); }, inAdvanced.getByLabel("Floating-point tensors become"), "bfloat16"],
    ["Names", "the map file", async () => map.locator("select").selectOption("torchtitan-llama3"), map.getByLabel("Apply the map backwards"), true],
  ];
  for (const [view, what, prepare, field, value] of CASES) {
    await test(`${view.replace("…", "")}: a choice made while ${what} is read stays`, async () => {
      await openSample(page, "dcp_fsdp2");
      await goTo(page, view);
      await prepare();
      const release = await chooseHeld(page, `Choose ${what}…`, "chosen.json");
      await (value === true ? field.check() : field.selectOption(value));
      await release();
      await page.getByRole("button", { name: "chosen.json", exact: true }).waitFor();
      check(value === true ? await field.isChecked() : await field.inputValue() === value, `${value} was lost`);
    });
  }
}

/** Drops files and directories in the middle of the page. */
async function dropperOf(page, context) {
  const session = await context.newCDPSession(page);
  return async (...files) => {
    for (const type of ["dragEnter", "dragOver", "drop"]) await session.send("Input.dispatchDragEvent", { type, x: 640, y: 500, data: { items: [], files, dragOperationsMask: 1 } });
  };
}

/** Another checkpoint replaces the open one while something is awaited: what is awaited does not reach it. */
async function testNext(page, url, drop, broken) {
  const next = async () => {
    await drop(path.join(samples, "torch_train_state"));
    await page.locator(".top h1", { hasText: "torch_train_state" }).waitFor();
  };
  await test("the overview of a checkpoint that replaced another one is read, although the other one's never came", async () => {
    await page.goto(url);
    await page.locator(".samples button").first().waitFor();
    await page.evaluate(() => {
      const post = Worker.prototype.postMessage;
      Worker.prototype.postMessage = function (message, ...rest) {
        if (message.kind !== "about") return post.call(this, message, ...rest);
        Worker.prototype.postMessage = post;
        return void (globalThis.isLost = true);
      };
    });
    await page.locator(".samples button", { hasText: "dcp_fsdp2" }).first().click();
    await page.waitForFunction(() => globalThis.isLost);
    await next();
    await page.locator("section[aria-label='Largest tensors'] li").first().waitFor();
  });
  await test("an error of the dialog that asks where to write is not said of the next checkpoint", async () => {
    await openSample(page, "dcp_fsdp2");
    await page.evaluate(() => { globalThis.showDirectoryPicker = globalThis.showSaveFilePicker = () => new Promise((_, reject) => { globalThis.refuse = () => reject(new DOMException("it was refused", "NotAllowedError")); }); });
    await goTo(page, "Convert…");
    await page.getByRole("button", { name: "Save…", exact: true }).click();
    await page.waitForFunction(() => globalThis.refuse);
    await next();
    await page.evaluate(() => globalThis.refuse());
    await page.locator("section[aria-label=Save] table").waitFor();
    check(await page.locator(".trouble").count() === 0, await page.locator(".trouble").allTextContents().then(String));
  });
  await test("an entry that was searched for as the checkpoint closed, and a group that was opened, are no errors", async () => {
    for (const selector of ["section[aria-label='Largest tensors'] button", ".twist:not(.none)"]) {
      await openSample(page, "dcp_fsdp2");
      await page.locator(selector).first().waitFor();
      await page.evaluate((what) => { document.querySelector(what).click(); document.querySelector(".brand").click(); }, selector);
      await page.locator(".samples button").first().waitFor();
    }
    check(broken.length === 0 && await page.locator(".trouble").count() === 0, broken.join("; "));
  });
  await test("a map file that is read when another checkpoint is open is not that one's map", async () => {
    await openSample(page, "dcp_fsdp2");
    await goTo(page, "Names");
    const release = await chooseHeld(page, "Choose the map file…", "late.json");
    await next();
    await release();
    check(await page.getByRole("button", { name: "Choose the map file…" }).count() === 1, "it is");
  });
}

/** Of two requests for the same place, the later one is shown. */
async function testLatest(page) {
  const heading = page.locator("aside h2"), row = (name) => page.locator(".window .row", { has: page.locator(".text", { hasText: new RegExp(`^${name}$`) }) }).first();
  await test("an entry that is found late does not replace the one that was chosen in the meantime", async () => {
    await openSample(page, "dcp_tp_fsdp2");
    const link = page.locator("section[aria-label='Largest tensors'] button").first(), name = await link.textContent();
    await holding(page, "reveal", () => link.click(), async () => {
      await row("emb.weight").click();
      await heading.filter({ hasText: "emb.weight" }).waitFor();
    });
    await page.getByLabel("Filter").fill("weight");
    await page.locator(".filter [role=status][aria-busy=false]", { hasText: "match" }).waitFor(); // answered after what was held
    check((await heading.textContent()).endsWith("emb.weight") && !name.endsWith("emb.weight"), `${await heading.textContent()} is shown`);
  });
  await test("the error of a slice is not shown with the values of a later one", async () => {
    const field = page.getByLabel("Slice", { exact: true }), show = page.getByRole("button", { name: "Show values" });
    await page.locator("aside table.values").waitFor();
    await holding(page, "slice", async () => { await field.fill("7777"); await show.click(); }, async () => { await field.fill("0:1,:"); await show.click(); });
    await show.waitFor({ state: "detached" });
    check(await page.locator("aside .trouble").count() === 0, await page.locator("aside .trouble").allTextContents().then(String));
  });
  await test("groups that open around an entry which is found late are open in the list, too", async () => {
    await openSample(page, "dcp_tp_fsdp2");
    const all = await page.locator(".grid").getAttribute("aria-rowcount"), link = page.locator("section[aria-label='Largest tensors'] button").first(), [group] = (await link.textContent()).split(".");
    await row(group).locator(".twist").click();
    await page.locator(`.grid:not([aria-rowcount="${all}"])`).waitFor();
    await holding(page, "reveal", () => link.click(), () => page.locator(ENTRIES).first().click());
    await page.locator(`.grid[aria-rowcount="${all}"]`).waitFor();
  });
  await test("a map that is chosen while a file is read is not replaced by the file", async () => {
    await openSample(page, "dcp_fsdp2");
    await goTo(page, "Names");
    const map = page.locator("[role=group][aria-label=Map] select"), release = await chooseHeld(page, "Choose the map file…", "late.json");
    await map.selectOption("torchtitan-llama3");
    await release();
    check(await map.inputValue() === "torchtitan-llama3", await map.inputValue());
  });
  await test("canonical names are not those of the map before", async () => {
    await chooseMap(page, "");
    await page.locator("[aria-label=Names] > [role=status]").waitFor();
    check(await shownAfter(page, "torchtitan-llama3", "[aria-label=Names] > [role=status]") === 0, "they are shown as the new map's");
  });
}

const chooseMap = (page, name) => page.locator("[role=group][aria-label=Map] select").selectOption(name);

/** Chooses a map, and counts the elements that match in the same task, before anything can be awaited. */
const shownAfter = (page, name, selector) => page.evaluate(async ([map, what]) => {
  const select = document.querySelector("[role=group][aria-label=Map] select");
  select.value = map;
  select.dispatchEvent(new Event("change", { bubbles: true }));
  for (let i = 0; i < 20; i++) await null; // the page draws in microtasks
  return document.querySelectorAll(what).length;
}, [name, selector]);

async function testComparisons(page) {
  const comparison = page.locator("section[aria-label=Comparison]"), verdict = (text) => comparison.locator(".current[aria-busy=false] .verdict-line", { hasText: text }).waitFor(), choose = (name) => page.locator(".samples button", { hasText: name }).first().click();
  const button = (name) => page.getByRole("button", { name });
  await test("values that are wanted before the first differences are there are compared, whatever else is switched on", async () => {
    await openSample(page, "dcp_fsdp2");
    await goTo(page, "Compare");
    await holding(page, "diff", () => choose("dcp_hsdp"), async () => {
      await button(/^Values/).click();
      await button("Sharding").click();
    });
    await verdict("values included");
  });
  await test("the differences are not stated of a map that was only just chosen", async () => {
    await button("Map of A").click();
    await page.locator("[role=group][aria-label=Map] option", { hasText: "llama" }).first().waitFor({ state: "attached" });
    check(await shownAfter(page, "torchtitan-llama3", ".current[aria-busy=false] .verdict-line") === 0, "they are");
    await chooseMap(page, "");
    await verdict("values included");
  });
  await test("an entry that is being read is not said to be missing in B", async () => {
    await holding(page, "entryOfB", () => page.locator(ENTRIES).first().click(), async () => {
      await page.getByRole("region", { name: "B of the comparison" }).getByText("Reading …").waitFor();
    });
    await page.getByRole("region", { name: "B of the comparison" }).locator("dl").first().waitFor();
    await page.getByRole("button", { name: "Close entry" }).click();
  });
  await test("a checkpoint that is added as B is replaced is not a column of the next comparison", async () => {
    await button("Layer by layer").click();
    await button("Add a checkpoint").click();
    await holding(page, "open", () => choose("dcp_tp_fsdp2"), async () => {
      await button("Another B").click();
      await choose("dcp_hsdp");
    });
    await verdict("values not compared yet");
    await page.locator(".job").waitFor({ state: "detached" });
    if (!await page.locator("ul[aria-label=Columns]").count()) await button("Layer by layer").click();
    check(await page.locator("ul[aria-label=Columns] li").count() === 2, (await page.locator("ul[aria-label=Columns] li").allTextContents()).join());
  });
}

export async function testRaces({ page, url, context, broken }) {
  await page.goto(url);
  await testOpenings(page, url);
  await testEnding(page, url);
  await testTrouble(page, url);
  await testWithoutFrames(url, context);
  await testTyping(page, url);
  await testPalette(page);
  await testChoosing(page);
  await testLatest(page);
  await testComparisons(page);
  await testNext(page, url, await dropperOf(page, context), broken);
  await testReplacing(page, url, context);
  await test("no race breaks the page", () => check(broken.length === 0, broken.join("; ")));
}
