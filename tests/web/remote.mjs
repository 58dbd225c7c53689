/** Checkpoints at URLs of another origin: what is requested, how often, and what the page reports if that does not work. */
import fs from "node:fs";
import http from "node:http";
import os from "node:os";
import path from "node:path";
import { spawnSync } from "node:child_process";
import { ENTRIES, pick, root, samples } from "./browser.mjs";
import { check, skip, test } from "../support/harness.mjs";
import { diffOf } from "./files.mjs";
import { goTo } from "./views.mjs";

const python = path.join(root, ".local/venv/bin/python");

/** A server for the files below a directory, with or without ranges, and open to other sites or not. `asked` lists the
 *  requests. */
function site(directory, { ranges = true, cors = true } = {}) {
  const asked = [];
  const server = http.createServer((request, response) => {
    const allow = cors ? { "Access-Control-Allow-Origin": "*", "Access-Control-Allow-Headers": "Range", "Access-Control-Expose-Headers": "Content-Range" } : {};
    const file = path.join(directory, decodeURIComponent(request.url)), range = ranges && /^bytes=(\d+)-(\d+)$/.exec(request.headers.range ?? "");
    if (request.method === "OPTIONS" || !fs.existsSync(file)) return void response.writeHead(request.method === "OPTIONS" ? 204 : 404, allow).end();
    const bytes = fs.readFileSync(file), [from, to] = range ? [Number(range[1]), Math.min(Number(range[2]), bytes.length - 1)] : [0, bytes.length - 1];
    asked.push({ name: path.basename(file), bytes: to - from + 1 });
    const how = range ? { "Content-Range": `bytes ${from}-${to}/${bytes.length}` } : { "Content-Length": bytes.length };
    return void response.writeHead(range ? 206 : 200, { ...allow, ...how }).end(bytes.subarray(from, to + 1));
  });
  return new Promise((resolve) => server.listen(0, "127.0.0.1", () => resolve({ url: `http://127.0.0.1:${server.address().port}/`, asked, stop: () => { server.closeAllConnections(); server.close(); } })));
}

/** Opens `name` of a site in the page, and checks the result. */
async function onSite(page, url, { directory, name, ...traits }, body) {
  const there = await site(directory, traits);
  try {
    await page.goto(`${url}remote.html`);
    await page.getByLabel(/^URL/).fill(there.url + name);
    await page.getByRole("button", { name: "Open URL" }).click();
    await body(there);
  } finally {
    there.stop();
  }
}

const firstRow = (page) => page.locator(".window .row .text").first().waitFor();

async function testOtherSites(page, url) {
  const on = (traits, body) => onSite(page, url, { directory: path.join(samples, "safetensors_index"), name: "model-00001-of-00003.safetensors", ...traits }, body);
  await test("the ordinary page reads from no other site, and hands the URL to the page that may", async () => {
    await page.goto(url);
    await page.getByLabel(/^URL/).fill("http://127.0.0.1:1/model.safetensors");
    await page.getByRole("button", { name: "Open URL" }).click();
    await page.waitForURL(/remote\.html\?url=/);
  });
  await test("a URL of another site opens with one click on the ordinary page", () => on({}, async (there) => {
    await page.goto(url);
    await page.getByLabel(/^URL/).fill(`${there.url}model-00001-of-00003.safetensors`);
    await page.getByRole("button", { name: "Open URL" }).click();
    await page.waitForURL(/remote\.html/);
    await firstRow(page);
  }));
  await test("another site's file is read by ranges", () => on({}, () => firstRow(page)));
  await test("a site that allows no others is refused with what to do", () => on({ cors: false }, () => page.locator(".trouble", { hasText: "Download the file and drop it here" }).waitFor()));
  await test("a whole download is asked for first", () => on({ ranges: false }, async () => {
    await page.locator(".url .note", { hasText: "would be downloaded" }).waitFor();
    check(await page.locator(".window .row").count() === 0, "it was opened unasked");
    await page.getByRole("button", { name: "Download all of it" }).click();
    await firstRow(page);
  }));
}

