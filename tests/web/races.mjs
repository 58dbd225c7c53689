/** Concurrent actions: the page shows the result of the latest request, in whatever order answers arrive. Gates hold answers
 *  back, so no test depends on speed. */
import fs from "node:fs";
import http from "node:http";
import os from "node:os";
import path from "node:path";
import { PATIENCE, pick, rowsOf, samples } from "./browser.mjs";
import { check, test } from "../support/harness.mjs";
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
    await page.locator(".verdict-line", { hasText: "values not compared yet" }).waitFor();
    pages.release();
    await page.waitForLoadState("networkidle");
    check(/B\s*dcp_hsdp/.test(await page.locator("section[aria-label=Comparison]").textContent()), "B is another");
  });
  pages.stop();
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
    await page.getByRole("button", { name: "Cancel" }).click();
    await page.locator(".job").waitFor({ state: "detached" });
    check(await page.locator(".trouble").count() === 0, "cancelling is an error");
    site.release();
    await checkEveryByte(page);
    await page.locator(".view", { hasText: "Every byte was checked" }).waitFor();
  }));
  await test("the page is usable while every byte is checked, and closing ends the check", () => onHeldSite(page, url, async (site) => {
    await beginCheck(page, site);
    await goTo(page, "Contents");
    await page.getByLabel("Filter").fill("weight");
    await page.locator(".filter [role=status]", { hasText: "match" }).waitFor();
    await home(page);
    check(await page.locator(".job").count() === 0, "the check goes on");
    site.release();
  }));
  await test("comparing values is cancelled, another B is compared", async () => {
    await page.goto(url);
    await openSample(page, "dcp_fsdp2");
    await goTo(page, "Compare");
    await page.locator(".samples button", { hasText: "dcp_tp_fsdp2" }).click();
    await page.locator(".verdict-line", { hasText: "values not compared yet" }).waitFor();
    await page.evaluate(() => {
      const click = (text) => [...document.querySelectorAll("button")].find((b) => b.textContent.startsWith(text)).click();
      click("Values");
      click("Sharding");
      click("Values");
      click("Another B");
    });
    await page.locator(".samples button", { hasText: "dcp_hsdp" }).click();
    await page.getByRole("button", { name: /^Values/ }).click();
    await page.locator(".verdict-line", { hasText: "values included" }).waitFor();
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
      await page.locator(".window .row:not(.group)", { hasText: "bias" }).first().click();
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
    await page.locator(".filter [role=status]", { hasText: "match" }).waitFor();
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

/** Chooses a JSON file that the page reads only when the function that this returns is called. */
async function chooseHeld(page, button, name) {
  await page.evaluate(() => {
    const { text } = Blob.prototype, released = new Promise((resolve) => { globalThis.releaseFile = resolve; });
    Blob.prototype.text = async function () { Blob.prototype.text = text; await released; return text.call(this); };
  });
  const [chooser] = await Promise.all([page.waitForEvent("filechooser"), page.getByRole("button", { name: button }).click()]);
  await chooser.setFiles({ name, mimeType: "application/json", buffer: Buffer.from("{}") });
  return async () => {
    await page.evaluate(() => globalThis.releaseFile());
    await page.getByRole("button", { name, exact: true }).waitFor();
  };
}

/** What is chosen while a file is read stays chosen once the file is there. */
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
      check(value === true ? await field.isChecked() : await field.inputValue() === value, `${value} was lost`);
    });
  }
}

export async function testRaces({ page, url, context, broken }) {
  await page.goto(url);
  await testOpenings(page, url);
  await testEnding(page, url);
  await testTrouble(page, url);
  await testTyping(page, url);
  await testChoosing(page);
  await testReplacing(page, url, context);
  await test("no race breaks the page", () => check(broken.length === 0, broken.join("; ")));
}
