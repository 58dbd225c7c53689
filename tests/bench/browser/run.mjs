#!/usr/bin/env node
/** Times one thing in Chromium, and prints it as JSON: {"wall": seconds, "cpu": of all of the browser's processes, "peak_mib": of the
 *  tab's processes}.
 *  Usage: run.mjs SIDE A [B]
 *    deep A, diff A B, convert A   what the page's worker does, with the module in web/dist
 *    read METHOD WORKERS A [B]     the browser's own read of the same bytes: METHOD is arrayBuffer, stream, sync or byob
 *    copy METHOD WORKERS A         the same, written to one file of the origin's private file system */
import fs from "node:fs";
import http from "node:http";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { launch, root } from "../../web/browser.mjs";

const here = path.dirname(fileURLToPath(import.meta.url)), assets = path.join(root, "web/dist/assets");
const TYPES = { ".js": "text/javascript", ".wasm": "application/wasm", ".html": "text/html" };
const TICKS = 100; // a second, in /proc
const asset = (pattern) => fs.readdirSync(assets).find((name) => pattern.test(name));

/** The bench's own page, and what web/build made. */
function serve() {
  const server = http.createServer((request, response) => {
    const name = path.basename(new URL(request.url, "http://x").pathname);
    const file = [here, assets].map((directory) => path.join(directory, name)).find((at) => name && fs.existsSync(at));
    response.writeHead(file ? 200 : 404, { "content-type": TYPES[path.extname(name)] ?? "text/plain", "cross-origin-opener-policy": "same-origin", "cross-origin-embedder-policy": "require-corp" });
    response.end(file ? fs.readFileSync(file) : "");
  });
  return new Promise((resolve) => server.listen(0, "127.0.0.1", () => resolve({ url: `http://127.0.0.1:${server.address().port}`, stop: () => server.close() })));
}

/** MiB of the processes that draw pages and run their workers, at most, until `stop`. */
function watchMemory() {
  let peak = 0;
  const look = () => {
    let sum = 0;
    for (const pid of fs.readdirSync("/proc").filter((n) => /^\d+$/.test(n))) {
      try {
        if (!fs.readFileSync(`/proc/${pid}/cmdline`, "utf8").includes("--type=renderer")) continue;
        sum += Number(/RssAnon:\s+(\d+)/.exec(fs.readFileSync(`/proc/${pid}/status`, "utf8"))?.[1] ?? 0);
      } catch { /* it has ended */ }
    }
    peak = Math.max(peak, sum / 1024);
  };
  const timer = setInterval(look, 50);
  return () => (clearInterval(timer), peak);
}

/** Seconds of all processes that this one started, and of those that they started. */
function cpuSeconds() {
  const processes = new Map();
  for (const pid of fs.readdirSync("/proc").filter((n) => /^\d+$/.test(n))) {
    try {
      const [, parent, ...rest] = fs.readFileSync(`/proc/${pid}/stat`, "utf8").replace(/^.*\) /s, "").split(" ");
      processes.set(Number(pid), { parent: Number(parent), ticks: Number(rest[9]) + Number(rest[10]) });
    } catch { /* it has ended */ }
  }
  const isOurs = (pid) => pid === process.pid || (processes.has(pid) && isOurs(processes.get(pid).parent));
  return [...processes].reduce((sum, [pid, { ticks }]) => sum + (pid !== process.pid && isOurs(pid) ? ticks : 0), 0) / TICKS;
}

const [side, ...given] = process.argv.slice(2);
const [method, workers] = side === "read" || side === "copy" ? [given.shift(), Number(given.shift())] : [];
const server = await serve(), browser = await launch();
try {
  const page = await browser.context.newPage();
  page.on("pageerror", (e) => console.error(e.message));
  await page.goto(`${server.url}/page.html`);
  for (const [i, target] of given.entries()) {
    const names = fs.statSync(target).isDirectory() ? fs.readdirSync(target, { recursive: true }).filter((name) => fs.statSync(path.join(target, name)).isFile()) : [""];
    await page.locator(`#files${i}`).setInputFiles(names.map((name) => path.join(target, name)));
  }
  const team = asset(/^team-.*\.js$/), worker = asset(/^worker-.*\.js$/), first = asset(/^tessera-[^w].*\.wasm$/), second = asset(/^tessera-writers-.*\.wasm$/);
  const stop = watchMemory(), before = cpuSeconds();
  const wall = await page.evaluate((job) => globalThis.measure(job), { side, method, workers, count: given.length, team, worker, first, second });
  console.log(JSON.stringify({ wall, cpu: cpuSeconds() - before, peak_mib: stop() }));
} finally {
  await browser.close();
  server.stop();
}
