/** The package in an engine with JavaScript Promise Integration: calls that wait for a source's `fetch` have the same results as calls
 *  that only read, and nothing else touches the module while they wait. */
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { root, samples, serve } from "./browser.mjs";
import { tessera } from "./files.mjs";
import { check, test } from "../support/harness.mjs";

const SAMPLES = ["dcp_fsdp2", "dcp_hsdp"];
const RANGES = { to: "safetensors", objects: "drop" };

/** In the page: what the tests share. The bytes that a source was asked to fetch cannot be read
 *  before that has succeeded. */
function prepare(listed) {
  const t = globalThis.tessera = {}, scripts = ["/tessera.js", "/tessera.wasm", "/tessera-writers.wasm"];
  t.load = async () => {
    const { Tessera } = await import(scripts[0]), module = await Tessera.load(scripts[1]);
    await module.prepare(scripts[2]);
    return module;
  };
  t.bytesOf = async (sample) => Promise.all(listed[sample].map(async (name) => [name, new Uint8Array(await (await fetch(`/${sample}/${name}`)).arrayBuffer())]));
  t.open = async (module, sample, { fetches = true, fails } = {}) => {
    const state = { fetched: 0, announced: [] };
    const files = (await t.bytesOf(sample)).map(([name, bytes]) => {
      let isPending = false;
      const read = (offset, into) => {
        if (isPending) throw new Error("these bytes were not fetched");
        into.set(bytes.subarray(offset, offset + into.length));
      };
      const wait = async () => {
        state.fetched++;
        isPending = true;
        await new Promise((resolve) => setTimeout(resolve));
        state.during?.();
        if (fails) throw new Error("the server is gone");
        isPending = false;
      };
      const prefetch = (ranges) => {
        state.announced.push(...ranges.map((range) => ({ ...range, name })));
        return fails ? Promise.reject(new Error("the server is gone")) : wait();
      };
      return { name, size: bytes.length, read, ...(fetches ? { fetch: wait, prefetch } : {}) };
    });
    return { checkpoint: module.open(files), state };
  };
  t.sink = () => {
    const sink = { calls: [], bytes: new Uint8Array(0) };
    return Object.assign(sink, {
      create: (name, size) => { sink.calls.push("create"); sink.bytes = new Uint8Array(size); },
      write: (name, offset, bytes) => { sink.bytes.set(bytes, offset); },
      finish: () => { sink.calls.push("finish"); },
      abort: () => { sink.calls.push("abort"); },
    });
  };
  t.errorOf = async (work) => { try { await work(); return "none"; } catch (e) { return e.message; } };
}

function makeSite(directory) {
  fs.writeFileSync(path.join(directory, "index.html"), "<!doctype html><title>waiting</title>");
  for (const name of fs.readdirSync(path.join(root, "wasm")).filter((n) => n.endsWith(".js"))) fs.copyFileSync(path.join(root, "wasm", name), path.join(directory, name));
  for (const name of ["tessera.wasm", "tessera-writers.wasm"]) fs.copyFileSync(path.join(root, "build/wasm/bin", name), path.join(directory, name));
  for (const sample of SAMPLES) fs.cpSync(path.join(samples, sample), path.join(directory, sample), { recursive: true });
}

async function testResults(page, directory) {
  await test("conversions that wait write what the command writes, also two at a time in one module", async () => {
    const written = await page.evaluate(async ([names, options]) => {
      const module = await tessera.load(), opened = await Promise.all(names.map((name) => tessera.open(module, name)));
      const sinks = opened.map(() => tessera.sink());
      await Promise.all(opened.map(({ checkpoint }, i) => checkpoint.convert(options, sinks[i])));
      return opened.map(({ state }, i) => ({ fetched: state.fetched, bytes: Array.from(sinks[i].bytes) }));
    }, [SAMPLES, RANGES]);
    written.forEach(({ fetched, bytes }, i) => {
      const out = path.join(directory, `${SAMPLES[i]}.safetensors`);
      tessera("convert", path.join(samples, SAMPLES[i]), out, "--to", "safetensors", "--objects", "drop");
      check(fetched > 3, `${fetched} ranges were fetched`);
      check(fs.readFileSync(out).equals(Buffer.from(bytes)), `${SAMPLES[i]} has other bytes`);
    });
  });
  await test("a check and a comparison that wait find what they find without waiting", async () => {
    const found = await page.evaluate(async (names) => {
      const results = [];
      for (const fetches of [true, false]) {
        const module = await tessera.load(), opened = [];
        for (const name of names) opened.push(await tessera.open(module, name, { fetches }));
        const [a, b] = opened.map(({ checkpoint }) => checkpoint), part = fetches ? await a.checkPartAsync(0, 2) : a.checkPart(0, 2);
        const diff = a.diff(b);
        while (fetches ? await diff.stepAsync() : diff.step());
        results.push({ text: JSON.stringify([Array.from(part), diff.result()]), fetched: opened[0].state.fetched });
      }
      return results;
    }, SAMPLES);
    check(found[0].fetched > 3 && found[1].fetched === 0, JSON.stringify(found));
    check(found[0].text === found[1].text, `${found[0].text} where ${found[1].text} was expected`);
  });
}

