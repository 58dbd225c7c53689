/** The package while the module waits for a file: other calls, sinks and sources that fail, in an engine that can suspend it. */
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { root, samples, serve } from "./browser.mjs";
import { check, test } from "../support/harness.mjs";

/** Makes a directory to serve: the package's scripts, both files of the module, and one sample. */
function packageDirectory(sample) {
  const directory = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-suspended-"));
  for (const name of fs.readdirSync(path.join(root, "wasm")).filter((n) => n.endsWith(".js"))) fs.copyFileSync(path.join(root, "wasm", name), path.join(directory, name));
  for (const name of ["tessera.wasm", "tessera-writers.wasm"]) fs.copyFileSync(path.join(root, "build/wasm/bin", name), path.join(directory, name));
  fs.cpSync(path.join(samples, sample), path.join(directory, sample), { recursive: true });
  fs.writeFileSync(path.join(directory, "index.html"), "<!doctype html><title>suspended</title>");
  return { directory, names: fs.readdirSync(path.join(directory, sample)) };
}

/** Runs in the page: opens the sample with sources that fetch, and returns what the tests need. */
async function prepare({ sample, names }) {
  const { Tessera } = await import("/tessera.js");
  const tessera = await Tessera.load("/tessera.wasm");
  await tessera.prepare("/tessera-writers.wasm");
  const listing = await Promise.all(names.map(async (name) => ({ name, bytes: new Uint8Array(await (await fetch(`/${sample}/${name}`)).arrayBuffer()) })));
  globalThis.opened = (more = {}) => tessera.open(listing.map(({ name, bytes }) => ({ name, size: bytes.length, read: (at, into) => into.set(bytes.subarray(at, at + into.length)), ...more })));
  globalThis.silent = { create() {}, write() {}, finish() {} };
  globalThis.spin = async (call) => {
    for (let i = 0; i < 40; i++) {
      await null;
      call();
    }
  };
  return typeof WebAssembly.Suspending === "function";
}

async function callsWhileFetching() {
  let isFetching = false, calls = 0, refused = 0;
  const other = opened();
  const call = () => {
    try {
      other.find("x");
      calls += isFetching ? 1 : 0;
    } catch (e) {
      refused += /another call is waiting/.test(e.message) ? 1 : 0;
    }
  };
  const copy = (file) => function (at, into) { isFetching = false; return file(at, into); };
  const checkpoint = opened({ fetch: async () => {
    isFetching = true;
    void spin(call);
    for (let i = 0; i < 5; i++) await null;
  } });
  for (const file of checkpoint.m.stores.values()) for (const f of file) f.read = copy(f.read);
  await checkpoint.convert({ to: "dcp" }, silent);
  return { calls, refused };
}

async function sinkErrorAmongCalls() {
  const other = opened(), mine = new Error("mine");
  const e = await opened().convert({ to: "dcp" }, { ...silent, write() {
    void spin(() => other.find("x"));
    throw mine;
  } }).catch((error) => error);
  return e === mine ? "mine" : String(e);
}

async function rejectedWhileFetching() {
  const unhandled = [], note = (event) => unhandled.push(String(event.reason));
  addEventListener("unhandledrejection", note);
  const wait = () => new Promise((resolve) => { setTimeout(resolve, 20); });
  const e = await opened({ fetch: wait }).convert({ to: "dcp" }, { ...silent, write: () => Promise.reject(new Error("full")) }).catch((error) => error);
  await wait();
  removeEventListener("unhandledrejection", note);
  return { unhandled, message: e?.message };
}

async function throwingPrefetch() {
  const checkpoint = opened({ fetch: async () => {}, prefetch() { throw new Error("no prefetch"); } });
  const result = await checkpoint.convert({ to: "dcp" }, silent).catch(String);
  return { result: result.schema ?? result, entries: checkpoint.inspect().entries.length };
}

export async function testSuspended({ page }) {
  const sample = "dcp_fsdp2", { directory, names } = packageDirectory(sample), server = await serve(directory);
  try {
    await page.goto(server.url);
    const canWait = await page.evaluate(prepare, { sample, names });
    await test("the engine can suspend the module", () => check(canWait, "it cannot"));
    await test("no other call is made between a fetch and its read", async () => {
      const { calls, refused } = await page.evaluate(callsWhileFetching);
      check(calls === 0 && refused > 0, `${calls} calls were made, ${refused} were refused`);
    });
    await test("an error of the sink is thrown as it is, whatever other calls are made meanwhile", async () => {
      const e = await page.evaluate(sinkErrorAmongCalls);
      check(e === "mine", e);
    });
    await test("a sink's promise that is rejected while the module waits is handled", async () => {
      const { unhandled, message } = await page.evaluate(rejectedWhileFetching);
      check(message === "full" && unhandled.length === 0, `${message}; unhandled: ${unhandled}`);
    });
    await test("a source whose prefetch throws is read all the same", async () => {
      const { result, entries } = await page.evaluate(throwingPrefetch);
      check(result === "tessera.convert/1" && entries > 0, `${result}, ${entries} entries`);
    });
  } finally {
    server.stop();
    fs.rmSync(directory, { recursive: true });
  }
}