/** Opening costs requests and bytes. The limits are those of the project's targets. */
async function testCosts(page, url, directory) {
  await test("a torch.save file of 389 records opens with few requests, and a value with one more", () => onSite(page, url, { directory, name: "records.pt" }, async ({ asked }) => {
    await firstRow(page);
    await page.getByText("383 tensors").first().waitFor();
    const opened = asked.length;
    check(opened <= 6 && asked.reduce((n, a) => n + a.bytes, 0) < 300_000, JSON.stringify(asked));
    await page.getByLabel("Filter").fill("layers.251.w");
    await page.locator(".filter [role=status][aria-busy=false]", { hasText: /\b1 match\b/ }).waitFor();
    await page.locator(ENTRIES).click();
    await page.locator("section[aria-label=Values]", { hasText: "251.5" }).waitFor();
    check(asked.length <= opened + 2, JSON.stringify(asked.slice(opened)));
  }));
  await test("a DCP of 1,024 files opens with its metadata read once, and a byte of each file", () => onSite(page, url, { directory: path.join(directory, "dcp_1024"), name: ".metadata" }, async ({ asked }) => {
    await firstRow(page);
    await page.locator(".verdict").waitFor();
    const size = fs.statSync(path.join(directory, "dcp_1024/.metadata")).size, of = (isMetadata) => asked.filter((a) => (a.name === ".metadata") === isMetadata);
    check(of(true).reduce((n, a) => n + a.bytes, 0) <= 2 * size, JSON.stringify(of(true)));
    check(of(false).length === 1024 && of(false).every((a) => a.bytes === 1) && new Set(of(false).map((a) => a.name)).size === 1024, `${of(false).length} requests`);
  }));
}

/** Values of objects are shown where that costs no request. */
async function testObjects(page, url, directory) {
  await test("the rows of a torch.save file at a URL have the values of its objects, without a request", () => onSite(page, url, { directory, name: "objects.pt" }, async ({ asked }) => {
    await firstRow(page);
    await page.locator(".window .row", { hasText: "step" }).locator(".value", { hasText: "1001" }).waitFor();
    await page.locator("section[aria-label=Summary]", { hasText: "1001" }).waitFor();
    check(asked.reduce((sum, a) => sum + a.bytes, 0) < 400_000, JSON.stringify(asked));
  }));
  await test("an object of a DCP at a URL, which is a request, is read when it is chosen", () => onSite(page, url, { directory: path.join(directory, "dcp_objects"), name: ".metadata" }, async ({ asked }) => {
    await firstRow(page);
    await page.locator("section[aria-label=Summary] dt", { hasText: "values" }).waitFor(); // the overview asks for nothing more
    const opened = asked.length;
    await page.locator(".window .row", { hasText: "step" }).click();
    await page.locator("aside pre", { hasText: "1001" }).waitFor();
    check(opened <= 4 && asked.length <= opened + 1, JSON.stringify(asked));
  }));
}

/** The metadata of a DCP names its data files, wherever it is opened. */
async function testCompared(page, url) {
  const [a, b] = ["torch_ranks_tp_fsdp2", "dcp_tp_fsdp2"], button = (name) => page.getByRole("button", { name }), openUrl = async (name) => {
    await page.getByLabel(/^URL/).fill(`${url}${name}/`);
    await button("Open URL").click();
  };
  await test("values of a DCP at a URL are compared", async () => {
    await page.goto(url);
    await pick(page, path.join(samples, a));
    await firstRow(page);
    await goTo(page, "Compare");
    await openUrl(b);
    await button(/^Values/).click();
    const { summary } = diffOf(path.join(samples, a), path.join(samples, b), "--values");
    await page.locator(".current[aria-busy=false] .verdict-line", { hasText: `${summary.changed} changed, ${summary.added} only in B, ${summary.same} entry equal, values included.` }).waitFor();
  });
  await test("a DCP at a URL is a column of a series", async () => {
    await button("Layer by layer").click();
    await button("Add a checkpoint").click();
    await openUrl("dcp_hsdp");
    await page.locator(".columns li", { hasText: "dcp_hsdp" }).waitFor();
    const bytes = [a, b, "dcp_hsdp"].flatMap((name) => fs.readdirSync(path.join(samples, name)).map((file) => fs.statSync(path.join(samples, name, file)).size)).reduce((x, y) => x + y);
    check((await button(/^Read norms/).textContent()).includes(`reads ${(bytes / 1024).toFixed(1)} KiB`), await button(/^Read norms/).textContent());
    await button(/^Read norms/).click();
    await page.locator("table.series tbody td:nth-child(4)", { hasText: /^[\d.]+$/ }).first().waitFor();
  });
}

export async function testRemote({ page, url, broken }) {
  await testOtherSites(page, url);
  await testCompared(page, url);
  if (!fs.existsSync(python)) return skip("requests for checkpoints made by PyTorch", "there is no .local/venv");
  const scratch = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-remote-"));
  try {
    const p = spawnSync(python, [path.join(root, "tests/web/make_remote_checkpoints.py"), scratch], { encoding: "utf8" });
    check(p.status === 0, p.stderr);
    await testCosts(page, url, scratch);
    await testObjects(page, url, scratch);
  } finally {
    fs.rmSync(scratch, { recursive: true });
  }
  return test("none of these breaks the page", () => check(broken.length === 0, broken.join("; ")));
}