async function testAnnounced(page) {
  await test("items are announced before they are read, at both ends", async () => {
    const [ranges, sizes] = await page.evaluate(async ([name, options]) => {
      const module = await tessera.load(), { checkpoint, state } = await tessera.open(module, name);
      await checkpoint.convert(options, tessera.sink());
      return [state.announced, (await tessera.bytesOf(name)).map(([file, bytes]) => [file, bytes.length])];
    }, [SAMPLES[0], RANGES]);
    const ends = new Map(sizes);
    check(ranges.length > 3 && ranges.every(({ name, offset, size }) => /distcp$/.test(name) && size > 0 && offset + size <= ends.get(name)), JSON.stringify(ranges));
  });
}

async function testMeanwhile(page) {
  await test("calls that may read are refused while another one waits, and work afterwards", async () => {
    const [messages, rows, written] = await page.evaluate(async ([name, options]) => {
      const module = await tessera.load(), { checkpoint, state } = await tessera.open(module, name), seen = [], outline = checkpoint.outline();
      let listed = 0;
      state.during = () => {
        listed = outline.rows(0, 1).length;
        try { checkpoint.document("layout"); } catch (e) { seen.push(e.message); }
      };
      const sink = tessera.sink();
      await checkpoint.convert(options, sink);
      return [[...new Set(seen)], listed, sink.bytes.length > 0 && checkpoint.document("layout").length > 0];
    }, [SAMPLES[0], RANGES]);
    check(messages.length === 1 && /another call is waiting/.test(messages[0]), JSON.stringify(messages));
    check(rows === 1 && written, "what was listed or written is missing");
  });
  await test("a checkpoint that is closed while a conversion waits stays in memory until the step has ended", async () => {
    const [error, calls, open] = await page.evaluate(async ([name, options]) => {
      const module = await tessera.load(), { checkpoint, state } = await tessera.open(module, name), sink = tessera.sink();
      state.during = () => { state.during = undefined; checkpoint.close(); };
      const error = await tessera.errorOf(() => checkpoint.convert(options, sink));
      return [error, sink.calls, module.openCount];
    }, [SAMPLES[0], RANGES]);
    check(/no conversion is open/.test(error) && open === 0, `${error}; ${open} are open`);
    check(calls.at(-1) === "abort" && !calls.includes("finish"), String(calls));
  });
  await test("a conversion that is aborted while it waits ends with the reason, and only aborts the sink", async () => {
    const [error, calls] = await page.evaluate(async ([name, options]) => {
      const module = await tessera.load(), { checkpoint, state } = await tessera.open(module, name), sink = tessera.sink(), stop = new AbortController();
      state.during = () => stop.abort(new Error("enough"));
      return [await tessera.errorOf(() => checkpoint.convert({ ...options, signal: stop.signal }, sink)), sink.calls];
    }, [SAMPLES[0], RANGES]);
    check(error === "enough" && calls.at(-1) === "abort" && !calls.includes("finish"), `${error}; ${calls}`);
  });
  await test("bytes that cannot be fetched are reported as bytes that cannot be read, and the module can be used again", async () => {
    const [error, again] = await page.evaluate(async ([name, options]) => {
      const module = await tessera.load(), { checkpoint } = await tessera.open(module, name, { fails: true }), sink = tessera.sink();
      const error = await tessera.errorOf(() => checkpoint.convert(options, sink)), other = await tessera.open(module, name);
      return [error, await tessera.errorOf(() => other.checkpoint.convert(options, tessera.sink()))];
    }, [SAMPLES[0], RANGES]);
    check(/cannot be read.*\(these bytes were not fetched\)/.test(error) && again === "none", `${error}; ${again}`);
  });
}

export async function testWaiting({ page }) {
  const directory = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-waiting-"));
  makeSite(directory);
  const served = await serve(directory);
  try {
    await page.goto(served.url);
    await page.evaluate(prepare, Object.fromEntries(SAMPLES.map((name) => [name, fs.readdirSync(path.join(samples, name))])));
    await test("the engine can wait", async () => check(await page.evaluate(() => typeof WebAssembly.Suspending === "function"), "it has no WebAssembly.Suspending"));
    await testResults(page, directory);
    await testAnnounced(page);
    await testMeanwhile(page);
  } finally {
    served.stop();
    fs.rmSync(directory, { recursive: true });
  }
}
